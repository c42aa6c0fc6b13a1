"""Captured chains of draft steps choose what single steps choose; the recording itself is replaced."""

import random

import pytest
import torch
from torch import Tensor

from specstream.model.forward import ForwardInput
from specstream.model.graphs import CapturePlan, drop_what_differs
from specstream.model.graphs.chains import DraftedChain, Draws, GraphedChains
from specstream.model.graphs.passes import GraphedPasses
from specstream.model.kv import RowCache
from specstream.model.tokens.noise import gumbel, noise_key
from specstream.model.tokens.sampling import draw_at, probabilities
from specstream.types import SamplingParams
from tests.model.families import VOCAB, build, decoder_of, text
from tests.support.recorder import Recorder
from tests.support.transfers import transfers

PLAN = CapturePlan((1, 2), steps=3)
WAYS = ["greedy", "drawn", "drawn by top-p", "keyed", "keyed by top-p"]


class Both:
    """A model's eager passes and captured chains."""

    def __init__(self, vocab: int = VOCAB, longest: int = 128) -> None:
        self.decoder, self.recorder = decoder_of(build("llama"), "pooled", 8192), Recorder()
        self.chains = GraphedChains(self.decoder, PLAN, vocab, self.recorder, longest, batches=(1, 2, 4))
        self.chains.record_all(lambda: None)

    def begun(self, lengths: list[int]) -> tuple[list[RowCache], list[RowCache]]:
        """Two equal caches for each sequence."""
        sides: tuple[list[RowCache], list[RowCache]] = ([], [])
        for number, length in enumerate(lengths):
            for side in sides:
                side.append(self.decoder.new_cache())
                self.decoder([ForwardInput(text(length, seed=number), side[-1])])
        return sides

    def row(self, read: Tensor, cache: RowCache) -> Tensor:
        return self.decoder([ForwardInput(read, cache)]).logits[0]


def drawn(way: str, count: int, rng: random.Random) -> Draws | None:
    if way == "greedy":
        return None
    temperatures = [rng.uniform(0.4, 1.5) for _ in range(count)]
    masses = [rng.uniform(0.5, 1.0) if "top-p" in way else 1.0 for _ in range(count)]
    keyed = way.startswith("keyed")
    uniforms = [[rng.random() for _ in range(count)] for _ in range(3)]
    keys = [[noise_key(number, 7 + step) for number in range(count)] for step in range(3)]
    return Draws(temperatures, masses, () if keyed else uniforms, keys if keyed else ())


def wanted(way: str, draws: Draws | None, logits: Tensor, number: int, step: int) -> int:
    if draws is None:
        return int(logits.argmax())
    params = SamplingParams(draws.temperatures[number], top_p=draws.masses[number])
    probs = probabilities(logits, params)
    if way.startswith("keyed"):
        noise = gumbel(number, torch.tensor([7 + step]), probs.shape[-1])
        return int((probs.double().log() + noise).argmax())
    return int(draw_at(probs, torch.tensor([draws.uniforms[step][number]]).double()))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("count", [1, 3])
@torch.inference_mode()
def test_a_chain_chooses_and_writes_what_single_steps_do(way: str, count: int) -> None:
    both, rng = Both(), random.Random(3)
    chained, plain = both.begun([4 + 3 * number for number in range(count)])
    for turn in range(4):
        read = [text(1 + (turn + number) % 2, seed=turn) for number in range(count)]
        draws = drawn(way, count, rng)
        found = both.chains(read, chained, draws)
        assert found is not None and found.tokens.shape == (3, count)
        for number in range(count):
            last, cache = read[number], plain[number]
            for step in range(3):
                logits = both.row(last, cache)
                token = wanted(way, draws, logits, number, step)
                assert int(found.tokens[step, number]) == token
                if draws is None:
                    probs = logits.softmax(-1)
                else:
                    params = SamplingParams(draws.temperatures[number], top_p=draws.masses[number])
                    probs = probabilities(logits, params)
                    assert found.probs is not None
                    mine = found.probs[step, number]
                    torch.testing.assert_close(mine, probs[0], atol=1e-5, rtol=1e-4)
                confidence = found.confidences[step, number]
                torch.testing.assert_close(confidence, probs[0, token], atol=1e-5, rtol=1e-4)
                last = torch.tensor([token])
            assert chained[number].length == cache.length
            rows = [both.row(last, side[number]) for side in (chained, plain)]
            torch.testing.assert_close(*rows, atol=1e-4, rtol=1e-4)
    assert both.recorder.replayed == 4


@torch.inference_mode()
def test_a_wider_target_gets_rows_of_its_width_and_a_narrower_one_none_of_the_draft_alone() -> None:
    for vocab in (VOCAB + 3, VOCAB - 5):
        both = Both(vocab)
        (cache,), (plain,) = both.begun([6])
        found = both.chains([text(1)], [cache], drawn("drawn", 1, random.Random(1)))
        assert found is not None and found.probs is not None
        assert found.probs.shape[-1] == vocab
        torch.testing.assert_close(found.probs.sum(-1), torch.ones(3, 1))
        assert bool((found.probs[..., VOCAB:] == 0).all())
        both.row(text(1), plain)


@torch.inference_mode()
def test_what_does_not_fit_is_not_done() -> None:
    both = Both(longest=16)
    caches, _ = both.begun([4] * 5)
    assert both.chains([text(1)] * 5, caches) is None
    assert both.chains([text(3)], caches[:1]) is None
    long, _ = both.begun([12])
    assert both.chains([text(1)], long) is None
    assert [cache.length for cache in (*caches, *long)] == [4] * 5 + [12]


@pytest.mark.parametrize("way", WAYS)
@torch.inference_mode()
def test_a_replay_never_waits_for_the_device(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specstream.model.tokens.sampling.free_to_look", lambda rows: False)
    both = Both()
    caches, _ = both.begun([3, 5])
    with transfers() as counter:
        both.chains([text(1), text(2)], caches, drawn(way, 2, random.Random(2)))
    assert counter.where == []


@torch.inference_mode()
def test_chains_that_differ_are_dropped(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    both = Both()
    passes = GraphedPasses(both.decoder, PLAN, both.recorder, 128, (1,))
    drop_what_differs(both.decoder, passes, both.chains)
    assert len(both.chains.captured) == 3 * len(WAYS)
    real = GraphedChains.__call__

    def exchanged(self: GraphedChains, tokens: list[Tensor], *rest: object) -> DraftedChain | None:
        found = real(self, tokens, *rest)  # type: ignore[arg-type]
        assert found is not None
        if len(tokens) < 4:
            return found
        return found._replace(tokens=found.tokens.roll(1, 1))

    monkeypatch.setattr(GraphedChains, "__call__", exchanged)
    drop_what_differs(both.decoder, passes, both.chains)
    assert {batch for batch, _ in both.chains.captured} == {1, 2}
    assert "chain of 4 (greedy) by" in caplog.text
