"""The server: Realtime sessions, the demo page, metrics; keys and limits."""
