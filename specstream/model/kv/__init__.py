"""Key-value caches, which can be rolled back to any position."""

from specstream.model.kv.base import KVCache

__all__ = ["KVCache"]
