"""The interfaces and shapes of drafting heads, and helpers that several heads share."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from specstream.errors import ModelBroken, ModelUnsupported
from specstream.model.attention.base import Batch
from specstream.model.kv import ContiguousCache
from specstream.model.native.sampling import native_spread

__all__ = [
    "Context",
    "FeatureHead",
    "Head",
    "LayerShape",
    "Level",
    "check_made_for",
    "likeliest",
    "number",
    "read_head_config",
    "reading",
    "spread",
]


def read_head_config(folder: str | Path) -> dict[str, Any]:
    """Read the ``config.json`` of a folder; empty if there is none.

    Raises:
        ModelBroken: it can't be read, or isn't a JSON object.
    """
    path = Path(folder) / "config.json"
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelBroken(f"{path} can't be read: {error}") from None
    if not isinstance(found, dict):
        raise ModelBroken(f"{path} is no JSON object")
    if not isinstance(found.get("architectures") or [], list | str):
        raise ModelBroken(f"{path}: architectures should be a list of names")
    return found


@contextmanager
def reading(title: str) -> Iterator[None]:
    """Within this context the ``config.json`` of a head is read, which messages call ``title``.

    Raises:
        ModelBroken: a field is missing, of another type or out of range.
    """
    try:
        yield
    except (KeyError, TypeError, ValueError, ArithmeticError) as error:
        raise ModelBroken(f"the config.json of {title} is damaged: {error!r}") from None


def number(config: Mapping[str, Any], *names: str, default: int | None = None) -> int:
    """Read a size from a head's ``config.json``: the first of ``names`` that it has.

    Raises:
        ModelBroken: it is missing and has no default, or is not a positive whole number.
    """
    found = next((config[name] for name in names if config.get(name) is not None), default)
    if type(found) is not int or found < 1:
        raise ModelBroken(f"the head's config.json should have a number {names[0]!r}, not {found!r}")
    return found


def check_made_for(title: str, *facts: tuple[str, int, int]) -> None:
    """Refuse a head whose sizes show that it was made for another target.

    Equal sizes don't prove that the head was made for this target.

    Args:
        title: The head's name in the message.
        facts: Each a thing that the head reads, the head's number for it, and the target's.

    Raises:
        ModelUnsupported: two numbers differ; names the first such fact.
    """
    for what, made, found in facts:
        if made != found:
            raise ModelUnsupported(
                f"{title} was made for another target: it reads {what} {made}, and this target has "
                f"{found}; choose a head of this target"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerShape:
    """Sizes that all decoder layers of a head have in common.

    Attributes:
        hidden: Size of the hidden states.
        intermediate: Size of the MLP's inner states.
        vocab_size: Tokens of the target's vocabulary.
        eps: Epsilon of the norms.
        rope: ``rope_parameters`` of the config.
        bias: Whether the matrices of attention have biases.
    """

    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab_size: int
    eps: float = 1e-6
    max_positions: int = 32768
    activation: str = "silu"
    rope: Mapping[str, Any] = field(default_factory=lambda: {"rope_type": "default"})
    bias: bool = False

    @staticmethod
    def read(config: Mapping[str, Any]) -> dict[str, Any]:
        """Read these fields, by name, from a ``config.json``.

        Raises:
            ModelBroken: a size is missing, or not a positive whole number.
            TypeError, ValueError, OverflowError: another field is damaged.
        """
        hidden, heads = number(config, "hidden_size"), number(config, "num_attention_heads")
        rope = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
        rope.setdefault("rope_theta", float(config.get("rope_theta", 10000.0)))
        rope.setdefault("rope_type", rope.pop("type", "default"))
        kv_heads = int(config.get("num_key_value_heads") or heads)
        head_dim = int(config.get("head_dim") or hidden // heads)
        if min(kv_heads, head_dim) < 1 or heads % kv_heads:
            raise ValueError(f"{heads} heads, {kv_heads} key heads of {head_dim}")
        eps = float(config.get("rms_norm_eps", 1e-6))
        if not 0.0 <= eps < float("inf"):
            raise ValueError(f"rms_norm_eps {eps}")
        return {
            "hidden": hidden,
            "intermediate": number(config, "intermediate_size"),
            "heads": heads,
            "kv_heads": kv_heads,
            "head_dim": head_dim,
            "vocab_size": number(config, "vocab_size"),
            "eps": eps,
            "max_positions": int(config.get("max_position_embeddings") or 32768),
            "activation": str(config.get("hidden_act", "silu")),
            "rope": rope,
            "bias": bool(config.get("attention_bias", False)),
        }

    @property
    def written(self) -> dict[str, Any]:
        """These fields as they are written to a ``config.json``."""
        return {
            "hidden_size": self.hidden,
            "intermediate_size": self.intermediate,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "vocab_size": self.vocab_size,
            "rms_norm_eps": self.eps,
            "max_position_embeddings": self.max_positions,
            "hidden_act": self.activation,
            "rope_parameters": dict(self.rope),
            "rope_theta": self.rope.get("rope_theta", 10000.0),
            "attention_bias": self.bias,
            "tie_word_embeddings": False,
        }


class Head(Protocol):
    """Trained weights that draft from a target's hidden states, made by the loader of their method.

    Attributes:
        kind: The drafting method, a key of `specstream.drafting.proposers.KINDS`.
        parameters: Number of trained parameters, without weights that are shared with the target.
        nbytes: Bytes of the weights that the head adds, in the target's dtype. Native code keeps
            bfloat16 matrices as eight bits, in half of that.
        depths: After how many of the target's layers it reads hidden states.
    """

    kind: str
    parameters: int
    nbytes: int
    depths: tuple[int, ...]


@dataclass(slots=True)
class Context:
    """A head's cached rows of one sequence.

    Attributes:
        cache: Keys and values, one row for each token.
        start: Position of the first row's token.
    """

    cache: ContiguousCache
    start: int = 0

    @property
    def end(self) -> int:
        """The position after the last row."""
        return self.start + self.cache.length


class Level(NamedTuple):
    """Results of a pass of a `FeatureHead`, for its kept rows.

    Attributes:
        logits: ``[kept, draft vocabulary]``.
        features: ``[kept, width]``, which the next level reads in place of the target's features.
        chances: ``[kept, most]``: log probabilities of the likeliest tokens, likeliest first.
        choices: ``[kept, most]``: these tokens, as ids of the target.
    """

    logits: Tensor
    features: Tensor
    chances: Tensor
    choices: Tensor


class FeatureHead(Head, Protocol):
    """A head of one decoder layer; each of its rows reads a feature and the token after it.

    For deeper levels of a draft the features that the head returned are read in place of the target's.

    Attributes:
        title: Its name in explanations.
        device: Device of its tensors.
        dtype: Dtype of its features.
        width: Size of a feature.
        ids: ``[draft vocabulary]``: each draft token's id in the target; None: the ids are the same.
    """

    title: str
    device: torch.device
    dtype: torch.dtype
    width: int
    ids: Tensor | None

    def new_cache(self) -> ContiguousCache:
        """An empty cache of one sequence; row t is made from token t's feature and token t + 1."""
        ...

    def fuse(self, states: Tensor) -> Tensor:
        """Turn the target's hidden states ``[n, depths, hidden]`` into features ``[n, width]``."""
        ...

    def __call__(self, tokens: Tensor, features: Tensor, batch: Batch, most: int = 1) -> Level:
        """Append rows to each sequence, and return the results of the kept rows.

        Args:
            tokens: ``[N]`` int64 ids of the target, the sequences' rows concatenated.
            features: ``[N, width]``, of the token before each of these: from the target's states, or
                returned by the head.
            batch: The sequences' caches, each of which grows by its count. Results of the last rows are
                returned, as many as it keeps; trees include rows of earlier passes.
            most: How many of the likeliest tokens to return for each row.
        """
        ...


def likeliest(logits: Tensor, most: int, ids: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Log probabilities and ids of the likeliest ``most`` tokens, or as many as there are.

    Args:
        logits: ``[..., draft vocabulary]``.
        most: The last size of the results.
        ids: Each draft token's id in the target; None: the ids are the same.
    """
    best = logits.float().log_softmax(-1).topk(min(most, logits.shape[-1]))
    return best.values, best.indices if ids is None else ids[best.indices]


def spread(rows: Tensor, ids: Tensor | None, size: int, rest: float = -torch.inf) -> Tensor:
    """Spread ``rows [..., draft vocabulary]`` over the target's vocabulary: ``[..., size]``.

    Args:
        rows: Logits or probabilities.
        ids: Each draft token's id in the target; None: the target's first ids.
        size: Size of the target's vocabulary.
        rest: Value for tokens that can't be drafted.
    """
    if ids is None and rows.shape[-1] == size:
        return rows
    if ids is not None and (made := native_spread(rows, ids, size, rest)) is not None:
        return made
    wide = rows.new_full((*rows.shape[:-1], size), rest)
    if ids is None:
        wide[..., : rows.shape[-1]] = rows
    else:
        wide[..., ids] = rows
    return wide
