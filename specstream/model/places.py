"""Checks that a model's name leads to a folder, a file or the Hub, without importing torch."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

from specstream.checks import first_line, meant
from specstream.config import DEFAULT_DRAFT, DEFAULT_TARGET, EngineConfig
from specstream.errors import ConfigError, ModelBroken, ModelNotFound
from specstream.models.catalogue import KNOWN
from specstream.models.kept import head_names, located
from specstream.models.sources import try_hub

__all__ = ["WEIGHTS", "check_folder", "check_models", "gguf_file", "hub_options", "not_found"]

_CONNECT_S = 2.0
WEIGHTS = ("*.safetensors", "*.bin", "medusa_lm_head.pt")  # the last one: published Medusa heads


def check_models(config: EngineConfig) -> None:
    """Check that the models which an engine would load are there; fetches the config of a Hub model.

    Raises:
        ModelNotFound: there is no such model, or the Hub can't be reached.
        ModelBroken: a folder whose config can't be read or that has no weights, or a damaged GGUF file.
        ConfigError: a GGUF file, without the package that reads it.
    """
    drafts = config.drafts if config.wants_draft or config.wants_heads else ()
    for name in map(located, [config.target, *drafts]):
        check_folder(name)
        folder = Path(name)
        if gguf_file(name):
            continue
        if not folder.is_dir():
            _check_hub(name)
        elif not any(any(folder.glob(pattern)) for pattern in WEIGHTS):
            raise ModelBroken(f"{name} is a model folder without weights (*.safetensors)")


def _check_hub(name: str) -> None:
    from huggingface_hub import hf_hub_download  # takes half a second: only for Hub models

    options = hub_options(name)
    try:
        hf_hub_download(name, "config.json", **options)
    except Exception as error:
        raise not_found(name, "it can't be reached" if options else error) from error


def check_folder(name: str) -> None:
    """Refuse a name that is no model folder, no GGUF file, and doesn't look like a Hub id.

    Raises:
        ModelNotFound: there is no such folder or file, or it doesn't hold a model.
        ModelBroken: the config can't be read, or a .gguf file has another format.
        ConfigError: a GGUF file, without the package that reads it.
    """
    if (file := gguf_file(name)) is not None:
        _check_gguf(file)
        return
    path = Path(name)
    if path.is_dir():
        config = path / "config.json"
        if not config.is_file():
            raise ModelNotFound(f"{name} is a folder without a config.json: not a model folder")
        try:
            json.loads(config.read_text(encoding="utf-8"))
        except (ValueError, OSError) as error:
            raise ModelBroken(f"{config} can't be read: {first_line(error)}") from None
    elif path.is_file():
        raise ModelNotFound(f"{name} is a file: a model is a folder, a GGUF file or a Hub id")
    elif path.is_absolute() or name.startswith(("./", "../", "~")) or name.count("/") > 1:
        missing = "; the bundled models come with specstream-sdk: pip install specstream-sdk"
        hint = missing if name in (str(DEFAULT_TARGET), str(DEFAULT_DRAFT)) else ""
        raise ModelNotFound(f"no such model folder: {name}{hint}")
    elif not name.strip():
        raise ModelNotFound(f"{name!r} is neither a model folder nor a Hub id")


def gguf_file(name: str) -> Path | None:
    """Return the path if ``name`` ends like a GGUF file, whether the file exists or not; else None."""
    path = Path(name)
    return path if path.suffix.lower() == ".gguf" and not path.is_dir() else None


def _check_gguf(path: Path) -> None:
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except FileNotFoundError:
        raise ModelNotFound(f"no such model file: {path}") from None
    except OSError as error:
        raise ModelBroken(f"{path} can't be read: {error.strerror}") from None
    if magic != b"GGUF":
        raise ModelBroken(f"{path} is not a GGUF file (it doesn't begin with GGUF)")
    if importlib.util.find_spec("gguf") is None:
        raise ConfigError('GGUF files need the package gguf: pip install "specstream-sdk[gguf]"')


def hub_options(name: str) -> dict[str, Any]:
    """Return the options for loading ``name``: local files only if it is on the Hub, out of reach."""
    if not Path(name).exists():
        try:
            try_hub(_CONNECT_S)
        except OSError:
            return {
                "local_files_only": True
            }  # files that an earlier run has fetched are still usable
    return {}


def not_found(name: str, why: object) -> ModelNotFound:
    """The error for a model that the Hub doesn't provide."""
    return ModelNotFound(
        f"{name} is no folder here and can't be fetched from the Hub ({first_line(why)}); "
        f"check the name and the network, or give a local folder{meant(name, (*KNOWN, *head_names()))}"
    )
