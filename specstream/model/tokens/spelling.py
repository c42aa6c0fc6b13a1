"""Tokens of one vocabulary as text of another, and the rule by which a chain of steps stops."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase
from transformers.convert_slow_tokenizer import bytes_to_unicode

from specstream.errors import VocabularyMismatch

__all__ = ["NEVER", "Spelling", "StopRule", "whole"]

# GPT-2's characters and the bytes that they stand for.
_ALPHABET = {char: byte for byte, char in bytes_to_unicode().items()}  # type: ignore[no-untyped-call]
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
_PROBE = "the cat and a dog"
_EXACT = "The  cat (and a dog)"


class Spelling:
    """The bytes behind a tokenizer's ids. Works on a copy of the tokenizer, and on any thread.

    Attributes:
        name: The model's name, for errors.
        controls: Text of each special token, by id.
        pieces: For each id the bytes that it writes behind other text; None: no text (control tokens,
            ids without a token). In a byte-level vocabulary a piece may be part of a character.
        byte_ids: Id of the token that writes a single byte, by byte; bytes without one are missing.
        faithful: Whether decoding an encoded text restores it, including case and inner blanks.

    Raises:
        VocabularyMismatch: the tokenizer has no Rust core, or can't decode what it encodes.
    """

    def __init__(self, name: str, tokenizer: PreTrainedTokenizerBase) -> None:
        core = getattr(tokenizer, "backend_tokenizer", None)
        if not isinstance(core, Tokenizer):
            raise VocabularyMismatch(
                f"{name}: its tokenizer ({type(tokenizer).__name__}) has no file tokenizer.json, which "
                "drafting between different tokenizers needs; choose a draft of the target's family, or "
                "--proposer suffix"
            )
        self.name = name
        self._core = Tokenizer.from_str(core.to_str())
        self._core.no_padding()
        self._core.no_truncation()
        self._core.encode_special_tokens = True  # text that looks like a control token stays text
        added = tokenizer.added_tokens_decoder
        self.controls = {i: token.content for i, token in added.items() if token.special}
        written = {i: token.content for i, token in added.items() if not token.special}
        self.pieces = _pieces(self._core, self.controls.keys(), written)
        self.byte_ids = self._single_bytes()
        ids, _ = self.encode(_PROBE)
        if self.bytes_of(ids).split() != _PROBE.encode().split():
            raise VocabularyMismatch(
                f"{name}: its tokenizer can't decode what it encodes ({_PROBE!r} becomes "
                f"{self.bytes_of(ids).decode(errors='replace')!r}); choose a draft of the target's "
                "family, or --proposer suffix"
            )
        ids, _ = self.encode(_EXACT)
        self.faithful = self.bytes_of(ids).decode(errors="replace").strip() == _EXACT

    def encode(self, text: str) -> tuple[list[int], list[int]]:
        """Return the ids of ``text``, without control tokens, and the character where each begins."""
        found = self._core.encode(text, add_special_tokens=False)
        return found.ids, [start for start, _ in found.offsets]

    def piece(self, token: int) -> bytes | None:
        """Return the bytes that a token writes; None: no text."""
        return self.pieces[token] if 0 <= token < len(self.pieces) else None

    def bytes_of(self, ids: Iterable[int]) -> bytes:
        """Return the bytes that tokens write; control tokens write none."""
        return b"".join(self.piece(token) or b"" for token in ids)

    def spelled(self, data: bytes) -> list[int] | None:
        """Return one id per byte of ``data``; None if the vocabulary has no token for one of them."""
        ids = [self.byte_ids.get(byte) for byte in data]
        return None if None in ids else [i for i in ids if i is not None]

    def _single_bytes(self) -> dict[int, int]:
        found: dict[int, int] = {}
        for token, piece in enumerate(self.pieces):
            if piece is not None and len(piece) == 1:
                found.setdefault(piece[0], token)
        return found


def whole(data: bytes) -> tuple[str, bytes]:
    """Decode ``data`` as UTF-8; return the text, and the bytes of an unfinished character at its end."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    return decoder.decode(data), decoder.getstate()[0]


def _pieces(core: Tokenizer, controls: Iterable[int], written: dict[int, str]) -> list[bytes | None]:
    silent = set(controls)
    size = max(core.get_vocab().values(), default=-1) + 1
    tokens = [None if i in silent else core.id_to_token(i) for i in range(size)]
    rules = json.loads(core.to_str())["decoder"] or {}
    kinds = {rules.get("type")} | {one["type"] for one in rules.get("decoders", ())}
    if "ByteLevel" in kinds:
        found = [None if token is None else _of_alphabet(token) for token in tokens]
    else:
        found = _decoded(core, tokens, bytes_too="ByteFallback" in kinds)
    for i, text in written.items():
        if i < size:
            found[i] = text.encode()
    return found


def _of_alphabet(token: str) -> bytes | None:
    """The bytes of a token in GPT-2's alphabet, where each character stands for a byte."""
    try:
        return bytes(_ALPHABET[char] for char in token)
    except KeyError:
        return None


def _decoded(core: Tokenizer, tokens: Sequence[str | None], *, bytes_too: bool) -> list[bytes | None]:
    """The bytes that each token adds when it is decoded behind the token of the letter a."""
    found: list[bytes | None] = [None] * len(tokens)
    anchors = core.encode("a", add_special_tokens=False).ids[-1:]
    known = [i for i, token in enumerate(tokens) if token is not None]
    if not anchors:
        return found
    before = core.decode(anchors, skip_special_tokens=False)
    texts = core.decode_batch([[anchors[0], i] for i in known], skip_special_tokens=False)
    for i, text in zip(known, texts, strict=True):
        byte = _BYTE.fullmatch(tokens[i] or "") if bytes_too else None
        if byte:
            found[i] = bytes([int(byte[1], 16)])
        elif text.startswith(before) and "\ufffd" not in text:
            found[i] = text[len(before) :].encode()
    return found


class StopRule(NamedTuple):
    """A stopping rule that depends only on the chain's tokens and their draft probabilities.

    The rule tracks *survival*, the estimated probability that all tokens so far are accepted. After step
    k (from 0), whose token has the draft probability c, survival is multiplied by the acceptance chance
    of c's bucket. The chain ends there if survival times min(that chance, ``ceiling``), the expected
    gain of the next token, is at most ``prices[k]``.

    Attributes:
        ends: Token ids after which the chain ends in any case.
        edges: Edges between the buckets, ascending; c's bucket begins at the last edge that is <= c.
        chances: Acceptance chance of each bucket; one entry more than ``edges``.
        survival: Initial value, before the first step.
        ceiling: Upper bound of the next token's acceptance chance.
        prices: Cost of the token after each step; empty: probabilities don't end the chain.
    """

    ends: Sequence[int] = ()
    edges: Sequence[float] = ()
    chances: Sequence[float] = (1.0,)
    survival: float = 1.0
    ceiling: float = 1.0
    prices: Sequence[float] = ()


NEVER = StopRule()
"""The rule that never ends a chain early."""
