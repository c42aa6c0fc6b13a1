"""Code that a wheel brings: the best that fits the CPU, unless it fails where it is tried first."""

import logging
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from specstream.errors import ConfigError
from specstream.model.native import builds, library as module
from specstream.model.native.builds import BUILDS, Build, fitting
from specstream.model.native.library import Library, library, native_library

pytestmark = pytest.mark.slow

V3 = "avx2 bmi1 bmi2 f16c fma abm movbe".split()
V4 = [*V3, *"avx512f avx512bw avx512cd avx512dq avx512vl".split()]
LATE = "avx512_bitalg avx512_vbmi2 avx512_vpopcntdq avx512ifma avx512vbmi gfni vaes vpclmulqdq".split()
ZEN4 = [*V4, *LATE, "avx512_vnni", "avx512_bf16"]
SAPPHIRE_RAPIDS = [*ZEN4, "avx512_fp16", "amx_tile", "amx_bf16", "amx_int8"]


@pytest.mark.parametrize(
    ("machine", "features", "vendor", "names"),
    [
        ("x86_64", SAPPHIRE_RAPIDS, "GenuineIntel", "amx vnni v4 v3"),
        ("x86_64", [f for f in SAPPHIRE_RAPIDS if f != "gfni"], "GenuineIntel", "vnni v4 v3"),
        ("x86_64", ZEN4, "AuthenticAMD", "zen4 vnni v4 v3"),
        ("AMD64", [*V4, "avx512_vnni"], "GenuineIntel", "vnni v4 v3"),
        ("x86_64", V4, "GenuineIntel", "v4 v3"),
        ("x86_64", V3, "AuthenticAMD", "v3"),
        ("x86_64", ["sse2"], "GenuineIntel", ""),
        ("aarch64", ["asimddp", "bf16", "i8mm"], "ARM", "bf16 dot neon"),
        ("arm64", ["asimddp"], "Apple", "dot neon"),
        ("aarch64", [], "ARM", "neon"),
        ("riscv64", [], "", ""),
    ],
)
def test_the_builds_that_a_cpu_can_run_are_tried_best_first(
    machine: str, features: list[str], vendor: str, names: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.machine", lambda: machine)
    assert [build.name for build in fitting(features, vendor)] == names.split()


def test_names_and_levels_are_unique() -> None:
    for some in BUILDS.values():
        assert len({build.name for build in some}) == len({build.cpu for build in some}) == len(some)


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of built code for a CPU that `BEST` and `NEXT` fit, as for a new process."""
    good = library(True)
    assert good is not None
    folder = tmp_path / "built"
    folder.mkdir()
    monkeypatch.setenv("SPECSTREAM_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("SPECSTREAM_NATIVE", raising=False)
    monkeypatch.setattr(builds, "folder", lambda: folder)
    monkeypatch.setattr(module, "fitting", lambda: [BEST, NEXT])
    monkeypatch.setattr(module, "compiled_here", lambda: "compile: no native passes: not in this test")
    shutil.copy(good.path, NEXT.path)
    native_library.cache_clear()
    yield folder
    native_library.cache_clear()


@pytest.fixture
def next_works(monkeypatch: pytest.MonkeyPatch) -> None:
    """The trial of `NEXT` takes ten seconds on busy cores; one test makes it."""
    tried = module.try_code

    def known(build: Build, note: Path) -> None:
        note.write_text("works") if build is NEXT else tried(build, note)

    monkeypatch.setattr(module, "try_code", known)


BEST, NEXT = Build("best", ""), Build("next", "")
FUNCTIONS = "layers chain level product softmax drawn without residual distributions spread keyed"


def make(path: Path, body: str) -> None:
    """A library whose functions all do the same."""
    code = "\n".join(f"long run_{name}() {{ {body} }}" for name in FUNCTIONS.split())
    source = path.with_suffix(".c")
    source.write_text(f"void abort();\n{code}\n")
    subprocess.run(["cc", "-w", "-shared", "-fPIC", source, "-o", path], check=True)


@pytest.mark.parametrize(("body", "said"), [("return 0;", "computes wrongly"), ("abort();", "crashes")])
@pytest.mark.usefixtures("next_works")
def test_what_computes_wrongly_or_crashes_is_left_out_with_one_warning(
    shipped: Path,
    body: str,
    said: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make(BEST.path, body)
    made = native_library()
    assert isinstance(made, Library) and made.name == "next"
    (warning,) = [r for r in caplog.records if r.levelno >= logging.WARNING]
    assert f"native code 'best' {said} on this CPU" in warning.getMessage()
    monkeypatch.setattr(subprocess, "run", None)  # what was found out is kept
    native_library.cache_clear()
    made = native_library()
    assert isinstance(made, Library) and made.name == "next"


@pytest.mark.usefixtures("next_works")
def test_what_can_not_be_loaded_is_left_out_too(shipped: Path, caplog: pytest.LogCaptureFixture) -> None:
    BEST.path.write_bytes(b"junk")
    made = native_library()
    assert isinstance(made, Library) and made.name == "next"
    assert "native code 'best' can't be loaded (" in caplog.text


@pytest.mark.parametrize("frozen", [True, False])
def test_a_program_that_is_its_own_python_is_not_started_again(
    shipped: Path, frozen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if frozen:
        monkeypatch.setattr("sys.frozen", True, raising=False)
    else:
        monkeypatch.setenv("SPECSTREAM_TRIAL", "1")
    monkeypatch.setattr(subprocess, "run", None)
    made = native_library()
    assert isinstance(made, Library) and made.name == "next"


def test_what_works_is_tried_once(shipped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tries = list[str]()

    def tried(build: Build, to: Path) -> None:
        tries.append(build.name)
        to.write_text("works")

    monkeypatch.setattr(module, "try_code", tried)
    for _ in range(2):
        assert isinstance(native_library(), Library)
        native_library.cache_clear()
    assert tries == ["next"]


def test_where_nothing_can_be_kept_it_is_used_untried(
    shipped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cache").write_text("a file")
    monkeypatch.setattr(module, "try_code", None)
    made = native_library()
    assert isinstance(made, Library) and made.path == NEXT.path


def test_the_environment_names_one(shipped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "try_code", lambda build, note: note.write_text("works"))
    shutil.copy(NEXT.path, BEST.path)
    for wish, name in (("", "best"), ("next", "next")):
        monkeypatch.setenv("SPECSTREAM_NATIVE", wish)
        native_library.cache_clear()
        made = native_library()
        assert isinstance(made, Library) and made.name == name
    for wish, said in (("compile", "not in this test"), ("avx1024", "no code of that name")):
        monkeypatch.setenv("SPECSTREAM_NATIVE", wish)
        native_library.cache_clear()
        with pytest.raises(ConfigError, match=said):
            library(True)
