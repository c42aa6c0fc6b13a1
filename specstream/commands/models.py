"""``specstream models``: list the models that are here, and those that can be pulled."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from specstream.commands.shared.output import print_json
from specstream.config import DEFAULT_DRAFT, DEFAULT_TARGET
from specstream.models.catalogue import PULLED
from specstream.models.kept import folder_of, head_names, located, parameters_of, read_record, size_of

__all__ = ["ListedModel", "pulled_models", "run"]

_BUNDLED_LICENCE = "CC-BY-SA-4.0"


@dataclass(frozen=True, slots=True)
class ListedModel:
    """A model in the list.

    Attributes:
        name: The value for ``--target``, or for ``--draft`` if it is a head. The bundled pair needs no
            option: it is the default.
        here: Whether it can be used now.
        folder: Its folder, which may not exist yet.
        bytes: Size on disk; None if it isn't here, or is no
            language model.
        parameters: Number of weights; None if it isn't here, or is no
            language model.
        licence: SPDX identifier.
        origin: How it was obtained, or how it can be obtained.
    """

    name: str
    here: bool
    folder: str
    bytes: int | None
    parameters: int | None
    licence: str
    origin: str


async def run(args: argparse.Namespace) -> None:
    """Print the list."""
    entries = [*_bundled_models(), *pulled_models()]
    if args.json:
        print_json({"models": [asdict(entry) for entry in entries]})
        return
    wide = 2 + max(len(entry.name) for entry in entries)
    for entry in entries:
        size = f"{(entry.bytes or 0) / 1e6:.0f} MB"
        if entry.parameters is not None:
            size = f"{entry.parameters / 1e6:.1f}M parameters, {size}"
        print(
            f"{entry.name:{wide}}{size if entry.here else 'not here'}, {entry.licence}; {entry.origin}"
        )
        if entry.here:
            print(f"{'':{wide}}{entry.folder}")


def _bundled_models() -> Iterator[ListedModel]:
    pair = {"bundled-target": DEFAULT_TARGET, "bundled-draft": DEFAULT_DRAFT}
    for name, place in (pair | {head: located(head) for head in head_names()}).items():
        here = Path(place, "model.safetensors").is_file()
        yield _entry(name, Path(place), here, _BUNDLED_LICENCE, "part of specstream")


def pulled_models() -> Iterator[ListedModel]:
    """The models of the catalogue, pulled or not."""
    for model in PULLED.values():
        record = read_record(folder := folder_of(model))
        origin = f"`specstream pull {model.name}` brings {model.title}"
        yield _entry(
            model.name,
            folder,
            record is not None,
            model.licence,
            origin if record is None else record.origin,
        )


def _entry(name: str, folder: Path, here: bool, licence: str, origin: str) -> ListedModel:
    size = size_of(folder) if here else None
    parameters = parameters_of(folder) if here else None
    return ListedModel(name, here, str(folder), size, parameters, licence, origin)
