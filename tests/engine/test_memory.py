"""Memory for keys and values: requests wait for it, and running out of it ends one request only."""

from collections.abc import Sequence
from weakref import WeakSet

import pytest
import torch

from specstream.config import EngineConfig
from specstream.drafting.proposal import Proposer
from specstream.engine.core.request import Request
from specstream.engine.core.step import EngineCore
from specstream.errors import ConsumerStalled, EngineBusy
from specstream.model.forward import PLAIN, Extras, ForwardInput, ForwardOutput
from specstream.model.kv import KVCache
from specstream.model.runner import ModelRunner
from specstream.types import SamplingParams
from tests.engine.plain import MODEL, TOKENIZER, plain_greedy, proposer
from tests.support.tiny import Inbox, answered, ask, run_until_idle

LONG = SamplingParams(max_tokens=300)  # 512 rows each, of which the first 256 are allocated at once


class Device:
    """Stands in for a device with room for ``rows`` rows of keys and values."""

    def __init__(self, runner: ModelRunner, rows: int) -> None:
        self._caches: WeakSet[KVCache] = WeakSet()
        self._bytes = runner.cache_bytes(256) * rows // 256
        new_cache = runner.new_cache

        def noted() -> KVCache:
            cache = new_cache()
            self._caches.add(cache)
            return cache

        runner.new_cache = noted  # type: ignore[method-assign]

    def free(self) -> int:
        return self._bytes - sum(cache.nbytes for cache in self._caches)


class Clock:
    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def engine(rows: int, *, kind: str = "off", now: Clock | None = None, **options: int) -> EngineCore:
    runner = ModelRunner(MODEL)
    device = Device(runner, rows)
    config = EngineConfig.model_validate(options)
    made: Proposer = proposer(kind)
    clock = now or Clock()
    return EngineCore(config, runner, TOKENIZER, made, frozenset(), clock, device.free)


def running(core: EngineCore) -> list[Request]:
    return list(core.scheduler.running)


@pytest.mark.parametrize("lean", [True, False])
@pytest.mark.parametrize("tokens", [1, 256, 257, 400])
@torch.inference_mode()
def test_the_bytes_of_a_cache_are_foreseen(lean: bool, tokens: int) -> None:
    runner = ModelRunner(MODEL, lean=lean)
    cache = runner.new_cache()
    for part in torch.split(torch.zeros(tokens, dtype=torch.int64), 200):
        runner.forward([ForwardInput(part, cache)])
    assert cache.nbytes == runner.cache_bytes(tokens)


@pytest.mark.slow
def test_a_request_waits_for_memory_that_running_ones_may_still_need() -> None:
    core = engine(1100)
    asked = [ask(core, text, LONG) for text in ("abab", "zq", "xyz")]
    core.step()
    assert running(core) == [asked[0][0], asked[1][0]]
    assert not asked[2][1].items
    run_until_idle(core)
    for text, (request, inbox) in zip(("abab", "zq", "xyz"), asked):
        assert inbox.token_ids == plain_greedy(text, 300, eos=None)
        assert request.finish_reason == "length"


def test_a_short_request_does_not_overtake_one_that_waits_for_memory() -> None:
    core = engine(900)
    asked = [ask(core, "abab", LONG), ask(core, "zq", LONG), ask(core, "x", SamplingParams())]
    core.step()
    assert running(core) == [asked[0][0]]
    asked[0][1].delivery.cancelled = True
    core.step()
    assert running(core)[0] is asked[1][0]


def test_caches_of_idle_conversations_make_room_the_oldest_first() -> None:
    core = engine(1100, kind="draft")
    few = SamplingParams(max_tokens=3)
    for session in ("a", "b", "c"):
        answered(core, "abab", few, session=session)
    assert len(core.slots.kept) == 3
    _, inbox = ask(core, "abab", LONG, session="c")  # its own cache counts as memory it has
    core.step()
    assert list(core.slots.kept) == ["a", "b"]
    run_until_idle(core)
    assert len(core.slots.kept) == 3
    ask(core, "zq", LONG)
    core.step()
    assert list(core.slots.kept) == ["c"]
    run_until_idle(core)
    assert len(inbox.token_ids) == 300


def test_a_prompt_without_memory_is_refused_where_nothing_else_runs() -> None:
    core = engine(300)
    _, refused = ask(core, "x" * 300, LONG)
    _, served = answered(core, "abab", SamplingParams(max_tokens=300))  # its prompt fits
    assert [type(error) for error in refused.errors] == [EngineBusy]
    assert "shorten the prompt" in str(refused.errors[0])
    assert len(served.token_ids) == 300


def test_a_parked_reply_does_not_keep_memory_from_others_for_ever() -> None:
    clock = Clock()
    core = engine(600, now=clock)
    slow = Inbox(reading=False, limit=2)
    answered(core, "abab", LONG, inbox=slow)
    _, waiting = answered(core, "zq", LONG)
    assert not waiting.items
    patience = core.scheduler.patience()
    assert patience is not None and patience > 0
    clock.seconds += patience
    run_until_idle(core)
    assert [type(error) for error in slow.errors] == [ConsumerStalled]
    assert len(waiting.token_ids) == 300


def narrow(core: EngineCore, most: int) -> list[int]:
    """Let a pass of more than ``most`` sequences run out of memory, after it has appended its rows."""
    forward, sizes = core.target.forward, list[int]()

    def limited(inputs: Sequence[ForwardInput], extras: Extras = PLAIN) -> ForwardOutput:
        sizes.append(len(inputs))
        made = forward(inputs, extras)
        if len(inputs) > most:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return made

    core.target.forward = limited  # type: ignore[method-assign]
    return sizes


@pytest.mark.parametrize("kind", ["off", "draft"])
def test_a_pass_that_runs_out_of_memory_ends_the_youngest_request_only(kind: str) -> None:
    core = engine(10_000, kind=kind)
    texts = ("abab", "the cat", "zq")
    asked = [ask(core, text, SamplingParams(max_tokens=30)) for text in texts]
    core.step()
    sizes = narrow(core, 2)
    core.step()
    assert sizes == [3, 2]
    run_until_idle(core)
    youngest = asked[2][1]
    assert [type(error) for error in youngest.errors] == [EngineBusy]
    assert "out of memory" in str(youngest.errors[0])
    assert youngest.token_ids == plain_greedy("zq", 1, eos=None)
    for text, (_, inbox) in zip(texts[:2], asked):
        assert inbox.token_ids == plain_greedy(text, 30, eos=None)
    assert core.slots.in_use == 0


def test_a_lone_request_that_runs_out_of_memory_ends_and_the_engine_goes_on() -> None:
    core = engine(10_000)
    _, lost = ask(core, "abab", SamplingParams(max_tokens=30))
    forward = core.target.forward
    narrow(core, 0)
    run_until_idle(core)
    assert [type(error) for error in lost.errors] == [EngineBusy]
    assert lost.errors[0].__cause__ is None  # its traceback would hold the pass's tensors
    core.target.forward = forward  # type: ignore[method-assign]
    _, inbox = answered(core, "abab", SamplingParams(max_tokens=5))
    assert inbox.token_ids == plain_greedy("abab", 5, eos=None)
