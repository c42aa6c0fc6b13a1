"""One Realtime session: its socket, microphone, conversation and responses."""
