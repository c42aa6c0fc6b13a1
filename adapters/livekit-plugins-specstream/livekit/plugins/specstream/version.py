"""The version of this distribution; its first two numbers are those of the SDK that it needs."""

__all__ = ["__version__"]

__version__ = "0.3.0"
