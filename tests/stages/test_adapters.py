"""Adapters by name: what is installed, and every way in which one can't be had."""

from importlib.metadata import EntryPoint
from typing import Any

import pytest

from specstream.errors import AdapterFailed, AdapterUnavailable, ConfigError
from specstream.stages import adapters
from specstream.stages.adapters import adapter_names, default_voice, load_adapter, require_adapter
from specstream.stages.interfaces import SpeechSynthesizer, voice_from_function
from specstream.types import Phrase, Span


def hum(*, rate: int = 8000) -> SpeechSynthesizer:
    """An entry point for a voice that is one function."""
    return voice_from_function(lambda text: b"\0\0" * len(text), rate, name="hum")


def needs_a_library(*, language: str = "en") -> None:
    raise OSError("libhum.so.1: not found")


class SlowToLoad:
    """A voice that says whether it could be made."""

    missing = ""

    def __init__(self) -> None:
        raise AssertionError("it was made")

    @classmethod
    def check(cls) -> None:
        if cls.missing:
            raise AdapterUnavailable(cls.missing)


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def entry_points(group: str) -> list[EntryPoint]:
        made = {"hum": "hum", "lame": "needs_a_library", "gone": "no_such_name"}
        return [
            EntryPoint(name, f"{__name__}:{where}", group)
            for name, where in made.items()
            if group == "specstream.voice"
        ]

    monkeypatch.setattr(adapters, "entry_points", entry_points)


@pytest.mark.parametrize(
    ("function", "rate", "says"),
    [("hum", 8000, "a function from text to PCM, not 'hum'"), (str, "8000", "1000, not '8000'")],
)
def test_a_voice_of_a_function_needs_one_and_a_rate(function: Any, rate: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        voice_from_function(function, rate)


def test_names_are_sorted_by_kind() -> None:
    assert adapter_names("voice") == ["gone", "hum", "lame"]
    assert adapter_names("avatar") == []


def test_an_entry_point_is_called_with_its_options() -> None:
    voice: SpeechSynthesizer = load_adapter("voice", "hum", rate=16_000)
    assert (voice.capabilities.name, voice.capabilities.sample_rate) == ("hum", 16_000)


@pytest.mark.parametrize(
    ("kind", "name", "options", "says"),
    [
        ("voice", "him", {}, "no voice adapter is called 'him'; there are: gone, hum, lame"),
        ("prompt", "hum", {}, "none: is the package installed?"),
        ("voice", "hum", {"speed": 2}, "'hum' takes other options"),
        ("voice", "lame", {}, "'lame' can't be loaded: libhum.so.1"),
        ("voice", "gone", {}, "'gone' can't be loaded"),
    ],
)
def test_an_adapter_that_cannot_be_had_says_why(
    kind: Any, name: str, options: dict[str, Any], says: str
) -> None:
    with pytest.raises(AdapterUnavailable, match=says):
        load_adapter(kind, name, **options)


def test_an_adapter_s_own_errors_keep_their_type() -> None:
    with pytest.raises(ConfigError, match="sample_rate"):
        load_adapter("voice", "hum", rate=1)


def english(*, language: str) -> SpeechSynthesizer:
    """An entry point for a voice of one language."""
    if not language.startswith("en"):
        raise ConfigError("English only")
    return voice_from_function(str.encode, 8000, name="english")


def many(*, voice: str) -> SpeechSynthesizer:
    """An entry point for a voice of many languages."""
    if voice == "tlh":
        raise AdapterUnavailable("no voice 'tlh'")
    return voice_from_function(str.encode, 8000, name=f"many:{voice}")


class Choir:
    """An entry point whose adapter names what stands behind the equals sign."""

    named_by = "singer"

    def __call__(self, *, singer: str = "all") -> SpeechSynthesizer:
        return voice_from_function(str.encode, 8000, name=f"choir:{singer}")


choir = Choir()


def test_what_stands_behind_an_equals_sign_is_the_option_that_an_adapter_is_named_by(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def entry_points(group: str) -> list[EntryPoint]:
        return [EntryPoint(n, f"{__name__}:{w}", group) for n, w in (("a", "choir"), ("hum", "hum"))]

    monkeypatch.setattr(adapters, "entry_points", entry_points)
    assert load_adapter("voice", "a=anna").capabilities.name == "choir:anna"
    assert load_adapter("voice", "a").capabilities.name == "choir:all"
    with pytest.raises(ConfigError, match="voice 'a=': write a alone, or a=SINGER"):
        load_adapter("voice", "a=")
    with pytest.raises(ConfigError, match="voice 'hum=anna': hum has no such choice; write hum"):
        load_adapter("voice", "hum=anna")


@pytest.mark.parametrize(
    ("here", "language", "name", "speaks", "missed"),
    [
        ({"hibari": "english", "espeak": "many"}, "en-us", "hibari", "english", []),
        ({"hibari": "english", "espeak": "many"}, "de", "espeak", "many:de", ["English only"]),
        ({"espeak": "many"}, "en-us", "espeak", "many:en-us", ["'hibari'"]),
        ({"hibari": "needs_a_library", "espeak": "many"}, "en", "espeak", "many:en", ["libhum"]),
        ({"hibari": "english", "espeak": "many"}, "tlh", "reference", "hum", ["only", "tlh"]),
        ({}, "en-us", "reference", "hum", ["'hibari'", "'espeak'"]),
    ],
)
def test_the_default_voice_is_the_best_that_speaks_the_language(
    monkeypatch: pytest.MonkeyPatch,
    here: dict[str, str],
    language: str,
    name: str,
    speaks: str,
    missed: list[str],
) -> None:
    def entry_points(group: str) -> list[EntryPoint]:
        made = here | {"reference": "hum"}
        return [EntryPoint(name, f"{__name__}:{where}", group) for name, where in made.items()]

    monkeypatch.setattr(adapters, "entry_points", entry_points)
    chosen = default_voice(language)
    assert (chosen.name, chosen.voice.capabilities.name) == (name, speaks)
    assert len(chosen.missed) == len(missed)
    for error, says in zip(chosen.missed, missed):
        assert says in str(error)


def test_without_any_voice_there_is_no_default() -> None:
    with pytest.raises(AdapterUnavailable, match="'reference'"):
        default_voice()


def test_an_adapter_is_checked_by_its_own_check_and_else_by_making_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def entry_points(group: str) -> list[EntryPoint]:
        made = {"slow": "SlowToLoad", "hum": "hum", "lame": "needs_a_library"}
        return [EntryPoint(name, f"{__name__}:{where}", group) for name, where in made.items()]

    monkeypatch.setattr(adapters, "entry_points", entry_points)
    require_adapter("voice", "slow")
    require_adapter("voice", "hum", rate=16_000)
    with pytest.raises(AdapterUnavailable, match="'lame' can't be loaded: libhum"):
        require_adapter("voice", "lame")
    with pytest.raises(AdapterUnavailable, match="no voice adapter is called 'him'"):
        require_adapter("voice", "him")
    monkeypatch.setattr(SlowToLoad, "missing", "its model is missing")
    with pytest.raises(AdapterUnavailable, match="its model is missing"):
        require_adapter("voice", "slow")


async def test_a_voice_whose_iterator_ends_says_so_at_once() -> None:
    def spoken(text: str) -> bytes:
        return next(iter([]))

    voice = voice_from_function(spoken, 8000)
    whole = Span(0, 2)
    with pytest.raises(AdapterFailed, match="StopIteration"):
        async for _ in voice.synthesize(Phrase("Hi", whole, whole)):
            pass
    await voice.aclose()
