"""The settings of `SpecstreamLLMService`."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Self

from pipecat.services.settings import LLMSettings
from pipecat.utils.types import NOT_GIVEN, NotGiven, is_given
from specstream import SamplingParams
from specstream.errors import ConfigError

__all__ = ["SpecstreamLLMSettings"]

_SAMPLING = (
    "temperature",
    "max_tokens",
    "top_p",
    "top_k",
    "frequency_penalty",
    "presence_penalty",
    "seed",
    "min_p",
    "typical_p",
    "repetition_penalty",
    "max_repeats",
    "stop",
)


@dataclass
class SpecstreamLLMSettings(LLMSettings):
    """How replies are sampled; None leaves a setting to the model's own manner.

    Beside the settings of Pipecat's `LLMSettings` (without ``model``, which the engine decides):

    Attributes:
        min_p: Tokens less likely than this share of the likeliest are not drawn, from 0 to 1.
        typical_p: Locally typical sampling, above 0 to 1.
        repetition_penalty: Divides the scores of tokens that prompt or reply have already.
        max_repeats: The reply ends once a sentence was written so many times; 0: never.
        stop: Texts that end the reply and are not part of it.
    """

    min_p: float | None | NotGiven = field(default_factory=lambda: NOT_GIVEN)
    typical_p: float | None | NotGiven = field(default_factory=lambda: NOT_GIVEN)
    repetition_penalty: float | None | NotGiven = field(default_factory=lambda: NOT_GIVEN)
    max_repeats: int | None | NotGiven = field(default_factory=lambda: NOT_GIVEN)
    stop: tuple[str, ...] | None | NotGiven = field(default_factory=lambda: NOT_GIVEN)

    @classmethod
    def complete(cls, model: str, given: LLMSettings | None) -> Self:
        """All settings: those that are given, and None for the others.

        Raises:
            ConfigError: a setting is given that the engine can't honour.
            SamplingError: a value is out of range.
        """
        unset: dict[str, Any] = dict.fromkeys(_SAMPLING)
        full = cls(
            model=model,
            system_instruction=None,
            filter_incomplete_user_turns=False,
            user_turn_completion_config=None,
            use_provider_thinking_default=False,
            **unset,
        )
        if given is not None:
            full.check(given)
            full.apply_update(given)  # type: ignore[arg-type]  # reads the fields that it has
        return full

    def check(self, delta: LLMSettings) -> None:
        """Refuse a change that can't be honoured; these settings stay as they are.

        Raises:
            ConfigError: the change names a model, or a setting that specstream doesn't have.
            SamplingError: a value is out of range.
        """
        if is_given(delta.model) and delta.model not in (None, self.model):
            raise ConfigError(
                f"model {delta.model!r}: the engine decides the model; give the service another engine"
            )
        if delta.extra:
            names = ", ".join(sorted(delta.extra))
            raise ConfigError(
                f"specstream has no setting {names}; it has {', '.join(_SAMPLING)}, system_instruction"
            )
        changed = self.copy()
        changed.apply_update(delta)  # type: ignore[arg-type]
        changed.sampling(SamplingParams())

    def sampling(self, manner: SamplingParams) -> SamplingParams:
        """``manner`` with the settings that are set.

        Raises:
            SamplingError: a value is out of range.
        """
        own: dict[str, Any] = {name: getattr(self, name) for name in _SAMPLING}
        own = {name: value for name, value in own.items() if value is not None}
        if isinstance(own.get("stop"), list):
            own["stop"] = tuple(own["stop"])
        return replace(manner, **own)
