"""specstream in LiveKit Agents: `LLM`, `TTS`, `STT` and `HeardWords`.

The engine, the voice and the ears that the services are given are loaded, shared and closed by the
caller; a service never closes one.
"""

import threading

from livekit.agents import Plugin

from .dropped import DroppedReplies
from .heard_words import HeardWords
from .llm import LLM
from .log import logger
from .stt import STT
from .tts import TTS
from .version import __version__

__all__ = ["LLM", "STT", "TTS", "DroppedReplies", "HeardWords", "__version__"]


class _SpecstreamPlugin(Plugin):
    def __init__(self) -> None:
        super().__init__(__name__, __version__, __name__, logger)


if threading.current_thread() is not threading.main_thread():
    raise RuntimeError(
        "livekit.plugins.specstream was first imported in another thread than the main one, where "
        "LiveKit Agents accepts no plug-ins: import it at the top of the agent's module"
    )
Plugin.register_plugin(_SpecstreamPlugin())
