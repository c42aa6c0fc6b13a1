"""Finds adapters by name, through entry points (the core imports none of them), and wraps them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal, NamedTuple

from specstream.errors import AdapterUnavailable, ConfigError, SpecstreamError
from specstream.stages.interfaces import SpeechSynthesizer
from specstream.stages.pipeline import Stage
from specstream.stages.stages import AvatarStage, PromptStage, VoiceStage

__all__ = [
    "BEST_VOICES",
    "AdapterKind",
    "DefaultVoice",
    "EarsKind",
    "MarkKind",
    "adapter_names",
    "default_turns",
    "default_voice",
    "load_adapter",
    "require_adapter",
    "stage_of",
]

AdapterKind = Literal["voice", "avatar", "prompt"]
EarsKind = Literal["recognizer", "turns", "echo"]
MarkKind = Literal["mark"]
_KINDS: dict[AdapterKind, tuple[Callable[[Any], Stage[Any, Any]], tuple[str, ...]]] = {
    "voice": (VoiceStage, ("capabilities", "synthesize", "aclose")),
    "avatar": (AvatarStage, ("open",)),
    "prompt": (PromptStage, ("open",)),
}
"""The stage around an adapter, and what it needs of the adapter."""
BEST_VOICES = {"hibari": "language", "espeak": "voice"}
"""The voices that `default_voice` tries, in order, with their option for the language."""


def _found(kind: AdapterKind | EarsKind | MarkKind) -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=f"specstream.{kind}")}


def adapter_names(kind: AdapterKind | EarsKind | MarkKind) -> list[str]:
    """The names of the installed adapters of a kind, sorted."""
    return sorted(_found(kind))


def load_adapter(kind: AdapterKind | EarsKind | MarkKind, name: str, **options: Any) -> Any:
    """Make the adapter ``name`` of ``kind``.

    ``NAME=VALUE`` also sets the option that the adapter's attribute ``named_by`` names: ``espeak=de``
    is the adapter ``espeak`` with ``voice="de"``.

    The interfaces are in `specstream.stages` and, for recognisers and turn detectors, in
    `specstream.listening`.

    Raises:
        AdapterUnavailable: no such adapter, or a library that it needs is missing.
        ConfigError: an option is wrong.
    """
    return _load(kind, name, options, lambda make: make(**options))


def require_adapter(kind: AdapterKind | EarsKind | MarkKind, name: str, **options: Any) -> None:
    """Find out whether the adapter ``name`` of ``kind`` can be made, sooner than by making it.

    An adapter whose models take long to load has a class method ``check()``, which looks for packages
    and files. One without is made.

    Raises:
        AdapterUnavailable: no such adapter, or something that it needs is missing.
        ConfigError: an option is wrong.
    """
    _load(kind, name, options, lambda make: getattr(make, "check", lambda: make(**options))())


def _load(
    kind: AdapterKind | EarsKind | MarkKind,
    name: str,
    options: dict[str, Any],
    use: Callable[[Any], Any],
) -> Any:
    """What ``use`` makes of the adapter's class; ``options`` get the value that ``name`` has with it."""
    written, found = name, _found(kind)
    name, equals, value = name.partition("=")
    if name not in found:
        known = ", ".join(sorted(found)) or "none: is the package installed?"
        unknown = AdapterUnavailable(f"no {kind} adapter is called {name!r}; there are: {known}")
        unknown.exit_code = ConfigError.exit_code
        raise unknown
    try:
        make = found[name].load()
        if equals:
            options[_named_by(f"{kind} {written!r}", name, make, value)] = value
        return use(make)
    except SpecstreamError:
        raise
    except TypeError as error:
        raise AdapterUnavailable(f"{kind} adapter {name!r} takes other options: {error}") from error
    except Exception as error:
        raise AdapterUnavailable(f"{kind} adapter {name!r} can't be loaded: {error}") from error


def _named_by(what: str, name: str, make: Any, value: str) -> str:
    """The option that ``NAME=VALUE`` sets.

    Raises:
        ConfigError: the adapter has none, or no value is given.
    """
    option: str | None = getattr(make, "named_by", None)
    if option is None:
        raise ConfigError(f"{what}: {name} has no such choice; write {name}")
    if not value:
        raise ConfigError(f"{what}: write {name} alone, or {name}={option.upper()}")
    return option


def default_turns() -> Any:
    """Make the best turn detector that is here: Smart Turn, if its weights are, else Silero VAD.

    Raises:
        AdapterUnavailable: neither can be made.
    """
    with suppress(AdapterUnavailable):
        return load_adapter("turns", "smart-turn")
    return load_adapter("turns", "silero")


class DefaultVoice(NamedTuple):
    """A voice, its adapter's name, and the errors of the better voices that could not be made."""

    name: str
    voice: SpeechSynthesizer
    missed: tuple[SpecstreamError, ...]

    @property
    def announcement(self) -> str:
        """A warning that only the test voice speaks, or an installed voice is broken; else empty."""
        if self.name == "reference":
            reasons = "; ".join(map(str, self.missed))
            return f"{reasons}; a test voice babbles instead (one sound a letter)"
        broken = [e for e in self.missed if not isinstance(e.__cause__, ModuleNotFoundError | None)]
        return "".join(f"{error}; {self.name} speaks instead" for error in broken)


def default_voice(language: str = "en-us", **options: Any) -> DefaultVoice:
    """Make the best installed voice of a language: hibari (English), else espeak, else the test voice.

    Args:
        language: A code as espeak-ng has it, such as ``"en-us"`` or ``"de"``.
        options: Further options of the voice, such as its speed. They don't change which one it is.

    Raises:
        AdapterUnavailable: not even the test voice is installed.
        ConfigError: the voice refuses an option.
    """
    missed: list[SpecstreamError] = []
    for name, option in BEST_VOICES.items():
        try:
            voice = load_adapter("voice", name, **{option: language})
        except (AdapterUnavailable, ConfigError) as error:
            missed.append(error)
        else:
            if options:
                voice = load_adapter("voice", name, **{option: language}, **options)
            return DefaultVoice(name, voice, tuple(missed))
    return DefaultVoice("reference", load_adapter("voice", "reference", **options), tuple(missed))


def stage_of(kind: AdapterKind, made: Any) -> Stage[Any, Any]:
    """Return the stage around an adapter; ``made`` itself if it is a stage already (has ``run``).

    Raises:
        AdapterUnavailable: ``made`` is neither a stage nor an adapter of this kind.
    """
    if isinstance(made, type):
        raise AdapterUnavailable(
            f"{made!r} is a class, no {kind} adapter: give an object of it, as in {made.__name__}()"
        )
    if hasattr(made, "run"):
        stage: Stage[Any, Any] = made
        return stage
    wrap, needed = _KINDS[kind]
    if missing := [name for name in needed if not hasattr(made, name)]:
        hint = ""
        if kind == "voice" and callable(made):
            hint = "; wrap a function with specstream.stages.voice_from_function"
        lacks = f"it lacks {' and '.join(missing)}{hint}"
        raise AdapterUnavailable(f"{made!r} is no {kind} adapter: {lacks}")
    return wrap(made)
