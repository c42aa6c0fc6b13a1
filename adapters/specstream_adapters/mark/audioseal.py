"""AudioSeal: an inaudible watermark that its own detector finds, with a message of some bits."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import warnings
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MethodType
from typing import Any, TypeVar

import numpy as np

from specstream.errors import AdapterFailed, AdapterUnavailable, ConfigError
from specstream.stages.interfaces import MarkCapabilities
from specstream_adapters.checks import in_range

__all__ = ["AudioSealMark", "AudioSealTrack"]

_CARD = "audioseal_wm_streaming"  # the package's own settings of the streaming generator
_SUFFIXES = (".pth", ".pt")
_INSTALL = "audioseal is needed: pip install 'specstream-sdk[audioseal]'"
_FROM_OMEGACONF = {
    "omegaconf.base": ("ContainerMetadata", "Metadata"),
    "omegaconf.dictconfig": ("DictConfig",),
    "omegaconf.listconfig": ("ListConfig",),
    "omegaconf.nodes": ("AnyNode",),
}
"""What a checkpoint may hold beside tensors: the settings of its training."""

T = TypeVar("T")


class AudioSealMark:
    """AudioSeal's streaming generator, from a folder of its weights; runs on a thread of its own.

    Audio is marked at the voice's own sample rate, in pieces of about ``chunk_ms``, as the package's
    streaming does: the encoder goes on from piece to piece, the decoder begins each anew. So longer
    pieces suit it better. The detector must be given the audio at the same rate.

    Args:
        weights: A folder with one ``.pth`` or ``.pt`` file of a causal generator, and perhaps with a
            ``config.yaml`` like the package's model cards; or the file itself. Nothing is downloaded,
            and no code in a file is run.
        message: The number that the watermark carries, from 0 to 2**bits - 1; bit 0 comes first.
        strength: Factor of the watermark, from 0 to 1.
        chunk_ms: Longest piece that is marked at once, so also the delay: 20 to 1000 ms.

    Raises:
        AdapterUnavailable: the package or the weights are missing, or can't be used.
        ConfigError: an option is out of range.
    """

    named_by = "weights"

    def __init__(
        self,
        *,
        weights: str | Path | None = None,
        message: int = 0,
        strength: float = 1.0,
        chunk_ms: int = 160,
    ) -> None:
        in_range("strength", strength, 0, 1)
        in_range("chunk_ms", chunk_ms, 20, 1000, whole=True)
        if weights is None:
            raise ConfigError("audioseal needs a folder of weights: write audioseal=FOLDER")
        path = _file_of(Path(weights))
        try:
            self._torch: Any = importlib.import_module("torch")
            loader: Any = importlib.import_module("audioseal.loader")
        except ImportError:
            raise AdapterUnavailable(_INSTALL) from None
        try:
            self._model, bits = _generator(self._torch, loader, path)
            self._hop = int(self._model.encoder.hop_length)
        except AdapterUnavailable:
            raise
        except Exception as error:
            raise AdapterUnavailable(f"{path} is no generator of AudioSeal: {error}") from error
        in_range("message", message, 0, 2**bits - 1, whole=True)
        self._message = self._torch.tensor([[message >> bit & 1 for bit in range(bits)]])
        self._strength, self._chunk_ms = float(strength), chunk_ms
        self._thread = ThreadPoolExecutor(1, "specstream-mark")  # starts with the first call
        self._closed = False
        self.capabilities = MarkCapabilities("audioseal", float(chunk_ms), deterministic=True)

    def open(self, sample_rate: int) -> AudioSealTrack:
        """Begin a phrase.

        Raises:
            AdapterFailed: at this rate a piece of ``chunk_ms`` is shorter than one frame of the model.
        """
        frames = sample_rate * self._chunk_ms // 1000 // self._hop
        if frames < 1:
            raise AdapterFailed(
                f"audioseal marks frames of {self._hop} samples, longer than {self._chunk_ms} ms at "
                f"{sample_rate} Hz; set chunk_ms higher"
            )
        return AudioSealTrack(self, frames * self._hop)

    async def work(self, function: Callable[[], T]) -> T:
        """Run a function on the mark's thread; cancelling gives up the wait.

        Raises:
            AdapterFailed: the mark is closed, or the model broke.
        """
        if self._closed:
            raise AdapterFailed("the mark is closed; make a new one")
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, function)
        except Exception as error:
            raise AdapterFailed(f"audioseal broke: {error}") from error

    def mark(self, pcm: bytes, state: Any) -> tuple[bytes, Any]:
        """Mark one piece (16-bit mono, any length); returns as much audio, and the state behind it.

        ``state``: that behind the phrase's piece before; None: the phrase begins. On the mark's thread.
        """
        sound = np.frombuffer(pcm, dtype="<i2").astype(np.float32) / 32768.0
        padded = np.pad(sound, (0, -len(sound) % self._hop))
        marked, state = self._through(padded, state)
        whole = np.rint(marked[: len(sound)] * 32768.0).clip(-32768, 32767).astype("<i2")
        return whole.tobytes(), state

    def _through(self, sound: np.ndarray[Any, Any], state: Any) -> tuple[Any, Any]:
        torch, model = self._torch, self._model
        with torch.inference_mode(), model.streaming(1):
            if state is not None:
                model.encoder.set_streaming_state(state)
            given = torch.from_numpy(sound)[None, None]
            marked = model(given, message=self._message, alpha=self._strength)
            return marked[0, 0].numpy(), model.encoder.get_streaming_state()

    async def aclose(self) -> None:
        """Let the thread end; idempotent."""
        self._closed = True
        self._thread.shutdown(wait=False)


class AudioSealTrack:
    """The mark of one phrase: whole pieces are marked as they fill up, the rest at the end."""

    def __init__(self, mark: AudioSealMark, samples: int) -> None:
        self._mark = mark
        self._size = 2 * samples  # bytes
        self._waiting = b""
        self._state: Any = None

    async def add(self, pcm: bytes) -> bytes:
        """See `specstream.stages.MarkTrack`."""
        self._waiting += pcm
        if len(self._waiting) < self._size:
            return b""
        return await self._mark.work(self._whole_pieces)

    async def close(self) -> bytes:
        """See `specstream.stages.MarkTrack`."""
        return await self._mark.work(self._rest) if self._waiting else b""

    def _whole_pieces(self) -> bytes:
        done = list[bytes]()
        while len(self._waiting) >= self._size:
            piece, self._waiting = self._waiting[: self._size], self._waiting[self._size :]
            marked, self._state = self._mark.mark(piece, self._state)
            done.append(marked)
        return b"".join(done)

    def _rest(self) -> bytes:
        rest, self._waiting = self._waiting, b""
        marked, self._state = self._mark.mark(rest, self._state)
        return marked


def _file_of(path: Path) -> Path:
    if path.is_file():
        return path
    found = sorted(one for one in path.glob("*") if one.suffix in _SUFFIXES)
    if len(found) != 1:
        what = f"{len(found)} files" if found else "none"
        raise AdapterUnavailable(
            f"{path} must be a folder with one file of AudioSeal's generator (.pth); it has {what}"
        )
    return found[0]


def _generator(torch: Any, loader: Any, path: Path) -> tuple[Any, int]:
    """The model of a file, and how many bits its message has.

    Raises:
        AdapterUnavailable: it isn't causal, or tensors are missing.
    """
    kept: list[Any] = [
        *(Any, dict, list, int, defaultdict),
        *(
            getattr(importlib.import_module(module), name)
            for module, names in _FROM_OMEGACONF.items()
            for name in names
        ),
    ]
    # The package's own loader runs whatever code a file has in it.
    with torch.serialization.safe_globals(kept):
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    card = path.parent / "config.yaml"
    if card.is_file():
        omegaconf = importlib.import_module("omegaconf").OmegaConf
        settings = omegaconf.to_container(omegaconf.load(card))
    else:
        settings = checkpoint.get("xp.cfg") or loader.load_local_model_config(_CARD)
    config = loader.AudioSeal.parse_config(dict(settings), loader.AudioSealWMConfig)
    if not config.seanet.causal:
        raise AdapterUnavailable(
            f"{path} isn't causal, so it can't mark speech as it is made; take generator_streaming.pth"
        )
    if "best_state" in checkpoint:
        checkpoint = checkpoint["best_state"]
    tensors: dict[str, Any] = checkpoint.get("model", checkpoint)
    if not any(".inner_conv." in name for name in tensors):  # names as of before 0.2
        tensors = loader.convert_state_dict_for_scriptable_model(tensors)
    model = loader.create_generator(config, device=torch.device("cpu"), dtype=torch.float32)
    ends = (".weight_g", ".parametrizations.weight.original0")  # a convolution's norm of weights
    there = set(tensors) | {
        f"{name.removesuffix(end)}.weight" for name in tensors for end in ends if name.endswith(end)
    }
    if missing := sorted(set(model.state_dict()) - there):
        raise AdapterUnavailable(f"{path} lacks {len(missing)} tensors, {missing[0]} among them")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of the norm that the package takes off
        loader.load_state_dict(model, tensors)
    for part in (model.encoder, model.decoder):
        # The package compiles these at their first piece, and again for each length: seconds of silence.
        part.forward = MethodType(inspect.unwrap(type(part).forward), part)
    return model.eval(), int(config.nbits)
