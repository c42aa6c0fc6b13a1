"""What a user installs is what is here: built from the source, then looked into."""

import re
import subprocess
import sys
import tomllib
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

from specstream import __version__

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("hatchling")
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = out.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def names(wheel: Path) -> set[str]:
    return set(zipfile.ZipFile(wheel).namelist())


def test_every_module_and_data_file_is_in_the_wheel(names: set[str]) -> None:
    adapters = ROOT / "adapters/specstream_adapters"
    for folder, prefix in ((ROOT / "specstream", "specstream"), (adapters, adapters.name)):
        for path in folder.rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                assert f"{prefix}/{path.relative_to(folder).as_posix()}" in names


def test_it_holds_the_models_the_notices_and_nothing_else(names: set[str]) -> None:
    assert "specstream/data/models/target/model.safetensors" in names
    assert "specstream/data/models/draft/model.safetensors" in names
    assert "specstream/data/models/MODEL_CARD.md" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert any(name.endswith("licenses/THIRD_PARTY.md") for name in names)
    tops = {name.split("/")[0] for name in names if ".dist-info" not in name}
    assert tops == {"specstream", "specstream_adapters"}


def test_the_distribution_has_a_name_of_its_own_and_the_import_and_command_keep_theirs(
    wheel: Path,
) -> None:
    """``specstream`` on the public index is another project: ours must not be taken for it."""
    assert wheel.name.startswith("specstream_sdk-")
    with zipfile.ZipFile(wheel) as archive:
        (folder,) = {name.split("/")[0] for name in archive.namelist() if ".dist-info/" in name}
        metadata = archive.read(f"{folder}/METADATA").decode()
        commands = archive.read(f"{folder}/entry_points.txt").decode()
    assert "\nName: specstream-sdk\n" in metadata
    assert "\nspecstream = specstream.commands.main:main\n" in commands


@pytest.fixture(scope="module")
def halves(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The client's wheel, and the one that has the rest."""
    builders = pytest.importorskip("hatchling.builders.wheel")
    from hatch_build import split

    configs = split(tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8")), __version__)
    out = str(tmp_path_factory.mktemp("halves"))
    client, sdk = (
        next(builders.WheelBuilder(str(ROOT), config=config).build(directory=out, versions=["standard"]))
        for config in configs
    )
    return Path(client), Path(sdk)


def described(wheel: Path) -> tuple[set[str], Message, str]:
    """Files outside .dist-info, metadata and entry points of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        (folder,) = {name.split("/")[0] for name in archive.namelist() if ".dist-info/" in name}
        files = {name for name in archive.namelist() if not name.startswith(folder)}
        points = f"{folder}/entry_points.txt"
        has = points in archive.namelist()
        metadata = Parser().parsestr(archive.read(f"{folder}/METADATA").decode())
        return files, metadata, archive.read(points).decode() if has else ""


def test_the_two_published_wheels_share_the_files_of_one_between_them(
    names: set[str], halves: tuple[Path, Path]
) -> None:
    (client, _, points), (sdk, _, none) = map(described, halves)
    assert client | sdk == {name for name in names if ".dist-info/" not in name}
    assert not client & sdk
    assert all(name.startswith("specstream/data/models/") for name in sdk) and sdk
    assert "specstream = specstream.commands.main:main" in points and "[specstream.voice]" in points
    assert none == ""


def test_the_client_needs_no_torch_and_the_rest_needs_the_client(
    wheel: Path, halves: tuple[Path, Path]
) -> None:
    (_, client, _), (_, sdk, _) = map(described, halves)
    (_, whole, _) = described(wheel)

    def needs(metadata: Message) -> set[str]:
        return {need for need in metadata.get_all("Requires-Dist", []) if "dev" not in need}

    assert (client["Name"], sdk["Name"]) == ("specstream-client", "specstream-sdk")
    assert client["Version"] == sdk["Version"] == whole["Version"]
    assert not [need for need in needs(client) if re.match("torch|transformers", need)]
    assert needs(sdk) - needs(whole) == {f"specstream-client=={__version__}"}
    assert needs(client) | needs(sdk) - {f"specstream-client=={__version__}"} == needs(whole)
    extras = set(whole.get_all("Provides-Extra", [])) - {"dev"}
    assert set(sdk.get_all("Provides-Extra", [])) == extras
    assert extras - set(client.get_all("Provides-Extra", [])) == {"gguf", "torchao"}


def test_no_message_or_page_tells_a_user_to_install_the_namesake() -> None:
    paths = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    for folder in ("specstream", "adapters", "examples"):
        paths += [p for p in (ROOT / folder).rglob("*") if p.suffix in {".py", ".md", ".html"}]
    namesake = re.compile(r"pip install (-\S+ )*[\"']?specstream(?!-sdk|-client)\b")
    told = [path.name for path in paths if namesake.search(path.read_text("utf-8"))]
    assert told == []
