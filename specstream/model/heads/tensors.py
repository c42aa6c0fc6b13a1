"""The tensors of a head's folder, taken one by one with their names and shapes checked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from specstream.errors import ModelBroken

__all__ = ["Placed", "Tensors"]


class Tensors:
    """Tensors by name, on the CPU, each of which can be taken once.

    Args:
        folder: The folder that they come from, for messages.
        values: The tensors.
    """

    def __init__(self, folder: str | Path, values: dict[str, Tensor]) -> None:
        self.folder, self._values = Path(folder), dict(values)

    @classmethod
    def read(cls, folder: str | Path, *pickles: str) -> Tensors:
        """Read all ``*.safetensors`` of a folder, or else ``pytorch_model*.bin`` or one of ``pickles``.

        Pickles are read as weights only: code in them is not run.

        Raises:
            ModelBroken: there is no file of weights, or one can't be read.
        """
        folder = Path(folder)
        files = sorted(folder.glob("*.safetensors")) or sorted(folder.glob("pytorch_model*.bin"))
        files = files or [folder / name for name in pickles if (folder / name).is_file()][:1]
        if not files:
            raise ModelBroken(f"{folder} is a head's folder without weights (*.safetensors)")
        values: dict[str, Tensor] = {}
        for file in files:
            try:
                if file.suffix == ".safetensors":
                    values.update(load_file(file))
                else:
                    values.update(torch.load(file, map_location="cpu", weights_only=True))
            except Exception as error:  # unpickling errors have no other common base class
                raise ModelBroken(f"{file} can't be read as weights: {error}") from None
        return cls(folder, values)

    def __contains__(self, name: str) -> bool:
        return name in self._values

    @property
    def dtypes(self) -> dict[str, torch.dtype]:
        """The dtypes of all tensors that were not taken."""
        return {name: tensor.dtype for name, tensor in self._values.items()}

    def size(self, name: str) -> tuple[int, ...] | None:
        """The shape of a tensor; None if it is missing."""
        found = self._values.get(name)
        return None if found is None else tuple(found.shape)

    def renamed(self, name: Callable[[str], str]) -> Tensors:
        """The same tensors, with the names that ``name`` returns for theirs."""
        return Tensors(self.folder, {name(old): value for old, value in self._values.items()})

    def take(self, name: str, shape: Sequence[int | None]) -> Tensor:
        """Take a tensor, and check its shape (None: any size).

        Raises:
            ModelBroken: it is missing, or of another shape.
        """
        tensor = self._values.pop(name, None)
        if tensor is None:
            raise ModelBroken(f"{self.folder}: the tensor {name} is missing")
        sizes = zip(tensor.shape, shape, strict=False)
        if tensor.ndim != len(shape) or any(b is not None and a != b for a, b in sizes):
            meant = [size if size is not None else "any" for size in shape]
            raise ModelBroken(
                f"{self.folder}: {name} has shape {list(tensor.shape)} and should have {meant}"
            )
        return tensor

    def take_ids(self, name: str, count: int, size: int, *, offsets: bool = False) -> Tensor:
        """Take ``[count]`` int64: different token ids below ``size``.

        Args:
            name: The tensor.
            count: Its number of ids.
            size: Size of the vocabulary.
            offsets: Whether each of them is stored less its own index.

        Raises:
            ModelBroken: it is missing, of another shape, holds no such ids, or one of them twice.
        """
        found = self.take(name, (count,))
        if found.is_floating_point() or found.dtype is torch.bool:
            raise ModelBroken(f"{self.folder}: {name} holds {found.dtype}, no ids")
        ids = found.to(torch.int64) + (torch.arange(count) if offsets else 0)
        if int(ids.min()) < 0 or int(ids.max()) >= size:
            raise ModelBroken(f"{self.folder}: {name} leads outside of the {size} tokens")
        if int(ids.bincount().max()) > 1:  # its probabilities could not be told
            raise ModelBroken(f"{self.folder}: {name} names a token twice")
        return ids

    def check_all_taken(self, unless: str | None = None) -> None:
        """Refuse tensors that were not taken, other than those with ``unless`` in their names.

        Raises:
            ModelBroken: there are such tensors.
        """
        left = [name for name in sorted(self._values) if unless is None or unless not in name]
        if left:
            raise ModelBroken(f"{self.folder}: these tensors belong to no known head: {left}")


class Placed:
    """Takes a head's trained tensors, converts them to its target's dtype and device, and counts them.

    Args:
        tensors: The tensors of the head's folder.
        like: A tensor with that dtype and device.

    Attributes:
        parameters: Elements of all tensors that were taken.
        nbytes: Their memory after conversion, in bytes.
    """

    def __init__(self, tensors: Tensors, like: Tensor) -> None:
        self.tensors, self._like = tensors, like
        self.parameters = self.nbytes = 0

    def __call__(self, name: str, *shape: int | None) -> Tensor:
        """As `Tensors.take`.

        Raises:
            ModelBroken: it is missing, of another shape, or holds no floats.
        """
        return self._counted(self._placed(name, shape))

    def own(self, name: str, lent: Tensor, rows: int | None) -> Tensor:
        """Take a matrix of ``rows`` rows; the target's, ``lent``, if it is missing or equal to that.

        Raises:
            ModelBroken: it has another shape, or holds no floats.
        """
        if name not in self.tensors:
            return lent
        found = self._placed(name, (rows, lent.shape[1]))
        return lent if torch.equal(found, lent) else self._counted(found)

    def rows(self, lent: Tensor, ids: Tensor) -> Tensor:
        """Copies of the rows ``ids`` of the target's matrix ``lent``, which only ``nbytes`` counts."""
        rows = lent[ids]
        self.nbytes += rows.nbytes
        return rows

    def _placed(self, name: str, shape: Sequence[int | None]) -> Tensor:
        found = self.tensors.take(name, shape)
        if not found.is_floating_point():
            raise ModelBroken(f"{self.tensors.folder}: {name} holds {found.dtype}, not floats")
        return found.to(self._like)

    def _counted(self, made: Tensor) -> Tensor:
        self.parameters += made.numel()
        self.nbytes += made.nbytes
        return made
