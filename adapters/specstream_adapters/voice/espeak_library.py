"""The parts of libespeak-ng's C interface that a streaming voice needs, through ctypes.

The library is loaded at run time and never shipped (it is GPL-3.0-or-later). Its state is global to
the process and it must be used from one thread at a time: see
`specstream_adapters.voice.espeak.on_library`. C interface: espeak-ng's ``speak_lib.h``.
"""

from __future__ import annotations

import ctypes as c
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Literal, NamedTuple

from specstream.errors import AdapterFailed, AdapterUnavailable

__all__ = [
    "BUFFER_MS",
    "SYSTEM_NAMES",
    "USUAL_PITCH",
    "USUAL_WPM",
    "EspeakLibrary",
    "LibraryEvent",
    "candidates",
]

BUFFER_MS = 60
SYSTEM_NAMES = ("libespeak-ng.so.1", "libespeak-ng.1.dylib", "libespeak-ng.dll")
"""The system's own library, by system."""
_SYNCHRONOUS = 2
_PHONEME_EVENTS, _PHONEME_IPA, _DONT_EXIT = 0x1, 0x2, 0x8000
_CHARS_UTF8, _END_PAUSE = 0x1, 0x1000  # and neither SSML (0x10) nor [[phonemes]] (0x100)
_RATE, _PITCH = 1, 3
_IPA = 0x2
USUAL_WPM, USUAL_PITCH = 175, 50
"""The library's words a minute, and its pitch from 0 to 99."""
_POS_CHARACTER = 1
_LIST_END = 0
_KINDS: dict[int, Literal["word", "end", "phoneme"]] = {1: "word", 5: "end", 7: "phoneme"}


class _Id(c.Union):
    _fields_ = (("number", c.c_int), ("name", c.c_char_p), ("string", c.c_char * 8))


class _Event(c.Structure):
    _fields_ = (
        ("type", c.c_int), ("unique_identifier", c.c_uint), ("text_position", c.c_int),
        ("length", c.c_int), ("audio_position", c.c_int), ("sample", c.c_int),
        ("user_data", c.c_void_p), ("id", _Id),
    )  # fmt: skip


class _Voice(c.Structure):
    _fields_ = (
        ("name", c.c_char_p), ("languages", c.c_char_p), ("identifier", c.c_char_p),
        ("gender", c.c_ubyte), ("age", c.c_ubyte), ("variant", c.c_ubyte), ("xx1", c.c_ubyte),
        ("score", c.c_int), ("spare", c.c_void_p),
    )  # fmt: skip


_Callback = c.CFUNCTYPE(c.c_int, c.POINTER(c.c_short), c.c_int, c.POINTER(_Event))


class LibraryEvent(NamedTuple):
    """An event of the library at ``sample``: a word or a phoneme begins, or a clause ends.

    ``at`` is the character (from 0) where the word begins, or the clause after an end. ``name`` is the
    phoneme in IPA as the library writes it; empty for a pause and for sounds without a name.
    """

    kind: Literal["word", "end", "phoneme"]
    sample: int
    at: int = 0
    name: str = ""


Sink = Callable[[bytes, Sequence[LibraryEvent]], bool]
"""Takes PCM and the events inside it; returns False to stop."""


class EspeakLibrary:
    """One initialised libespeak-ng. Not thread-safe.

    Attributes:
        lib: Its functions.
        sample_rate: Of its audio.

    Raises:
        AdapterUnavailable: no usable library was found.
    """

    def __init__(self) -> None:
        self.lib, self.sample_rate = _open()
        self._sink: Sink | None = None
        self._error: BaseException | None = None
        self._chosen: tuple[str, int, int] | None = None
        self._callback = _Callback(self._on_audio)  # kept alive as long as the library may call it
        self.lib.espeak_SetSynthCallback(self._callback)

    def voices(self) -> dict[str, str]:
        """The language codes that can be given as a voice's name, with their voice files."""
        listed = self.lib.espeak_ListVoices(None)
        voices = {}
        for index in range(10_000):
            if not listed[index]:
                break
            voice = listed[index].contents
            code = voice.languages[1:].decode("utf-8", "replace")  # after a byte of priority
            voices[code.lower()] = voice.identifier.decode("utf-8", "replace")
        return voices

    def choose(self, voice: str, rate_wpm: int = USUAL_WPM, pitch: int = USUAL_PITCH) -> None:
        """Make these settings the ones that `speak` uses.

        Raises:
            AdapterUnavailable: there is no such voice.
        """
        if self._chosen == (voice, rate_wpm, pitch):
            return
        self._chosen = None
        if not self._set_voice(voice) and not self._set_voice(self._file_of(voice)):
            raise AdapterUnavailable(
                f"espeak-ng has no voice {voice!r}; specstream_adapters.voice.EspeakVoice.voices() "
                "(or `espeak-ng --voices`) lists those it has"
            )
        self.lib.espeak_SetParameter(_RATE, rate_wpm, 0)
        self.lib.espeak_SetParameter(_PITCH, pitch, 0)
        self._chosen = (voice, rate_wpm, pitch)

    def _set_voice(self, name: str) -> bool:
        return bool(self.lib.espeak_SetVoiceByName(name.encode("utf-8", "replace")) == 0)

    def _file_of(self, voice: str) -> str:
        """The file of a listed voice: look-up by name lacks some listed codes, such as "en-gb"."""
        code, plus, variant = voice.partition("+")
        return self.voices().get(code.lower(), code) + plus + variant

    def speak(self, text: str, sink: Sink) -> None:
        """Speak plain ``text``, handing each 60 ms to ``sink``; return once all is said or stopped.

        Raises:
            AdapterFailed: the library reports an error. Whatever ``sink`` raises is passed on.
        """
        encoded, flags = text.encode("utf-8", "replace") + b"\0", _CHARS_UTF8 | _END_PAUSE
        self._sink, self._error = sink, None
        synth = self.lib.espeak_Synth
        status = synth(encoded, len(encoded), 0, _POS_CHARACTER, 0, flags, None, None)
        error, self._sink, self._error = self._error, None, None
        if error is not None:
            raise error
        if status != 0:
            raise AdapterFailed(f"espeak-ng could not speak the phrase (status {status})")

    def phonemes(self, voice: str, text: str) -> str:
        """How ``voice`` says plain ``text``: IPA with stress marks, a space between words.

        Marks of punctuation are left out. "(en)" where the voice goes on in another language.

        Raises:
            AdapterUnavailable: there is no such voice.
        """
        self.choose(voice)
        encoded = c.create_string_buffer(text.encode("utf-8", "replace"))
        at, said = c.c_void_p(c.addressof(encoded)), list[str]()
        while at.value:  # a clause at a time; null after the last
            clause = self.lib.espeak_TextToPhonemes(c.byref(at), _CHARS_UTF8, _IPA)
            said.append((clause or b"").decode("utf-8", "replace"))
        return " ".join(" ".join(said).split())

    def _on_audio(self, wav: c._Pointer[c.c_short], count: int, events: c._Pointer[_Event]) -> int:
        try:
            pcm = c.string_at(wav, 2 * count) if wav and count > 0 else b""
            assert self._sink is not None
            return 0 if self._sink(pcm, list(_decoded(events))) else 1
        except BaseException as error:  # ctypes would print it and go on speaking
            self._error = error
            return 1


def _decoded(events: c._Pointer[_Event]) -> Iterator[LibraryEvent]:
    index = 0
    while (event := events[index]).type != _LIST_END:
        index += 1
        kind = _KINDS.get(event.type)
        if kind is not None:
            # The name's 8 bytes may end in the middle of a character.
            name = event.id.string.decode("utf-8", "ignore") if kind == "phoneme" else ""
            yield LibraryEvent(kind, event.sample, event.text_position - 1, name)


def candidates() -> Iterator[tuple[str, bytes | None]]:
    """Where the library may be, best first, with its data folder (None: built into the library)."""
    with suppress(ImportError):
        import espeakng_loader

        data = str(espeakng_loader.get_data_path())
        yield str(espeakng_loader.get_library_path()), data.encode()
    for name in SYSTEM_NAMES:
        yield name, None


def _open() -> tuple[c.CDLL, int]:
    reasons = []
    for path, data in candidates():
        try:
            lib = _declare(c.CDLL(path))
        except (OSError, AttributeError) as error:
            reasons.append(str(error))
            continue
        options = _PHONEME_EVENTS | _PHONEME_IPA | _DONT_EXIT
        rate = int(lib.espeak_Initialize(_SYNCHRONOUS, BUFFER_MS, data, options))
        if rate > 0:
            return lib, rate
        reasons.append(f"{path}: its data files can't be read")
    raise AdapterUnavailable(
        "the espeak voice needs espeak-ng: pip install espeakng-loader, or choose the voice "
        f"'reference', a test voice that nobody understands ({'; '.join(reasons) or 'no library found'})"
    )


def _declare(lib: c.CDLL) -> c.CDLL:
    lib.espeak_Initialize.argtypes = (c.c_int, c.c_int, c.c_char_p, c.c_int)
    lib.espeak_SetSynthCallback.argtypes = (_Callback,)
    lib.espeak_SetSynthCallback.restype = None
    lib.espeak_ListVoices.argtypes = (c.c_void_p,)
    lib.espeak_ListVoices.restype = c.POINTER(c.POINTER(_Voice))
    lib.espeak_SetVoiceByName.argtypes = (c.c_char_p,)
    lib.espeak_SetParameter.argtypes = (c.c_int, c.c_int, c.c_int)
    lib.espeak_Synth.argtypes = (
        c.c_char_p, c.c_size_t, c.c_uint, c.c_int, c.c_uint, c.c_uint, c.c_void_p, c.c_void_p,
    )  # fmt: skip
    lib.espeak_TextToPhonemes.argtypes = (c.POINTER(c.c_void_p), c.c_int, c.c_int)
    lib.espeak_TextToPhonemes.restype = c.c_char_p
    return lib
