"""What a user installs is what is here: built from the source, then looked into."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = out.glob("*.whl")
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
