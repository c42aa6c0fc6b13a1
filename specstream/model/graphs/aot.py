"""Ahead-of-time code of a graph (torch.export, then inductor's C++), made once and loaded."""

from __future__ import annotations

import errno
import hashlib
import logging
import platform
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specstream.errors import ConfigError
from specstream.model.graphs.chain import StaticChain
from specstream.model.graphs.progress import Progress
from specstream.model.graphs.static import StaticHead, StaticPass
from specstream.model.graphs.store import PackageStore
from specstream.model.places import first_line
from specstream.model.weights import DecoderWeights

__all__ = ["Code", "load_code"]

_log = logging.getLogger("specstream.model")

_OPTIONS = {
    # Weights stay where they are: a package holds code only, and serves any weights of its sizes.
    "aot_inductor.package_constants_in_so": False,
    # One rounding instead of two for each product and sum, in half the instructions.
    "cpp.enable_floating_point_contract_flag": "fast",
}
_UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES)
_SOURCES = ("layers.py", "attention/heads.py", "graphs/static.py", "graphs/chain.py")

Graph = StaticPass | StaticHead | StaticChain


@dataclass(frozen=True, slots=True)
class Code:
    """A graph's code."""

    run: Callable[[list[Tensor]], list[Tensor]]  # from all arguments to all results
    owned: tuple[object, ...]  # what the code refers to by address


def load_code(
    graph: Graph,
    *,
    weights: DecoderWeights,
    store: PackageStore,
    progress: Progress,
    again: bool = False,
) -> Code:
    """The code of ``graph``, from the store or compiled now.

    Args:
        graph: What to compile; its buffers are used, not copied.
        weights: What the graph was made from.
        store: Where code is kept.
        progress: Is told of the package first, before what may take a minute.
        again: The package was loaded before for another graph like this; it is not counted.

    Raises:
        ConfigError: no working C++ compiler, or the store can't be written.
    """
    if not again:
        progress.next()
    recipe, make = _recipe(weights, graph), partial(_compile, progress, graph)
    try:
        package = _stored(store, recipe, make)
    except OSError as error:
        raise ConfigError(
            f"compiled passes can't be kept in {store.folder}: {error.strerror or error}; "
            "set SPECSTREAM_CACHE to a folder that can be written"
        ) from error
    buffers = dict(graph.named_buffers(remove_duplicate=False))
    wanted = {name: buffers[name] for name in package.get_constant_fqns()}
    package.load_constants(wanted, check_full_update=True, user_managed=True)
    # The package's own call sorts arguments into trees; its loader takes them as they are.
    return Code(package.loader.run, (package, *wanted.values()))


def _stored(store: PackageStore, recipe: Mapping[str, object], make: Callable[[Path], None]) -> Any:
    """The package of a recipe; a damaged file is made again, once."""
    path = store.path(recipe, make)
    try:
        return _load(path)
    except Exception as error:
        _log.warning("%s can't be loaded and is made again: %s", path, error)
    store.discard(path)
    path = store.path(recipe, make)
    try:
        return _load(path)
    except Exception as error:
        raise ConfigError(
            f"compile: what was compiled can't be loaded here ({first_line(error)}); leave compile off"
        ) from error


def _load(path: Path) -> Any:
    # Without a C++ compiler torch can't compare this CPU with the package's, warns of an outdated
    # format and loads the package all the same. The file name covers torch's version and the CPU.
    log = logging.getLogger("torch._inductor.package.package")
    log.addFilter(_is_other_news)
    try:
        return torch._inductor.aoti_load_package(str(path))
    finally:
        log.removeFilter(_is_other_news)


def _is_other_news(record: logging.LogRecord) -> bool:
    return "Loading outdated pt2 file" not in record.getMessage()


def _compile(progress: Progress, graph: Graph, path: Path) -> None:
    """Write the package of ``graph``."""
    example, shapes = graph.example()
    try:
        with progress.compiling(graph.title), warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            exported = torch.export.export(graph, example, dynamic_shapes=shapes)
            torch._inductor.aoti_compile_and_package(
                exported,
                package_path=str(path),
                inductor_configs=dict(_OPTIONS),  # it writes into what it gets
            )
    except Exception as error:
        if isinstance(error, OSError) and error.errno in _UNWRITABLE:
            raise
        raise ConfigError(
            f"compile: passes can't be compiled here ({first_line(error)}); it takes a C++ compiler "
            "(g++, or the one that CXX names) – or leave compile off"
        ) from error


def _recipe(weights: DecoderWeights, graph: Graph) -> dict[str, object]:
    """All that the code depends on: graphs of the same recipe share it."""
    layer = weights.layers[0]
    sizes = ("heads", "kv_heads", "head_dim", "hidden", "intermediate", "eps", "vocab_size")
    model = Path(__file__).parents[1]
    return graph.recipe | {
        "sizes": {name: getattr(weights, name) for name in sizes},
        "activation": weights.activation_name,
        "biases": [layer.qkv_bias is not None, layer.out_bias is not None],
        "head_norms": layer.query_norm is not None,
        # The exporter makes one constant of two that are the same tensor.
        "tied": weights.head.data_ptr() == weights.embedding.data_ptr(),
        "dtype": str(weights.dtype),
        "options": _OPTIONS,
        "graph": [hashlib.sha256((model / name).read_bytes()).hexdigest() for name in _SOURCES],
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "machine": [platform.system(), platform.machine(), _processor()],
    }


def _processor() -> str:
    """The model and the abilities of this CPU: code is compiled for just these."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n\n")[0].splitlines()
    except OSError:
        return platform.processor()
    return "\n".join(line for line in lines if line.startswith(("model name", "flags", "Features")))
