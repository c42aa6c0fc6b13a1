"""A stage behind a WebSocket: the protocol, an adapter's server, and the stage that stands for it."""
