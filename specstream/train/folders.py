"""Writes a trained head's folder with its card, and reads one to continue its training."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from specstream.errors import ConfigError, ModelUnsupported
from specstream.model.heads.recognise import kind_of, load_head, read_head_config
from specstream.model.heads.tensors import Tensors
from specstream.model.runner import ModelRunner
from specstream.train.options import TrainOptions

__all__ = ["Written", "read_written", "write_card", "write_head"]


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
        name: value.detach().to("cpu", dtype).contiguous()
        for name, value in module.state_dict().items()
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
