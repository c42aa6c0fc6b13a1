"""A block head's training: the loss falls, what is counted, and the folder that comes of it."""

from pathlib import Path
from typing import Any

import torch

from specstream.model.heads.recognise import load_head
from specstream.model.runner import ModelRunner
from specstream.training.block import BlockTrainee, _seen
from tests.support.heads import batch_of, check_learning
from tests.support.tiny import tiny_model

MODEL = tiny_model(64, seed=5, layers=3, scale=2.0)
RUNNER = ModelRunner(MODEL)
PROMPT = 6


def trainee(**options: Any) -> BlockTrainee:
    return BlockTrainee(MODEL, mask_token_id=1, block_size=4, layers=1, **options)


def tokens(rows: int = 4, length: int = 20) -> torch.Tensor:
    return torch.randint(2, 64, (rows, length), generator=torch.Generator().manual_seed(0))


def test_the_loss_falls() -> None:
    torch.manual_seed(0)
    made = trainee()
    assert made.depths == (2,) or all(0 < depth < 3 for depth in made.depths)
    batch = batch_of(RUNNER, tokens(), PROMPT, made.depths)
    check_learning(made, batch, 5e-3)


def test_every_block_of_the_reply_counts_and_nothing_of_the_prompt() -> None:
    made = trainee(anchors=99)
    found = made.losses(batch_of(RUNNER, tokens(), PROMPT, made.depths), acceptance=0.0)
    # Anchors from the prompt's last token to the last but one: 14, and fewer with a second token behind.
    assert list(found.counted) == [4 * 14, 4 * 13, 4 * 12]


def test_a_prediction_depends_on_nothing_behind_its_anchor() -> None:
    made = trainee(anchors=99)
    ids = tokens(1, 12)
    other = ids.clone()
    other[0, -1] = (other[0, -1] + 1) % 64
    outs = list[torch.Tensor]()
    for rows in (ids, other):
        batch = batch_of(RUNNER, rows, 2, made.depths)
        anchors = torch.tensor([[5]])
        x = made.blocks(rows, anchors).flatten(1, 2)
        positions = torch.arange(5, 9).unsqueeze(0)
        seen = _seen(anchors, 12, 4)
        outs.append(made.module(batch.states, x, made.rotary.upto(16), positions, seen))
    torch.testing.assert_close(outs[0], outs[1])


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    made = trainee()
    made.save(tmp_path, {"target": "tiny"})
    head: Any = load_head(tmp_path, RUNNER)
    assert head.kind == "block"
    assert head.shape == made.shape
    assert head.parameters == sum(one.numel() for one in made.module.parameters())
    assert "## target\n\ntiny" in (tmp_path / "README.md").read_text()
