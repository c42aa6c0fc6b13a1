"""Runs the engine on fake tensors that say they are on a GPU: shapes, devices and dtypes, no numbers.

torch's fake tensors check what an operation on the device would check, without a device. A build of
torch for CPUs can't index such tensors from Python, as that asks for a device: `_getitem` does it by
operations instead. Whatever the host would read is answered by a constant, and counted: each reading
makes the host wait.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import PreTrainedModel

from specstream.drafting import batched
from specstream.model import fused, selfcheck as tree_check, weights
from specstream.model.attention import kernels
from specstream.model.decoder import Decoder
from specstream.model.fused import launch
from specstream.model.tokens import sampling

__all__ = ["CARD", "Counts", "fake_cuda", "on_card"]

CARD = torch.device("cuda", 0)

_aten = torch.ops.aten
# Operations that launch no kernel: they make views, or take memory.
_FREE = {
    *("view", "slice", "select", "unsqueeze", "squeeze", "expand", "split", "split_with_sizes"),
    *("t", "transpose", "permute", "detach", "alias", "unbind", "_unsafe_view", "empty"),
    *("lift_fresh", "as_strided", "reshape", "chunk", "empty_like", "_reshape_alias", "new_empty"),
    *("device", "empty_strided", "new_empty_strided"),
}


class Counts(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """What happened on the device.

    Attributes:
        waits: What made the host wait, by name.
        uploads: Number of transfers to the device.
        launches: Operations that launch a kernel, by name.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.reset()

    def reset(self) -> None:
        self.waits, self.launches, self.uploads = Counter[str](), Counter[str](), 0

    @property
    def launched(self) -> int:
        return self.launches.total()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if isinstance(made, Tensor) and made.device.type == "cuda" and name not in _FREE:
            if name in ("_to_copy", "copy_", "_to_copy_") and _from_host(args):
                self.uploads += 1
            self.launches[name] += 1
        elif isinstance(made, tuple | list) and _on_card(args) and name not in _FREE:
            self.launches[name] += 1
        return made


def _on_card(args: Any) -> bool:
    flat = [one for arg in args for one in (arg if isinstance(arg, list | tuple) else [arg])]
    return any(isinstance(one, Tensor) and one.device.type == "cuda" for one in flat)


def _from_host(args: Any) -> bool:
    return any(isinstance(one, Tensor) and one.device.type == "cpu" for one in args)


def on_card(model: PreTrainedModel) -> PreTrainedModel:
    """Replace a model's tensors by fake ones on the device; to be called within `fake_cuda`."""
    for module in model.modules():
        # A tied weight has two names: both are replaced.
        for name, one in list(module.named_parameters(recurse=False, remove_duplicate=False)):
            empty = torch.empty(one.shape, dtype=one.dtype, device=CARD)
            setattr(module, name, torch.nn.Parameter(empty, requires_grad=False))
        for name, kept in list(module.named_buffers(recurse=False, remove_duplicate=False)):
            setattr(module, name, torch.empty(kept.shape, dtype=kept.dtype, device=CARD))
    return model


@contextmanager
def fake_cuda(number: float = 0.5, token: int = 0, free_bytes: int = 2**28) -> Iterator[Counts]:
    """A block in which models of `on_card` run; yields the counts of what they do.

    ``number`` is what the host reads for every number that isn't whole, ``token`` for whole ones.
    """
    counts = Counts()
    with ExitStack() as stack:
        for target, name, value in [
            *_torch_patches(counts, number, token),
            *_our_patches(),
            *_kernels(counts),
            *_card(free_bytes),
        ]:
            stack.enter_context(mock.patch.object(target, name, value))
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        stack.enter_context(torch.no_grad())
        stack.enter_context(counts)
        sampling.column_of.cache_clear()
        yield counts
        sampling.column_of.cache_clear()


def _kernels(counts: Counts) -> list[tuple[Any, str, Any]]:
    """Our own kernels are counted instead of launched, where Triton is installed."""

    def launch(kernel: Any, grid: Any, *args: Any, **meta: Any) -> None:
        counts.launches[kernel.__name__] += 1
        assert all(one.device.type == "cuda" for one in args if isinstance(one, Tensor))

    if not fused.installed():
        return []
    from specstream.model.fused import launch as module

    return [(module, "launch", launch)]


def _card(free_bytes: int) -> list[tuple[Any, str, Any]]:
    return [
        (torch.cuda, "get_device_capability", lambda device=None: (9, 0)),
        (torch.cuda, "mem_get_info", lambda device=None: (free_bytes, 8 * free_bytes)),
        (torch.cuda, "set_device", lambda device: None),
        (torch.cuda, "empty_cache", lambda: None),
        (torch.cuda, "synchronize", lambda device=None: None),
    ]


def _our_patches() -> list[tuple[Any, str, Any]]:
    """Answers where the code compares numbers."""

    def verdict(case: Any, end: Any, choices: Any, tokens: Any, faults: Any) -> Any:
        return real(case, end and (0, end[1]), choices, tokens, None)

    real = batched.verdict_of
    return [
        (launch, "launch", lambda kernel, grid, *args, **meta: None),
        (kernels, "works", lambda *args, **options: True),
        (Decoder, "_agrees", lambda self, model: True),
        (weights, "_dense", lambda parameter: True),
        (tree_check, "_difference", lambda runner: 0.0),
        (batched, "verdict_of", verdict),
    ]


def _torch_patches(counts: Counts, constant: float, token: int) -> list[tuple[Any, str, Any]]:
    made = torch.tensor

    def tensor(data: Any, *args: Any, device: Any = None, **options: Any) -> Tensor:
        if device is not None and torch.device(device).type == "cuda":
            counts.waits["torch.tensor(device)"] += 1
            return made(data, *args, **options).to(device)
        return made(data, *args, **options)

    def reading(name: str) -> Callable[..., Any]:
        def read(self: Tensor, *args: Any) -> Any:
            counts.waits[name] += 1
            value = constant if self.dtype.is_floating_point else token
            return _filled(tuple(self.shape), self.dtype is torch.bool or value)

        return read

    def number(kind: Callable[[Any], Any]) -> Callable[[Tensor], Any]:
        item = reading("item")
        return lambda self: kind(item(self.reshape(())))

    def getitem(self: Tensor, index: Any) -> Tensor:
        return _getitem(self, index, counts)

    def setitem(self: Tensor, index: Any, value: Any) -> None:
        view = _getitem(self, index, counts)
        if isinstance(value, Tensor):
            _aten.copy_.default(view, value)
        else:
            _aten.fill_.Scalar(view, value)

    def rms_norm(x: Tensor, *args: Any) -> Tensor:
        counts.launches["rms_norm"] += 1  # one kernel in builds for CUDA; others take it apart
        return torch.empty_like(x)

    def copy(self: Tensor, other: Tensor, non_blocking: bool = False) -> Tensor:
        copied: Tensor = _aten.copy_.default(self, other, non_blocking)
        return copied

    return [
        (torch, "tensor", tensor),
        (torch, "rms_norm", rms_norm),
        # Fake tensors can't be made in inference mode.
        (torch.inference_mode, "__enter__", lambda self: None),
        (torch.inference_mode, "__exit__", lambda self, *error: None),
        (torch, "is_inference_mode_enabled", lambda: True),
        (FakeTensor, "tolist", reading("tolist")),
        (FakeTensor, "item", reading("item")),
        *((FakeTensor, f"__{kind.__name__}__", number(kind)) for kind in (int, float, bool)),
        (FakeTensor, "__index__", number(int)),
        (FakeTensor, "__getitem__", getitem),
        (FakeTensor, "__setitem__", setitem),
        (FakeTensor, "__invert__", lambda self: torch.bitwise_not(self)),
        (FakeTensor, "copy_", copy),
    ]


def _filled(shape: tuple[int, ...], value: Any) -> Any:
    return [_filled(shape[1:], value) for _ in range(shape[0])] if shape else value


def _getitem(x: Tensor, index: Any, counts: Counts) -> Tensor:
    """Index by operations. Lists and masks are what makes the host wait."""
    dim, tensors = 0, list[Tensor | None]()
    for one in _whole(x, index):
        if one is None:
            x, dim = _aten.unsqueeze.default(x, dim), dim + 1
            tensors.append(None)
        elif isinstance(one, int):
            x = _aten.select.int(x, dim, one)
        elif isinstance(one, slice):
            if one != slice(None):
                stop = 2**63 - 1 if one.stop is None else one.stop
                x = _aten.slice.Tensor(x, dim, one.start, stop, one.step or 1)
            tensors.append(None)
            dim += 1
        else:
            if not isinstance(one, Tensor):
                counts.waits["index by a list"] += 1
                one = torch.tensor(one).to(x.device)
            elif one.dtype is torch.bool:
                counts.waits["index by a mask"] += 1
                one = torch.arange(one.shape[0], device=x.device)  # as if all were chosen
            tensors.append(one)
            dim += 1
    if any(one is not None for one in tensors):
        x = _aten.index.Tensor(x, tensors)
    return x


def _whole(x: Tensor, index: Any) -> list[Any]:
    """The index as a list, with slices in the place of dots."""
    parts = index if isinstance(index, tuple) else (index,)
    used = 0
    for one in parts:
        mask = isinstance(one, Tensor) and one.dtype is torch.bool
        used += one.dim() if mask else one is not None and one is not Ellipsis
    found = list[Any]()
    for one in parts:
        found += [slice(None)] * (x.dim() - used) if one is Ellipsis else [one]
    return found
