"""The synchronous engine: all of its work runs on one thread, without asyncio."""
