"""How many parameters a config describes, and whether the files beside it can hold them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedConfig

from specstream.errors import ModelBroken

__all__ = ["check_size", "parameters_of"]

_WEIGHTS = ("*.safetensors", "*.bin")


def parameters_of(config: PreTrainedConfig) -> int:
    """Return how many parameters the model of a config has; allocates no memory for them."""
    factory: Any = AutoModelForCausalLM
    with torch.device("meta"):
        model: Any = factory.from_config(config)
    return sum(parameter.numel() for parameter in model.parameters())


def check_size(name: str, config: PreTrainedConfig) -> None:
    """Refuse a folder or a GGUF file that is too small for the model that its config describes.

    transformers takes default sizes for those that a config doesn't give, and would allocate the whole
    model, which may be many times the machine's memory, before it reported missing weights.

    Args:
        name: Folder or GGUF file; a Hub id isn't checked, nor is a folder without weights.
        config: Its config.

    Raises:
        ModelBroken: there is less than a byte of weights per parameter (a bit if they are quantised).
    """
    path = Path(name)
    if path.is_dir():
        files = [file for pattern in _WEIGHTS for file in path.glob(pattern)]
    elif path.is_file():
        files = [path]
    else:
        return
    nbytes = sum(file.stat().st_size for file in files)
    packed = path.is_file() or getattr(config, "quantization_config", None) is not None
    described = parameters_of(config)
    if 0 < nbytes * (8 if packed else 1) < described:
        raise ModelBroken(
            f"{name}: its config describes a model of {described:,} parameters, but its weights are "
            f"{nbytes:,} bytes; correct the sizes in the config (those it doesn't give have defaults), "
            "or take the files of the right model"
        )
