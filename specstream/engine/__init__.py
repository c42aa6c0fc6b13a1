"""The synchronous engine: one thread, no asyncio."""
