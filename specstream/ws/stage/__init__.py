"""The stage protocol (``specstream.stage.v1``): adapters that run behind a WebSocket of their own."""
