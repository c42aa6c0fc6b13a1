"""The block proposer: the states it keeps for a slot, and that a broken head costs only speed."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from specstream.drafting.candidate import EngineParts, Task
from specstream.drafting.optional import States
from specstream.drafting.proposers import block
from specstream.drafting.proposers.block import BlockProposer, build
from specstream.errors import ConfigError
from specstream.methods import BlockProposerConfig
from specstream.model.forward import Extras, ForwardInput
from specstream.model.heads.base import Context
from specstream.model.heads.block import BlockHead
from specstream.model.runner import ModelRunner
from specstream.types import SamplingParams
from tests.engine.plain import MODEL, PROMPTS, TOKENIZER, check_greedy, check_turns
from tests.support.blocks import SIZE, block_head, block_proposer
from tests.support.drafts import SAMPLED, Text
from tests.support.tiny import answered, ask, make_core, run_until_idle

RUNNER = ModelRunner(MODEL)


@torch.inference_mode()
def states_of(ids: list[int], depths: tuple[int, ...]) -> Tensor:
    item = ForwardInput(torch.tensor(ids), RUNNER.new_cache())
    return RUNNER.forward([item], Extras(depths)).states[0]


def read(proposer: BlockProposer, text: Text, start: int = 0, end: int | None = None) -> None:
    states = states_of(text.token_ids[:-1], proposer.capabilities.hidden_states)
    proposer.read([text], [States(start, states[start:end])])


@torch.inference_mode()
def test_a_block_is_as_long_as_budget_setting_and_head_allow() -> None:
    proposer, text = block_proposer(MODEL, num_tokens=3), Text([5, 6, 7, 8])
    assert proposer.propose([text], [9])[0].length == 0  # nothing was read
    read(proposer, text)
    assert [proposer.propose([text], [n])[0].length for n in (0, 1, 2, 9)] == [0, 1, 2, 3]
    wide = block_proposer(MODEL, num_tokens=30)
    read(wide, text)
    assert wide.propose([text], [30])[0].length == SIZE - 1
    assert wide.offer(text, 30).tokens == SIZE - 1


@torch.inference_mode()
def test_states_in_parts_and_after_a_rollback_draft_as_if_read_at_once() -> None:
    parts, whole = block_proposer(MODEL), block_proposer(MODEL)
    text = Text([3, 9, 4, 8, 2, 7], params=SAMPLED)
    old = Text([3, 9, 11, 12, 13, 14, 15])
    read(parts, old)
    read(parts, text, 2, 3)
    assert parts.offer(text, 4).tokens == 0
    read(parts, text, 3)
    read(whole, text)
    (one,), (two,) = parts.propose([text], [4]), whole.propose([text], [4])
    assert one.probs is not None and two.probs is not None
    torch.testing.assert_close(one.probs, two.probs, rtol=1e-4, atol=1e-5)


@torch.inference_mode()
def test_a_gap_in_the_states_begins_anew_and_release_forgets() -> None:
    proposer, text = block_proposer(MODEL), Text([3, 9, 4, 8, 2, 7])
    read(proposer, text, 3)
    assert proposer.offer(text, 9).tokens == SIZE - 1
    proposer.release(text.slot)
    proposer.release(text.slot)
    assert not proposer.sequences
    assert proposer.offer(text, 9).tokens == 0


@torch.inference_mode()
def test_rows_are_made_when_a_block_is_drafted_or_many_states_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    head, made = block_head(RUNNER), list[int]()
    proposer, real = BlockProposer(BlockProposerConfig(), head), head.read

    def read_rows(contexts: Sequence[Context], states: Sequence[Tensor]) -> None:
        made.extend(one.shape[0] for one in states)
        real(contexts, states)

    monkeypatch.setattr(head, "read", read_rows)
    monkeypatch.setattr(block, "TOGETHER", 64)
    text = Text([3, 9, 4, 8] * 20)
    read(proposer, text, 0, 40)
    assert not made  # others may draft
    read(proposer, text, 40, 70)
    assert made == [70]
    read(proposer, text, 70)
    assert proposer.offer(text, 9).behind == 9 - SIZE  # a round of its own leaves SIZE, at most
    (drafted,) = proposer.draft([Task(text, 2, proposer.offer(text, 2))])
    assert made == [70, 9]
    assert drafted.read == 9 - SIZE
    assert proposer.offer(text, 9).behind == 0


@torch.inference_mode()
def test_states_that_wait_keep_no_pass_alive_and_a_broken_head_loses_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    head, text = block_head(RUNNER), Text([3, 9, 4, 8, 2])
    proposer = BlockProposer(BlockProposerConfig(), head)
    whole = states_of([1] * 200, proposer.capabilities.hidden_states)
    proposer.read([text], [States(0, whole[10:14])])
    (kept,) = proposer.sequences[text.slot].parts
    assert kept.untyped_storage().nbytes() == kept.nbytes
    with monkeypatch.context() as patch:
        patch.setattr(head, "read", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            proposer.draft([Task(text, 2, proposer.offer(text, 2))])
    assert proposer.offer(text, 9).tokens == 0
    read(proposer, text)
    assert proposer.offer(text, 9).tokens == SIZE - 1


class Lying(BlockHead):
    """A head that returns whatever it is told to."""

    answer = "noise"

    def block(self, contexts: object, anchors: object, keeps: list[int]) -> Tensor:  # type: ignore[override]
        rows = torch.randn(sum(keeps), RUNNER.vocab_size) * 30
        if self.answer == "nan":
            rows[::2] = torch.nan
        if self.answer == "wide":
            rows = torch.cat([rows, rows + 99], 1)
        if self.answer == "few":
            rows = rows[1:]
        return rows


@pytest.mark.parametrize("answer", ["noise", "nan", "wide", "few"])
@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.broken_proposer
def test_a_head_that_lies_costs_only_speed(answer: str, seed: int | None) -> None:
    head = block_head(RUNNER)
    head.__class__ = Lying
    head.answer = answer  # type: ignore[attr-defined]
    core = make_core(MODEL, TOKENIZER, BlockProposer(BlockProposerConfig(), head))
    check_greedy(core, 20, prompts=[PROMPTS[1]])
    if seed is not None:
        answered(core, PROMPTS[0], SamplingParams(temperature=1.0, seed=seed, max_tokens=10))


def test_greedy_text_with_processors_limits_and_four_at_once() -> None:
    params = SamplingParams(max_tokens=17, repetition_penalty=1.3, logit_bias={40: 2.0})
    found = list[list[list[int]]]()
    for proposer in (block_proposer(MODEL, num_tokens=4), None):
        core = make_core(MODEL, TOKENIZER, proposer or block_proposer(MODEL, num_tokens=1))
        if proposer is None:
            core.proposer = BlockProposer(BlockProposerConfig(), block_head(RUNNER, seed=4))
        boxes = [ask(core, text, params)[1] for text in PROMPTS[:4]]
        run_until_idle(core)
        found.append([box.token_ids for box in boxes])
    assert found[0] == found[1]


def test_turns_of_a_conversation_and_a_cancelled_one() -> None:
    proposer = block_proposer(MODEL)
    core = check_turns(proposer)
    assert len(proposer.sequences) == 1
    core.slots.forget("s")
    assert not proposer.sequences


def test_it_is_built_of_a_head_that_was_loaded() -> None:
    parts = EngineParts(RUNNER, frozenset(), TOKENIZER, heads={"block": block_head(RUNNER)})
    made = build(BlockProposerConfig(), parts)
    made.rehearse()
    assert made.candidate.passes == "one"
    with pytest.raises(ConfigError, match="specstream train block"):
        build(BlockProposerConfig(), EngineParts(RUNNER, frozenset(), TOKENIZER))
