"""A tiny draft model, requests as it sees them, and what must hold of what it proposes."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import pytest
import torch
from torch import Tensor

from specstream.drafting import batched, chain, checking, noise, verify
from specstream.drafting.proposal import Proposal, Verdict
from specstream.drafting.proposers import eagle, eagle_drawn, eagle_growth
from specstream.drafting.proposers.draft_model import DraftModelProposer
from specstream.drafting.research import medusa as medusa_tree
from specstream.methods import DraftProposerConfig
from specstream.model.forward import ForwardInput, ForwardOutput
from specstream.model.runner import ModelRunner
from specstream.model.tokens import processors as pipeline, sampling
from specstream.model.tokens.sampling import draw, probabilities
from specstream.types import SamplingParams
from tests.support.tiny import byte_tokenizer, tiny_model

V = 40
MODEL = tiny_model(V, seed=5, context=256)
GREEDY, SAMPLED = SamplingParams(), SamplingParams(temperature=1.1, top_p=0.95)
TOKENIZER = byte_tokenizer()


@dataclass
class Text:
    """A request as the draft sees it."""

    token_ids: list[int]
    id: int = 0
    slot: int = 0
    params: SamplingParams = GREEDY
    prompt_length: int = 1
    reference_ids: list[int] = field(default_factory=list)
    generator: torch.Generator = field(default_factory=torch.Generator)

    def process(self, logits: Tensor, drafted: Sequence[int] | Tensor) -> Tensor:
        return logits

    positions: list[int] = field(default_factory=list)

    def draw(self, probs: Tensor, position: int, ids: Tensor | None = None) -> Tensor:
        self.positions.append(position)
        return draw(probs, self.generator)


def texts(count: int = 6) -> list[Text]:
    """Greedy and sampled ones of many lengths."""
    rng = random.Random(3)
    made = []
    for number in range(count):
        ids = [rng.randrange(V) for _ in range(1 + number * 9)]
        params = SAMPLED if number % 2 else GREEDY
        generator = torch.Generator().manual_seed(number)
        made.append(Text(ids, number, number, params, generator=generator))
    return made


def draft(
    *, window: int = 256, context: int | None = None, eos: Sequence[int] = (), num_tokens: int = 8
) -> DraftModelProposer:
    runner = ModelRunner(MODEL, context_length=context)
    config = DraftProposerConfig(num_tokens=num_tokens, window=window)
    return DraftModelProposer(config, runner, frozenset(eos))


def settle(proposer: DraftModelProposer, text: Text, proposal: Proposal, accepted: int) -> None:
    """The round is over: so many stand, and a token follows."""
    tokens = (*proposal.tokens[:accepted].tolist(), (text.token_ids[-1] * 7 + 3) % V)
    proposer.observe([text], [Verdict(accepted, tokens[-1], tuple(range(accepted)), tokens)])
    text.token_ids.extend(tokens)


@torch.inference_mode()
def rows_after(ids: Sequence[int], count: int) -> Tensor:
    """``[count, V]``: the last rows of the model over ``ids``, in one plain pass."""
    rows: Tensor = MODEL(input_ids=torch.tensor([list(ids)])).logits
    return rows[0, -count:]


def cooler(params: SamplingParams) -> SamplingParams:
    """What a draft draws by."""
    return replace(params, temperature=0.85 * params.temperature)


def check_honest(text: Text, proposal: Proposal, start: int = 0) -> None:
    """Tokens and probabilities are what the model says in the place that each of them has."""
    drafted = proposal.tokens.tolist()
    rows = rows_after([*text.token_ids, *drafted[:-1]][start:], len(drafted))
    if text.params.greedy:
        assert proposal.probs is None
        assert drafted == rows.argmax(-1).tolist()
    else:
        assert proposal.probs is not None
        assert proposal.probs.shape == (len(drafted), V)
        assert torch.allclose(proposal.probs, probabilities(rows, cooler(text.params)), atol=2e-4)
        assert all(proposal.probs[i, token] > 0 for i, token in enumerate(drafted))


def nan_after(model: ModelRunner, passes: int) -> Callable[..., ForwardOutput]:
    forward, done = model.forward, [0]

    def broken(inputs: Sequence[ForwardInput]) -> ForwardOutput:
        done[0] += 1
        made = forward(inputs)
        broke = [row * torch.nan for row in made.logits]
        return ForwardOutput(broke) if done[0] > passes else made

    return broken


def no_looking(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on reading a number is not free: as on a GPU. (A draft has ``_looks`` of its own.)"""
    proposers = chain, eagle, eagle_drawn, eagle_growth, medusa_tree
    for module in (sampling, verify, batched, noise, checking, pipeline, *proposers):
        monkeypatch.setattr(module, "free_to_look", lambda rows: False)
