"""The acceptance that a training reports is the one that an engine measures."""

from pathlib import Path

import pytest
import torch

from specstream.drafting.proposers.draft_model import DraftModelProposer
from specstream.methods import DraftProposerConfig
from specstream.model.runner import ModelRunner
from specstream.training.batches import Batches
from specstream.training.draft import DraftTrainee
from specstream.training.loop import measure
from specstream.training.replies import Prompts, Writing, write_replies
from specstream.training.store import ReplyFolder
from specstream.types import SamplingParams
from tests.support.tiny import ask, byte_tokenizer, make_core, noisy_copy, run_until_idle, tiny_model

DRAFTS, REPLIES, TOKENS = 3, 40, 48
TOKENIZER = byte_tokenizer()
TARGET = tiny_model(len(TOKENIZER), seed=3, scale=6.0)
DRAFT = noisy_copy(TARGET, 0.3)


def reported(folder: Path) -> tuple[float, ...]:
    """By the trainer, over REPLIES replies sampled at temperature 1."""
    target = ModelRunner(TARGET)
    replies = ReplyFolder.create(folder, (2,), 32)
    prompts = Prompts([f"number {i}" for i in range(REPLIES)], TOKENIZER.encode, 64)
    wanted = Writing(prompts, frozenset(), TOKENS, (1.0,))
    assert write_replies(target, replies, wanted, tell=lambda *_: None, stop=lambda: False)
    batches = Batches(
        replies=replies, depths=(2,), norm=TARGET.model.norm, tokens=512, longest=64,
        dtype=torch.float32, device=torch.device("cpu"),
    )  # fmt: skip
    trainee = DraftTrainee(DRAFT, target, TOKENIZER)  # type: ignore[arg-type]
    found = measure(trainee, batches.held_out())
    assert found.tokens == REPLIES * TOKENS
    return found.positions


def drafted_and_accepted() -> tuple[list[int], list[int]]:
    """By an engine: by position, how often a draft was verified there, and accepted.

    Token by token, which is what a training reports: the block rule accepts a few more.
    """
    runner = ModelRunner(noisy_copy(TARGET, 0.3))
    proposer = DraftModelProposer(DraftProposerConfig(num_tokens=DRAFTS), runner, frozenset())
    core = make_core(TARGET, TOKENIZER, proposer, eos_ids=(), max_waiting=REPLIES, rule="ratio")
    inboxes = [
        ask(core, f"number {i}", SamplingParams(max_tokens=TOKENS, temperature=1.0), noise=i)[1]
        for i in range(REPLIES)
    ]
    run_until_idle(core)
    verified, accepted = [0] * DRAFTS, [0] * DRAFTS
    for chunk in (chunk for inbox in inboxes for chunk in inbox.chunks if chunk.drafted == DRAFTS):
        for k in range(min(chunk.accepted + 1, DRAFTS)):
            verified[k] += 1
            accepted[k] += chunk.accepted > k
    return verified, accepted


def test_it_is_what_an_engine_measures(tmp_path: Path) -> None:
    torch.manual_seed(0)
    said, (verified, accepted) = reported(tmp_path), drafted_and_accepted()
    # About 650 rounds: one standard deviation is .02 at each position. Rounds begin behind rejections
    # more often than tokens in general do, which costs about .02 more.
    assert verified[2] > 300
    for k in range(DRAFTS):
        rate = accepted[k] / verified[k]
        assert rate == pytest.approx(said[k], abs=0.08), k
    assert 0.2 < said[0] < 0.95


def test_a_wrong_temperature_would_be_noticed() -> None:
    """The bound above is narrower than what another distribution makes of the figures."""
    trainee = DraftTrainee(DRAFT, ModelRunner(TARGET), TOKENIZER)  # type: ignore[arg-type]
    torch.manual_seed(0)
    ids = torch.randint(2, 258, (8, 48))
    with torch.no_grad():
        logits = (TARGET(ids).logits, trainee.module(ids).logits)
    one, cold = (
        torch.minimum(*((each / heat).softmax(-1) for each in logits)).sum(-1).mean()
        for heat in (1.0, 0.7)
    )
    assert float(one - cold) > 0.09
