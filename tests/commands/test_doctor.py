"""What is said of a machine's speed, from made-up facts of it."""

import importlib.metadata
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from specstream.commands.doctor import extras, host_facts
from specstream.commands.main import main
from specstream.commands.shared.common import speed_line


def test_a_port_in_use_and_a_cache_that_can_not_be_written_are_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SPECSTREAM_CACHE", str(tmp_path / "file"))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        found = host_facts(port)
    assert found["port"] == f"{port} (in use)"
    assert found["cache"].endswith("(can not be written)")


def test_a_user_without_a_home_folder_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> Path:
        raise RuntimeError("could not determine home directory")

    for name in ("SPECSTREAM_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", none)
    assert "set SPECSTREAM_CACHE" in host_facts(0)["cache"]


def test_half_speed_is_said_with_its_cure() -> None:
    reason = "compile: no native passes: there is no C++ compiler (g++ or clang++)"
    engine: Any = SimpleNamespace(slowed=reason, config=SimpleNamespace(device="cpu"))
    line = speed_line(engine)
    assert line.startswith("half speed") and "or a C++ compiler (g++)" in line
    engine.slowed = None
    assert "half speed" not in speed_line(engine) and "thread" in speed_line(engine)


def test_an_extra_is_here_if_all_its_packages_are(monkeypatch: pytest.MonkeyPatch) -> None:
    class Installed:
        requires = (
            "anyio<5,>=4.6",
            'anyio>=4; extra == "here"',
            "anyio>=4; (python_version >= '3.11') and extra == 'half'",
            'no-such-package[fast]>=1; extra == "half"',
            'no-such-package; extra == "dev"',
        )

    real = importlib.metadata.distribution

    def distribution(name: str) -> Any:
        if name == "specstream-sdk":
            raise importlib.metadata.PackageNotFoundError
        return Installed() if name == "specstream-client" else real(name)

    monkeypatch.setattr(importlib.metadata, "distribution", distribution)
    assert extras() == {"here": "found", "half": "not here; pip install 'specstream-client[half]'"}


@pytest.mark.slow
@pytest.mark.parametrize(("missing", "status"), [("soundfile", 0), ("pydantic", 1)])
def test_doctor_fails_where_the_main_job_can_not_be_done(
    missing: str, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    version = importlib.metadata.version

    def found(package: str) -> str:
        if package == missing:
            raise importlib.metadata.PackageNotFoundError
        return version(package)

    monkeypatch.setattr(importlib.metadata, "version", found)
    assert main(["doctor"]) == status
    assert f"pip install {missing}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ("print('Segmentation'); raise SystemExit(139)", "exit status 139"),
        ("raise OSError('libtorch.so: not found')", "libtorch.so: not found"),
    ],
)
def test_a_torch_that_can_not_be_imported_is_one_line_of_advice(
    broken: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", broken]
    monkeypatch.setattr(
        "specstream.commands.doctor._ask_torch",
        lambda: subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True),
    )
    assert main(["doctor"]) == 1
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "torch can't" in line]
    assert said in line
