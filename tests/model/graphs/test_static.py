"""The graph that is captured computes what the model computes."""

from __future__ import annotations

import pytest
import torch

from specstream.model.graphs.static import Multiply, StaticPass, by_matrix, by_rows
from specstream.model.lean import LeanDecoder
from tests.model.families import FAMILY, build, text, whole


@pytest.mark.parametrize("multiply", [by_rows, by_matrix])
@pytest.mark.parametrize("name", sorted(FAMILY))
@torch.inference_mode()
def test_a_pass_of_fixed_width_gives_the_models_own_logits(name: str, multiply: Multiply) -> None:
    """Layer by layer, behind a prompt; rows beyond the sequence are never looked at."""
    model, ids = build(name), text(13)
    wanted = whole(model, ids)
    lean = LeanDecoder.of(model)
    assert lean is not None
    cache = lean.new_cache()
    lean(ids[:6], [cache], [6])
    rows = cache.rows(256)
    for row in rows:
        row[:, 6:] = 1e3
    cos, sin = lean.rotary.upto(256)
    for start, stop in ((6, 7), (7, 9), (9, 13)):
        x = ids[start:stop]
        for layer in (0, 1):
            part = StaticPass(lean.weights, stop - start, layer, layer + 1, multiply)
            x = part(x, cos, sin, torch.empty(stop), *rows[2 * layer : 2 * layer + 2])
        torch.testing.assert_close(x, wanted[start:stop], atol=1e-4, rtol=1e-4)


def test_a_row_does_not_depend_on_how_many_rows_there_are() -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(5, 64), torch.randn(32, 64)
    assert torch.equal(by_rows(x, weight)[2:3], by_rows(x[2:3], weight))
