"""WebSockets: the Realtime protocol for clients, the stage protocol for adapters."""
