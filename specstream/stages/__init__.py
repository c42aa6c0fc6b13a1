"""Stages turn phrases into speech, avatar cues and scene prompts; the pipeline runs them.

A voice, a mark, an avatar or a prompt rewriter of your own implements a protocol that is here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from specstream.lazy import offers

if TYPE_CHECKING:
    from specstream.remote.stage import RemoteStage as RemoteStage
    from specstream.stages.adapters import default_voice as default_voice, load_adapter as load_adapter
    from specstream.stages.contract import Event as Event, Stage as Stage, StageFailed as StageFailed
    from specstream.stages.drafts import Presynthesis as Presynthesis
    from specstream.stages.interfaces import (
        AudioMark as AudioMark,
        AvatarScripter as AvatarScripter,
        AvatarTrack as AvatarTrack,
        MarkCapabilities as MarkCapabilities,
        MarkTrack as MarkTrack,
        PromptRewriter as PromptRewriter,
        SpeechSynthesizer as SpeechSynthesizer,
        Storyboard as Storyboard,
        VoiceCapabilities as VoiceCapabilities,
        silent_at as silent_at,
        voice_from_function as voice_from_function,
    )
    from specstream.stages.limits import Limits as Limits
    from specstream.stages.marking import MarkedStage as MarkedStage, marked as marked
    from specstream.stages.pipeline import Pipeline as Pipeline
    from specstream.stages.segment_stage import SegmentStage as SegmentStage
    from specstream.stages.stages import (
        AvatarStage as AvatarStage,
        PromptStage as PromptStage,
        VoiceStage as VoiceStage,
    )
    from specstream.text.spoken import Readout as Readout
    from specstream.types import Mark as Mark, SpeechBuffer as SpeechBuffer

__all__, __getattr__, __dir__ = offers(
    __name__,
    {
        "specstream.remote.stage": "RemoteStage",
        "specstream.stages.adapters": "default_voice load_adapter",
        "specstream.stages.contract": "Event Stage StageFailed",
        "specstream.stages.drafts": "Presynthesis",
        "specstream.stages.interfaces": (
            "AudioMark AvatarScripter AvatarTrack MarkCapabilities MarkTrack PromptRewriter "
            "SpeechSynthesizer Storyboard VoiceCapabilities silent_at voice_from_function"
        ),
        "specstream.stages.limits": "Limits",
        "specstream.stages.marking": "MarkedStage marked",
        "specstream.stages.pipeline": "Pipeline",
        "specstream.stages.segment_stage": "SegmentStage",
        "specstream.stages.stages": "AvatarStage PromptStage VoiceStage",
        "specstream.text.spoken": "Readout",
        "specstream.types": "Mark SpeechBuffer",
    },
)
