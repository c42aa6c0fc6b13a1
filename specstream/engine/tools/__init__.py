"""Tool calls, told apart from the reply while both are generated."""
