"""Passes compiled ahead of time for this CPU (torch.export, then inductor's C++)."""

from __future__ import annotations

import hashlib
import logging
import platform
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specstream.errors import ConfigError
from specstream.model.compiled import static
from specstream.model.compiled.static import StaticPass, by_rows
from specstream.model.compiled.store import PackageStore
from specstream.model.compiled.widths import Widths
from specstream.model.slab import SlabCache
from specstream.model.weights import DecoderWeights, RotaryTable

__all__ = ["InductorPasses"]

_log = logging.getLogger("specstream.model")

_BLOCK = 8  # layers compiled as one: a deeper model calls the same code for one block after another
_OPTIONS = {
    # Weights stay where they are: a package holds code only, and serves any weights of its sizes.
    "aot_inductor.package_constants_in_so": False,
    # One rounding instead of two for each product and sum, in half the instructions.
    "cpp.enable_floating_point_contract_flag": "fast",
}

_Run = Callable[[list[Tensor]], list[Tensor]]


@dataclass(frozen=True, slots=True)
class _Block:
    """Some layers, loaded: ``start`` and ``stop`` count tensors of the cache, two a layer."""

    run: _Run
    start: int
    stop: int
    path: Path
    owned: tuple[object, ...]  # the code looks at these tensors without holding them


class InductorPasses:
    """Passes of 1 to ``max(widths)`` tokens of one sequence, compiled; see `__call__`.

    A pass of a width that was not compiled runs as the next wider one, with junk behind.

    Args:
        weights: Whose; on a CPU.
        rotary: Angles of positions.
        widths: Numbers of tokens to compile for.
        store: Where compiled code is kept.

    Raises:
        ConfigError: no working C++ compiler, or the store can't be written.
    """

    def __init__(
        self,
        weights: DecoderWeights,
        rotary: RotaryTable,
        widths: Sequence[int],
        store: PackageStore,
    ) -> None:
        self._weights, self._rotary, self._store = weights, rotary, store
        self._ruler = torch.empty(0, dtype=torch.uint8)
        self._blocks = {width: self._load(width) for width in sorted(widths)}
        self._fitting = Widths(widths)

    @property
    def widths(self) -> tuple[int, ...]:
        """Numbers of tokens that there is code for."""
        return self._fitting.known

    def __call__(self, tokens: Tensor, cache: SlabCache) -> Tensor | None:
        """Append ``tokens [n]`` (int64) to the sequence; its logits ``[n, V]``.

        None, with nothing done, for a number of tokens that there is no code for.
        """
        count = tokens.shape[0]
        width = self._fitting.of(count)
        if width is None or cache.length + width < 2:  # sizes below 2 are special to the compiler
            return None
        end = cache.length + width
        if width > count:
            tokens = torch.cat((tokens, tokens.new_zeros(width - count)))
        rows = cache.rows(end)
        cos, sin = self._rotary.upto(end)
        if end > self._ruler.shape[0]:
            self._ruler = torch.empty(2 * end, dtype=torch.uint8)
        ruler, x = self._ruler[:end], tokens
        for block in self._blocks[width]:
            (x,) = block.run([x, cos, sin, ruler, *rows[block.start : block.stop]])
        cache.extend(count)
        return x[:count] if width > count else x

    def drop(self, width: int) -> None:
        """Forget a width whose code computes something else, here and on disk."""
        for block in self._blocks.pop(width):
            self._store.discard(block.path)
        self._fitting.drop(width)

    def _load(self, width: int) -> tuple[_Block, ...]:
        depth = len(self._weights.layers)
        spans = [(start, min(start + _BLOCK, depth)) for start in range(0, depth, _BLOCK)]
        return tuple(self._load_block(width, start, stop) for start, stop in spans)

    def _load_block(self, width: int, start: int, stop: int) -> _Block:
        graph = StaticPass(self._weights, width, start, stop, by_rows)
        make = partial(_compile, graph, self._weights, width, start)
        recipe = _recipe(self._weights, width, start, stop)
        try:
            path = self._store.path(recipe, make)
            try:
                package = torch._inductor.aoti_load_package(str(path))
            except Exception as error:  # a damaged file: its like is made again, once
                _log.warning("%s can't be loaded and is made again: %s", path, error)
                self._store.discard(path)
                path = self._store.path(recipe, make)
                package = torch._inductor.aoti_load_package(str(path))
        except OSError as error:
            raise ConfigError(
                f"compiled passes can't be kept in {self._store.folder}: {error.strerror or error}; "
                "set SPECSTREAM_CACHE to a folder that can be written"
            ) from error
        buffers = dict(graph.named_buffers(remove_duplicate=False))
        wanted = {name: buffers[name] for name in package.get_constant_fqns()}
        package.load_constants(wanted, check_full_update=True, user_managed=True)
        # The package's own call sorts arguments into trees; its loader takes them as they are.
        return _Block(package.loader.run, 2 * start, 2 * stop, path, (package, *wanted.values()))


def _compile(
    graph: StaticPass, weights: DecoderWeights, width: int, start: int, path: Path
) -> None:
    """Write the package of ``graph``.

    Raises:
        ConfigError: the C++ compiler is missing, or failed.
    """
    layers = graph.layers
    _log.info("compiling layers %d to %d for %d tokens", start, start + layers, width)
    began = time.perf_counter()
    dims = {
        name: torch.export.Dim(name, min=least, max=2**24)
        for name, least in (("length", 2), ("capacity", 16), ("positions", 16))
    }
    rows, length = 64, 40
    x = torch.zeros(width, dtype=torch.int64)
    if start:
        x = torch.zeros(width, weights.hidden, dtype=weights.dtype)
    angles = torch.zeros(rows, weights.head_dim, dtype=weights.dtype)
    one = torch.zeros(rows, weights.kv_heads, weights.head_dim, dtype=weights.dtype)
    kv = tuple(one.clone() for _ in range(2 * layers))
    example = (x, angles, angles.clone(), torch.empty(length, dtype=torch.uint8), *kv)
    places = {0: dims["positions"]}
    rows_of_kv = tuple({0: dims["capacity"]} for _ in kv)
    shapes: tuple[Any, ...] = ({}, places, places, {0: dims["length"]}, rows_of_kv)
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            exported = torch.export.export(graph, example, dynamic_shapes=shapes)
            torch._inductor.aoti_compile_and_package(
                exported, package_path=str(path), inductor_configs=dict(_OPTIONS)
            )
    except Exception as error:
        raise ConfigError(
            f"compile: passes can't be compiled here ({_first_line(error)}); it takes a C++ compiler "
            "(g++ or clang++) – or leave compile off"
        ) from error
    _log.info("compiled in %.0f s", time.perf_counter() - began)


def _recipe(weights: DecoderWeights, width: int, start: int, stop: int) -> dict[str, object]:
    """All that the code depends on: whoever has the same may share it."""
    layer = weights.layers[start]
    sizes = ("heads", "kv_heads", "head_dim", "hidden", "intermediate", "eps", "vocab_size")
    return {
        "sizes": {name: getattr(weights, name) for name in sizes},
        "activation": weights.activation_name,
        "biases": [layer.qkv_bias is not None, layer.out_bias is not None],
        "head_norms": layer.query_norm is not None,
        "tied": weights.head.data_ptr() == weights.embedding.data_ptr(),
        "dtype": str(weights.dtype),
        "width": width,
        "layers": stop - start,
        "ends": [start == 0, stop == len(weights.layers)],
        "options": _OPTIONS,
        "graph": hashlib.sha256(Path(static.__file__).read_bytes()).hexdigest(),
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


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__
