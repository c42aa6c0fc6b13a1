"""Tries whether the Hugging Face Hub can be reached: its client would retry for a minute."""

from __future__ import annotations

import os
import socket
from urllib.parse import urlsplit

__all__ = ["try_hub"]


def try_hub(timeout_s: float) -> None:
    """Connect to the Hub and disconnect.

    Nothing is tried where a proxy is set: only a real request shows whether the proxy works.

    Raises:
        OSError: the Hub can't be reached.
    """
    if any(key.lower().endswith("_proxy") for key in os.environ):
        return
    from huggingface_hub import constants

    address = urlsplit(constants.ENDPOINT)
    port = address.port or (80 if address.scheme == "http" else 443)
    socket.create_connection((address.hostname or "", port), timeout=timeout_s).close()
