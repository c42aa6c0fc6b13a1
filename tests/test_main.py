"""``python -m specstream``."""

from __future__ import annotations

import subprocess
import sys


def test_the_module_runs_the_command_line() -> None:
    argv = [sys.executable, "-m", "specstream", "--version"]
    found = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True)
    assert found.stdout.startswith("specstream ")
