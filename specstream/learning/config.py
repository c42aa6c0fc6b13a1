"""Configuration of learning in service. Imports no torch."""

from __future__ import annotations

from typing import Any

from pydantic import Field, field_validator, model_validator

from specstream.methods import Strict

__all__ = ["LearningConfig"]

_CONSENT = (
    "learning keeps the tokens of prompts and replies in memory and changes the draft's weights by "
    "them; if those whose words they are have agreed, say so with consent=true (--learn with-consent), "
    "else leave learning out"
)
_KINDS = ("auto", "draft", "eagle")


class LearningConfig(Strict):
    """The draft learns from finished replies between replies; refused without ``consent=True``.

    What is kept: the token ids of the last prompts and replies, as far as ``max_replies`` and
    ``max_tokens`` allow, with the target's hidden states once they were read. They stay in this
    process's memory until newer ones push them out or the engine closes, and are never written to a
    file. Replies that were cancelled or failed, and requests with ``learn=False``, are not kept.

    A step is a pass of the target or of the draft over ``step_tokens`` tokens at most, one update of the
    draft's weights, or one copy of them. It begins only while no request can go on, so a request that
    arrives waits for one step at most. If a quarter of a round's steps take more than ``step_ms``
    milliseconds, the next round's passes are half as long, 64 tokens at least.
    """

    consent: bool = Field(default=False, validate_default=True)
    max_replies: int = Field(default=128, ge=8, le=65_536, description="replies that are kept")
    max_tokens: int = Field(
        default=32_768, ge=64, le=2**24, description="tokens that are kept, prompts included"
    )
    longest: int = Field(
        default=1024, ge=16, description="tokens of one prompt and reply, from their end"
    )
    every: int = Field(default=8, ge=4, description="new replies before the draft learns again")
    passes: int = Field(default=3, ge=1, le=64, description="passes over the replies in each round")
    lr: float = Field(default=5e-5, gt=0.0, lt=1e3, description="peak learning rate (AdamW)")
    step_tokens: int = Field(default=256, ge=64, le=8192, description="tokens of a step")
    step_ms: float = Field(default=250.0, gt=0.0, description="longer steps make the next shorter")
    out: str | None = Field(
        default=None, description="a new folder for the improved weights, written on closing"
    )

    @field_validator("consent", mode="before")
    @classmethod
    def _given(cls, value: Any) -> bool:
        if value is not True:
            raise ValueError(_CONSENT)
        return True

    @model_validator(mode="after")
    def _room(self) -> LearningConfig:
        if self.longest > self.max_tokens:
            raise ValueError(f"longest ({self.longest}) is more than max_tokens can hold")
        return self

    @staticmethod
    def refusal(*, kind: str, compiled: bool, reproducible: bool, quantised: bool) -> str | None:
        """Why an engine with this proposer and these modes can't learn; None if it may."""
        if kind not in _KINDS:
            return f"learning: proposer {kind} can't learn in service; {', '.join(_KINDS)} can"
        for wrong, what in (
            (compiled, "compile: captured passes hold the draft's weights as they were"),
            (reproducible, "mode='reproducible': its passes of one width give no hidden states"),
            (quantised, "draft_quantize: rounded weights can't follow small updates"),
        ):
            if wrong:
                return f"learning doesn't go with {what}; leave one of them out"
        return None
