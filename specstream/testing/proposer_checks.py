"""What a proposer promises, one check a promise; each returns what is wrong in words, or nothing."""

from __future__ import annotations

import gc
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import BuiltinFunctionType, FunctionType, ModuleType

from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from specstream.bench.exactness.enumeration import GTest, g_test, holm
from specstream.bench.exactness.harness import sample
from specstream.engine.core.step import EngineCore
from specstream.model.runner import ModelRunner
from specstream.testing.letters import END, Ask, Letters, ProposedText, finish, watched
from specstream.types import SamplingParams

__all__ = ["CHECKS", "Evidence"]

_RULES = ("block", "ratio")
_LENGTH = 4  # tokens of a reply whose distribution is compared
_PROMPTS = ("bcdbcdb", "ecece", "bdebdb", "cbcbd")
_REPLAYS = 12  # of places behind rejected tokens
_SAMPLED = SamplingParams(1.0), SamplingParams(0.6, top_p=0.9)
_GREEDY = SamplingParams(seed=5, max_tokens=40)  # a draft may be drawn all the same
_BATCH, _FURTHER = 32, 128  # replies before the first look at memory, and until the second
_SPARE = 4096  # bytes that it may have grown by


@dataclass(slots=True)
class Evidence:
    """What the checks have seen.

    Attributes:
        n: Replies sampled for each of these tests.
        drafted: Drafted tokens, over all checks.
        accepted: Those that the target accepted.
        fault: The first thing that the proposer did wrong by itself: an exception, a malformed proposal.
        tests: The statistical tests of ``law``: two for each rule.
    """

    n: int
    drafted: int = 0
    accepted: int = 0
    fault: str | None = None
    tests: list[GTest] = field(default_factory=list)

    def add(self, core: EngineCore) -> None:
        """Count what an engine's proposer has drafted."""
        seen = watched(core)
        self.drafted += seen.tokens
        self.accepted += seen.accepted
        self.fault = self.fault or _faults(core)


def _asks(count: int = 4, most: int = 40) -> list[Ask]:
    """Greedy ones and ones with a seed, whose texts are fixed."""
    params = [_GREEDY, SamplingParams(1.0, seed=5, max_tokens=most)]
    return [Ask(prompt, one) for prompt in _PROMPTS for one in params][:count]


def sound(letters: Letters, evidence: Evidence) -> str | None:
    """Nothing is raised, and no proposal is malformed, whatever room there is."""
    core = letters.engine()
    few = [Ask("bcbcb", SamplingParams(max_tokens=most)) for most in (1, 2, 3)]
    drawn = [Ask(prompt, SamplingParams(1.0, max_tokens=20)) for prompt in _PROMPTS]
    letters.answers(core, [*few, *_asks(8), *drawn])
    evidence.add(core)
    return _faults(core)


def text(letters: Letters, evidence: Evidence) -> str | None:
    """Greedy text, and text with a seed, is that of plain decoding."""
    asks = _asks(8)
    plain = [one.token_ids for one in letters.answers(letters.engine(plain=True), asks)]
    for places in (1, 4):
        core = letters.engine(max_running=places)
        made = [one.token_ids for one in letters.answers(core, asks)]
        evidence.add(core)
        for ask, mine, wanted in zip(asks, made, plain, strict=True):
            if mine != wanted:
                return f"the reply to {ask} isn't that of plain decoding{_parting(mine, wanted)}"
    return None


def law(letters: Letters, evidence: Evidence) -> str | None:
    """Sampled text has the target's exact distribution, warped or not, under both rules."""
    prompt, cases = "bcdbc", [(rule, given) for rule in _RULES for given in _SAMPLED]
    found = list[GTest]()
    for rule, given in cases:
        params = replace(given, max_tokens=_LENGTH + 1)
        core = letters.engine(ends=END, rule=rule)
        seen = sample(core, prompt, params, evidence.n, length=_LENGTH)
        evidence.add(core)
        found.append(g_test(seen, letters.joint(prompt, params, _LENGTH)))
    evidence.tests += found
    rejections = holm([one.p_value for one in found])
    for (rule, given), result, rejected in zip(cases, found, rejections, strict=True):
        if rejected:
            return (
                f"sampled text has another distribution than the target's (temperature "
                f"{given.temperature:g}, top_p {given.top_p:g}, rule {rule}, {result.n} replies: "
                f"p = {result.p_value:.1g}, total variation {result.tv:.2f}, by chance "
                f"{result.noise:.2f}): probs aren't what the tokens were drawn from, or a token was "
                "left out after it was drawn"
            )
    return None


def noise(letters: Letters, evidence: Evidence) -> str | None:
    """The same requests with the same seeds get the same drafts."""
    for ask in _asks(2):
        once, again = letters.engine(), letters.engine()
        (first,), (second,) = letters.answers(once, [ask]), letters.answers(again, [ask])
        evidence.add(once)
        wrong = _compared(letters, once, first.id, again, second.id, "the first time")
        if wrong is not None:
            return f"the second time ({ask}) {wrong}: draw with request.draw only"
    return None


def rollback(letters: Letters, evidence: Evidence) -> str | None:
    """Right after tokens that were not accepted, drafts are those of a new proposer for this text."""
    left = _REPLAYS
    for ask in _asks(8)[1::2]:  # with seeds: what is drawn depends on the position alone
        core = letters.engine()
        (request,) = letters.answers(core, [ask])
        evidence.add(core)
        limit = request.prompt_length + ask.params.max_tokens
        for seen in watched(core).drafted.get(request.id, []):
            if not seen.after_rejection or not left:
                continue
            left -= 1
            fresh = _first(letters, ask, seen.text, limit)
            if not seen.like(fresh):
                return (
                    f"behind {letters.written(seen.text)!r} ({ask}), right after tokens that were not "
                    f"accepted, it drafts {_drafts(letters, seen)}; a new one that reads this text "
                    f"drafts {_drafts(letters, fresh)}"
                )
    return None


def leaks(letters: Letters, evidence: Evidence) -> str | None:
    """Drafts are the same after other replies that have ended."""
    for ask in _asks(2):
        alone, later = letters.engine(), letters.engine()
        (first,) = letters.answers(alone, [ask])
        for other in _asks(8)[2:]:
            letters.answers(later, [other])
        (second,) = letters.answers(later, [ask])
        evidence.add(later)
        wrong = _compared(letters, alone, first.id, later, second.id)
        if wrong is not None:
            return f"after other requests ({ask}) {wrong}"
    return None


def concurrency(letters: Letters, evidence: Evidence) -> str | None:
    """Drafts are the same beside other requests, which come and go."""
    asks = [Ask(one.prompt, SamplingParams(1.0, seed=i, max_tokens=9 + 7 * (i % 4)))
            for i, one in enumerate(_asks(8))]  # fmt: skip
    together = letters.engine(max_running=4)
    requests = letters.answers(together, asks)
    evidence.add(together)
    for ask, beside in zip(asks, requests, strict=True):
        alone = letters.engine()
        (request,) = letters.answers(alone, [ask])
        wrong = _compared(letters, alone, request.id, together, beside.id)
        if wrong is not None:
            return f"beside other requests ({ask}) {wrong}"
    return None


def cancel(letters: Letters, evidence: Evidence) -> str | None:
    """A cancelled reply disturbs no other, its conversation goes on, and `release` may be repeated."""
    core, talk = letters.engine(max_running=3), "check"
    stays, later = _asks(2)[0], Ask("bcdbcdbcecece", _GREEDY)
    wanted = [r.token_ids for r in letters.answers(letters.engine(plain=True), [stays, later])]
    running = letters.start(core, stays)
    stopped = [letters.start(core, Ask("bcdbc", _GREEDY), talk), letters.start(core, _asks(2)[1])]
    waiting = letters.start(core, Ask("ecece", _GREEDY))
    for _ in range(4):
        core.step()
    for request in (*stopped, waiting):
        request.delivery.cancelled = True
    core.step()
    again = letters.start(core, later, talk)
    finish(core, [running, again])
    core.slots.forget(talk)
    evidence.add(core)
    if wrong := _faults(core):
        return f"when a reply was cancelled and its slot released: {wrong}"
    if [running.token_ids, again.token_ids] != wanted:
        return "when a reply was cancelled, another's text isn't that of plain decoding"
    for slot in (*sorted(watched(core).slots), 10**9):
        core.proposing.release(slot)
    wrong = _faults(core)
    return wrong and f"release of a slot that was released before, or is unknown: {wrong}"


def memory(letters: Letters, evidence: Evidence) -> str | None:
    """What it holds doesn't grow with the number of replies that have ended."""
    core, held = letters.engine(), list[int]()
    rng, params = random.Random(4), SamplingParams(1.0, max_tokens=8)
    for batches in (1, _FURTHER // _BATCH):
        for _ in range(batches):
            prompts = ["".join(rng.choices("bcde", k=rng.randint(5, 10))) for _ in range(_BATCH)]
            letters.answers(core, [Ask(prompt, params) for prompt in prompts])
        held.append(_held(core.proposer))
    evidence.add(core)
    if held[1] - held[0] <= _SPARE:
        return None
    return (
        f"after {_FURTHER} further replies, all released, it holds {held[1]} bytes instead of {held[0]}"
    )


def drafts(letters: Letters, evidence: Evidence) -> str | None:
    """It drafts at all: else the other checks say nothing."""
    if not evidence.drafted:
        core = letters.engine()
        letters.answers(core, _asks(8))
        evidence.add(core)
    return None if evidence.drafted else "it never drafted a token, so nothing else was put to the test"


CHECKS: Mapping[str, Callable[[Letters, Evidence], str | None]] = {
    check.__name__: check
    for check in (sound, text, law, noise, rollback, leaks, concurrency, cancel, memory, drafts)
}
"""The checks by name, in order."""


def _faults(core: EngineCore) -> str | None:
    faults = watched(core).faults
    return f"{type(faults[0]).__name__}: {faults[0]}" if faults else None


def _parting(mine: Sequence[int], wanted: Sequence[int]) -> str:
    same = next((i for i, (a, b) in enumerate(zip(mine, wanted, strict=False)) if a != b), None)
    return ": it ends elsewhere" if same is None else f" from token {same} on"


def _drafts(letters: Letters, seen: ProposedText | None) -> str:
    return "nothing" if seen is None or not seen.tokens else repr(letters.written(seen.tokens))


def _first(letters: Letters, ask: Ask, text: tuple[int, ...], limit: int) -> ProposedText:
    """What a new proposer drafts first behind a text whose last token the target writes itself."""
    core = letters.engine()
    prompt = letters.written(text[:-1])
    most = limit - len(prompt)
    params = SamplingParams(ask.params.temperature, seed=ask.params.seed, max_tokens=most)
    request = letters.start(core, Ask(prompt, params))
    while request.id not in watched(core).drafted or not request.stats.rounds:
        core.step()
    core.step()
    request.delivery.cancelled = True
    core.step()
    return next(one for one in watched(core).drafted[request.id] if one.text == text)


def _compared(
    letters: Letters,
    alone: EngineCore,
    first: int,
    other: EngineCore,
    second: int,
    when: str = "where that request is alone",
) -> str | None:
    """How the drafts for one request differ from those for the same request ``when``."""
    wanted, found = watched(alone).drafted[first], watched(other).drafted[second]
    mine = {one.text: one for one in found}
    for one in wanted:
        seen = mine.get(one.text)
        if seen is None or not seen.like(one):
            return (
                f"it drafts {_drafts(letters, seen)} behind {letters.written(one.text)!r}, and "
                f"{_drafts(letters, one)} {when}"
            )
    return None


_NOT_ITS_OWN = (type, ModuleType, FunctionType, BuiltinFunctionType, ModelRunner, nn.Module,
                PreTrainedTokenizerBase)  # fmt: skip


def _held(proposer: object) -> int:
    """Bytes of all that a proposer and its classes' attributes reach, models and code left out."""
    todo: list[object] = [proposer]
    for cls in type(proposer).__mro__[:-1]:
        todo += vars(cls).values()
    seen, total = set[int](), 0
    while todo:
        one = todo.pop()
        if id(one) in seen or isinstance(one, _NOT_ITS_OWN):
            continue
        seen.add(id(one))
        total += sys.getsizeof(one)
        if isinstance(one, Tensor):
            total += one.nbytes
        todo += gc.get_referents(one)
    return total
