"""Batches: every sequence once an epoch, little padding, an order that can be gone on with."""

from itertools import islice
from pathlib import Path

import pytest
import torch

from specstream.errors import ConfigError, OutputError
from specstream.training import batches as module
from specstream.training.batches import Batches, Position
from specstream.training.store import ReplyFolder, StoredReply


def made(folder: Path, shards: int = 3, each: int = 10) -> ReplyFolder:
    """Sequences of 6 to 25 tokens whose first token is their number."""
    replies, drawn = ReplyFolder.create(folder, (1, 2), 4), torch.Generator().manual_seed(0)
    for shard in range(shards):
        found = []
        for i in range(each):
            count = int(torch.randint(6, 26, (1,), generator=drawn))
            ids = torch.full((count,), 7, dtype=torch.int32)
            ids[0] = shard * each + i
            states = torch.randn(count - 1, 2, 4, generator=drawn).bfloat16()
            found.append(StoredReply(ids, 3, states, shard * each + i))
        replies.append(found, 0.0)
    return replies


def batches(replies: ReplyFolder, **given: object) -> Batches:
    values = {
        "depths": (1, 2), "norm": lambda x: x, "tokens": 80, "longest": 64,
        "dtype": torch.float32, "device": torch.device("cpu"),
    }  # fmt: skip
    return Batches(replies=replies, **(values | given))  # type: ignore[arg-type]


@pytest.fixture
def replies(tmp_path: Path) -> ReplyFolder:
    return made(tmp_path)


def test_an_epoch_has_every_sequence_once(replies: ReplyFolder) -> None:
    each = batches(replies)
    firsts: list[int] = []
    tokens = padded = 0
    for position, batch in each.endless(Position()):
        if position.epoch:
            break
        assert batch.token_ids.numel() <= 80
        firsts += batch.token_ids[:, 0].tolist()
        read = (batch.token_ids > 0).sum(1) + (batch.token_ids[:, 0] == 0)  # ids of padding are 0
        assert batch.tokens == int(read.sum()) == int(batch.replies.sum()) + 3 * len(read)
        assert batch.replies.sum(1).tolist() == (read - 3).tolist()
        tokens, padded = tokens + batch.tokens, padded + batch.token_ids.numel()
    assert sorted(firsts) == list(range(30))
    assert tokens / padded > 0.85


def test_one_may_go_on_anywhere(replies: ReplyFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOCK_BYTES", 1)  # one shard at a time
    all_of_them = list(islice(batches(replies).endless(Position()), 30))
    for at in (3, 11, 20):
        rest = islice(batches(replies).endless(all_of_them[at - 1][0]), 30 - at)
        for (here, ours), (there, theirs) in zip(rest, all_of_them[at:], strict=True):
            assert here == there and torch.equal(ours.token_ids, theirs.token_ids)
            assert torch.equal(ours.states, theirs.states)


def test_states_are_where_they_belong(replies: ReplyFolder) -> None:
    for _, batch in islice(batches(replies).endless(Position()), 4):
        for row, first in enumerate(batch.token_ids[:, 0].tolist()):
            reply = replies.read(replies.names[first // 10])[first % 10]
            read = reply.states.shape[0]
            assert torch.equal(batch.states[row, :read, 0], reply.states[:, 0].float())
            assert torch.equal(batch.final[row, :read], reply.states[:, 1].float())


def test_long_sequences_are_cut_and_nothing_is_lost(replies: ReplyFolder) -> None:
    tokens = 0
    for position, batch in batches(replies, longest=9, prompts=True).endless(Position()):
        if position.epoch:
            break
        assert batch.token_ids.shape[1] <= 9
        tokens += batch.tokens
    assert tokens == sum(r.ids.shape[0] for name in replies.names for r in replies.read(name))


def test_shards_that_are_wrong(replies: ReplyFolder) -> None:
    path = replies.folder / replies.names[0]
    torch.save([{"ids": torch.zeros(5), "prompt": 2, "states": torch.zeros(5, 2, 4)}], path)
    with pytest.raises(ConfigError, match=r"sequence 0: 5 ids.* states must be \[4, 2, 4\]"):
        replies.read(path.name)
    torch.save([{"ids": torch.zeros(5)}], path)
    with pytest.raises(ConfigError, match="sequence 0: 'prompt' is wrong"):
        replies.read(path.name)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(OutputError, match="can't be read"):
        replies.read(path.name)


def test_tokens_are_counted_in_replies_that_are_not_held_out(replies: ReplyFolder) -> None:
    wanted = torch.zeros(500, dtype=torch.int64)
    for name in replies.names:
        found = replies.read(name)
        for reply in found[:-2] if name == replies.names[-1] else found:
            wanted += torch.bincount(reply.ids[reply.prompt :].long(), minlength=500)
    assert torch.equal(replies.count(500, skip=2), wanted) and int(wanted.sum()) > 0
    with pytest.raises(ConfigError, match="the target has 3"):
        replies.count(3)
