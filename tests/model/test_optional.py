"""What is said where an optional package is missing or too old; these run there too."""

import importlib
import sys

import pytest

from specstream.errors import ConfigError, SamplingError
from specstream.model.tokens import grammar as module
from specstream.model.tokens.grammar import GrammarState
from specstream.types import Grammar
from tests.support.tiny import EOS, byte_tokenizer


def test_a_grammar_names_the_package_that_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = byte_tokenizer()
    module.vocabulary_of.cache_clear()
    loaded = [name for name in sys.modules if name.partition(".")[0] == "llguidance"]
    for name in {*loaded, "llguidance"}:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(SamplingError, match=r"llguidance>=1.3"):
        GrammarState(Grammar("regex", "a"), tokenizer, len(tokenizer), frozenset({EOS}))


def test_files_that_transformers_is_too_old_for_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    tables = "transformers.integrations.gguf.gguf_tokenizer_mapping"
    monkeypatch.delattr(f"{tables}.GGUF_PRE_TOKENIZER_SPLITS", raising=False)
    monkeypatch.delitem(sys.modules, "specstream.model.gguf", raising=False)
    with pytest.raises(ConfigError, match=r"transformers 5\.20 or newer"):
        importlib.import_module("specstream.model.gguf")
