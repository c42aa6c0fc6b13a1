import ast
import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import specstream
import specstream.errors
import specstream_adapters


def modules() -> list[str]:
    names = []
    for package in (specstream, specstream_adapters):
        names += [m.name for m in pkgutil.walk_packages(package.__path__, package.__name__ + ".")]
    return [name for name in names if not name.endswith("__main__")]


FACES = [
    "specstream",
    *(f"specstream.{name}" for name in "agent client drafting listening playback server stages".split()),
]


@pytest.mark.parametrize("name", FACES)
def test_a_type_checker_sees_the_names_that_a_package_offers(name: str) -> None:
    module = importlib.import_module(name)
    assert module.__file__ is not None
    tree = ast.parse(Path(module.__file__).read_text("utf-8"))
    (guarded,) = (node for node in tree.body if isinstance(node, ast.If))
    seen = [
        alias.name
        for node in guarded.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname == alias.name
    ]
    assert sorted(seen) == module.__all__ == dir(module)
    for public in module.__all__:
        assert getattr(module, public) is not None
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = module.nothing


@pytest.mark.parametrize("name", modules())
def test_every_module_imports_and_its_all_is_true(name: str) -> None:
    if name in ("specstream.commands.shared.recorder", "specstream.commands.say"):
        pytest.importorskip("soundfile")
    if name.startswith("specstream.model.fused.") and not name.endswith(("launch", "layers")):
        pytest.importorskip("triton")
    if name == "specstream.model.gguf":
        pytest.importorskip("transformers", minversion="5.20")
    module = importlib.import_module(name)
    for public in getattr(module, "__all__", ()):
        assert hasattr(module, public)


def test_the_error_tree_is_the_one_that_is_drawn() -> None:
    drawing = specstream.errors.__doc__ or ""
    codes: dict[str, type] = {}
    for name in specstream.errors.__all__:
        cls = getattr(specstream.errors, name)
        assert name in drawing
        assert issubclass(cls, specstream.SpecstreamError)
        assert cls.exit_code in (1, 2) or cls is specstream.errors.TrainingStopped  # 130
        if cls not in (specstream.errors.EngineError, specstream.errors.ModelError):
            assert cls.code not in codes, f"{name} and {codes.get(cls.code)} share a code"
        codes[cls.code] = cls
    drawn = [line.split("─ ")[1].split()[0] for line in drawing.splitlines() if "─ " in line]
    assert sorted([*drawn, "SpecstreamError"]) == sorted(specstream.errors.__all__)


def test_the_weights_stay_small() -> None:
    root = Path(specstream.__file__).parent
    assert sum(f.stat().st_size for f in root.rglob("*.safetensors")) < 60e6


@pytest.mark.slow
def test_the_reference_pages_are_up_to_date() -> None:
    script = Path(__file__).parent.parent / "scripts" / "api"
    done = subprocess.run([sys.executable, str(script), "--check"], check=False)
    assert done.returncode == 0, "run .venv/bin/python scripts/api"
