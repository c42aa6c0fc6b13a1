"""Learning in service: trains the draft on finished replies while the engine has no other work."""
