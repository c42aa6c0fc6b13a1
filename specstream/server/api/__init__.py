"""The HTTP API in OpenAI's shapes."""
