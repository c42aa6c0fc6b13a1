"""Training of streams: the loss falls, the target stays as it is, and what is counted."""

import torch

from specstream.model.runner import ModelRunner
from tests.support.heads import batch_of, check_learning
from tests.support.streams import trainee_of
from tests.support.tiny import tiny_model

MODEL = tiny_model(64, seed=5, layers=3, scale=2.0)
RUNNER = ModelRunner(MODEL)
PROMPT = 6


def tokens(rows: int = 4, length: int = 20) -> torch.Tensor:
    return torch.randint(2, 64, (rows, length), generator=torch.Generator().manual_seed(0))


def test_the_loss_falls_and_the_target_stays_as_it_is() -> None:
    torch.manual_seed(0)
    made = trainee_of(MODEL, stream_layers=2, rank=8)
    before = {name: one.clone() for name, one in MODEL.state_dict().items()}
    batch = batch_of(RUNNER, tokens(), PROMPT, made.depths)
    check_learning(made, batch, 1e-2)
    assert all(torch.equal(one, before[name]) for name, one in MODEL.state_dict().items())


def test_streams_of_the_replys_tokens_are_counted() -> None:
    made = trainee_of(MODEL, places=99)
    found = made.losses(batch_of(RUNNER, tokens(), PROMPT, made.depths), acceptance=0.0)
    # Tokens two and more before a reply's: the first reply token is drawn by the target itself.
    assert list(found.counted) == [4 * 13, 4 * 12, 4 * 11]


def test_a_stream_depends_on_nothing_behind_its_token() -> None:
    made = trainee_of(MODEL, 0.1)
    ids = tokens(1, 12)
    other = ids.clone()
    other[0, 7] = (other[0, 7] + 1) % 64
    cos, sin = made.rotary.upto(16)
    angles, outs = (cos[:12].unsqueeze(1), sin[:12].unsqueeze(1)), list[torch.Tensor]()
    for rows in (ids, other):
        states = batch_of(RUNNER, rows, 2, made.depths).states[:, :, 0]
        text = made.module.text_rows(states, angles)
        outs.append(made.module(states, torch.tensor([[6, 7]]), text, (cos, sin)))
    torch.testing.assert_close(outs[0][:, 0], outs[1][:, 0])
    assert not torch.allclose(outs[0][:, 1], outs[1][:, 1])
