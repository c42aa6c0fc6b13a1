"""Finds the folder of a drafting head: a local one, or a repository on the Hub."""

from __future__ import annotations

from pathlib import Path

from specstream.errors import SpecstreamError
from specstream.model.heads.recognise import kind_of, read_head_config
from specstream.model.places import gguf_file, hub_options, not_found
from specstream.models.kept import located

__all__ = ["head_folder"]

_FILES = ["*.json", "*.safetensors", "*.bin", "*.pt"]


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
