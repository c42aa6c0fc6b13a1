"""The server of the OpenAI Realtime protocol: its frames, a connection, its session, its responses."""
