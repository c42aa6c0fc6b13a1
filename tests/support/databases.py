"""A PostgreSQL server of a test run's own, where its programs are installed."""

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest


def _programs() -> Path:
    found = shutil.which("initdb")
    folders = [Path(found).parent] if found else sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    if not folders:
        pytest.skip("PostgreSQL's programs are not installed")
    return folders[-1]


@contextmanager
def postgres() -> Generator[str, None, None]:
    """A server without data; gives its URL."""
    pytest.importorskip("asyncpg")
    programs, folder = _programs(), Path(tempfile.mkdtemp(prefix="pg"))
    user: dict[str, Any] = {}
    if os.geteuid() == 0:  # PostgreSQL refuses root
        try:
            account = pwd.getpwnam("postgres")
        except KeyError:
            pytest.skip("PostgreSQL can't run as root, and there is no user for it")
        os.chown(folder, account.pw_uid, account.pw_gid)
        user = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}

    def run(program: str, *arguments: str) -> None:
        command = [str(programs / program), *arguments]
        subprocess.run(
            command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, cwd=folder, **user
        )

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    try:
        run("initdb", "-D", f"{folder}/d", "-A", "trust", "-U", "test", "--no-sync", "-E", "UTF8")
        options = f"-p {port} -k {folder} -c listen_addresses=127.0.0.1 -c fsync=off"
        run("pg_ctl", "-D", f"{folder}/d", "-w", "-l", f"{folder}/log", "-o", options, "start")
        try:
            yield f"postgresql://test@127.0.0.1:{port}/postgres"
        finally:
            run("pg_ctl", "-D", f"{folder}/d", "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
