"""The EAGLE proposer: the states it reads, the drafts it grows, and the rows it rolls back."""

import itertools
import math
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from specstream.drafting.candidate import Task
from specstream.drafting.optional import States
from specstream.drafting.policy.records import Offer
from specstream.drafting.proposal import Proposal
from specstream.drafting.proposers.eagle import EagleProposer
from specstream.drafting.proposers.eagle_drawn import _Drawing, _Place
from specstream.methods import EagleProposerConfig
from specstream.model.attention.base import Batch
from specstream.model.forward import Extras, ForwardInput
from specstream.model.heads.base import Level
from specstream.model.heads.eagle import EagleHead
from specstream.model.runner import ModelRunner
from tests.support.drafts import GREEDY, SAMPLED, Text
from tests.support.heads import eagle_head, random_eagle
from tests.support.tiny import tiny_model

pytestmark = pytest.mark.usefixtures("inference")

V = 40
MODEL = tiny_model(V, layers=4, seed=5)
RUNNER = ModelRunner(MODEL)
PRUNED = torch.arange(0, V, 2)
HEAD = eagle_head(random_eagle(MODEL, vocabulary=PRUNED), RUNNER)


def eagle(chunk: int = 512, **settings: int) -> EagleProposer:
    config = EagleProposerConfig.model_validate(settings)
    return EagleProposer(config, HEAD, V, frozenset(), prefill_chunk=chunk)


def states_of(ids: Sequence[int]) -> Tensor:
    item = ForwardInput(torch.tensor(ids), RUNNER.new_cache())
    (states,) = RUNNER.forward([item], Extras(HEAD.depths)).states
    return states


def text(length: int, seed: int = 0, slot: int = 0, **more: object) -> Text:
    rng = random.Random(seed)
    ids = [rng.randrange(V) for _ in range(length)]
    return replace(Text(ids, id=slot, slot=slot), **more)  # type: ignore[arg-type]


def tell(proposer: EagleProposer, request: Text, start: int, stop: int | None = None) -> None:
    """The states of the request's tokens from ``start`` to ``stop``, by default all but the last."""
    stop = len(request.token_ids) - 1 if stop is None else stop
    states = states_of(request.token_ids[:stop])[start:]
    proposer.read([request], [States(start, states)])


def fresh(request: Text, **settings: int) -> Proposal:
    """The proposal of a proposer that has just read the states of the whole text."""
    proposer = eagle(**settings)
    tell(proposer, request, 0)
    return proposer.propose([request], [16])[0]


def same(one: Proposal, other: Proposal) -> None:
    assert one.tokens.tolist() == other.tokens.tolist()
    assert one.parents == other.parents
    if one.probs is not None and other.probs is not None:
        torch.testing.assert_close(one.probs, other.probs, rtol=0, atol=1e-4)


SHAPES = [{"top_k": 1, "depth": 5}, {"top_k": 3, "depth": 3, "nodes": 7}]


@pytest.mark.parametrize("settings", SHAPES, ids=["chain", "tree"])
def test_after_any_rounds_it_is_as_if_it_had_read_the_text_at_once(settings: dict[str, int]) -> None:
    proposer, request, rng = eagle(**settings), text(12), random.Random(3)
    tell(proposer, request, 0)
    for _ in range(6):
        (found,) = proposer.propose([request], [16])
        same(found, fresh(request, **settings))
        done = len(request.token_ids) - 1
        request.token_ids += [rng.randrange(V) for _ in range(rng.randint(1, 4))]
        tell(proposer, request, done)


def test_several_requests_are_served_by_one_pass_a_level() -> None:
    proposer, passes = eagle(depth=4), list[int]()
    requests = [text(5 + 7 * slot, seed=slot, slot=slot) for slot in range(4)]
    for request in requests:
        tell(proposer, request, 0)
    run = EagleHead.__call__

    def count(self: EagleHead, *args: Any) -> Level:
        passes.append(len(args[2].caches))
        return run(self, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EagleHead, "__call__", count)
        found = proposer.propose(requests, [4, 2, 4, 0])
    assert passes == [3, 3, 2, 2]
    assert [one.length for one in found] == [4, 2, 4, 0]
    for request, one in zip(requests[:3], found, strict=False):
        same(one, fresh(request, depth=one.length))


def test_a_sampled_chain_tells_what_each_token_was_drawn_from() -> None:
    request = text(9, params=SAMPLED, generator=torch.Generator().manual_seed(1))
    found = fresh(request, depth=4)
    assert found.probs is not None and found.probs.shape == (4, V)
    assert request.positions == [9, 10, 11, 12]
    outside = torch.ones(V, dtype=torch.bool)
    outside[PRUNED] = False
    assert not bool(found.probs[:, outside].any())
    torch.testing.assert_close(found.probs.sum(-1), torch.ones(4))
    assert bool((found.probs.gather(1, found.tokens.unsqueeze(1)) > 0).all())


def logits_after(request: Text, path: Sequence[int]) -> Tensor:
    """The head's logits of the draft vocabulary after the text and a path, token by token."""
    features, cache = HEAD.fuse(states_of(request.token_ids[:-1])), HEAD.new_cache()
    tokens, count = torch.tensor(request.token_ids[1:]), len(request.token_ids) - 1
    logits, feature = HEAD(tokens, features, Batch([cache], [count], [1]))[:2]
    for token in path:
        logits, feature = HEAD(torch.tensor([token]), feature, Batch([cache], [1], [1]))[:2]
    return logits[0]


def levels(request: Text, depth: int) -> dict[tuple[int, ...], float]:
    """The log probabilities of all paths of ``depth`` draft tokens at most, by brute force."""
    ids, chances = PRUNED.tolist(), dict[tuple[int, ...], float]({(): 0.0})
    found = dict[tuple[int, ...], float]()
    for length in range(depth):
        for path in [one for one in chances if len(one) == length]:
            row = logits_after(request, path).log_softmax(-1).tolist()
            for token, chance in zip(ids, row, strict=True):
                found[(*path, token)] = chances[path] + chance
        best = sorted((p for p in found if len(p) == length + 1), key=lambda p: -found[p])
        chances |= {path: found[path] for path in best[:3]}
    return found


def test_a_tree_holds_the_likeliest_paths() -> None:
    """The rule of EAGLE-2: three paths a level are grown, and of all their children the best stay."""
    request = text(10, seed=2)
    found = fresh(request, top_k=3, depth=3, nodes=7)
    paths = [tuple(found.tokens[list(path)].tolist()) for path in found.paths[1:]]
    chances = levels(request, 3)
    grown = list[tuple[int, ...]]()
    for length in range(3):
        for parent in _beam(chances, length):
            grown += _kept(chances, parent)
    best = sorted(grown, key=lambda path: -chances[path])[:7]
    assert sorted(paths) == sorted(best)
    assert found.probs is None and found.parents is not None


def test_a_sampled_tree_tells_what_each_token_was_drawn_from() -> None:
    """First children are drawn from the head's row, later ones from it without their elder siblings."""
    shape, params = {"top_k": 3, "depth": 3, "nodes": 64}, replace(SAMPLED, top_p=1.0)
    request = text(9, params=params, generator=torch.Generator().manual_seed(1))
    found = fresh(request, **shape)
    assert found.probs is not None and found.parents is not None and found.tree is not None
    depths = found.tree.depths
    assert [depths.count(level) for level in range(3)] == [3, 3, 3]
    assert request.positions == [9 + depth for depth in depths]
    outside = torch.ones(V, dtype=torch.bool)
    outside[PRUNED] = False
    assert not bool(found.probs[:, outside].any())
    assert bool((found.probs.gather(1, found.tokens.unsqueeze(1)) > 0).all())
    tokens, elder = found.tokens.tolist(), dict[int, list[int]]()
    chances = levels_after(request, [tokens[:0], *(_tokens_to(found, node) for node in range(9))])
    for node, parent in enumerate(found.parents):
        row = (chances[parent + 1] / params.temperature).softmax(-1)
        row[elder.setdefault(parent, [])] = 0.0
        torch.testing.assert_close(found.probs[node], row / row.sum(), rtol=0, atol=1e-5)
        elder[parent].append(tokens[node])


def _tokens_to(tree: Proposal, node: int) -> list[int]:
    return [int(tree.tokens[one]) for one in tree.paths[node + 1]]


def levels_after(request: Text, paths: Sequence[list[int]]) -> list[Tensor]:
    """The head's logits ``[V]`` after each path."""
    each = [logits_after(request, path) for path in paths]
    return [torch.full((V,), -math.inf).index_copy(0, PRUNED, logits) for logits in each]


def test_a_sampled_tree_draws_no_child_that_does_not_pay_but_the_very_first() -> None:
    sizes = []
    for least in (0.0, 0.1, 0.3, 1.0):
        request = text(9, params=SAMPLED, generator=torch.Generator().manual_seed(1))
        proposer = eagle(top_k=3, depth=3, nodes=64)
        tell(proposer, request, 0)
        task = Task(request, 3, proposer.offer(request, 3), None, least)
        (done,) = proposer.draft([task])
        sizes.append(done.proposal.length)
    assert sizes[0] == 9 and sizes[-1] == 1 and sorted(sizes, reverse=True) == sizes


def test_an_open_place_hopes_for_what_is_left() -> None:
    probs = torch.tensor([0.5, 0.3, 0.2, 0.0])
    tree: Any = None
    place = _Place(0, -1, 0.8, _Drawing(tree, probs), float(probs.square().sum()))
    assert place.hope == pytest.approx(0.8 * (0.2 + 0.75 * 0.38))
    accepted, later = place.after(1, 0.3)
    assert accepted == pytest.approx(0.8 * (0.2 + 0.75 * 0.3)) and later is not None
    left = torch.tensor([0.5, 0.0, 0.2, 0.0]) / 0.7
    assert later.reached == pytest.approx(0.8 - accepted)
    assert later.hope == pytest.approx(later.reached * (0.05 + 0.5 * float(left.square().sum())))
    assert isinstance(later.source, _Drawing)
    torch.testing.assert_close(later.source.probs, left)
    certain = _Drawing(tree, torch.tensor([1.0, 0.0, 0.0, 0.0]))
    assert _Place(0, -1, 1.0, certain, 1.0).after(0, 1.0)[1] is None


def _kept(chances: dict[tuple[int, ...], float], parent: tuple[int, ...]) -> list[tuple[int, ...]]:
    children = [path for path in chances if path[:-1] == parent]
    return sorted(children, key=lambda path: -chances[path])[:3]


def _beam(chances: dict[tuple[int, ...], float], length: int) -> list[tuple[int, ...]]:
    if length == 0:
        return [()]
    children = list(itertools.chain(*(_kept(chances, one) for one in _beam(chances, length - 1))))
    return sorted(children, key=lambda path: -chances[path])[:3]


def test_a_prompt_is_read_in_chunks_and_nothing_is_drafted_meanwhile() -> None:
    proposer, request = eagle(chunk=64, depth=3), text(200)
    tell(proposer, request, 0)
    assert proposer.offer(request, 8) == Offer(3, behind=195)  # a round of its own leaves four
    task = Task(request, 3, proposer.offer(request, 8))
    read = list[int]()
    for _ in range(4):
        (done,) = proposer.draft([task])
        read.append(done.read)
        if done.proposal.length:
            break
    assert read == [64, 64, 64, 3]
    same(done.proposal, fresh(request, depth=3))


def test_of_a_long_prompt_the_last_part_is_read() -> None:
    proposer, request = eagle(window=32, depth=3), text(100)
    for start in range(0, 99, 33):
        tell(proposer, request, start, start + 33)
    found = proposer.propose([request], [3])[0]
    assert found.length == 3
    assert proposer.sequences[0].cache.length == 32
    assert proposer.sequences[0].told == 99


def test_a_later_turn_goes_on_where_the_texts_part() -> None:
    proposer, request = eagle(depth=3), text(30)
    tell(proposer, request, 0)
    proposer.propose([request], [3])
    later = text(40, seed=9)
    later.token_ids[:20] = request.token_ids[:20]
    later.id = 7
    tell(proposer, later, 20)  # the target kept 20 rows
    (found,) = proposer.propose([later], [3])
    assert proposer.sequences[0].told == proposer.sequences[0].cache.length == 39
    # Only the row before the place where the texts differ was made with the old token.
    mended = eagle(depth=3)
    old = replace(later, token_ids=[*later.token_ids[:20], request.token_ids[20]])
    tell(mended, old, 0)
    mended.propose([old], [3])
    tell(mended, later, 20)
    same(mended.propose([later], [3])[0], found)


def test_states_that_were_missed_start_anew() -> None:
    proposer, request = eagle(depth=3), text(30)
    tell(proposer, request, 0, 10)
    tell(proposer, request, 20)
    assert proposer.sequences[0].start == 20
    assert proposer.propose([request], [3])[0].length == 3


def test_without_states_nothing_is_offered_or_drafted() -> None:
    proposer, request = eagle(), text(10)
    assert proposer.offer(request, 8) == Offer(0)
    assert proposer.propose([request], [4])[0].length == 0
    tell(proposer, request, 0, 5)
    assert proposer.propose([request], [4])[0].length == 0


def test_release_drops_what_was_kept() -> None:
    proposer, request = eagle(), text(10)
    tell(proposer, request, 0)
    proposer.release(0)
    proposer.release(0)
    assert proposer.sequences == {}
    assert proposer.propose([request], [4])[0].length == 0


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("stop_at", [1, 3, 9])
def test_a_stop_keeps_the_token_that_it_saw(params: object, stop_at: int) -> None:
    proposer, asked = eagle(depth=6), list[float]()
    request = text(9, params=params, generator=torch.Generator().manual_seed(1))
    tell(proposer, request, 0)

    def go_on(q: float) -> bool:
        asked.append(q)
        return len(asked) < stop_at

    (done,) = proposer.draft([Task(request, 6, proposer.offer(request, 6), go_on)])
    assert done.proposal.length == done.passes == len(asked) == min(stop_at, 6)
    assert done.confidences == asked and all(0.0 < q <= 1.0 for q in asked)
    twin = text(9, params=params, generator=torch.Generator().manual_seed(1))
    whole = fresh(twin, depth=6)
    assert whole.tokens.tolist()[: done.proposal.length] == done.proposal.tokens.tolist()


@pytest.mark.parametrize("stop_at", [1, 2, 9])
def test_a_tree_stops_after_a_level_and_tells_its_mass(stop_at: int) -> None:
    """The mass of a level as a share of the level before, over the paths that were kept."""
    shape, asked = {"top_k": 3, "depth": 3, "nodes": 64}, list[float]()
    proposer, request = eagle(**shape), text(10, seed=2)
    tell(proposer, request, 0)

    def go_on(q: float) -> bool:
        asked.append(q)
        return len(asked) < stop_at

    (done,) = proposer.draft([Task(request, 3, proposer.offer(request, 3), go_on)])
    assert done.passes == len(asked) == min(stop_at, 3) and done.confidences == asked
    chances, before = levels(request, 3), 1.0
    for length, said in enumerate(asked):
        grown = [p for parent in _beam(chances, length) for p in _kept(chances, parent)]
        mass = sum(math.exp(chances[path]) for path in grown)
        assert said == pytest.approx(min(1.0, mass / before), abs=1e-4)
        before = mass
    assert max(len(path) for path in done.proposal.paths) <= len(asked)


def test_nodes_that_do_not_pay_are_left_out_but_for_the_very_first() -> None:
    request, shape = text(10, seed=2), {"top_k": 3, "depth": 3, "nodes": 64}
    chances = levels(request, 3)
    everything = [p for n in range(3) for one in _beam(chances, n) for p in _kept(chances, one)]
    ordered = sorted((math.exp(chances[path]) for path in everything), reverse=True)
    for least in (ordered[3], ordered[6], 1.0):
        proposer = eagle(**shape)
        tell(proposer, request, 0)
        task = Task(request, 3, proposer.offer(request, 3), None, least - 1e-6)
        (done,) = proposer.draft([task])
        wanted = sum(chance >= least - 1e-6 for chance in ordered)
        assert done.proposal.length == min(9, max(1, wanted))


def test_an_offer_expects_trees_as_wide_as_those_of_late() -> None:
    proposer, request = eagle(top_k=3, depth=3, nodes=64), text(10, seed=2)
    tell(proposer, request, 0)
    assert proposer.offer(request, 3).nodes == [3, 6, 9]
    for _ in range(60):
        tell(proposer, request, 0)
        proposer.draft([Task(request, 3, proposer.offer(request, 3), lambda q: True, 0.999)])
    assert proposer.offer(request, 3).nodes == [1, 2, 3]


def test_an_offered_tree_names_its_nodes() -> None:
    proposer, request = eagle(top_k=3, depth=4, nodes=8), text(10)
    tell(proposer, request, 0)
    offer = proposer.offer(request, 3)
    assert offer == Offer(3, behind=4, nodes=[3, 6, 8])  # 9 without rows; a round leaves 5
    (done,) = proposer.draft([Task(request, 2, offer)])
    assert done.proposal.length == 6 and done.passes == 2
    assert max(len(path) for path in done.proposal.paths) == 2


def test_weights_that_are_not_finite_draft_nothing() -> None:
    head = eagle_head(random_eagle(MODEL, scale=float("nan")), RUNNER)
    for settings in SHAPES:
        for params in (GREEDY, SAMPLED):
            config = EagleProposerConfig.model_validate(settings)
            proposer, request = EagleProposer(config, head, V), text(9, params=params)
            tell(proposer, request, 0)
            assert proposer.propose([request], [4])[0].length == 0


@pytest.mark.parametrize("settings", SHAPES, ids=["chain", "tree"])
def test_a_rehearsal_leaves_nothing_behind(settings: dict[str, int]) -> None:
    proposer = eagle(**settings)
    proposer.rehearse()
    assert proposer.sequences == {}
