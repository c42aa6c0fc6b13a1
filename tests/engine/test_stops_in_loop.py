"""Where a reply ends, fuzzed: text, ids, reason, caches and counters of a token-by-token reference."""

import codecs
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, cast

import pytest
import torch
from transformers.convert_slow_tokenizer import bytes_to_unicode

from specstream.drafting.proposal import Capabilities, Proposal, Proposer, SpecRequest, Verdict
from specstream.drafting.proposers.draft_model import DraftModelProposer
from specstream.drafting.proposers.off import OffProposer
from specstream.drafting.proposers.suffix import SuffixProposer
from specstream.engine.core import commit, detokenizer as stops
from specstream.engine.core.detokenizer import StopMatcher
from specstream.engine.core.request import Request
from specstream.methods import DraftProposerConfig, SuffixProposerConfig
from specstream.metrics import SpecStats
from specstream.model.tokens.noise import gumbel_max
from specstream.model.tokens.sampling import probabilities
from specstream.types import Chunk, Preview, SamplingParams
from tests.support.tables import ScriptedRunner, TableCache
from tests.support.tiny import EOS, Inbox, ask, byte_tokenizer, make_core, run_until_idle

TOKENIZER = byte_tokenizer()
SIZE = len(TOKENIZER)
_ALPHABET: dict[int, str] = bytes_to_unicode()  # type: ignore[no-untyped-call]
BYTES = {TOKENIZER.convert_tokens_to_ids(c): bytes([b]) for b, c in _ALPHABET.items()}
PIECES = ["a", "b", "ab", "ba", " ", "\n", "é", "日", "日本", "🙂", "aé"]


def ids_of(text: str) -> list[int]:
    return [int(i) for i in TOKENIZER.encode(text, add_special_tokens=False)]


def certain(ids: Sequence[int], *, final: bool = False) -> str:
    """The text that whole characters make, decoded by Python; all of it when nothing follows."""
    data = b"".join(BYTES.get(i, b"") for i in ids)
    return codecs.getincrementaldecoder("utf-8")("replace").decode(data, final)


def whole(text: str) -> str:
    """Without broken bytes at the end: when those come out is the decoder's business."""
    return text.rstrip("\ufffd")


@dataclass
class Ending:
    """What a reply must be."""

    ids: list[int]
    text: str
    reason: str


def reference(target: ScriptedRunner, params: SamplingParams, prompt: list[int], seed: int) -> Ending:
    """One token at a time, everything looked at anew after each: no cache, no drafts, no engine."""
    ids: list[int] = []
    while True:
        row = target.row(prompt + ids)
        if len(ids) < params.min_tokens:
            row[[EOS, *params.stop_token_ids]] = -torch.inf
        if params.greedy:
            token = int(row.argmax())
        else:
            probs = probabilities(row.unsqueeze(0), params)
            token = int(gumbel_max(probs, seed, len(prompt) + len(ids)))
        before = len(certain(ids))
        ids.append(token)
        text = certain(ids)
        if len(ids) >= params.min_tokens:
            cuts = [at for stop in params.stop if (at := found(text, stop, before)) >= 0]
            if cuts:
                return Ending(ids, text[: min(cuts)], "stop")
        everything = certain(ids, final=True)
        asked = [criterion(list(ids), text) for criterion in params.stop_when]
        if token == EOS or token in params.stop_token_ids or any(asked):
            return Ending(ids, everything, "stop")
        if len(ids) == params.max_tokens or len(prompt) + len(ids) == target.context_length:
            return Ending(ids, everything, "length")


def found(text: str, stop: str, before: int) -> int:
    """Where ``stop`` first begins, among its occurrences that end past ``before``; -1: nowhere."""
    for at in range(len(text) - len(stop) + 1):
        if at + len(stop) > before and text[at : at + len(stop)] == stop:
            return at
    return -1


class Seer:
    """Proposes what the target's script says next, past any end that it doesn't know of."""

    name = "seer"
    capabilities = Capabilities()

    def __init__(self, target: ScriptedRunner, count: int) -> None:
        self._target = target
        self._count = count

    def propose(self, requests: Sequence[SpecRequest], budget: Sequence[int]) -> list[Proposal]:
        made = []
        for request, room in zip(requests, budget):
            at = len(request.token_ids) - request.prompt_length
            tokens = self._target.script[at : at + min(self._count, room)]
            made.append(Proposal(torch.tensor(tokens, dtype=torch.int64)))
        return made

    def observe(self, requests: Sequence[SpecRequest], verdicts: Sequence[Verdict]) -> None:
        pass

    def release(self, slot: int) -> None:
        pass


class Recorder:
    """Any proposer, with what it proposed written down."""

    def __init__(self, inner: Proposer) -> None:
        self.inner = inner
        self.name, self.capabilities = inner.name, inner.capabilities
        self.proposed: list[list[int]] = []

    def propose(self, requests: Sequence[SpecRequest], budget: Sequence[int]) -> list[Proposal]:
        made = self.inner.propose(requests, budget)
        for proposal, room in zip(made, budget):
            assert proposal.length <= room
            self.proposed.append(proposal.tokens.tolist())
        return made

    def observe(self, requests: Sequence[SpecRequest], verdicts: Sequence[Verdict]) -> None:
        self.inner.observe(requests, verdicts)

    def release(self, slot: int) -> None:
        self.inner.release(slot)


def check_counters(request: Request, proposed: list[list[int]]) -> int:
    """Add the rounds up anew from the final ids and the proposals; how many ids were read at last."""
    ids, at, left = request.token_ids[request.prompt_length :], 0, iter(proposed)
    drafted, accepted = [], []
    while at < len(ids):
        proposal = next(left, []) if at else []
        same = 0
        while same < min(len(proposal), len(ids) - at) and proposal[same] == ids[at + same]:
            same += 1
        drafted.append(len(proposal))
        accepted.append(same)
        read = at + same
        at += min(same + 1, len(ids) - at)
    assert next(left, None) is None
    stats, longest = request.stats, max(drafted)
    assert stats.rounds == len(drafted)
    assert (stats.drafted, stats.accepted) == (sum(drafted), sum(accepted))
    assert stats.drafted_at == [sum(n > i for n in drafted) for i in range(longest)]
    assert stats.accepted_at == [sum(n > i for n in accepted) for i in range(longest)]
    return read


def check_previews(inbox: Inbox, reply: str) -> int:
    """Whether each preview comes right before its chunk, and is the text if it was accepted whole."""
    count = 0
    for shown, chunk in pairwise(inbox.items):
        if isinstance(shown, Preview):
            assert isinstance(chunk, Chunk) and shown.round == chunk.round
            assert shown.tokens.start == chunk.tokens.start
            assert shown.chars.start == chunk.chars.start
            if shown.token_ids == chunk.token_ids[: len(shown.token_ids)]:
                assert chunk.text.startswith(shown.text)
                assert reply[slice(*shown.chars)] == shown.text
                count += 1
    return count


class World:
    """An engine on tables, used for many replies so that slots and conversations are used again."""

    def __init__(self, kind: str, rng: random.Random, *, mode: str) -> None:
        self.target = ScriptedRunner(SIZE, seed=1)
        self.draft = ScriptedRunner(SIZE, seed=2)
        self.kind = kind
        count = rng.randint(1, 7)
        inner: Proposer = OffProposer()
        if kind == "draft":
            inner = DraftModelProposer(
                DraftProposerConfig(num_tokens=count), self.draft, frozenset({EOS})
            )
        elif kind == "suffix":
            inner = SuffixProposer(
                SuffixProposerConfig(min_score=0, num_tokens=count), torch.device("cpu")
            )
        elif kind == "seer":
            inner = Seer(self.target, count)
        self.proposer = Recorder(inner)
        self.core = make_core(self.target, TOKENIZER, self.proposer, mode=mode, max_sessions=2)

    def write(self, rng: random.Random, prompt: list[int]) -> None:
        """Choose what the target wants to say, and how often the draft knows it."""
        script = ids_of("".join(rng.choices(PIECES, k=rng.randint(1, 14))))
        if rng.random() < 0.5:
            script.insert(rng.randint(0, len(script)), EOS)
        if rng.random() < 0.1:
            script.insert(rng.randint(0, len(script)), rng.randrange(SIZE))  # perhaps broken UTF-8
        known = [i if rng.random() < 0.85 else rng.randrange(SIZE) for i in script]
        for runner, words in ((self.target, script), (self.draft, known)):
            runner.script, runner.start = words, len(prompt)
            runner.context_length = 10_000
        if rng.random() < 0.1:
            self.target.context_length = len(prompt) + rng.randint(1, 12)

    def kept(self, session: str) -> tuple[list[int], list[int]]:
        """The rows that a conversation keeps: as the slot says, and as its cache has them."""
        slot = self.core.slots.kept[session]
        return slot.rows, cast(TableCache, slot.cache).tokens


class Asked:
    """A ``stop_when`` that remembers every call."""

    def __init__(self, length: int) -> None:
        self.calls: list[tuple[list[int], str]] = []
        self._length = length

    def __call__(self, ids: list[int], text: str) -> bool:
        self.calls.append((list(ids), text))
        ids.clear()  # what a caller does with its list is its own business
        return len(whole(text)) >= self._length


def wishes(rng: random.Random, script: Sequence[int]) -> dict[str, Any]:
    """Some of the ways to end a reply, near enough to each other that they often meet."""
    values: dict[str, Any] = {"max_tokens": rng.choice([1, 2, 3, 7, 15, 40, 60])}
    text = certain(script)
    if text and rng.random() < 0.6:
        cuts = []
        for _ in range(rng.randint(1, 3)):
            at = rng.randrange(len(text))
            cuts.append(text[at : at + rng.randint(1, 4)].replace("\ufffd", "?"))
        values["stop"] = (*cuts, "never written")
    if rng.random() < 0.25:
        values["stop_token_ids"] = tuple(rng.choices([*script, 5], k=rng.randint(1, 2)))
    if rng.random() < 0.3:
        values["min_tokens"] = min(values["max_tokens"], rng.randint(1, 12))
    return values


KINDS = ["off", "draft", "suffix", "seer"]


def play(kind: str, mode: str, replies: int) -> Counter[str]:
    """Fuzz one proposer in one mode; what happened, counted, to see that it was worth it."""
    rng = random.Random(f"{kind} {mode}")
    seen: Counter[str] = Counter()
    for number in range(replies):
        if number % 20 == 0:
            world, earlier = World(kind, rng, mode=mode), dict[str, list[int]]()
        session = rng.choice("ab")
        text = "".join(rng.choices(PIECES, k=rng.randint(1, 4)))
        before = certain(earlier.get(session, []))
        if before and rng.random() < 0.6:
            text = before + text
        prompt = [int(i) for i in TOKENIZER.encode(text)]
        world.write(rng, prompt)
        values = wishes(rng, world.target.script)
        if mode == "reproducible" and rng.random() < 0.5:
            values |= {"temperature": rng.choice([0.5, 2.0]), "seed": number}
        ours, theirs = [], []
        if rng.random() < 0.4:
            lengths = [rng.randint(1, 20) for _ in range(rng.randint(1, 2))]
            ours, theirs = [Asked(n) for n in lengths], [Asked(n) for n in lengths]
        asked = SamplingParams(**values, stop_when=tuple(theirs))
        wanted = reference(world.target, asked, prompt, number)
        world.proposer.proposed.clear()
        params = SamplingParams(**values, stop_when=tuple(ours))
        inbox = Inbox()
        inbox.delivery.previews = number % 2 == 0
        request, _ = ask(world.core, text, params, inbox=inbox, session=session)
        run_until_idle(world.core)
        assert not inbox.errors
        check(request, inbox, wanted)
        seen["shown ahead"] += check_previews(inbox, request.text)
        check_asked(ours, request)
        read = check_counters(request, world.proposer.proposed)
        check_memory(world, request, session, len(prompt) + read)
        seen[wanted.reason] += 1
        seen["inside a block"] += inbox.chunks[-1].drafted > len(inbox.chunks[-1].token_ids)
        seen["cache used again"] += request.reused > 0
        seen["sampled"] += not params.greedy
        earlier[session] = request.token_ids
    return seen


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", ["default", "reproducible"])
def test_a_reply_ends_where_the_reference_ends(kind: str, mode: str) -> None:
    """8 x 300 replies; sampled ones where a token-by-token reference can know them."""
    seen = play(kind, mode, 300)
    assert min(seen["stop"], seen["length"], seen["cache used again"]) > 30
    assert kind == "off" or seen["inside a block"] > 15
    assert kind == "off" or seen["shown ahead"] > 30
    assert (seen["sampled"] > 100) == (mode == "reproducible")


def _takes_the_whole_block(
    request: Request, verdict: Verdict, faults: object
) -> tuple[str, list[int], None]:
    text, ends = "", []
    for token in verdict.tokens:
        text += commit.take_token(request, token)
        ends.append(len(request.output.decoded))
    return text, ends, None


def _keeps_rows(self: TableCache, length: int) -> None:
    del self.tokens[length + 1 :]


def _counts_all(self: SpecStats, drafted: int, accepted: int, source: str = "") -> None:
    _COUNT(self, drafted, drafted, source)


def _always_searches(self: StopMatcher, text: str, *, searching: bool = True) -> str:
    return _ADD(self, text)


_ADD, _COUNT = StopMatcher.add, SpecStats.count_round


@pytest.mark.parametrize(
    ("owner", "name", "bug"),
    [
        (commit, "_take", _takes_the_whole_block),
        (TableCache, "rollback_to", _keeps_rows),
        (SpecStats, "count_round", _counts_all),
        (StopMatcher, "add", _always_searches),
        (stops, "held_back", lambda text, marks: 0),
        (DraftModelProposer, "observe", lambda self, requests, verdicts: None),
    ],
)
def test_a_planted_bug_is_found(
    owner: object, name: str, bug: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, name, bug)
    with pytest.raises(AssertionError):
        play("draft", "default", 300)


def check(request: Request, inbox: Inbox, wanted: Ending) -> None:
    got = Ending(inbox.token_ids, inbox.text, str(request.finish_reason))
    assert got == wanted
    assert request.text == wanted.text
    assert request.token_ids[request.prompt_length :] == wanted.ids
    assert [c.finish_reason for c in inbox.chunks] == [None] * (len(inbox.chunks) - 1) + [wanted.reason]
    tokens = chars = 0
    for chunk in inbox.chunks:
        assert chunk.tokens == (tokens, tokens + len(chunk.token_ids))
        assert chunk.chars == (chars, chars + len(chunk.text))
        tokens, chars = chunk.tokens.end, chunk.chars.end


def check_asked(asked: Sequence[Asked], request: Request) -> None:
    """Every prefix once and in order, with its text."""
    ids = request.token_ids[request.prompt_length :]
    for criterion in asked:
        assert [c for c, _ in criterion.calls] == [ids[:n] for n in range(1, len(ids) + 1)]
        for prefix, text in criterion.calls:
            assert whole(text) == whole(certain(prefix))
            assert certain(prefix, final=True).startswith(text)


def check_memory(world: World, request: Request, session: str, rows: int) -> None:
    """What is kept for the next turn is what was read and stands, and no more."""
    said, held = world.kept(session)
    assert said == held == request.token_ids[:rows]
    assert world.core.slots.in_use == 0
    if world.kind == "draft":
        inner = cast(DraftModelProposer, world.proposer.inner)
        assert len(inner.sequences) <= 2
        for state in inner.sequences.values():
            assert state.rows == cast(TableCache, state.cache).tokens
        if request.sequence.generated > 1 and request.stats.drafted:
            [mine] = [s for s in inner.sequences.values() if s.request_id == request.id]
            common = min(len(mine.rows), len(request.token_ids))
            assert mine.rows[:common] == request.token_ids[:common]


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_the_next_turn_does_not_know_how_much_was_drafted_past_the_stop(temperature: float) -> None:
    """One reply, drafted in blocks of 1 to 9 that run past its stop; then the same seeded turn."""
    rng = random.Random(3)
    for number in range(10):
        first = ids_of("".join(rng.choices(PIECES, k=12)))
        stop = certain(first)[4:6]
        turns, past = set(), set()
        for count in range(1, 10):
            world = World("seer", rng, mode="default")
            world.target.script, world.target.start = first, len(TOKENIZER.encode("ab"))
            cast(Seer, world.proposer.inner)._count = count
            _, one = ask(world.core, "ab", SamplingParams(stop=(stop,)), session="s")
            run_until_idle(world.core)
            past.add(one.chunks[-1].drafted - one.chunks[-1].accepted)
            text = "ab" + one.text + "?"
            world.target.start = len(TOKENIZER.encode(text))
            cast(Seer, world.proposer.inner)._count = 3
            params = SamplingParams(temperature, seed=number, max_tokens=20)
            _, two = ask(world.core, text, params, session="s")
            run_until_idle(world.core)
            turns.add((one.text, two.text, tuple(two.token_ids)))
        assert len(turns) == 1
        assert len(past) > 1
