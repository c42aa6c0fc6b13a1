"""Files of a training: written whole or not at all; a head's folder with its card."""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from specstream.checks import first_line
from specstream.errors import ConfigError, ModelUnsupported, OutputError
from specstream.model.heads.base import read_head_config
from specstream.model.heads.recognise import kind_of, load_head
from specstream.model.heads.tensors import Tensors
from specstream.model.runner import ModelRunner
from specstream.training.options import TrainOptions

__all__ = [
    "Written",
    "new_folder",
    "read_json",
    "read_tensors",
    "read_written",
    "tell_acceptance",
    "write_bytes",
    "write_card",
    "write_head",
    "write_json",
    "write_tensors",
]


def write_bytes(path: Path, data: bytes | memoryview) -> None:
    """Replace ``path`` atomically: after a crash it has either its old or its new content.

    Raises:
        OutputError: the file can't be written; the old content stays.
    """
    beside = path.with_name(path.name + ".part")
    try:
        with beside.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise OutputError(
            f"{path} can't be written: {error.strerror or error}; what was written before is kept: make "
            "room and give the same command again to go on"
        ) from error


def write_tensors(path: Path, value: Any) -> None:
    """Write a value with ``torch.save``, atomically; see `write_bytes`."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    write_bytes(path, buffer.getbuffer())


def read_tensors(path: Path, *, lazily: bool = False) -> Any:
    """Read a file of `write_tensors`: tensors and plain values only; no code in it is executed.

    With ``lazily`` the tensors are mapped from the file and read when they are used.

    Raises:
        OutputError: the file is damaged or can't be read.
    """
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=lazily)
    except (OSError, RuntimeError, EOFError, ValueError, KeyError, pickle.UnpicklingError) as error:
        raise OutputError(f"{path} can't be read: {first_line(error)}") from error


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write an object as JSON, atomically; see `write_bytes`."""
    write_bytes(path, (json.dumps(value, indent=2) + "\n").encode())


def read_json(path: Path) -> dict[str, Any] | None:
    """Read the JSON object in a file; None if there is no file.

    Raises:
        OutputError: the file is damaged, no JSON object, or can't be read.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise OutputError(f"{path} can't be read: {error}") from error
    if not isinstance(found, dict):
        raise OutputError(f"{path} is no JSON object")
    return found


@contextmanager
def new_folder(place: Path, *, replace: bool = False) -> Iterator[Path]:
    """Yield an empty folder for a draft or head, which becomes ``place`` at the end of the block.

    After an exception in the block nothing is left of it.

    Args:
        place: A path at which there is no folder yet, or an empty one.
        replace: Whether a folder that is there is removed in the end.

    Raises:
        OSError: the folder can't be written, or something is at ``place``.
    """
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"{place.name}.", dir=place.parent) as beside:
        whole = Path(beside) / "whole"  # the folder around it is readable by its owner only
        whole.mkdir()
        yield whole
        mode = (whole / "config.json").stat().st_mode
        for file in whole.iterdir():
            file.chmod(mode)  # safetensors writes files that only their owner may read
        if replace and place.exists():
            shutil.rmtree(place)
        whole.rename(place)


def tell_acceptance(folder: Path, positions: Sequence[float]) -> None:
    """Write a draft's acceptance by position into its ``config.json``; see `told_acceptance`."""
    path = folder / "config.json"
    found = [min(max(round(one, 3), 0.001), 0.999) for one in positions]
    write_json(path, (read_json(path) or {}) | {"acceptance": found})


def write_head(
    folder: Path,
    title: str,
    module: nn.Module,
    config: Mapping[str, Any],
    card: Mapping[str, str],
    *,
    dtype: torch.dtype = torch.bfloat16,
    more: Mapping[str, Tensor] | None = None,
) -> None:
    """Write config.json, model.safetensors and README.md of a head.

    Args:
        folder: An existing, empty folder.
        title: Title of the card, unless ``card`` has a ``title``.
        module: The module whose weights are written.
        config: Content of ``config.json``, to which the dtype is added.
        card: Facts for the card.
        dtype: The dtype of the written weights.
        more: Further tensors, written unchanged.

    Raises:
        OSError, SafetensorError: a file can't be written.
    """
    tensors = {
        name: value.detach().to("cpu", dtype).contiguous() for name, value in module.state_dict().items()
    }
    save_file({**tensors, **(more or {})}, folder / "model.safetensors", {"format": "pt"})
    written = json.dumps({**config, "dtype": str(dtype).removeprefix("torch.")}, indent=2)
    (folder / "config.json").write_text(written + "\n", encoding="utf-8")
    write_card(folder, {"title": title, **card})


def write_card(folder: Path, card: Mapping[str, str]) -> None:
    """Write ``README.md``: the ``title`` as its heading, and a paragraph for each other fact.

    Raises:
        OSError: the file can't be written.
    """
    lines = [f"# {card['title']}", ""]
    for name, text in card.items():
        if name != "title":
            lines += [f"## {name}", "", text, ""]
    (folder / "README.md").write_text("\n".join(lines), encoding="utf-8")


@dataclass(frozen=True, slots=True)
class Written:
    """The content of a head's folder that `write_head` wrote.

    Attributes:
        config: The content of ``config.json``.
        tensors: All tensors, of which each can be taken once.
    """

    config: Mapping[str, Any]
    tensors: Tensors

    @torch.no_grad()
    def into(self, module: nn.Module) -> None:
        """Copy the weights into a module with the same names and shapes.

        Raises:
            ModelBroken: a weight is missing, or of another shape.
        """
        for name, value in module.state_dict().items():
            value.copy_(self.tensors.take(name, value.shape))


def read_written(options: TrainOptions, target: ModelRunner) -> Written | None:
    """Read the head of ``options.init``, of the same kind and target; None if the training begins anew.

    Raises:
        ConfigError: there is no such folder.
        ModelBroken: files of the head are damaged.
        ModelUnsupported: the head is of another kind, or made for another target.
    """
    folder, kind = options.init, options.kind
    if folder is None:
        return None
    if not folder.is_dir():
        raise ConfigError(f"--init {folder}: there is no such folder")
    config = read_head_config(folder)
    if (found := kind_of(config)) != kind:
        holds = f"a head of {found}" if found else "no head"
        raise ModelUnsupported(f"--init {folder} holds {holds}; train {kind} goes on from its own")
    load_head(folder, target)  # only for its checks of the folder
    return Written(config, Tensors.read(folder))
