"""Local folders of pulled models and shipped heads: their paths, records and completeness."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from specstream.checks import cache_folder
from specstream.config import DEFAULT_TARGET, bundled
from specstream.errors import ModelBroken, ModelNotFound
from specstream.models.catalogue import BUNDLED_HEADS, KNOWN, KnownModel

__all__ = [
    "PulledRecord",
    "bundled_heads",
    "folder_of",
    "head_names",
    "located",
    "models_folder",
    "parameters_of",
    "read_record",
    "shipped_heads",
    "size_of",
    "write_record",
]

_RECORD = "specstream.json"
_SHIPPED = Path(__file__).parent.parent / "data" / "models"


@dataclass(frozen=True, slots=True)
class PulledRecord:
    """The record in a pulled model's folder (``specstream.json``).

    Attributes:
        name: The model's name in the catalogue.
        licence: SPDX identifier.
        origin: How the model was obtained, in words.
        sources: SHA-256 of the downloaded files from which the folder was made, by name.
        files: Size in bytes of each file of the folder, by name.
    """

    name: str
    licence: str
    origin: str
    sources: Mapping[str, str]
    files: Mapping[str, int]


def models_folder() -> Path:
    """The folder of all pulled models."""
    return cache_folder("models")


def folder_of(model: KnownModel) -> Path:
    """The folder of a known model, which need not exist."""
    return models_folder() / model.name


def located(name: str) -> str:
    """Return the folder of a pulled model or shipped head by its name; any other name unchanged.

    Raises:
        ModelNotFound: the model is known but has not been pulled.
        ModelBroken: the model's folder is damaged.
    """
    if name in head_names():
        return str(_SHIPPED / name)
    name = bundled(name)
    model = KNOWN.get(name)
    if model is None:
        return name
    folder = folder_of(model)
    if not folder.is_dir():
        raise ModelNotFound(
            f"{name} ({model.title}) is not here yet: `specstream pull {name}` brings it "
            f"(a folder of that name is ./{name})"
        )
    if read_record(folder) is None:
        raise ModelBroken(
            f"{folder} is damaged: files are missing or have another size; "
            f"`specstream pull {name}` brings it again"
        )
    return str(folder)


def shipped_heads(target: str, method: str = "auto") -> tuple[str, ...]:
    """Return the folders of the heads that ship for a target, given by its name or its Hub id.

    The bundled target's are there for the methods that are asked for by name. ``auto`` leaves them out:
    they cost so small a target more than they gain.
    """
    if bundled(target) == DEFAULT_TARGET:
        head = bundled_heads().get(method)
        return () if head is None else (str(_SHIPPED / head),)
    return tuple(
        str(_SHIPPED / head)
        for model in KNOWN.values()
        if target in (model.name, model.hub and model.hub.repository)
        for head in model.heads
        if method in ("auto", _method_of(head))
    )


def _method_of(head: str) -> str:
    """The method of a head that ships, which its name ends with."""
    return next(kind for kind in bundled_heads() if head.endswith(f"-{kind}"))


def bundled_heads() -> dict[str, str]:
    """By method, the names of the drafting heads that ship for the bundled target."""
    return {name.removeprefix("bundled-"): name for name in BUNDLED_HEADS}


def head_names() -> list[str]:
    """The names of all drafting heads that ship."""
    return [*BUNDLED_HEADS, *(head for model in KNOWN.values() for head in model.heads)]


def write_record(folder: Path, model: KnownModel, origin: str, sources: Mapping[str, str]) -> None:
    """Write the record of a complete folder.

    Raises:
        OSError: it can't be written.
    """
    files = {path.name: path.stat().st_size for path in sorted(folder.iterdir())}
    record = PulledRecord(model.name, model.licence, origin, dict(sources), files)
    text = json.dumps(asdict(record), indent=2) + "\n"
    (folder / _RECORD).write_text(text, encoding="utf-8")


def read_record(folder: Path) -> PulledRecord | None:
    """Read a folder's record; None if there is none, or a file is missing or of another size."""
    try:
        record = PulledRecord(**json.loads((folder / _RECORD).read_text(encoding="utf-8")))
        whole = all((folder / n).stat().st_size == size for n, size in record.files.items())
    except (OSError, ValueError, TypeError, AttributeError):
        return None
    return record if whole and record.files else None


def size_of(folder: Path) -> int:
    """Return the bytes of all files in ``folder`` and below; files that vanish meanwhile are skipped."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:
            continue
    return total


def parameters_of(folder: Path) -> int | None:
    """Count the weights in a folder's safetensors files, from their headers; None if unreadable."""
    total = 0
    try:
        for path in folder.glob("*.safetensors"):
            with path.open("rb") as file:
                (length,) = struct.unpack("<Q", file.read(8))
                header = json.loads(file.read(min(length, 100_000_000)))
            total += sum(math.prod(e["shape"]) for n, e in header.items() if n != "__metadata__")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, struct.error):
        return None
    return total or None
