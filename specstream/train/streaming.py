"""Trains streams for Speculative Streaming (arXiv 2402.11131); the target is frozen."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerBase

from specstream.model.heads.streaming_format import MOST_RANK, MOST_STREAMS, StreamingShape
from specstream.model.runner import ModelRunner
from specstream.model.weights import RotaryTable
from specstream.train.folders import read_written, write_head
from specstream.train.loss import losses_at, random_places
from specstream.train.options import TrainOptions
from specstream.train.settings import layers_of, settings_of, whole
from specstream.train.streaming_module import StreamingModule
from specstream.train.trainee import Batch, Losses

__all__ = ["StreamingTrainee", "trainee"]

_DECAY = 0.8  # weight of each further stream relative to the one before
_LAYERS = 3  # top layers with streams, by default


def trainee(
    target: ModelRunner, tokenizer: PreTrainedTokenizerBase, options: TrainOptions
) -> StreamingTrainee:
    """Make new streams, or load those of ``options.init``. Settings: those of `StreamingTrainee`.

    Raises:
        ConfigError: an invalid setting.
        ModelError: the target has too few layers, or ``options.init`` doesn't fit.
    """
    layers = layers_of(target, "a head of streams")
    known = {
        "streams": whole(1, MOST_STREAMS),
        "stream_layers": whole(1, layers - 1),
        "rank": whole(1, MOST_RANK),
        "places": whole(1, 1 << 16),
    }
    given = settings_of(options, known, kept=("places",))
    if (before := read_written(options, target)) is None:
        given.setdefault("stream_layers", min(_LAYERS, layers - 1))
        return StreamingTrainee(target, **given)
    shape = StreamingShape.of(before.config)
    fixed = {name: getattr(shape, name) for name in ("streams", "stream_layers", "rank")}
    made = StreamingTrainee(target, **fixed, **given)
    before.into(made.module)
    return made


class StreamingTrainee:
    """Streams in training: stream j of token t learns the target's distribution after token t + j.

    Args:
        target: The model for which the streams draft, of the Llama family; not trained.
        streams: Number of streams of each token.
        stream_layers: Number of top layers through which streams run.
        rank: Rank of the low-rank adapters.
        places: Tokens of each sequence whose streams are computed in a training step.

    Raises:
        ModelUnsupported: the target is no plain model of the Llama family.
    """

    def __init__(
        self,
        target: ModelRunner,
        *,
        streams: int = 3,
        stream_layers: int = _LAYERS,
        rank: int = 32,
        places: int = 64,
    ) -> None:
        weights = target.decoder.weights
        self.shape = StreamingShape(
            hidden_size=weights.hidden,
            vocab_size=weights.vocab_size,
            num_target_layers=len(weights.layers),
            stream_layers=stream_layers,
            streams=streams,
            rank=rank,
        )
        self.depths: tuple[int, ...] = (self.shape.depth,)
        self._places = places
        self._head = weights.head.detach().float()
        self._rotary = RotaryTable.of(target.model, weights.head_dim)
        self.module: StreamingModule = StreamingModule(self.shape, weights).to(weights.device)

    def losses(self, batch: Batch, *, acceptance: float) -> Losses:
        """See `Trainee.losses`; ``accepted`` has one entry for each stream."""
        wanted, count = batch.replies, self.shape.streams
        length = wanted.shape[1]
        # Place t: token t + 1 is the reply's, and token t + 2, which stream 1 predicts, is too.
        at, real = random_places(wanted[:, 2:] & wanted[:, 1:-1], self._places)
        wide = self._rotary.wide(length + count + 1)
        states = batch.states[:, :, 0].float()
        angles = wide[0][:length].unsqueeze(1), wide[1][:length].unsqueeze(1)
        out = self.module(states, at, self.module.text_rows(states, angles), wide)
        weights = _DECAY ** torch.arange(count, device=wanted.device)
        return losses_at(at + 2, real, out, batch, self._head, weights, acceptance)

    def save(self, folder: Path, card: Mapping[str, str]) -> None:
        """See `Trainee.save`."""
        title = "Streams for Speculative Streaming"
        write_head(folder, title, self.module, self.shape.config, card)
