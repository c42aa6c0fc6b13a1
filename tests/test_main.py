"""``python -m specstream``."""

import subprocess
import sys


def test_the_module_runs_the_command_line() -> None:
    argv = [sys.executable, "-m", "specstream", "--version"]
    found = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True)
    assert found.stdout.startswith("specstream ")


def test_a_command_imports_no_other_commands_options() -> None:
    code = "import sys; from specstream.commands.main import read_arguments as read; read(['doctor']); "
    code += "print(*(name for name in sys.modules if name.startswith('specstream.')))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    rooms = {name.split(".")[1] for name in found.stdout.split()}
    assert rooms <= {"checks", "commands", "errors", "lazy"}
