"""specstream in LiveKit Agents: `LLM`, `TTS` and `STT` on an engine, a voice and ears of the caller.

The parts that these services are given are loaded, shared and closed by the caller; a service never
closes one.
"""

import threading

from livekit.agents import Plugin

from .dropped import DroppedReplies
from .llm import LLM
from .log import logger
from .stt import STT
from .tts import TTS
from .version import __version__

__all__ = ["LLM", "STT", "TTS", "DroppedReplies", "__version__"]


class _SpecstreamPlugin(Plugin):
    def __init__(self) -> None:
        super().__init__(__name__, __version__, __name__, logger)


if threading.current_thread() is not threading.main_thread():
    raise RuntimeError(
        "livekit.plugins.specstream was first imported in another thread than the main one, where "
        "LiveKit Agents accepts no plug-ins: import it at the top of the agent's module"
    )
Plugin.register_plugin(_SpecstreamPlugin())
