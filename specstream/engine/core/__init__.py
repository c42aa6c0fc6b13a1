"""The engine's own thread: which requests are served next, and one round of each step."""
