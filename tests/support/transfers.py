"""Counts what would make the host wait for a device, on a CPU, where nothing ever waits."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

# Reading a number (item, int, float, bool, index), and whatever has a size that depends on data.
_WAITING = {
    *("_local_scalar_dense", "item", "equal", "allclose", "is_nonzero"),
    *("nonzero", "nonzero_numpy", "argwhere", "masked_select", "_unique2", "unique_consecutive"),
}
_WHOLE = ("tolist", "numpy", "cpu", "__array__")


class Transfers(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """``count`` is the number of transfers so far; ``where`` names them."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.where: list[str] = []

    @property
    def count(self) -> int:
        return len(self.where)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func.overloadpacket.__name__
        if name in _WAITING or (name.startswith("index") and _by_mask(args)):
            self.where.append(name)
        return func(*args, **(kwargs or {}))


def _by_mask(args: Any) -> bool:
    """Whether one of the indices is a mask: how many entries it has depends on data."""
    indices = args[1] if len(args) > 1 and isinstance(args[1], list | tuple) else ()
    return any(isinstance(i, Tensor) and i.dtype in (torch.bool, torch.uint8) for i in indices)


@contextmanager
def transfers() -> Iterator[Transfers]:
    """Count within the block. A whole tensor that is read at once is one transfer.

    So is one that is made of numbers on the device at once, which waits for all that is queued there,
    and a list as an index, which is uploaded so.
    """
    with pytest.MonkeyPatch.context() as patch, Transfers() as counter:

        def counted(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
            def read(self: Tensor, *args: Any, **options: Any) -> Any:
                before = counter.count
                answer = original(self, *args, **options)
                del counter.where[before:]  # what it did inside is part of it
                counter.where.append(name)
                return answer

            return read

        def made(original: Callable[..., Any]) -> Callable[..., Any]:
            def make(*args: Any, **options: Any) -> Any:
                if options.get("device") is not None:
                    counter.where.append(original.__name__)
                return original(*args, **options)

            return make

        real = torch.Tensor.__getitem__

        def indexed(self: Tensor, index: Any) -> Tensor:
            parts = index if isinstance(index, tuple) else (index,)
            counter.where += ["index by a list"] * any(isinstance(one, list) for one in parts)
            found: Tensor = real(self, index)
            return found

        patch.setattr(torch.Tensor, "__getitem__", indexed)
        for name in ("tensor", "as_tensor"):
            patch.setattr(torch, name, made(getattr(torch, name)))
        for name in _WHOLE:
            patch.setattr(torch.Tensor, name, counted(name, getattr(torch.Tensor, name)))
        yield counter
