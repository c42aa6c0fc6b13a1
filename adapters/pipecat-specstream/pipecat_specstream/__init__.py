"""specstream's engine, voices and recognisers as services of Pipecat.

Engine, voice and recogniser belong to the caller: they are loaded outside, may be shared by many
services, and are never closed here.
"""

from pipecat_specstream.llm import SpecstreamLLMService
from pipecat_specstream.llm_settings import SpecstreamLLMSettings
from pipecat_specstream.stt import SpecstreamSTTService
from pipecat_specstream.tts import SpecstreamTTSService

__all__ = [
    "SpecstreamLLMService",
    "SpecstreamLLMSettings",
    "SpecstreamSTTService",
    "SpecstreamTTSService",
]
