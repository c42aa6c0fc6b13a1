"""Speech through pocket-tts: a neural voice that streams its audio, in several languages, on a CPU."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncGenerator, Iterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np

from specstream.errors import AdapterFailed, AdapterUnavailable, ConfigError
from specstream.stages.interfaces import VoiceCapabilities
from specstream.types import Phrase, SpeechBuffer
from specstream_adapters.checks import delivery
from specstream_adapters.voice.shared import once, plain, speakable, thread_of

__all__ = ["PocketModel", "PocketVoice"]

_PATHS = ("weights_path", "weights_path_without_voice_cloning", "tokenizer_path")
_SPEAKERS = (".safetensors", ".wav", ".mp3", ".flac")


@dataclass(frozen=True, slots=True)
class PocketModel:
    """A loaded model and the state of a speaker. Use it from one thread at a time.

    Attributes:
        model: Of the package pocket-tts.
        speaker: The speaker's state.
        rate: Samples a second.
    """

    model: Any
    speaker: Any
    rate: int

    def speak(self, text: str, stop: Event) -> Iterator[bytes]:
        """Synthesize ``text`` piece by piece, each of some 80 ms: s16 little-endian mono.

        Once ``stop`` is set no further piece is made.
        """
        for piece in self.model.generate_audio_stream(self.speaker, text, stop=stop):
            pcm = np.clip(piece.detach().cpu().numpy().astype(np.float32), -1.0, 1.0) * 32767.0
            yield pcm.round().astype("<i2").tobytes()


@once
def shared_model(folder: str, speaker: str | None) -> PocketModel:
    """The process's one model of a folder and speaker, loaded on first use.

    Raises:
        AdapterUnavailable: pocket-tts is missing, or the folder has no model that it can load.
        ConfigError: there is no such folder or speaker.
    """
    try:
        from pocket_tts import TTSModel
    except ImportError as error:
        raise AdapterUnavailable(
            "the pocket voice needs pocket-tts: pip install 'specstream-sdk[pocket]', or choose the "
            f"voice 'espeak' ({error})"
        ) from error
    place = Path(folder).expanduser()
    sound = _speaker(place, speaker)
    try:
        with tempfile.TemporaryDirectory() as scratch:
            model = TTSModel.load_model(config=_local_config(place, Path(scratch)))
        state = model.get_state_for_audio_prompt(sound)
    except (AdapterUnavailable, ConfigError):
        raise
    except Exception as error:
        reason = " ".join(str(error).split())
        raise AdapterUnavailable(
            f"the model in {folder} can't be used with this pocket-tts; 4.0.1 is known to work "
            f"({reason:.300})"
        ) from error
    return PocketModel(model, state, int(model.sample_rate))


def _local_config(folder: Path, scratch: Path) -> Path:
    """A copy of the folder's configuration in which all files are the folder's: nothing is downloaded.

    Raises:
        AdapterUnavailable: there is no configuration, or not one, or a file that it names is missing.
    """
    import yaml

    found = sorted([*folder.glob("*.yaml"), *folder.glob("*.yml")])
    if len(found) != 1:
        raise AdapterUnavailable(
            f"{folder} needs one configuration of a pocket-tts model (*.yaml) beside its weights; "
            f"there are {len(found)}"
        )
    config = yaml.safe_load(found[0].read_text("utf-8"))
    missing = list[str]()

    def local(part: Any) -> None:
        for name, value in part.items() if isinstance(part, dict) else ():
            if name in _PATHS and isinstance(value, str):
                file = folder / os.path.basename(value.split("@")[0])
                if name == "weights_path_without_voice_cloning":
                    part[name] = None
                    continue
                part[name] = str(file.resolve())
                if not file.is_file():
                    missing.append(file.name)
            else:
                local(value)

    local(config)
    if missing:
        raise AdapterUnavailable(f"{folder} lacks {' and '.join(missing)}, which {found[0].name} names")
    written = scratch / found[0].name
    written.write_text(yaml.safe_dump(config), "utf-8")
    return written


def _speaker(folder: Path, speaker: str | None) -> Path:
    """The file of a speaker: its state, or a recording of it."""
    if not folder.is_dir():
        raise ConfigError(f"{folder}: the pocket voice needs a folder with a model of pocket-tts")
    files = [file for file in sorted(folder.iterdir()) if file.suffix.lower() in _SPEAKERS]
    speakers = {file.stem: file for file in files if file.name != "model.safetensors"}
    if not speakers:
        raise ConfigError(
            f"{folder} has no speaker: put a state (NAME.safetensors) or a recording (NAME.wav) there"
        )
    if speaker is not None and speaker not in speakers:
        raise ConfigError(f"speaker {speaker!r:.80}: {folder} has {', '.join(speakers)}")
    return speakers[speaker] if speaker is not None else next(iter(speakers.values()))


class PocketVoice:
    """A `SpeechSynthesizer` on pocket-tts (extra ``pocket``), which streams: sound before the end.

    The folder holds a configuration (``*.yaml``), the weights and the tokenizer that it names, and
    speakers (``NAME.safetensors`` or recordings); nothing is downloaded. The voice gives no times of
    words, so they are spread over a phrase by their length. All voices of a process share one thread
    and one model for each folder and speaker. Not tried with published weights: they could not be had.

    Args:
        folder: Of the model.
        speaker: By file name without its ending; None: the first.
        language: That of the model, for reading numbers aloud: ``"en"``, ``"de"``, …
        speed: Only 1, the model has its own.
        pitch: Only 1.

    Raises:
        AdapterUnavailable: pocket-tts is missing, or it can't load the model.
        ConfigError: an option is wrong, or there is no such folder or speaker.
    """

    named_by = "folder"

    def __init__(
        self,
        *,
        folder: str = "",
        speaker: str | None = None,
        language: str = "en",
        speed: float = 1.0,
        pitch: float = 1.0,
    ) -> None:
        delivery(speed, pitch)
        if (speed, pitch) != (1, 1):
            raise ConfigError("speed, pitch: the pocket voice has its model's own only")
        if not folder:
            raise ConfigError("the pocket voice needs a folder: --voice pocket=FOLDER")
        self._model = shared_model(folder, speaker)
        self._closed = False
        self._stop = Event()
        self.capabilities = VoiceCapabilities(
            "pocket" if speaker is None else f"pocket:{speaker}",
            self._model.rate,
            streaming=True,
            deterministic=False,
            language=language,
        )

    async def synthesize(self, phrase: Phrase) -> AsyncGenerator[SpeechBuffer, None]:
        """Speak ``phrase.spoken`` as it is made; nothing if it has no letter and no digit.

        Closing the generator, or cancelling the task that waits for it, ends the making within a piece
        of 80 ms. What is made ahead of the reader is at most the rest of the phrase.

        Raises:
            AdapterFailed: the model broke, or the voice was closed.
        """
        if self._closed:
            raise AdapterFailed("the voice is closed; make a new one")
        text = plain(phrase.spoken)
        if not speakable(text):
            return
        loop, pieces = asyncio.get_running_loop(), asyncio.Queue[bytes | None]()
        stop = self._stop = Event()

        def tell(piece: bytes | None) -> None:
            with suppress(RuntimeError):  # the loop has ended: nobody listens any more
                loop.call_soon_threadsafe(pieces.put_nowait, piece)

        def make() -> None:
            try:
                for piece in self._model.speak(text.strip(), stop):
                    tell(piece)
            finally:
                tell(None)

        done: Future[None] = thread_of("pocket").submit(make)
        try:
            while (pcm := await pieces.get()) is not None:
                if pcm and not self._closed:
                    yield SpeechBuffer(pcm)
            await asyncio.wrap_future(done)
        except AdapterFailed:
            raise
        except Exception as error:
            raise AdapterFailed(f"pocket-tts broke: {error}") from error
        finally:
            stop.set()
            done.cancel()

    async def aclose(self) -> None:
        """Stop what is being spoken; idempotent. The model stays, for the other voices."""
        self._closed = True
        self._stop.set()
