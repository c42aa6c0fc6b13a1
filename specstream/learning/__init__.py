"""Learning in service: the draft learns from finished replies while nobody waits for the engine."""
