"""Native code on other CPUs: an emulated ARM gives this CPU's results, but for rounding."""

import math
import shutil
import subprocess
from pathlib import Path

import pytest

from specstream.model.native import library
from specstream.model.native.builds import BUILDS, FLAGS

pytestmark = pytest.mark.slow

SOURCE = Path(__file__).with_name("portable.cpp")
CROSS, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"
LEVELS = {"neon": "armv8-a", "dot": "armv8.2-a+dotprod", "bf16": "armv8.2-a+dotprod+bf16"}
USES = {"neon": "fmla", "dot": "sdot", "bf16": "bfdot"}
# Of the size of all values of a line. Products round x to bfloat16 on some CPUs, or to 16 bits.
ALLOWED = {
    "float32": 1e-6,
    "bfloat16": 5e-3,
    "int8": 1e-4,
    "int4": 5e-3,
    "pass32": 1e-5,
    "pass16": 2e-2,
    "softmax": 1e-6,
    "without": 1e-6,
    "residual": 1e-6,
    "drawn": 0.0,
    "distribution": 0.0,
}


def built(to: Path, compiler: str, *flags: str) -> Path:
    native = Path(library.__file__).parent
    where = (f"-I{native}", str(SOURCE), "-o", str(to))
    subprocess.run([compiler, *FLAGS, "-O2", "-static", *flags, *where], check=True)
    return to


def results(*command: str | Path) -> dict[str, list[float]]:
    """What the program prints; it fails if a row depends on how passes are divided."""
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    lines = [line.split() for line in done.stdout.splitlines()]
    return {name: [float(value) for value in values] for name, *values in lines}


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[float]]:
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("needs a C++ compiler")
    return results(built(tmp_path_factory.mktemp("here") / "here", compiler, "-march=native"))


def test_the_program_computes_everything(here: dict[str, list[float]]) -> None:
    assert here.keys() == ALLOWED.keys() and here["distribution"] == [1]
    assert all(math.isfinite(value) for values in here.values() for value in values)
    assert math.isclose(sum(here["softmax"]), 1, rel_tol=1e-5)


@pytest.mark.skipif(
    not (shutil.which(CROSS) and shutil.which(EMULATOR)), reason=f"needs {CROSS} and {EMULATOR}"
)
@pytest.mark.parametrize("level", [build.name for build in BUILDS["aarch64"]])
def test_an_emulated_arm_agrees(level: str, here: dict[str, list[float]], tmp_path: Path) -> None:
    program = built(tmp_path / level, CROSS, f"-march={LEVELS[level]}")
    code = subprocess.run(
        ["aarch64-linux-gnu-objdump", "-d", program], check=True, capture_output=True, text=True
    ).stdout
    assert USES[level] in code
    found = results(EMULATOR, "-cpu", "max", program)
    assert found.keys() == here.keys()
    for name, values in found.items():
        wanted = here[name]
        size = math.sqrt(sum(value**2 for value in wanted))
        off = math.sqrt(sum((a - b) ** 2 for a, b in zip(values, wanted, strict=True)))
        assert off <= ALLOWED[name] * size, (name, off / size)
