"""The plug-in's logger."""

import logging

__all__ = ["logger"]

logger = logging.getLogger("livekit.plugins.specstream")
