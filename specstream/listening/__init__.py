"""Listening: audio to turns and transcripts, without sockets."""
