"""What the services take from Pipecat beyond its documented methods."""

from __future__ import annotations

import inspect

import pytest
from pipecat.frames.frames import TTSStartedFrame
from pipecat.services.llm_service import LLMService
from pipecat.services.stt_service import STTService
from pipecat.services.tts_service import TTSService

WHAT_TO_DO = (
    "{name} of pipecat's {owner} has moved: pin pipecat-ai below this release, and look in its "
    "release notes for what services call or override instead"
)
NEEDED = {
    LLMService: {"_push_llm_text": ["text"], "_update_settings": ["delta"]},
    STTService: {"_update_settings": ["delta"]},
    TTSService: {
        "_update_settings": ["delta"],
        "on_turn_context_created": ["context_id"],
        "on_audio_context_interrupted": ["context_id"],
        "append_to_audio_context": ["context_id", "frame"],
        "remove_audio_context": ["context_id"],
        "flush_audio": ["context_id"],
        "run_tts": ["text", "context_id"],
    },
}


@pytest.mark.parametrize(
    ("owner", "name"), [(owner, name) for owner, names in NEEDED.items() for name in names]
)
def test_pipecat_still_has(owner: type, name: str):
    method = getattr(owner, name, None)
    found = list(inspect.signature(method).parameters)[1:] if method else None
    assert found == NEEDED[owner][name], WHAT_TO_DO.format(name=name, owner=owner.__name__)


def test_pipecat_still_tells_whether_speech_is_kept():
    told = WHAT_TO_DO.format(name="append_to_context", owner="TTSStartedFrame")
    assert hasattr(TTSStartedFrame(), "append_to_context"), told
