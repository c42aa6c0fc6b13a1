"""The arms of the experiment: ways of getting a reply, all with the same face."""
