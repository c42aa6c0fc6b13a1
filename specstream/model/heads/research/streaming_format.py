"""The ``config.json`` of heads for Speculative Streaming."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from specstream.errors import ModelBroken
from specstream.model.heads.base import reading

__all__ = ["MODEL_TYPE", "MOST_RANK", "MOST_STREAMS", "PRODUCTS", "StreamingShape"]

MODEL_TYPE = "specstream-streaming"
PRODUCTS = ("qkv", "out", "gate_up", "down")
"""The matrix products of a layer; each has an adapter, whose tensors are ``layers.I.NAME_a [rank, in]``
and ``layers.I.NAME_b [out, rank]``.
"""
MOST_STREAMS, MOST_RANK = 16, 4096


@dataclass(frozen=True, slots=True)
class StreamingShape:
    """Sizes of a head for Speculative Streaming.

    Attributes:
        hidden_size: Size of the target's hidden states.
        vocab_size: Rows of the target's embedding.
        num_target_layers: Number of layers of the target.
        stream_layers: In how many of the target's last layers there are streams.
        streams: Streams of each node, which is the most tokens that can be drafted.
        rank: Rank of the adapters.
    """

    hidden_size: int
    vocab_size: int
    num_target_layers: int
    stream_layers: int
    streams: int
    rank: int

    def __post_init__(self) -> None:
        top = 1 <= self.stream_layers < self.num_target_layers
        few = 1 <= self.streams <= MOST_STREAMS and 1 <= self.rank <= MOST_RANK
        if not (top and few and self.hidden_size > 0 and self.vocab_size > 0):
            raise ModelBroken(f"the config.json of the streaming head makes no sense: {self}")

    @property
    def depth(self) -> int:
        """The number of the target's layers before the streams begin."""
        return self.num_target_layers - self.stream_layers

    @staticmethod
    def fits(config: Mapping[str, Any]) -> bool:
        """Whether ``config`` describes a streaming head."""
        return config.get("model_type") == MODEL_TYPE

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> StreamingShape:
        """The shape of a ``config.json``.

        Raises:
            ModelBroken: a field is missing or out of range.
        """
        with reading("the streaming head"):
            return cls(**{name: int(config[name]) for name in cls.__dataclass_fields__})

    @property
    def config(self) -> dict[str, Any]:
        """The content of ``config.json``."""
        return {"model_type": MODEL_TYPE, "architectures": ["StreamingHead"], **asdict(self)}
