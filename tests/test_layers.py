"""Who may import whom, read from the code itself."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = {
    "specstream": ROOT / "specstream",
    "specstream_adapters": ROOT / "adapters/specstream_adapters",
}

# A whole training asks the engine and the benchmark; losses and what is trained know the models only.
TRAINING = {
    f"specstream.training.{name}"
    for name in ("block", "inputs", "output", "replies", "run", "research.streaming")
}

# Lower layers first; a module may import from its own layer and from those below.
LAYERS = [
    {"specstream.errors", "specstream.checks", "specstream.lazy", "specstream.signals", "specstream"},
    {"specstream.params", "specstream.tools"},
    {"specstream.types"},
    {"specstream.metrics", "specstream.methods", "specstream.config", "specstream.trace"},
    {"specstream.models", "specstream.data"},
    {"specstream.model"},
    {"specstream.training"},
    {"specstream.drafting"},
    {"specstream.training.learner", "specstream.training.learning"},
    {"specstream.engine"},
    {"specstream.bench.exactness"},  # knows the engine only
    {"specstream.text", "specstream.stages"},
    {
        "specstream.playback",
        "specstream.engine.engine",
        "specstream.engine.generation",
        "specstream.engine.hosting",
        "specstream.engine.openai",
        "specstream.engine.session",
    },
    {"specstream.listening"},
    {"specstream.agent"},
    {"specstream.realtime"},
    {"specstream.client"},
    {"specstream.remote", "specstream.server"},
    {"specstream.testing"},
    {"specstream.bench", *TRAINING},
    {"specstream.commands", "specstream.__main__"},
]


def module_name(path: Path, package: str) -> str:
    parts = [package, *path.relative_to(PACKAGES[package]).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports() -> dict[str, set[str]]:
    """Module → modules of ours that it imports, at top level or inside a function."""
    found: dict[str, set[str]] = {}
    for package, root in PACKAGES.items():
        for path in root.rglob("*.py"):
            targets: set[str] = set()
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ImportFrom) and node.module:
                    targets.add(node.module)
                elif isinstance(node, ast.Import):
                    targets |= {alias.name for alias in node.names}
            ours = {t for t in targets if t.split(".")[0] in PACKAGES}
            found[module_name(path, package)] = ours
    return found


IMPORTS = imports()

# What users import: these packages name, and import on first use, what lies above them, too.
FACES = {
    "specstream",
    *(f"specstream.{name}" for name in "agent client drafting listening playback server stages".split()),
}


def inside(module: str, places: set[str]) -> bool:
    return any(module == place or module.startswith(place + ".") for place in places)


def layer(module: str) -> int | None:
    """Of the place with the longest name that the module is in."""
    found = [
        (len(place), number)
        for number, places in enumerate(LAYERS)
        for place in places
        if module == place or (place != "specstream" and module.startswith(place + "."))
    ]
    return max(found)[1] if found else None


def test_every_module_is_in_a_layer() -> None:
    assert not [m for m in IMPORTS if m.startswith("specstream.") and layer(m) is None]


def test_nothing_imports_upwards() -> None:
    wrong = []
    for module, targets in IMPORTS.items():
        own = layer(module)
        for target in targets:
            other = layer(target)
            if own is not None and other is not None and other > own and module not in FACES:
                wrong.append(f"{module} → {target}")
    assert not wrong


@pytest.mark.parametrize(
    ("who", "may"),
    [
        (
            {"specstream_adapters"},
            {
                "specstream_adapters",
                "specstream.stages.interfaces",
                "specstream.listening.interfaces",
                "specstream.models",
                "specstream.text.spoken",
                "specstream.checks",
                "specstream.signals",
                "specstream.types",
                "specstream.errors",
            },
        ),
        (
            {"specstream.text", "specstream.stages"},
            {
                "specstream.text",
                "specstream.stages",
                "specstream.listening.interfaces",
                "specstream.types",
                "specstream.checks",
                "specstream.errors",
                "specstream.signals",
            },
        ),
        (
            {"specstream.client", "specstream.realtime"},
            {
                "specstream.client",
                "specstream.realtime",
                "specstream.metrics",
                "specstream.types",
                "specstream.errors",
            },
        ),
        (
            {"specstream.errors", "specstream.params", "specstream.tools", "specstream.types"},
            {"specstream.errors", "specstream.params", "specstream.tools"},
        ),
    ],
    ids=["adapters", "stages", "client", "values"],
)
def test_outer_parts_know_little(who: set[str], may: set[str]) -> None:
    seen = {m: targets for m, targets in IMPORTS.items() if inside(m, who) and m not in FACES}
    assert seen
    wrong = [f"{m} → {t}" for m, targets in seen.items() for t in targets if not inside(t, may)]
    assert not wrong


def test_the_core_never_imports_adapters() -> None:
    core = {m: t for m, t in IMPORTS.items() if m.startswith("specstream.") or m == "specstream"}
    assert not [m for m, targets in core.items() if inside("specstream_adapters", targets)]
    assert not [
        m for m, targets in core.items() if any(t.startswith("specstream_adapters") for t in targets)
    ]


def test_no_import_cycles() -> None:
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, " → ".join([*path[path.index(module) :], module])
        if module in done or module not in IMPORTS:
            return
        for target in IMPORTS[module] - {"specstream"}:
            visit(target, (*path, module))
        done.add(module)

    for module in IMPORTS:
        visit(module, ())


@pytest.mark.parametrize(
    "module",
    [
        "specstream",
        "specstream.engine.engine",
        "specstream.testing",
        "specstream.client.client",
        "specstream.server.server",
        "specstream.stages.stages",
        "specstream.agent",
        "specstream.commands.main",
        "specstream_adapters.voice.reference",
        "specstream_adapters.avatar.script",
        "specstream_adapters.prompt.template",
        "specstream.listening.listener",
        "specstream_adapters.ears.whisper",
        "specstream_adapters.ears.silero",
    ],
)
def test_importing_it_loads_no_torch(module: str) -> None:
    code = f"import sys, {module}; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_there_is_no_init_beside_the_adapters() -> None:
    assert not (ROOT / "adapters" / "__init__.py").exists()
