"""The random numbers of requests, and draws for several requests at once."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

import torch
from torch import Tensor

from specstream.drafting.proposal import SpecRequest
from specstream.model.graphs import Draws
from specstream.model.numerics import to_device
from specstream.model.tokens.noise import gumbel_max, gumbel_max_of_rows, noise_key
from specstream.model.tokens.sampling import (
    Uniforms,
    draw,
    draw_at,
    free_to_look,
    only_nucleus,
    usable_mass,
)
from specstream.types import SamplingParams

__all__ = ["Noise", "draw_rows", "draws_of", "sibling_keys"]


class Noise:
    """The source of random numbers of one request.

    With ``keyed`` every draw is a function of seed and position, so that no draft can change the reply.
    Otherwise verifier and draft draw from two separate generators, ``verifier`` and ``draft``.
    """

    def __init__(self, seed: int | None, *, keyed: bool) -> None:
        self.seed = secrets.randbits(63) if seed is None else seed
        self.keyed = keyed
        self.verifier = Uniforms(self.seed)
        # Two streams from one seed: as the multiplier is odd, the two seeds are never equal.
        self.draft = Uniforms((self.seed * 0x9E3779B97F4A7C15 + 1) % 2**63)

    def draw(self, probs: Tensor, position: int, ids: Tensor | None = None) -> Tensor:
        """Draw an index ``[1]`` from ``probs [1, n]`` for the draft; see `SpecRequest.draw`."""
        if self.keyed:
            return gumbel_max(probs, self.seed, position, ids)
        return draw(probs, self.draft)


def _sources(requests: Sequence[SpecRequest]) -> list[Noise] | None:
    """The requests' noise, if all are keyed or none is; None: they draw by themselves only."""
    found = [getattr(request, "noise", None) for request in requests]
    noise = [one for one in found if isinstance(one, Noise)]
    alike = len(noise) == len(found) and len({one.keyed for one in noise}) == 1
    return noise if alike else None


def draw_rows(requests: Sequence[SpecRequest], probs: Tensor, positions: Sequence[int]) -> Tensor:
    """Draw a token ``[n]`` for each request from ``probs [n, V]``, as `SpecRequest.draw` does for one.

    On a device other than a CPU the requests share all operations.
    """
    noise = None if free_to_look(probs) else _sources(requests)
    if noise is None:
        each = zip(requests, torch.split(probs, 1), positions, strict=True)
        return torch.cat([request.draw(row, position) for request, row, position in each])
    if noise[0].keyed:
        each_key = zip(noise, positions, strict=True)
        keys = [noise_key(one.seed, position) for one, position in each_key]
        return gumbel_max_of_rows(probs, to_device(keys, probs.device))
    numbers = [number for one in noise for number in one.draft.take(1)]
    return draw_at(probs, to_device(numbers, probs.device, torch.float64))


def sibling_keys(request: SpecRequest, position: int, rows: int) -> list[int]:
    """Noise keys for ``rows`` nodes of a tree whose children are at ``position``; see `noise_key`.

    With keyed noise all nodes share the position's noise, as the verifier does; otherwise each node has
    noise of its own.
    """
    noise = getattr(request, "noise", None)
    if not isinstance(noise, Noise):
        return [secrets.randbits(63) for _ in range(rows)]
    if noise.keyed:
        return [noise_key(noise.seed, position)] * rows
    return [int(number * 2**53) for number in noise.draft.take(rows)]


def draws_of(
    requests: Sequence[SpecRequest],
    params: Sequence[SamplingParams],
    positions: Sequence[int],
    steps: int,
) -> Draws | None:
    """How a captured chain draws ``steps`` tokens for each request from these positions on.

    None if a captured chain can't: a request draws by itself or in another way than its neighbours, or
    samples by more than temperature and top-p.
    """
    noise = _sources(requests)
    if noise is None or not all(map(only_nucleus, params)):
        return None
    temperatures = [one.temperature for one in params]
    masses = [usable_mass(one.top_p) for one in params]
    if noise[0].keyed:
        each = list(zip(noise, positions, strict=True))
        keys = [[noise_key(one.seed, at + step) for one, at in each] for step in range(steps)]
        return Draws(temperatures, masses, keys=keys)
    taken = [one.draft.take(steps) for one in noise]
    return Draws(temperatures, masses, [list(row) for row in zip(*taken, strict=True)])
