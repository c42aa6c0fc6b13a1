"""A recogniser and a turn detector that belong together."""

from __future__ import annotations

from dataclasses import dataclass, field

from specstream.errors import ConfigError
from specstream.listening.line import WaitingLine
from specstream.pipeline.listening_interfaces import Recognizer, TurnDetector

__all__ = ["Ears"]


@dataclass(frozen=True, slots=True)
class Ears:
    """A recogniser and a turn detector, shared by any number of listeners of one event loop.

    A recognition holds a place in ``line``; partial transcripts are made only where one is free.

    Raises:
        ConfigError: one of the two is something else.
    """

    recognizer: Recognizer
    detector: TurnDetector
    line: WaitingLine = field(init=False)

    def __post_init__(self) -> None:
        for what, part in (("recogniser", self.recognizer), ("turn detector", self.detector)):
            if isinstance(part, type) or not (
                hasattr(part, "capabilities") and hasattr(part, "open")
            ):
                raise ConfigError(
                    f"{part!r:.80} is no {what}: it must be an object that has capabilities and open"
                )

        object.__setattr__(self, "line", WaitingLine(self.recognizer.capabilities.workers))

    @property
    def sample_rate(self) -> int:
        """The first sample rate of the recogniser, best first, that the detector takes, too.

        Raises:
            ConfigError: they share no rate.
        """
        both = self.detector.capabilities.sample_rates
        for rate in self.recognizer.capabilities.sample_rates:
            if rate in both:
                return rate
        names = self.recognizer.capabilities.name, self.detector.capabilities.name
        raise ConfigError(f"recogniser {names[0]!r} and turn detector {names[1]!r} share no rate")

    async def aclose(self) -> None:
        """Release the recogniser; idempotent. A turn detector has nothing to release."""
        await self.recognizer.aclose()
