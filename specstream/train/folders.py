"""Writes the folder of a trained head."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn

__all__ = ["write_head"]


def write_head(
    folder: Path, title: str, module: nn.Module, config: Mapping[str, Any], card: Mapping[str, str]
) -> None:
    """config.json, model.safetensors (bfloat16) and README.md with the facts of ``card``."""
    tensors = {
        name: value.detach().to("cpu", torch.bfloat16).contiguous()
        for name, value in module.state_dict().items()
    }
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    written = json.dumps({**config, "dtype": "bfloat16"}, indent=2)
    (folder / "config.json").write_text(written + "\n", encoding="utf-8")
    facts = "".join(f"- {name}: {text}\n" for name, text in card.items())
    (folder / "README.md").write_text(f"# {title}\n\n{facts}", encoding="utf-8")
