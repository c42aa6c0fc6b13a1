"""What a part of the GPU figures is told, and how it says what it found."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import unset_fake_temporarily

from specstream.model.numerics import off_by

__all__ = ["Context", "Mode", "NotRehearsed"]

Mode = Literal["cuda", "fake", "cpu"]


class NotRehearsed(Exception):
    """This part can't run without a GPU; the message says why."""


@dataclass
class Context:
    """One run of a part.

    Attributes:
        mode: On a GPU; on fake tensors that say they are on one; or on the CPU.
        tiny: Whether the smallest sizes do, because only the code is tried.
        deadline: When the part should have ended, by `time.monotonic`.
        folder: For files of the part's own.
        tell: Receives each finding as soon as it is there.
    """

    mode: Mode
    tiny: bool
    deadline: float
    folder: Path
    tell: Callable[[dict[str, Any]], None]

    @property
    def device(self) -> torch.device:
        """Where models belong."""
        return torch.device("cpu") if self.mode == "cpu" else torch.device("cuda", 0)

    @property
    def left(self) -> float:
        """Seconds until the deadline."""
        return self.deadline - time.monotonic()

    @property
    def real(self) -> bool:
        """Whether times mean something."""
        return self.mode == "cuda"

    def size(self, full: int, tiny: int) -> int:
        """A number of repetitions or tokens."""
        return tiny if self.tiny else full

    def row(self, what: str, value: str, **more: Any) -> None:
        """Tell a finding."""
        self.tell({"what": what, "value": value, **more})

    def check(self, what: str, ok: bool, value: str, **more: Any) -> None:
        """Tell a finding that is right or wrong whatever the device."""
        self.row(what, value, bar="met" if ok else "missed", check=True, **more)

    def bar(self, what: str, value: str, met: bool, **more: Any) -> None:
        """Tell a finding that a GPU is to reach; elsewhere it is neither met nor missed."""
        verdict = ("met" if met else "missed") if self.real else "-"
        self.row(what, value, bar=verdict, **more)

    def outside(self) -> AbstractContextManager[Any]:
        """A block in which tensors are real, for reading files."""
        return unset_fake_temporarily() if self.mode == "fake" else nullcontext()

    def off(self, found: Tensor, wanted: Tensor) -> float:
        """As `off_by`, for tensors of one shape and device; 0 where they hold no numbers."""
        if found.shape != wanted.shape or found.device != wanted.device:
            raise ValueError(
                f"{found.shape} on {found.device}, wanted {wanted.shape} on {wanted.device}"
            )
        return 0.0 if self.mode == "fake" else off_by(found, wanted)

    def enough(self, seconds: float, what: str) -> bool:
        """Whether there is time for work of about so many seconds; tells what is left out if not."""
        if self.left >= seconds or self.tiny:
            return True
        self.row(what, f"left out: {self.left:.0f} s left", left_out=True)
        return False
