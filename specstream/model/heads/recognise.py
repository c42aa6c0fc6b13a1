"""Finds the folder of a drafting head, recognises its method by ``config.json``, and loads it."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from specstream.errors import ModelUnsupported, SpecstreamError
from specstream.model.heads.base import read_head_config
from specstream.model.heads.block import BlockShape
from specstream.model.heads.eagle import is_eagle
from specstream.model.heads.research.medusa import is_medusa
from specstream.model.heads.research.streaming import StreamingShape
from specstream.models.kept import located
from specstream.models.sources import gguf_file, hub_options, not_found

if TYPE_CHECKING:
    from specstream.model.heads.base import Head
    from specstream.model.runner import ModelRunner

__all__ = ["HEADS", "head_folder", "kind_of", "load_head", "told_acceptance"]

_FILES = ["*.json", "*.safetensors", "*.bin", "*.pt"]

HEADS: Mapping[str, Callable[[Mapping[str, Any]], bool]] = {
    "eagle": is_eagle,
    "early-exit": lambda config: config.get("model_type") == "specstream-early-exit",
    "block": BlockShape.fits,
    "medusa": is_medusa,
    "streaming": StreamingShape.fits,
}
"""Method → test of a ``config.json``; the module of that name loads the head."""

_RESEARCH = ("early-exit", "medusa", "streaming")


def kind_of(config: Mapping[str, Any]) -> str | None:
    """The method whose head ``config`` describes; None: it describes an ordinary model."""
    return next((kind for kind, fits in HEADS.items() if fits(config)), None)


def head_folder(name: str) -> Path | None:
    """The folder of the head that ``name`` means; None if ``name`` means an ordinary model.

    From a repository on the Hub ``config.json`` is fetched first, and the other files only if it
    describes a head.

    Raises:
        ModelNotFound: the Hub doesn't provide it.
        ModelBroken: its ``config.json`` can't be read.
    """
    place = located(name)
    if Path(place).exists() or gguf_file(place) is not None:
        return Path(place) if kind_of(read_head_config(place)) is not None else None
    from huggingface_hub import hf_hub_download, snapshot_download

    options = hub_options(place)
    try:
        config = Path(hf_hub_download(place, "config.json", **options))
        if kind_of(read_head_config(config.parent)) is None:
            return None
        return Path(snapshot_download(place, allow_patterns=_FILES, **options))
    except SpecstreamError:
        raise
    except Exception as error:
        raise not_found(place, "it can't be reached" if options else error) from error


def told_acceptance(config: Mapping[str, Any]) -> tuple[float, ...]:
    """The acceptance probability of each drafted position, given that those before it are accepted.

    `specstream.training` writes it to a ``config.json``, as ``"acceptance": [.57, .44]``; () if it is
    missing or malformed.
    """
    found = config.get("acceptance")
    if not isinstance(found, list) or not all(type(one) is float for one in found):
        return ()
    return tuple(found) if all(0.0 < one < 1.0 for one in found) else ()


def load_head(folder: str | Path, target: ModelRunner) -> Head:
    """Load the head of a folder, to the target's device.

    Raises:
        ModelBroken: its files are damaged, or tensors are missing or of the wrong shape.
        ModelUnsupported: it was made for another target, or the target gives no hidden states.
    """
    kind = kind_of(read_head_config(folder))
    if kind is None:
        raise ModelUnsupported(f"{folder} holds no drafting head that is known here")
    try:
        target.check_states(())
    except ModelUnsupported as error:
        raise ModelUnsupported(f"{folder}, a head for the method {kind}: {error}") from None
    home = "specstream.model.heads." + ("research." if kind in _RESEARCH else "")
    module = importlib.import_module(home + kind.replace("-", "_"))
    return cast("Head", module.load(Path(folder), target))
