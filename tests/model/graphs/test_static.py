"""The graphs that are compiled compute what the model computes."""

from __future__ import annotations

import pytest
import torch

from specstream.model.decoder import Decoder
from specstream.model.graphs.static import StaticHead, StaticPass, by_rows, causal
from specstream.model.kv.contiguous import ContiguousCache
from tests.model.families import FAMILY, build, text, whole


@pytest.mark.parametrize("ends", [True, False])
@pytest.mark.parametrize("name", sorted(FAMILY))
@torch.inference_mode()
def test_a_pass_of_fixed_width_gives_the_models_own_logits(name: str, ends: bool) -> None:
    """As one graph, or layer by layer; rows beyond the sequence are never looked at."""
    model, ids = build(name), text(13)
    wanted = whole(model, ids)
    decoder = Decoder.of(model)
    assert decoder is not None
    w, cache = decoder.weights, decoder.new_cache()
    assert isinstance(cache, ContiguousCache)
    decoder(ids[:6], [cache], [6])
    rows = cache.layer_rows(256)
    for row in rows:
        row[:, 6:] = 1e3
    cos, sin = decoder.rotary.upto(256)
    for start, stop in ((6, 7), (7, 9), (9, 13)):
        x, width = ids[start:stop], stop - start
        places = cos[start:stop], sin[start:stop], causal(width, stop, w.dtype)
        if ends:
            x, states = StaticPass(w, width, 0, 2, ends=True)(x, *places, *rows)
        else:
            x, states = w.embedding[x], torch.empty(0)
            for layer in (0, 1):
                part = StaticPass(w, width, layer, layer + 1, ends=False)
                x, states = part(x, *places, *rows[2 * layer : 2 * layer + 2])
            x = StaticHead(w, width)(x)
        assert states.shape == (2 if ends else 1, width, w.hidden)
        torch.testing.assert_close(decoder.logits(decoder.normed(states[-1])), x)
        torch.testing.assert_close(x, wanted[start:stop], atol=1e-4, rtol=1e-4)


def test_a_row_does_not_depend_on_how_many_rows_there_are() -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(5, 64), torch.randn(32, 64)
    assert torch.equal(by_rows(x, weight)[2:3], by_rows(x[2:3], weight))
