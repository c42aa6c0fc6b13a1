"""The contract test for users' proposers: what is right passes, each mistake is found by its name."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch

from specstream.drafting import Capabilities, Proposal, ProposerContext, SpecRequest, Verdict
from specstream.drafting.optional import States
from specstream.errors import ConfigError
from specstream.testing import PROPOSER_CHECKS, check_proposer

pytestmark = pytest.mark.slow

QUICK = 1000  # replies a rule: a total variation of 0.17 is found with probability 0.99


class Recalls:
    """Drafts what followed the last token the last time; drawn from an honest q if it is ``drawn``."""

    name = "recalls"
    capabilities = Capabilities()
    drawn = False

    def __init__(self, context: ProposerContext) -> None:
        self.context = context
        self.upto: dict[int, int] = {}  # by slot: how much of its text was looked at
        self.after: dict[int, dict[int, int]] = {}  # by slot: token → where it was last

    def key(self, request: SpecRequest, index: int) -> int:
        return request.slot

    def text(self, request: SpecRequest) -> list[int]:
        return request.token_ids

    def propose(self, requests: Sequence[SpecRequest], budget: Sequence[int]) -> list[Proposal]:
        return [self._draft(r, budget[i], self.key(r, i)) for i, r in enumerate(requests)]

    def _draft(self, request: SpecRequest, most: int, key: int) -> Proposal:
        text, after = self.text(request), self.after.setdefault(key, {})
        for at in range(self.upto.get(key, 0), len(text) - 1):
            after[text[at]] = at
        self.upto[key] = len(text) - 1
        at = after.get(text[-1], len(text))
        tokens = text[at + 1 : at + 1 + min(most, 3)]
        if not tokens:
            return Proposal.empty()
        return self._drawn(request, tokens) if self.drawn else Proposal(torch.tensor(tokens))

    def _drawn(self, request: SpecRequest, tokens: list[int]) -> Proposal:
        rows = torch.full((len(tokens), self.context.vocab_size), 0.5 / self.context.vocab_size)
        rows[range(len(tokens)), tokens] += 0.5
        at = len(request.token_ids)
        ids = [request.draw(rows[i : i + 1], at + i) for i in range(len(tokens))]
        return Proposal(torch.cat(ids), rows)

    def observe(self, requests: Sequence[SpecRequest], verdicts: Sequence[Verdict]) -> None:
        pass

    def release(self, slot: int) -> None:
        self.upto.pop(slot, None)
        self.after.pop(slot, None)


class Draws(Recalls):
    drawn = True


class Raises(Recalls):
    def observe(self, requests: Sequence[SpecRequest], verdicts: Sequence[Verdict]) -> None:
        if any(verdict.accepted for verdict in verdicts):
            raise ZeroDivisionError("accepted")


class Malformed(Recalls):
    def _drawn(self, request: SpecRequest, tokens: list[int]) -> Proposal:
        return Proposal(torch.tensor(tokens), torch.ones(len(tokens), self.context.vocab_size))

    drawn = True


class TooLong(Recalls):
    def _draft(self, request: SpecRequest, most: int, key: int) -> Proposal:
        return super()._draft(request, most + 1, key)


class WritesItself(Recalls):
    """Adds its drafts to the text, as if they were accepted."""

    def _draft(self, request: SpecRequest, most: int, key: int) -> Proposal:
        made = super()._draft(request, most, key)
        if made.length == 3:
            request.token_ids.extend(made.tokens.tolist())
        return made


class Rewrites(Recalls):
    """Works in place on what a request holds."""

    def _draft(self, request: SpecRequest, most: int, key: int) -> Proposal:
        made = super()._draft(request, most, key)
        request.token_ids[0] = request.token_ids[-1]
        return made


class NotDrawn(Draws):
    """The likeliest token, with q as if it had been drawn."""

    def _drawn(self, request: SpecRequest, tokens: list[int]) -> Proposal:
        return replace(super()._drawn(request, tokens), tokens=torch.tensor(tokens))


class Forgets(Draws):
    """Draws with the request's temperature, and reports q as it was without it."""

    def _drawn(self, request: SpecRequest, tokens: list[int]) -> Proposal:
        made = super()._drawn(request, tokens)
        if request.params.temperature == 1:
            return made
        assert made.probs is not None
        cold = (made.probs ** (1 / request.params.temperature)).softmax(-1)
        at = len(request.token_ids)
        ids = [request.draw(cold[i : i + 1], at + i) for i in range(len(tokens))]
        return Proposal(torch.cat(ids), made.probs)


class OwnDice(Draws):
    """Honest, but draws by itself."""

    def _drawn(self, request: SpecRequest, tokens: list[int]) -> Proposal:
        rows = super()._drawn(request, tokens).probs
        assert rows is not None
        return Proposal(torch.multinomial(rows, 1).squeeze(1), rows)


class Reads(Recalls):
    """Is given the target's hidden states; here they are only looked at."""

    capabilities = Capabilities(hidden_states=(1, 2))

    def read(self, requests: Sequence[SpecRequest], states: Sequence[States]) -> None:
        for request, given in zip(requests, states, strict=True):
            assert given.states.shape[1:] == (2, 32)
            assert given.start + len(given.states) <= len(request.token_ids) + 8


class LooksAndDrops(Draws):
    """Leaves a drawn token out because of its value."""

    def _drawn(self, request: SpecRequest, tokens: list[int]) -> Proposal:
        made = super()._drawn(request, tokens)
        assert made.probs is not None
        same = [a == b for a, b in zip(made.tokens.tolist(), tokens, strict=True)]
        kept = same.index(False) if False in same else len(same)
        return Proposal(made.tokens[:kept], made.probs[:kept])


class NeverRollsBack(Recalls):
    """Takes its drafts for text, until that is as long as the text itself."""

    def __init__(self, context: ProposerContext) -> None:
        super().__init__(context)
        self.own: dict[int, list[int]] = {}

    def text(self, request: SpecRequest) -> list[int]:
        own = self.own.setdefault(request.slot, [])
        own += request.token_ids[len(own) :]
        return own

    def _draft(self, request: SpecRequest, most: int, key: int) -> Proposal:
        made = super()._draft(request, most, key)
        self.own[key] += made.tokens.tolist()
        return made

    def release(self, slot: int) -> None:
        super().release(slot)
        self.own.pop(slot, None)


class OneMemory(Recalls):
    """All sequences that it ever saw teach it; what is released stays known."""

    def key(self, request: SpecRequest, index: int) -> int:
        return 0

    def __init__(self, context: ProposerContext) -> None:
        super().__init__(context)
        self.followed: dict[int, int] = {}

    def _draft(self, request: SpecRequest, most: int, key: int) -> Proposal:
        text = request.token_ids
        self.followed |= dict(zip(text, text[1:], strict=False))
        token = self.followed.get(text[-1])
        return Proposal.empty() if token is None else Proposal(torch.tensor([token]))


class ByPlace(Recalls):
    """Knows a sequence by its place in the list."""

    def __init__(self, context: ProposerContext) -> None:
        super().__init__(context)
        self.seen: dict[int, int] = {}

    def key(self, request: SpecRequest, index: int) -> int:
        if self.seen.get(index, 0) > len(request.token_ids):  # a new reply
            super().release(index)
        self.seen[index] = len(request.token_ids)
        return index


class ReleasesOnce(Recalls):
    def release(self, slot: int) -> None:
        del self.upto[slot], self.after[slot]


class Hoards(Recalls):
    def release(self, slot: int) -> None:
        pass


class HoardsInItsClass(Recalls):
    texts: list[list[int]] = []

    def release(self, slot: int) -> None:
        super().release(slot)
        self.texts.append([slot] * 20)


class Idle(Recalls):
    def _draft(self, request: SpecRequest, most: int, key: int) -> Proposal:
        return Proposal.empty()


def test_the_checks_have_these_names() -> None:
    assert list(PROPOSER_CHECKS) == [
        *("sound", "text", "law", "noise", "rollback"),
        *("leaks", "concurrency", "cancel", "memory", "drafts"),
    ]


@pytest.mark.parametrize("make", [Recalls, Draws, Reads])
def test_what_keeps_the_contract_passes(make: Callable[[ProposerContext], Recalls]) -> None:
    report = check_proposer(make, n=QUICK)
    assert report.passed == tuple(PROPOSER_CHECKS) and not report.skipped
    assert report.drafted > report.accepted > 0
    assert report.replies == 4 * QUICK and 0.05 < report.detectable < 0.2
    assert min(report.p_values) > 1e-3


@pytest.mark.parametrize(
    ("name", "skip"),
    [
        ("off", {"drafts"}),
        ("suffix", set()),
        ({"kind": "suffix", "store": "engine"}, {"leaks", "concurrency", "memory"}),
        ({"kind": "lookahead", "window": 3, "branches": 3, "ngram": 3}, {"rollback"}),
    ],
    ids=["off", "suffix", "suffix with a store", "lookahead"],
)
def test_the_bundled_proposers_without_weights_pass(name: str, skip: set[str]) -> None:
    report = check_proposer(name, skip=skip, n=QUICK)
    assert set(report.passed) == PROPOSER_CHECKS.keys() - skip


@pytest.mark.parametrize(
    ("make", "check", "said"),
    [
        (Raises, "sound", "ZeroDivisionError: accepted"),
        (Malformed, "sound", "each row of probs must be a distribution"),
        (TooLong, "sound", "at most wanted"),
        (WritesItself, "sound", "changed the token_ids"),
        (Rewrites, "sound", "changed the token_ids"),
        (NotDrawn, "law", "total variation"),
        (Forgets, "law", "temperature 0.6"),
        (LooksAndDrops, "law", "total variation"),
        (OwnDice, "noise", "request.draw"),
        (NeverRollsBack, "rollback", "not accepted"),
        (OneMemory, "leaks", "after other requests"),
        (ByPlace, "concurrency", "beside other requests"),
        (ReleasesOnce, "cancel", "release"),
        (Hoards, "memory", "bytes"),
        (HoardsInItsClass, "memory", "bytes"),
        (Idle, "drafts", "never drafted"),
    ],
)
def test_each_mistake_is_found_by_its_name(
    make: Callable[[ProposerContext], Recalls], check: str, said: str
) -> None:
    with pytest.raises(AssertionError) as caught:
        check_proposer(make, only={check}, n=QUICK)
    assert str(caught.value).startswith(f"{check}: ") and said in str(caught.value)


@pytest.mark.parametrize(
    ("make", "wanted"),
    [(NotDrawn, "law"), (NeverRollsBack, "rollback"), (ByPlace, "concurrency"), (Hoards, "memory")],
)
def test_a_mistake_is_told_apart_from_others(
    make: Callable[[ProposerContext], Recalls], wanted: str
) -> None:
    """The other checks pass, so that a name says where to look."""
    report = check_proposer(make, skip={wanted}, n=300)
    assert report.skipped == (wanted,)


def test_all_that_is_wrong_is_said_at_once() -> None:
    class Bad(NotDrawn, Hoards):
        pass

    with pytest.raises(AssertionError) as caught:
        check_proposer(Bad, n=QUICK)
    assert [line.split(":")[0] for line in str(caught.value).splitlines()] == ["law", "memory"]


def test_what_can_t_be_checked_is_refused() -> None:
    with pytest.raises(ConfigError, match="unknown check 'laws'; did you mean law?"):
        check_proposer(Recalls, only={"laws"})
    with pytest.raises(ConfigError, match="give a function that makes a proposer"):
        check_proposer(Recalls(None))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="needs a draft model"):
        check_proposer("draft")
    with pytest.raises(ConfigError, match="at least 100"):
        check_proposer(Recalls, n=3)
