"""Answers what only CUDA can, where there is none: events, memory, captures."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from transformers import PreTrainedModel

from specstream.model import graphs
from specstream.model.heads.tensors import Tensors
from tests.gpu.context import Mode
from tests.support.fake_cuda import fake_cuda, on_card
from tests.support.recorder import Recorder

__all__ = ["standing_in"]

_NAME, _BYTES = "a pretended H100", 2**31


class Moment:
    """In place of an event: there is no stream."""

    def __init__(self, enable_timing: bool = False) -> None:
        self.at = 0.0

    def record(self, stream: Any = None) -> None:
        """Remember the time."""
        self.at = time.perf_counter()

    def synchronize(self) -> None:
        """Nothing is under way."""

    def elapsed_time(self, later: Moment) -> float:
        """Milliseconds, never 0."""
        return max((later.at - self.at) * 1e3, 1e-3)


@contextmanager
def standing_in(mode: Mode, number: float = 0.5) -> Iterator[None]:
    """A block in which the calls that need a GPU have answers; on a GPU nothing is replaced.

    ``number`` is what fake tensors hold, as far as anybody reads them.
    """
    with ExitStack() as stack:
        if mode != "cuda":
            for target, name, value in _answers():
                stack.enter_context(mock.patch.object(target, name, value))
        if mode == "fake":
            for target, name, value in _unequal_numbers():
                stack.enter_context(mock.patch.object(target, name, value))
            stack.enter_context(fake_cuda(number, free_bytes=_BYTES))
        yield


def _answers() -> list[tuple[Any, str, Any]]:
    facts = SimpleNamespace(name=_NAME, multi_processor_count=132, total_memory=8 * _BYTES)

    def nothing(*args: Any, **options: Any) -> None:
        pass

    def constant(*args: Any) -> int:
        return _BYTES

    names = ("synchronize", "empty_cache", "reset_peak_memory_stats", "set_sync_debug_mode")
    counts = ("memory_allocated", "memory_reserved", "max_memory_allocated")
    return [
        (torch.cuda, "Event", Moment),
        (torch.cuda, "mem_get_info", lambda device=None: (_BYTES, 8 * _BYTES)),
        (torch.cuda, "get_device_name", lambda device=None: _NAME),
        (torch.cuda, "get_device_properties", lambda device=None: facts),
        *((torch.cuda, name, nothing) for name in names),
        *((torch.cuda, name, constant) for name in counts),
        (graphs, "capture_on_gpu", lambda device: Recorder()),
    ]


def _unequal_numbers() -> list[tuple[Any, str, Any]]:
    """Fake tensors hold no numbers that could agree, and files no fake tensors."""

    def read(folder: Any, *pickles: str) -> Tensors:
        with unset_fake_temporarily():
            return really(folder, *pickles)

    def contiguous(self: Tensor, memory_format: Any = torch.contiguous_format) -> Tensor:
        return self.clone(memory_format=memory_format)  # a build for CPUs asks for the device

    def to(self: PreTrainedModel, *args: Any, **options: Any) -> PreTrainedModel:
        place = args[0] if args and isinstance(args[0], str | torch.device) else "cpu"
        on_gpu = torch.device(place).type == "cuda"
        return on_card(self) if on_gpu else moved(self, *args, **options)

    really, moved = Tensors.read, PreTrainedModel.to
    return [
        (graphs, "off_by", lambda found, wanted: 0.0),
        (Tensors, "read", read),
        (PreTrainedModel, "to", to),
        (FakeTensor, "contiguous", contiguous),
    ]
