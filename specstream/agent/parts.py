"""Makes the parts of an agent, which are given as adapter names or as objects."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import anyio
from anyio import to_thread

from specstream.checks import meant
from specstream.errors import AdapterUnavailable, ConfigError
from specstream.listening.ears import Ears
from specstream.listening.interfaces import EchoCanceller
from specstream.listening.preempt import Preempt
from specstream.listening.resampler import check_microphone_rate
from specstream.playback.playout import AudioSink, AudioWriter, Playout, WaveSink
from specstream.stages.adapters import (
    AdapterKind,
    adapter_names,
    default_turns,
    default_voice,
    load_adapter,
    stage_of,
)
from specstream.stages.interfaces import SpeechSynthesizer, VoiceCapabilities
from specstream.stages.marking import marked
from specstream.stages.pipeline import Hold, Pipeline, Stage
from specstream.stages.stages import SegmentStage
from specstream.types import Phrase, SamplingParams, Span, SpeechBuffer

__all__ = ["AgentParts", "FirstPhrase", "check_names", "check_options", "make_parts", "playout_of"]


class FirstPhrase:
    """A voice around another one that doesn't synthesize the first phrase of an answer twice.

    The speech of one first phrase is kept, if it was synthesized completely while its answer was held
    back. The next answer is given that speech if its first phrase has the very same text, else it is
    discarded.

    Attributes:
        hold: Holds back the answer that is spoken now, so that it may be dropped; None: it is wanted.
        reused_s: Seconds of kept speech that were given to later answers.
    """

    def __init__(self, voice: SpeechSynthesizer) -> None:
        self._voice = voice
        self._kept: tuple[Phrase, list[SpeechBuffer]] | None = None
        self.hold: Hold | None = None
        self.reused_s = 0.0

    @property
    def capabilities(self) -> VoiceCapabilities:
        """The capabilities of the voice inside."""
        return self._voice.capabilities

    def forget(self) -> None:
        """Keep nothing: the answer being spoken is wanted, so its first phrase won't be needed again."""
        self._kept = None

    @property
    def _ahead(self) -> bool:
        return self.hold is not None and not self.hold.released

    async def synthesize(self, phrase: Phrase) -> AsyncGenerator[SpeechBuffer, None]:
        """See `SpeechSynthesizer`."""
        first = phrase.index == 0
        same = replace(phrase, tokens=Span(0, 0), t_ms=0.0, reason="sentence")
        kept, buffers = self._kept, []
        if first:
            self._kept = None
        if first and kept is not None and kept[0] == same:
            for buffer in kept[1]:
                self.reused_s += len(buffer.pcm) / 2 / self.capabilities.sample_rate
                yield buffer
            buffers = kept[1]
        else:
            async with aclosing(self._voice.synthesize(phrase)) as spoken:
                async for buffer in spoken:
                    if first and self._ahead:
                        buffers.append(buffer)
                    yield buffer
        if first and self._ahead:
            self._kept = same, buffers

    async def aclose(self) -> None:
        """Close the voice inside."""
        await self._voice.aclose()


_log = logging.getLogger("specstream.agent")


@dataclass(frozen=True, slots=True)
class AgentParts:
    """The pipeline and the ears of an agent.

    ``speaks``: whether there is a voice. ``first``: the wrapper of the voice, if it keeps first phrases.
    ``echo`` takes the voice out of the microphone's audio. ``closed``: the objects to close together
    with the agent.
    """

    pipeline: Pipeline
    speaks: bool
    first: FirstPhrase | None
    ears: Ears | None
    echo: EchoCanceller | None
    closed: tuple[Any, ...]


_RENAMED = {"prompt": "prompts", "recognizer": "ears"}


def check_names(options: Iterable[str], known: Iterable[str]) -> None:
    """Check the names of an agent's options.

    Raises:
        ConfigError: names the first that isn't ``known``, and the one that may be meant.
    """
    known = frozenset(known)
    for name in options:
        if name not in known:
            hint = f"; it is {_RENAMED[name]}" if name in _RENAMED else meant(name, known)
            if name in SamplingParams.__dataclass_fields__:
                hint = f"; it is a field of params=SamplingParams({name}=…)"
            raise ConfigError(f"an agent has no option {name}{hint}")


_EXPECTED: dict[str, tuple[Any, str]] = {
    "system": (str | None, "a text"),
    "params": (SamplingParams | None, "SamplingParams(...)"),
    "preempt": (Preempt | None, "a Preempt, such as Preempt()"),
    "tools": (list | tuple, "a list, such as [get_weather]"),
    "meanwhile": (str, "a text"),
}


def check_options(engine: Any, sample_rate: Any, echo: Any, **others: Any) -> None:
    """Check those arguments of an agent that aren't parts to be made.

    Raises:
        ConfigError: names the argument that is wrong.
        AdapterUnavailable: ``echo`` is the name of no canceller.
    """
    if engine is not None and (isinstance(engine, type) or not hasattr(engine, "session")):
        raise ConfigError(
            f"engine must be a running Engine, not {engine!r:.80}; a model's name is the first argument"
        )
    check_microphone_rate(sample_rate)
    if isinstance(echo, str) and echo not in ("auto", *adapter_names("echo")):
        load_adapter("echo", echo)  # raises
    for name, value in others.items():
        expected, described = _EXPECTED[name]
        if not isinstance(value, expected):
            raise ConfigError(f"{name} must be {described}, not {value!r:.80}")


async def make_parts(
    voice: Any,
    mark: Any,
    avatar: Any,
    prompts: Any,
    ears: Any,
    turns: Any,
    echo: Any,
    *,
    generator: Any,
    keeps: bool = False,
) -> AgentParts:
    """Make the parts that are given by name, off the event loop: adapters may read large files.

    ``generator`` writes for the prompt adapter ``"model"``. ``keeps``: wrap the voice in a
    `FirstPhrase`, unless it is a stage.

    Raises:
        AdapterUnavailable: an adapter's name is unknown, or what it needs is missing.
        ConfigError: an avatar or a mark without a voice, or ears of which one half is missing.
    """
    if voice is None and mark is not None:
        raise ConfigError("a mark goes into speech: give the agent a voice, or mark=None")
    if voice is None and avatar is not None:
        raise ConfigError("an avatar follows a voice: give the agent a voice, or avatar=None")
    if ears is not None and turns is None:
        raise ConfigError("a recogniser needs a turn detector; give the agent one as turns=")
    branches: list[list[Stage[Any, Any]]] = []
    first: FirstPhrase | None = None
    if voice is not None:
        if voice == "auto":
            voice = await to_thread.run_sync(_default_voice)
        voice = await _made("voice", voice)
        if keeps and not hasattr(voice, "run"):
            voice = first = FirstPhrase(voice)
        speaking = stage_of("voice", voice)
        if mark is not None:
            speaking = marked(speaking, await _made("mark", mark))
        branches.append([speaking])
        if avatar is not None:
            branches[0].append(await _stage("avatar", avatar))
    if prompts is not None:
        options = {"generator": generator} if prompts == "model" else {}
        branches.append([await _stage("prompt", prompts, **options)])
    if ears is not None and not isinstance(ears, Ears):
        ears = Ears(await _made("recognizer", ears), await _made("turns", turns))
    canceller = None
    if ears is not None and voice is not None:
        tested = ears.detector.capabilities.scripted and echo == "auto"
        canceller = _canceller(echo) if not tested else None
    stages = [stage for branch in branches for stage in branch]
    closed = tuple(part for part in [*stages, ears] if hasattr(part, "aclose"))
    segment = SegmentStage(clock=anyio.current_time, lookahead=True)
    pipeline = Pipeline(branches, head=segment, clock=anyio.current_time)
    return AgentParts(pipeline, voice is not None, first, ears, canceller, closed)


async def _stage(kind: AdapterKind, given: Any, **options: Any) -> Stage[Any, Any]:
    return stage_of(kind, await _made(kind, given, **options))


async def _made(kind: Any, given: Any, **options: Any) -> Any:
    if not isinstance(given, str):
        return given
    if (kind, given) == ("turns", "auto"):
        return await to_thread.run_sync(default_turns)
    return await to_thread.run_sync(lambda: load_adapter(kind, given, **options))


def _canceller(given: Any) -> EchoCanceller | None:
    """Make the canceller; ``"auto"``: one that is installed, if any is."""
    if given != "auto":
        canceller: EchoCanceller | None = given
        return load_adapter("echo", given) if isinstance(given, str) else canceller
    for name in adapter_names("echo"):
        with suppress(AdapterUnavailable):
            found: EchoCanceller = load_adapter("echo", name)
            return found
    _log.info("no echo canceller is installed: use headphones, or install libspeexdsp")
    return None


def _default_voice() -> Any:
    chosen = default_voice()
    if chosen.announcement:
        _log.warning("%s", chosen.announcement)
    return chosen.voice


def playout_of(given: Playout | AudioSink | AudioWriter | str | Path | None) -> Playout:
    """Return the play-out itself, or make one to a sink, a function or a WAV file.

    Raises:
        ConfigError: the file can't be made there, or its name is not a WAV file's.
    """
    if isinstance(given, Playout):
        return given
    if isinstance(given, str | Path):
        path = Path(given)
        if path.suffix.lower() != ".wav":
            raise ConfigError(f"play={str(path)!r}: speech is written as a WAV file; end it in .wav")
        if not path.parent.is_dir():
            raise ConfigError(f"play={str(path)!r}: there is no folder {path.parent}")
        return Playout(WaveSink(path), paced=False)
    return Playout(given)
