"""The arms for real, on a tiny pair: one thread for all, passes counted, cancelled in mid-reply."""

import asyncio
import threading
from typing import Any

import pytest

from specstream.bench.arms.open import CoreArm, Wanted, open_arms, run_of
from specstream.config import DEFAULT_DRAFT, EngineConfig
from specstream.errors import ModelNotFound
from specstream.methods import AutoProposerConfig, DraftProposerConfig
from specstream.metrics import Report
from specstream.model.forward import PLAIN
from specstream.types import Chunk, Message, SamplingParams, Span
from tests.support.tiny import byte_tokenizer, noisy_copy, tiny_model

MESSAGES: list[Message] = [{"role": "user", "content": "one two one two"}]
PARAMS = SamplingParams(max_tokens=24)
EVERY = ("own", "auto", "draft-2", "suffix", "generate", "assisted", "lookup")


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> EngineConfig:
    tokenizer = byte_tokenizer()
    model = tiny_model(len(tokenizer), seed=3, scale=2.5)
    folders = []
    for one in (model, noisy_copy(model, 0.15)):
        folder = tmp_path_factory.mktemp("model")
        one.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        folders.append(str(folder))
    return EngineConfig(
        target=folders[0],
        draft=folders[1],
        proposer=DraftProposerConfig(),
        dtype="float32",
        device="cpu",
        threads=1,
    )


async def test_every_arm_computes_on_one_thread(
    config: EngineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import LlamaForCausalLM

    threads = set()
    forward = LlamaForCausalLM.forward

    def watched(*args: Any, **kwargs: Any) -> Any:
        threads.add(threading.current_thread().name)
        return forward(*args, **kwargs)

    monkeypatch.setattr(LlamaForCausalLM, "forward", watched)
    names = []
    async with open_arms(Wanted(EVERY), config) as arms:
        for arm in arms:
            asked = set(threading.enumerate())
            run = await arm.run(MESSAGES, PARAMS)
            assert set(threading.enumerate()) <= asked  # those of loading may end meanwhile
            assert len(run.token_ids) == 24
            names.append(arm.name)
    assert list(dict.fromkeys(names)) == list(EVERY)
    assert threads == {"specstream-bench_0"}
    assert not [t for t in threading.enumerate() if t.name.startswith("specstream-bench")]


async def test_emissions_are_the_targets_passes(config: EngineConfig) -> None:
    async with open_arms(Wanted(("own", "auto")), config) as (own, auto):
        assert isinstance(auto, CoreArm)
        passes = 0
        forward = auto.core.target.forward

        def counted(inputs: Any, extras: Any = PLAIN) -> Any:
            nonlocal passes
            passes += 1
            return forward(inputs, extras)

        auto.core.target.forward = counted  # type: ignore[method-assign]
        for arm, speculating in ((own, False), (auto, True)):
            passes = 0
            run = await arm.run(MESSAGES, PARAMS)
            assert passes == len(run.emissions)
            assert sum(e.tokens for e in run.emissions) == len(run.token_ids)
            assert (passes < len(run.token_ids)) == speculating
            assert bool(run.drafted) == speculating


@pytest.mark.parametrize("name", ["auto", "generate", "assisted"])
async def test_a_reply_under_way_can_be_cancelled(config: EngineConfig, name: str) -> None:
    long = SamplingParams(max_tokens=480)
    async with open_arms(Wanted((name,)), config) as arms:
        running = asyncio.ensure_future(arms[0].run(MESSAGES, long))
        await asyncio.sleep(0)  # it is on the thread now
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running


async def test_a_draft_of_another_tokenizer_leaves_assisted_out(config: EngineConfig) -> None:
    wanted = Wanted(("assisted", "lookup"))
    async with open_arms(wanted, config.model_copy(update={"draft": DEFAULT_DRAFT})) as arms:
        assert {arm.name for arm in arms} == {"lookup"}
    assert any("assisted generation was left out" in note for note in wanted.notes)


async def test_without_a_draft_the_arms_that_need_one_are_left_out(config: EngineConfig) -> None:
    alone = config.model_copy(update={"draft": None, "proposer": AutoProposerConfig()})
    wanted = Wanted(("auto", "draft-2", "assisted"))
    async with open_arms(wanted, alone) as arms:
        assert [arm.name for arm in arms] == ["auto"]
        assert len((await arms[0].run(MESSAGES, PARAMS)).token_ids) == 24
    said = [note for note in wanted.notes if "left out" in note]
    assert [note.split()[0] for note in said] == ["draft-2", "assisted"]


async def test_what_is_said_of_llama_cpp(config: EngineConfig) -> None:
    wanted = Wanted(("lookup",))
    async with open_arms(wanted, config):
        pass
    assert len(wanted.notes) == 1
    assert "llama.cpp was not measured" in wanted.notes[0]


async def test_a_pair_that_is_not_there_is_a_typed_error(config: EngineConfig) -> None:
    broken = config.model_copy(update={"target": "./no-such-folder"})
    with pytest.raises(ModelNotFound):
        async with open_arms(Wanted(("own",)), broken):
            pass
    assert not [t for t in threading.enumerate() if t.name.startswith("specstream-bench")]


async def test_a_head_for_another_target_is_done_without(config: EngineConfig) -> None:
    heads = {"early-exit": "bundled-early-exit", "medusa": "bundled-medusa"}
    wanted = Wanted(("early-exit", "medusa"), heads=heads)
    async with open_arms(wanted, config.model_copy(update={"draft": None})) as arms:
        assert [arm.name for arm in arms] == ["early-exit"]
        assert (await arms[0].run(MESSAGES, PARAMS)).token_ids
    assert "medusa was left out" in wanted.notes[0]


def chunk(t_ms: float, tokens: tuple[int, ...], **parts: float) -> Chunk:
    return Chunk("", tokens, Span(0, 0), Span(0, 0), t_ms=t_ms, **parts)  # type: ignore[arg-type]


CHUNKS = [
    chunk(20.0, (7,), verify_ms=15.0),
    chunk(30.0, (8, 9), drafted=4, accepted=1, draft_ms=2.0, verify_ms=6.0),
    chunk(31.0, ()),  # text that was held back
]
REPORT = Report(
    text="",
    token_ids=(7, 8, 9),
    finish_reason="stop",
    prompt_tokens=1,
    reused_tokens=0,
    rounds=1,
    target_forwards=2,
    drafted=4,
    accepted=1,
    acceptance_by_position=(1.0,),
    ttft_ms=20.0,
    total_ms=32.0,
    draft_ms=2.0,
    verify_ms=21.0,
    proposer="draft",
    sample_ms=0.5,
    proposer_rounds={"draft": 1},
    predicted_speedup=1.5,
    explanation="because",
)


def test_emissions_are_the_chunks_that_carry_tokens() -> None:
    run = run_of(CHUNKS, REPORT)
    assert run.token_ids == (7, 8, 9)
    assert [(e.t_ms, e.tokens, e.drafted, e.accepted) for e in run.emissions] == [
        (20.0, 1, 0, 0),
        (30.0, 2, 4, 1),
    ]
    assert (run.decode_tokens, run.decode_ms, run.total_ms) == (2, 10.0, 32.0)
    assert (run.predicted_speedup, run.explanation) == (1.5, "because")
    assert run.proposer_rounds == {"draft": 1}


def test_the_time_split_adds_up_to_the_whole() -> None:
    spent = run_of(CHUNKS, REPORT).spent_ms
    assert spent["prefill"] == 20.0
    assert spent["verify"] == pytest.approx(6.0)
    assert spent["draft"] == pytest.approx(2.0)
    assert sum(spent.values()) == pytest.approx(32.0)
