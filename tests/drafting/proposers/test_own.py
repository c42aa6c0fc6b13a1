"""A user's own proposer: an object, a function that makes one, or one of an installed package."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import pytest
import torch

from specstream import Engine, EngineConfig, SamplingParams
from specstream.config import parse_config
from specstream.drafting import Capabilities, Proposal, ProposerContext, SpecRequest, Verdict
from specstream.errors import ConfigError
from specstream.methods import OwnProposerConfig, SuffixProposerConfig
from tests.support.packages import install_proposers
from tests.support.tiny import save_pair


@dataclass
class Repeats:
    """Drafts what followed the last token when it was written before; notes what it is told."""

    name: str = "repeats"
    capabilities: Capabilities = Capabilities()
    most: int = 4
    drawn: bool = False
    made_for: ProposerContext | None = None
    rounds: list[tuple[int, int]] = field(default_factory=list)  # drafted, accepted
    widths: list[int] = field(default_factory=list)
    released: list[int] = field(default_factory=list)
    sent: list[int] = field(default_factory=list)

    def propose(self, requests: Sequence[SpecRequest], budget: Sequence[int]) -> list[Proposal]:
        self.widths.append(len(requests))
        made = [self._draft(r, min(b, self.most)) for r, b in zip(requests, budget, strict=True)]
        self.sent = [proposal.length for proposal in made]
        return made

    def _draft(self, request: SpecRequest, most: int) -> Proposal:
        ids = request.token_ids
        at = next((i for i in range(len(ids) - 2, -1, -1) if ids[i] == ids[-1]), None)
        tokens = [] if at is None else ids[at + 1 : at + 1 + most]
        if not self.drawn:
            return Proposal(torch.tensor(tokens, dtype=torch.int64))
        assert self.made_for is not None
        row = torch.full((1, self.made_for.vocab_size), 0.05 / self.made_for.vocab_size)
        drawn, rows = [], []
        for number, token in enumerate(tokens):
            q = row.clone()
            q[0, token] += 0.95
            drawn.append(request.draw(q, len(ids) + number))
            rows.append(q)
        if not drawn:
            return Proposal.empty()
        return Proposal(torch.cat(drawn), torch.cat(rows))

    def observe(self, requests: Sequence[SpecRequest], verdicts: Sequence[Verdict]) -> None:
        self.rounds += zip(self.sent, [v.accepted for v in verdicts], strict=False)

    def release(self, slot: int) -> None:
        self.released.append(slot)


class HalfOne:
    def propose(self, requests: object, budget: object) -> list[Proposal]:
        return []


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_pair(tmp_path_factory.mktemp("own"), eos=False)[0])


async def written(proposer: Any, target: str, params: SamplingParams, **options: Any) -> list[Any]:
    """The reports of three requests at once."""
    reports: list[Any] = [None] * 3
    async with Engine.load(target, proposer=proposer, **options) as engine:

        async def one(number: int) -> None:
            async with engine.generate("abcabc" * (number + 1), params) as chunks:
                async for _ in chunks:
                    pass
                reports[number] = chunks.report

        async with anyio.create_task_group() as group:
            for number in range(3):
                group.start_soon(one, number)
    return reports


@pytest.mark.parametrize(
    "params",
    [SamplingParams(max_tokens=90), SamplingParams(0.1, seed=3, max_tokens=90)],
    ids=["greedy", "seed"],
)
@pytest.mark.parametrize("drawn", [False, True], ids=["deterministic", "drawn"])
async def test_an_object_drafts_and_the_text_is_that_of_plain_decoding(
    target: str, params: SamplingParams, drawn: bool
) -> None:
    made = list[Repeats]()

    def make(context: ProposerContext) -> Repeats:
        made.append(Repeats(made_for=context, drawn=drawn))
        return made[-1]

    plain = await written("off", target, params)
    mine = await written(make if drawn else (own := Repeats()), target, params)
    proposer = made[0] if drawn else own
    assert [r.token_ids for r in mine] == [r.token_ids for r in plain]
    assert sum(r.accepted for r in mine) > 0
    assert {r.proposer for r in mine} == {"repeats"}
    assert sum(accepted for _, accepted in proposer.rounds) >= sum(r.accepted for r in mine)
    assert len(set(proposer.released)) == 3
    assert max(proposer.widths) > 1


async def test_a_chunk_says_that_it_drafted(target: str) -> None:
    async with (
        Engine.load(target, proposer=Repeats()) as engine,
        engine.generate("abcabcabc", SamplingParams(max_tokens=40)) as chunks,
    ):
        seen = [chunk async for chunk in chunks]
    assert {chunk.proposer for chunk in seen if chunk.drafted} == {"repeats"}


async def test_what_is_cancelled_is_released_and_the_others_go_on(target: str) -> None:
    own = Repeats()
    async with Engine.load(target, proposer=own) as engine:
        async with engine.generate("abcabc", SamplingParams(max_tokens=300)) as chunks:
            async for _ in chunks:
                break
        async with engine.generate("abcabc", SamplingParams(max_tokens=30)) as chunks:
            async for _ in chunks:
                pass
        assert len(chunks.report.token_ids) == 30
    assert len(set(own.released)) == 2


@pytest.mark.broken_proposer
async def test_a_malformed_proposal_costs_speed_only(
    target: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Malformed(Repeats):
        def _draft(self, request: SpecRequest, most: int) -> Proposal:
            if request.prompt_length > 8:
                return Proposal(torch.tensor([2, 3], dtype=torch.int32))
            return super()._draft(request, most)

    params = SamplingParams(max_tokens=30)
    plain = await written("off", target, params)
    with caplog.at_level(logging.ERROR, "specstream.engine"):
        mine = await written(Malformed(), target, params)
    assert [r.token_ids for r in mine] == [r.token_ids for r in plain]
    assert "tokens must be an int64 tensor [K]" in caplog.text
    assert mine[0].accepted > 0 and mine[1].drafted == 0  # only the requests that it was about


async def test_a_function_is_told_what_there_is_to_know(target: str) -> None:
    seen = list[ProposerContext]()

    def make(context: ProposerContext) -> Repeats:
        seen.append(context)
        return Repeats()

    await written(make, target, SamplingParams(max_tokens=2))
    (context,) = seen
    assert context.vocab_size == context.target.vocab_size > 200
    assert context.tokenizer.encode("ab") == [66, 67]
    assert context.device == torch.device("cpu") and not context.eos_ids
    assert context.context_length == 512


@pytest.mark.parametrize("how", ["load", "config", "parsed", "again"])
async def test_every_way_to_name_it(target: str, how: str) -> None:
    own, params = Repeats(), SamplingParams(max_tokens=20)
    if how == "load":
        engine = Engine.load(target, proposer=own)
    elif how == "config":
        given: Any = own
        engine = Engine(EngineConfig(target=target, proposer=given))
    elif how == "parsed":
        engine = Engine(parse_config({"target": target, "proposer": own}))
    else:  # Engine.load reads a config as data
        config = EngineConfig(target=target, proposer=OwnProposerConfig(made=own))
        engine = Engine.load(config=config, max_running=2)
    async with engine, engine.generate("abcabcabc", params) as chunks:
        async for _ in chunks:
            pass
    assert own.rounds


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (5, "a proposer is a method's name"),
        (object(), "object is none of these"),
        (HalfOne(), "HalfOne is no proposer: it lacks observe and release"),
        ({"kind": "own"}, "give the proposer itself"),
    ],
)
def test_what_is_no_proposer_is_refused(given: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Engine.load(proposer=given)
    with pytest.raises(ValueError, match=said):
        EngineConfig(proposer=given)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda context: None, "NoneType.* is no proposer: it lacks propose, observe and release"),
        (lambda context: 1 / 0, "can't be made: division by zero"),
        (lambda: Repeats(), "can't be made: .*takes 0 positional arguments"),
        (lambda context: Repeats(name=""), "its name must be a text"),
        (lambda context: Repeats(name="off"), "'off' is the name of plain decoding"),
        (lambda context: Repeats(capabilities=None), "capabilities must be a Capabilities"),  # type: ignore[arg-type]
    ],
)
async def test_a_function_that_makes_none_is_refused_by_name(target: str, make: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        async with Engine.load(target, proposer=make):
            pass


PACKAGE = """
import torch
from specstream.drafting import Capabilities, Proposal

class Doubles:
    name = "doubles"
    capabilities = Capabilities()

    def __init__(self, context, times: int = 2) -> None:
        self.times = times

    def propose(self, requests, budget):
        each = zip(requests, budget)
        return [Proposal(torch.tensor(r.token_ids[-1:] * min(b, self.times))) for r, b in each]

    def observe(self, requests, verdicts):
        pass

    def release(self, slot):
        pass

"""


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    points = {"doubles": "their_package:Doubles", "gone": "not_there:Doubles"}
    install_proposers(tmp_path, monkeypatch, PACKAGE, points | {"suffix": "their_package:Doubles"})


@pytest.mark.usefixtures("packages")
@pytest.mark.parametrize(("given", "drafted"), [("doubles", 2), ({"kind": "doubles", "times": 3}, 3)])
async def test_a_package_s_proposer_by_its_name(target: str, given: Any, drafted: int) -> None:
    async with (
        Engine.load(target, proposer=given) as engine,
        engine.generate("abc", SamplingParams(max_tokens=20)) as chunks,
    ):
        seen = [chunk async for chunk in chunks]
    assert max(chunk.drafted for chunk in seen) == drafted
    assert {chunk.proposer for chunk in seen if chunk.drafted} == {"doubles"}


@pytest.mark.usefixtures("packages")
def test_a_wrong_name_is_told_with_all_that_there_are() -> None:
    with pytest.raises(ConfigError) as caught:
        Engine.load(proposer="double")
    assert str(caught.value) == (
        "proposer: double is no method (auto, block, doubles, draft, eagle, early-exit, gone, "
        "lookahead, medusa, mirror, mtp, off, streaming, suffix); did you mean doubles?"
    )
    # A method of specstream's own keeps its name.
    assert parse_config({"proposer": "suffix"}).proposer == SuffixProposerConfig()


@pytest.mark.usefixtures("packages")
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("gone", "proposer gone can't be loaded: No module named 'not_there'"),
        ({"kind": "doubles", "time": 3}, "proposer doubles can't be made: .*argument 'time'"),
    ],
)
async def test_a_package_that_fails_is_named(target: str, given: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        async with Engine.load(target, proposer=given):
            pass


def test_settings_as_json_name_the_proposer() -> None:
    own: Any = Repeats()
    told = EngineConfig(proposer=own).proposer.model_dump(mode="json")
    assert told["kind"] == "own" and "Repeats" in told["made"]
