"""A known model of a test's own: real files, real digests, and sources that copy them."""

import hashlib
import json
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from specstream.models.catalogue import HubFiles, KnownModel, PinnedFile, Wheel
from specstream.models.pull import Sources
from specstream.models.sources import SourceUnavailable

GGUF = "tiny_wheel/tiny.gguf"
REQUIREMENT = "tiny-wheel==1.0"
WHEEL = "tiny_wheel-1.0-py3-none-any.whl"


def pinned(name: str, content: bytes) -> PinnedFile:
    return PinnedFile(name, hashlib.sha256(content).hexdigest(), len(content))


def write_wheel(folder: Path, gguf: bytes) -> Path:
    """A wheel that pip accepts, with a GGUF file inside."""
    path, info = folder / WHEEL, "tiny_wheel-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(GGUF, gguf)
        archive.writestr(f"{info}/LICENSE", "licence text")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-wheel\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


@dataclass
class World:
    """The files, what the sources give, and what they were asked."""

    root: Path
    gguf: bytes = b"GGUF, but not a real one"
    hub_files: dict[str, bytes] = field(
        default_factory=lambda: {"config.json": b"{}", "model.safetensors": b"weights" * 100}
    )
    hub_error: BaseException | None = None
    index_error: BaseException | None = None
    convert_error: BaseException | None = None
    free: int = 10**9
    on_index: Callable[[], None] = lambda: None
    asked: list[str] = field(default_factory=list)
    told: list[tuple[str, int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.root.mkdir()
        self.wheel = write_wheel(self.root, self.gguf)
        self.model = KnownModel(
            "tiny",
            "Tiny",
            "Apache-2.0",
            1_000_000,
            HubFiles("org/tiny", "c" * 40, tuple(pinned(n, c) for n, c in self.hub_files.items())),
            Wheel(
                REQUIREMENT,
                pinned(WHEEL, self.wheel.read_bytes()),
                pinned(GGUF, self.gguf),
                {"LICENSE": "tiny_wheel-1.0.dist-info/LICENSE"},
            ),
        )

    def tell(self, what: str, done: int, total: int) -> None:
        self.told.append((what, done, total))

    @property
    def sources(self) -> Sources:
        return Sources(self._convert, self._hub, self._index, lambda folder: self.free)

    async def _hub(self, wanted: HubFiles, folder: Path) -> None:
        self.asked.append("hub")
        for number, file in enumerate(wanted.files):
            if self.hub_error is not None and number == len(wanted.files) - 1:
                raise self.hub_error  # after some of the files
            (folder / file.name).write_bytes(self.hub_files[file.name])

    async def _index(self, requirement: str, folder: Path) -> None:
        assert requirement == REQUIREMENT
        self.on_index()
        self.asked.append("index")
        content = self.wheel.read_bytes()
        if self.index_error is not None:
            (folder / "pip-unpack-1").mkdir()
            (folder / "pip-unpack-1" / WHEEL).write_bytes(content[:50])
            raise self.index_error
        (folder / WHEEL).write_bytes(content)

    def _convert(self, path: Path, folder: Path, tell: Callable[[int, int], None]) -> None:
        self.asked.append("convert")
        assert path.read_bytes() == self.gguf
        tell(0, 2)
        (folder / "config.json").write_text(json.dumps({"made": "of GGUF"}))
        if self.convert_error is not None:
            raise self.convert_error
        (folder / "model.safetensors").write_bytes(b"weights")


NO_HUB = SourceUnavailable("it can't be reached")
NO_INDEX = SourceUnavailable("No matching distribution found for tiny-wheel==1.0")
