"""A pass that goes on from what the first layers have made of some of its tokens."""

import pytest
import torch

from specstream.errors import ModelUnsupported
from specstream.model.decoder import Decoder
from specstream.model.forward import Entered, Extras, ForwardInput, common_depth
from specstream.model.kv import RowCache
from specstream.model.native.layers import NativeLayers
from specstream.model.runner import ModelRunner
from specstream.model.tree import Tree
from tests.model.families import FAMILY, build, decoder_of, text, whole

FIRST = Extras((1,), logits=False)


def entered(decoder: Decoder, ids: torch.Tensor, cache: RowCache, steps: list[int]) -> Entered:
    """The first layer reads ``ids`` in steps, and the cache is rolled back."""
    at = cache.length
    states = list[torch.Tensor]()
    for part in ids.split_with_sizes(steps):
        states += decoder([ForwardInput(part, cache)], FIRST).states
    cache.rollback_to(at)
    return Entered(at, 1, torch.cat(states)[:, 0])


@pytest.mark.parametrize("backend", ["contiguous", "pooled"])
@pytest.mark.parametrize("name", sorted(FAMILY))
@torch.inference_mode()
def test_logits_are_those_of_a_whole_pass(name: str, backend: str) -> None:
    """Some sequences have entered in part, one wholly, one not at all; rows grow past their capacity."""
    model = build(name)
    decoder = decoder_of(model, backend, 16_384)
    texts = [text(n, seed=n) for n in (264, 12, 90, 40)]
    wanted = [whole(model, ids) for ids in texts]
    begun = [254, 8, 3, 40 - 7]
    caches = [decoder.new_cache() for _ in texts]
    for ids, cache, start in zip(texts, caches, begun, strict=True):
        decoder([ForwardInput(ids[:start], cache)])
    for _ in range(2):  # the second time over junk rows of the first
        firsts = [
            entered(decoder, texts[0][254:258], caches[0], [1, 1, 2]),
            entered(decoder, texts[1][8:12], caches[1], [1] * 4),
            None,
            entered(decoder, texts[3][33:34], caches[3], [1]),
        ]
        each = zip(texts, begun, caches, [4, 4, 1, 2], firsts, strict=True)
        inputs = [
            ForwardInput(ids[start:], cache, keep, entered=first)
            for ids, start, cache, keep, first in each
        ]
        kept = [one.states.clone() for one in firsts if one is not None]
        for rows, own in zip(decoder(inputs).logits, wanted, strict=True):
            torch.testing.assert_close(rows, own[-rows.shape[0] :], atol=1e-4, rtol=1e-4)
        assert [cache.length for cache in caches] == [264, 12, 90, 40]
        for one, before in zip([f for f in firsts if f is not None], kept, strict=True):
            assert torch.equal(one.states, before)  # a pass may be repeated
        for cache, start in zip(caches, begun, strict=True):
            cache.rollback_to(start)
    # Junk of the first layer behind the valid rows is harmless.
    (plain,) = decoder([ForwardInput(texts[1][8:], caches[1], 4)]).logits
    torch.testing.assert_close(plain, wanted[1][8:], atol=1e-4, rtol=1e-4)


@torch.inference_mode()
def test_beside_a_tree() -> None:
    runner, tree = ModelRunner(build("llama")), Tree((-1, -1, 0))
    one, other = text(8), text(9, 5)
    caches = [runner.new_cache(), runner.new_cache()]
    runner.forward([ForwardInput(one[:5], caches[0]), ForwardInput(other[:5], caches[1])])
    plain = runner.forward(
        [ForwardInput(one[5:], caches[0], 3), ForwardInput(other[5:], caches[1], 4, tree)]
    ).logits
    for cache in caches:
        cache.rollback_to(5)
    (states,) = runner.forward([ForwardInput(one[5:7], caches[0])], FIRST).states
    caches[0].rollback_to(5)
    found = runner.forward(
        [
            ForwardInput(one[5:], caches[0], 3, entered=Entered(5, 1, states[:, 0])),
            ForwardInput(other[5:], caches[1], 4, tree),
        ]
    ).logits
    for rows, own in zip(found, plain, strict=True):
        torch.testing.assert_close(rows, own, atol=1e-5, rtol=1e-5)


@torch.inference_mode()
def test_states_below_the_depth_are_computed_again() -> None:
    runner, ids = ModelRunner(build("llama")), text(9)
    cache = runner.new_cache()
    runner.forward([ForwardInput(ids[:5], cache)])
    wanted = runner.forward([ForwardInput(ids[5:], cache, 2)], Extras((0, 1, 2)))
    for depths in ((0, 1, 2), (1, 2)):
        cache.rollback_to(5)
        (states,) = runner.forward([ForwardInput(ids[5:7], cache)], FIRST).states
        cache.rollback_to(5)
        item = ForwardInput(ids[5:], cache, 2, entered=Entered(5, 1, states[:, 0]))
        made = runner.forward([item], Extras(depths))
        torch.testing.assert_close(made.logits, wanted.logits, atol=1e-5, rtol=1e-5)
        known = wanted.states[0][:, -len(depths) :]
        torch.testing.assert_close(made.states[0], known, atol=1e-5, rtol=1e-5)


@torch.inference_mode()
def test_an_interrupted_pass_leaves_valid_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    runner, ids = ModelRunner(build("llama")), text(9)
    cache = runner.new_cache()
    runner.forward([ForwardInput(ids[:5], cache)])
    (states,) = runner.forward([ForwardInput(ids[5:7], cache)], FIRST).states
    cache.rollback_to(5)
    item = ForwardInput(ids[5:], cache, 2, entered=Entered(5, 1, states[:, 0]))

    def out_of_memory(*args: object, **more: object) -> torch.Tensor:
        raise torch.OutOfMemoryError

    with monkeypatch.context() as patched:
        patched.setattr(NativeLayers, "run_on", out_of_memory)
        with pytest.raises(torch.OutOfMemoryError):
            runner.forward([item])
    assert cache.length == 5
    (again,) = runner.forward([item]).logits
    torch.testing.assert_close(again, whole(build("llama"), ids)[-2:], atol=1e-4, rtol=1e-4)


def test_what_can_not_be_joined_is_refused() -> None:
    states, runner = torch.zeros(2, 32), ModelRunner(build("llama"))
    plain, one, two = (
        ForwardInput(text(2), runner.new_cache(), entered=entry)
        for entry in (None, Entered(0, 1, states), Entered(0, 2, states))
    )
    assert common_depth([plain, one]) == 1 and common_depth([plain]) == 0
    with pytest.raises(ValueError, match="one depth"):
        runner.forward([one, two])
    known = Entered(5, 1, states)
    assert known.fits(5, 2) and not known.fits(4, 2) and not known.fits(5, 1)
    assert not Entered(5, 1, states[:0]).fits(5, 2)
    with pytest.raises(ModelUnsupported, match="own forward"):
        _ = ModelRunner(build("llama"), lean=False).decoder
