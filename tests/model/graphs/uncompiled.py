"""In the place of torch's compiler: a package's code is its graph, run as it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn


class Uncompiled:
    """Makes packages at once, and remembers their graphs for as long as it lives.

    A package keeps the weights that it was made with: models must not share one here.
    ``made`` names the files in the order of their making; ``before_next`` is called before each.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.made: list[str] = []
        self.before_next: Callable[[], None] = lambda: None
        self._graphs: dict[str, nn.Module] = {}
        patch.setattr(torch.export, "export", lambda graph, *args, **options: graph)
        patch.setattr(torch._inductor, "aoti_compile_and_package", self._make)
        patch.setattr(torch._inductor, "aoti_load_package", self._load)

    def _make(self, graph: nn.Module, *, package_path: str, **options: Any) -> None:
        self.before_next()
        path = Path(package_path)
        path.touch()
        self.made.append(path.name)
        self._graphs[path.name] = graph

    def _load(self, path: str) -> SimpleNamespace:
        graph = self._graphs[Path(path).name]

        def run(arguments: list[Tensor]) -> list[Tensor]:
            found = graph(*arguments)
            return list(found) if isinstance(found, tuple) else [found]

        return SimpleNamespace(
            loader=SimpleNamespace(run=run),
            get_constant_fqns=lambda: [],
            load_constants=lambda *args, **options: None,
        )
