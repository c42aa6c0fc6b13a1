"""A client of the Realtime server."""
