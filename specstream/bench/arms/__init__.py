"""The arms of the experiment: ways to generate a reply, behind one interface."""
