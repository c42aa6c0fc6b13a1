"""Compares vocabularies: a draft's with its target's, and a tokenizer's with its model's."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from specstream.config import DEFAULT_DRAFT, EngineConfig
from specstream.errors import ConfigError, ModelBroken, VocabularyMismatch
from specstream.model.heads.recognise import head_folder
from specstream.model.load import load_tokenizer
from specstream.model.tokens.spelling import Spelling

__all__ = ["Translation", "check_rows", "check_same_ids", "find_draft", "one_vocabulary", "same_ids"]

_log = logging.getLogger("specstream.model")


def find_draft(config: EngineConfig, tokenizer: PreTrainedTokenizerBase) -> str | None:
    """Return the draft model to use, or None.

    That is the configured one, which may have another vocabulary (see `Translation`). If no draft is
    configured it is the bundled one, provided that its vocabulary is this tokenizer's. Drafting heads
    don't count as draft models; if only heads are configured, the result is None.

    Raises:
        ConfigError: two draft models are configured.
        ModelError: a tokenizer can't be read.
    """
    models = [name for name in config.drafts if head_folder(name) is None]
    if len(models) > 1:
        raise ConfigError(f"--draft names two draft models, {models[0]} and {models[1]}; choose one")
    if config.drafts and not models:
        return None
    if models:
        return models[0]
    return DEFAULT_DRAFT if same_ids(tokenizer, load_tokenizer(DEFAULT_DRAFT)) else None


def same_ids(ours: PreTrainedTokenizerBase, theirs: PreTrainedTokenizerBase) -> bool:
    """Whether two tokenizers give every token that they share the same id.

    Tokens of only one of them are accepted if they are added tokens: models of a family often differ in
    those.
    """
    mine, other = ours.get_vocab(), theirs.get_vocab()
    if mine == other:
        return True
    added = ours.added_tokens_encoder.keys() | theirs.added_tokens_encoder.keys()
    return all(
        token in added if token not in mine or token not in other else mine[token] == other[token]
        for token in mine.keys() | other.keys()
    )


def one_vocabulary(
    name: str, draft: PreTrainedTokenizerBase, rows: int, target: PreTrainedTokenizerBase, width: int
) -> bool:
    """Whether a draft can read and write the target's ids as they are; else it needs a `Translation`.

    It can't if they mean other tokens to it, or if it lacks rows for added tokens of the target: a base
    model has none for the control tokens of its family's chat templates.

    Args:
        name: The draft, for errors.
        draft: Its tokenizer.
        rows: Width of its own logits.
        target: The target's tokenizer.
        width: Width of the target's logits.

    Raises:
        VocabularyMismatch: the draft has the target's tokenizer, but no row for ordinary tokens.
    """
    if not same_ids(target, draft):
        return False
    lacking = {i: token for token, i in target.get_vocab().items() if rows <= i < width}
    ordinary = lacking.keys() - target.added_tokens_decoder.keys()
    if ordinary:
        raise VocabularyMismatch(
            f"draft {name} has {rows} output rows for a tokenizer of {len(target)} tokens (none for "
            f"{lacking[min(ordinary)]!r}); choose one whose weights were saved with it"
        )
    return not lacking


def check_same_ids(config: EngineConfig, draft: str, tokenizer: PreTrainedTokenizerBase) -> None:
    """Refuse a draft with another tokenizer, for callers that can't use a `Translation`.

    Raises:
        VocabularyMismatch: the draft's ids mean other tokens.
    """
    if not same_ids(tokenizer, load_tokenizer(draft)):
        raise VocabularyMismatch(
            f"draft {draft} and target {config.target} don't share a tokenizer; choose a draft of the "
            "same family"
        )


class Translation:
    """The map between ids of two vocabularies that write the same bytes.

    Control tokens are matched, too: by equal text, or as ids that end a turn.

    Args:
        target: The target's tokens.
        draft: The draft's tokens.
        target_ends: The target's ids that end a turn.
        draft_ends: The draft's ids that end a turn.
        target_rows: Width of the target's logits; ids beyond it are never drawn.
        draft_rows: Width of the draft's logits.

    Attributes:
        pairs: ``(target id, draft id)`` of each common token, in the target's order; each id once.
        to_draft: Target id to draft id.
        to_target: Draft id to target id.
        overlap: Share of the target's tokens of a sample text for which the draft's tokenizer has the
            same token at the same place: an estimate of how often a draft can name the next token.

    Raises:
        VocabularyMismatch: no token is common.
    """

    def __init__(
        self,
        target: Spelling,
        draft: Spelling,
        *,
        target_ends: Collection[int],
        draft_ends: Collection[int],
        target_rows: int,
        draft_rows: int,
    ) -> None:
        self.target, self.draft = target, draft
        self.target_rows, self.draft_rows, self.draft_ends = target_rows, draft_rows, draft_ends
        theirs = _lowest_ids(draft.pieces[:draft_rows], draft_ends)
        ours = _lowest_ids(target.pieces[:target_rows])
        self.pairs = sorted((i, theirs[piece]) for piece, i in ours.items() if piece in theirs)
        if not self.pairs:
            raise VocabularyMismatch(
                f"draft {draft.name} and target {target.name} have no token in common; choose another "
                "draft, or --proposer suffix"
            )
        controls = self._controls(target_ends)
        self.pairs = sorted({*self.pairs, *controls})
        self.to_draft = dict(self.pairs)
        self.to_target = {theirs: ours for ours, theirs in self.pairs}
        self.overlap = self._measured()

    def _controls(self, target_ends: Collection[int]) -> set[tuple[int, int]]:
        """Pairs of control tokens: first those of equal text, then the remaining ends of a turn."""
        by_text = {text: i for i, text in self.draft.controls.items() if i < self.draft_rows}
        found = {
            i: by_text[text]
            for i, text in self.target.controls.items()
            if text in by_text and i < self.target_rows
        }
        free = [i for i in sorted(self.draft_ends) if i not in found.values()]
        for i in sorted(target_ends):
            if i not in found and free:
                found[i] = free.pop(0)
        return set(found.items())

    def _measured(self) -> float:
        """Compute ``overlap``."""
        ours, theirs = (_spans(spelling) for spelling in (self.target, self.draft))
        common = self.to_draft
        same = sum(1 for span, token in ours.items() if common.get(token, -1) == theirs.get(span))
        return same / max(1, len(ours))


_SAMPLE = """The train to Hamburg leaves at 7:45 from platform 12, doesn't it? "Yes," she said, "but only
on weekdays - at weekends there's a bus." Photosynthesis converts carbon dioxide and water into glucose,
which the plant stores as starch. I'd recommend three things: sleep, exercise, and a good breakfast!

def mean(values: list[float]) -> float:
    return sum(values) / len(values)

Die Straße führt über den Fluß; c'est très élégant. 1. Preheat the oven to 180 °C. 2. Mix the flour
(250 g) with two eggs and 100 ml of milk. However, the committee couldn't agree on the budget for 2024,
so the chairwoman postponed the vote until further notice.
"""


def _spans(spelling: Spelling) -> dict[tuple[int, int], int]:
    """The sample text's tokens by their byte span (start, end), without a blank that is put in front."""
    found, at = dict[tuple[int, int], int](), 0
    ids, _ = spelling.encode(_SAMPLE)
    lead = 1 if spelling.bytes_of(ids).startswith(b" ") else 0
    for token in ids:
        size = len(spelling.piece(token) or b"")
        found[max(0, at - lead), at + size - lead] = token
        at += size
    return found


def _lowest_ids(pieces: Sequence[bytes | None], left_out: Collection[int] = ()) -> dict[bytes, int]:
    """By piece, the lowest id that writes it."""
    found = dict[bytes, int]()
    for i, piece in enumerate(pieces):
        if piece and i not in left_out:
            found.setdefault(piece, i)
    return found


def check_rows(name: str, tokenizer: Any, rows: int) -> None:
    """Refuse a model with fewer output rows than its tokenizer has ids.

    For special tokens added behind the vocabulary only a warning is logged: many tokenizers have a
    padding token that no prompt contains. Admission refuses a prompt that does contain one.

    Raises:
        ModelBroken: tokens other than special ones have no row.
    """
    beyond = sorted((i, token) for token, i in tokenizer.get_vocab().items() if i >= rows)
    if not beyond:
        return
    added = tokenizer.added_tokens_decoder
    ordinary = [token for i, token in beyond if i not in added or not added[i].special]
    last = beyond[-1][0]
    remedy = (
        "take the tokenizer that was saved with the weights, or widen the model with transformers' "
        f"resize_token_embeddings({last + 1}) and save it"
    )
    if ordinary:
        raise ModelBroken(
            f"{name} has {rows} output rows and its tokenizer ids up to {last}: {len(ordinary)} tokens "
            f"have no row (for example {ordinary[0]!r}); {remedy}"
        )
    _log.warning(
        "%s has %d output rows: its tokenizer's %s can't be read or written; %s",
        name, rows, ", ".join(token for _, token in beyond[:3]), remedy,
    )  # fmt: skip
