"""Storage of keys and values: absolute rollback for every model."""

from specstream.model.kv.base import KVCache

__all__ = ["KVCache"]
