"""Grammars whose text spells an added token: text is written in ordinary tokens, markers by name."""

import json
from typing import Any

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from specstream.model.tokens.grammar import GrammarState
from specstream.types import Grammar
from tests.support.tiny import EOS, byte_tokenizer

pytest.importorskip("llguidance")

MARKERS = ("<tool_call>", "<|call|>", "<think>", "[END]")


def tokenizer() -> Any:
    """A tokenizer with added tokens; the first two are not declared special."""
    made = byte_tokenizer()
    made.add_tokens(
        [
            AddedToken(text, special=number > 1, normalized=False, rstrip=number == 1)
            for number, text in enumerate(MARKERS)
        ]
    )
    made.add_tokens(["plain"])
    return made


TOKENIZER = tokenizer()
SIZE = len(TOKENIZER)


def state(kind: Any, text: str, tokenizer: Any = TOKENIZER, size: int = SIZE) -> GrammarState:
    return GrammarState(Grammar(kind, text), tokenizer, size, frozenset([EOS]))


def written(grammar: GrammarState) -> list[int]:
    """The reply of the first token that is allowed, then of the next, up to the end."""
    found: list[int] = []
    while True:
        mask = grammar.allowed([])
        assert mask is not None and mask.any()
        token = int(np.flatnonzero(mask)[0])
        ahead = grammar.allowed([token])
        assert token == EOS or ahead is not None  # the mask and the matcher agree
        grammar.commit(token)
        if token == EOS:
            return found
        found.append(token)


@pytest.mark.parametrize("mark", MARKERS)
@pytest.mark.parametrize("after", ["", "a", " a", " "])
def test_a_text_that_spells_a_marker_can_be_written(mark: str, after: str) -> None:
    text = f"a{mark}{after}"
    escaped = "".join(f"\\{char}" if char in "[]|" else char for char in text)
    asked = [
        ("regex", escaped, text),
        ("lark", f"start: {json.dumps(text)}", text),
        ("json_schema", json.dumps({"const": text}), json.dumps(text)),
    ]
    for kind, grammar, wanted in asked:
        found = written(state(kind, grammar))
        assert "".join(TOKENIZER.decode([token]) for token in found) == wanted
        assert not set(found) & set(TOKENIZER.convert_tokens_to_ids(list(MARKERS)))


def test_an_added_word_is_text_like_any_other() -> None:
    assert written(state("regex", "plain!")) == TOKENIZER.encode("plain!", add_special_tokens=False)


@pytest.mark.parametrize("mark", MARKERS)
def test_a_marker_that_the_grammar_names_is_the_token(mark: str) -> None:
    number = TOKENIZER.convert_tokens_to_ids(mark)
    names = [f"<[{number}]>", *([mark] if mark.startswith("<") else [])]
    for name in names:
        found = written(state("lark", f'start: {name} "a"'))
        assert found == [number, *TOKENIZER.encode("a", add_special_tokens=False)]


def test_ids_without_a_token_are_never_offered() -> None:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {"<s>": 0, "</s>": EOS} | {char: 9 + i for i, char in enumerate(alphabet)}
    inner = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    made = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="</s>")  # type: ignore[no-untyped-call]
    mask = state("regex", "(?s:.)*", made, 300).allowed([])
    assert mask is not None and mask[EOS] and mask[9:].any()
    assert not mask[2:9].any() and not mask[9 + 256 :].any()
    assert written(state("regex", "<\\[5\\]>", made, 300)) == made.encode("<[5]>")
