"""The proposed tokens that processors see, fetched from the device at once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from specstream.engine import verifier
from specstream.speculation.proposal import Proposal
from tests.transfers import transfers


def test_the_contexts_of_several_requests_take_one_transfer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(verifier, "free_to_look", lambda tokens: False)
    proposals = [
        Proposal(torch.tensor([3, 4, 5])),
        Proposal(torch.tensor([6])),
        Proposal.empty(),
        Proposal(torch.tensor([7, 8, 9]), None, (-1, -1, 1)),
    ]
    sequences: list[Any] = [SimpleNamespace(processors=p) for p in (1, None, 1, 1)]
    with transfers() as counter:
        found = verifier._contexts(sequences, proposals)
    assert counter.where.count("cpu") == 1
    assert found == {
        0: [[], [3], [3, 4], [3, 4, 5]],
        2: [[]],
        3: [[], [7], [8], [8, 9]],
    }
