"""Trains streams for Speculative Streaming (arXiv 2402.11131); the target is frozen."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from specstream.errors import ModelUnsupported
from specstream.model.heads.streaming_format import MOST_RANK, MOST_STREAMS, StreamingShape
from specstream.model.runner import ModelRunner
from specstream.model.weights import DecoderWeights, RotaryTable
from specstream.train.block import random_places
from specstream.train.folders import read_written, write_head
from specstream.train.loss import distance
from specstream.train.options import TrainOptions
from specstream.train.settings import settings_of, whole
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
    layers = len(target.decoder.weights.layers)
    if layers < 2:
        raise ModelUnsupported("streams need a target of two layers at least")
    known = {
        "streams": whole(1, MOST_STREAMS),
        "stream_layers": whole(1, layers - 1),
        "rank": whole(1, MOST_RANK),
        "places": whole(1, 1 << 16),
    }
    given = settings_of(options, known, kept=("places",))
    if options.init is None:
        given.setdefault("stream_layers", min(_LAYERS, layers - 1))
        return StreamingTrainee(target.model, **given)
    before = read_written(options.init, "streaming", target)
    shape = StreamingShape.of(before.config)
    made = StreamingTrainee(
        target.model,
        streams=shape.streams,
        stream_layers=shape.stream_layers,
        rank=shape.rank,
        **given,
    )
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
        ModelUnsupported: a target of another family.
    """

    kind = "streaming"

    def __init__(
        self,
        target: PreTrainedModel,
        *,
        streams: int = 3,
        stream_layers: int = _LAYERS,
        rank: int = 32,
        places: int = 64,
    ) -> None:
        weights = DecoderWeights.of(target)
        if weights is None:
            raise ModelUnsupported(f"streams need a model of the Llama family, not {type(target)}")
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
        output: Any = target.get_output_embeddings()  # type: ignore[no-untyped-call]
        self._head = output.weight.detach().float()
        self._rotary = RotaryTable(target, weights.head_dim)
        self.module: StreamingModule = StreamingModule(self.shape, weights).to(weights.device)

    def losses(self, batch: Batch, *, acceptance: float) -> Losses:
        """See `Trainee.losses`; ``accepted`` has one entry for each stream."""
        wanted, count = batch.replies & batch.present, self.shape.streams
        length, device = wanted.shape[1], wanted.device
        # Place t: token t + 1 is the reply's, and token t + 2, which stream 1 predicts, is too.
        at, real = random_places(wanted[:, 2:] & wanted[:, 1:-1], self._places)
        rotary = self._rotary.upto(length + count + 1)
        wide = rotary[0].float(), rotary[1].float()
        states = batch.states[:, :, 0].float()
        angles = wide[0][:length].unsqueeze(1), wide[1][:length].unsqueeze(1)
        out = self.module(states, at, self.module.text_rows(states, angles), wide)
        ahead = at.unsqueeze(-1) + torch.arange(1, count + 1, device=device)  # the target's states
        predicted = (ahead + 1).clamp_max(length - 1)
        each = torch.arange(wanted.shape[0], device=device)[:, None, None]
        valid = real.unsqueeze(-1) & (ahead + 1 < length) & wanted[each, predicted]
        valid = valid.long().cumprod(-1).bool()
        with torch.no_grad():
            final = batch.final[each, ahead.clamp_max(length - 1)][valid].float()
            log_p = F.linear(final, self._head).log_softmax(-1)
        loss, overlap = distance(F.linear(out[valid], self._head), log_p, acceptance)
        stream = torch.arange(count, device=device).expand(valid.shape)[valid]
        weights = _DECAY**stream
        total = (weights * loss).sum() / weights.sum().clamp_min(1e-6)
        sums = torch.zeros(count, device=device).index_add_(0, stream, overlap)
        return Losses(total, sums.tolist(), stream.bincount(minlength=count).tolist())

    def save(self, folder: Path, card: Mapping[str, str]) -> None:
        """See `Trainee.save`."""
        title = "Streams for Speculative Streaming"
        write_head(folder, title, self.module, self.shape.config, card)
