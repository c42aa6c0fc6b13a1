"""No telemetry: nothing that we load writes a device id, or anything else outside our cache."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent

USE = """
from specstream.stages.adapters import load_adapter
load_adapter("turns", "silero")
from specstream_adapters.voice.hibari import shared_model
shared_model("heart")
from specstream_adapters.ears.whisper import WhisperRecognizer
try:
    WhisperRecognizer()
except Exception as error:
    print(error)
"""


@pytest.mark.slow
def test_the_variable_is_set_where_the_user_has_not(tmp_path: Path) -> None:
    """In a process of its own: voice, turn detector and recogniser together."""
    for package in ("onnxruntime", "hibari", "silero_vad", "faster_whisper"):
        pytest.importorskip(package)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("XDG_")}
    kept.pop("ORT_DISABLE_TELEMETRY", None)
    paths = os.pathsep.join([str(ROOT), str(ROOT / "adapters")])
    env = kept | {"HOME": str(tmp_path), "PYTHONPATH": paths, "HF_HUB_OFFLINE": "1"}
    program = USE + "import os, sys; sys.exit(os.environ['ORT_DISABLE_TELEMETRY'] != '1')"
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not [p for p in written if ".cache/specstream" not in p.as_posix()], written


def test_a_value_of_the_users_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    from specstream_adapters.checks import without_telemetry

    monkeypatch.setenv("ORT_DISABLE_TELEMETRY", "0")
    assert without_telemetry("json").dumps(1) == "1"
    assert os.environ["ORT_DISABLE_TELEMETRY"] == "0"
    monkeypatch.delenv("ORT_DISABLE_TELEMETRY")
    without_telemetry("json")
    assert os.environ["ORT_DISABLE_TELEMETRY"] == "1"


def test_nothing_imports_onnxruntime_in_another_way() -> None:
    """Nor a package that does, but for hibari's own modules, behind onnxruntime."""
    direct = re.compile(r"^\s*(?:import|from) (?:onnxruntime|faster_whisper|silero_vad)\b", re.M)
    folders = ROOT / "specstream", ROOT / "adapters" / "specstream_adapters"
    for folder in folders:
        for path in folder.rglob("*.py"):
            assert not direct.search(path.read_text(encoding="utf-8")), path
