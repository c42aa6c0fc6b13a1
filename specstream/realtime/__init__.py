"""The Realtime protocol without sockets: events, settings and items, for server and client."""
