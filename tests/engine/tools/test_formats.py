"""The format of a model's calls is told from its chat template and its special tokens."""

from typing import Any

import pytest
from tokenizers import AddedToken

from specstream.engine.tools.formats import format_of
from specstream.errors import PromptError
from tests.engine.tools import formats
from tests.support.tiny import byte_tokenizer


def tokenizer(template: str | None, *special: str) -> Any:
    made = byte_tokenizer()
    made.add_special_tokens({"additional_special_tokens": [AddedToken(name) for name in special]})
    made.chat_template = template
    made.name_or_path = "some/model"
    return made


@pytest.mark.parametrize(
    ("template", "openers", "bare"),
    [
        (formats.HERMES, {"<tool_call>": "</tool_call>"}, False),
        (formats.LLAMA, {"<|python_tag|>": ""}, True),
        (formats.LLAMA_32, {}, True),
        (formats.MISTRAL, {"[TOOL_CALLS]": ""}, False),
        (formats.MISTRAL_ARGS, {"[TOOL_CALLS]": ""}, False),
        (formats.PHI, {"<|tool_call|>": "<|/tool_call|>"}, False),
        (formats.QWEN_CODER, {"<tool_call>": "</tool_call>", "<function=": ""}, False),
        (formats.GLM, {"<tool_call>": "</tool_call>"}, False),
    ],
)
def test_a_template_tells_the_format(template: str, openers: dict[str, str], bare: bool) -> None:
    found = format_of(tokenizer(template))
    assert (found.openers, found.bare, found.markers) == (openers, bare, {})


def test_special_tokens_among_the_marks_are_known() -> None:
    made = tokenizer(formats.MISTRAL_ARGS, "[TOOL_CALLS]", "[ARGS]", "[INST]")
    ids = made.get_vocab()
    markers = {ids["[TOOL_CALLS]"]: "[TOOL_CALLS]", ids["[ARGS]"]: "[ARGS]"}
    assert format_of(made).markers == markers
    assert "<|python_tag|>" in format_of(tokenizer(formats.LLAMA_32, "<|python_tag|>")).openers


def test_a_template_for_tools_of_its_own_is_the_one_that_counts() -> None:
    made = tokenizer(None)
    made.chat_template = {"default": formats.NO_TOOLS, "tool_use": formats.HERMES}
    assert format_of(made).openers


def test_variables_that_a_template_sets_under_a_condition_count() -> None:
    made = tokenizer("{% if custom is defined %}{% set tools = custom %}{% endif %}" + formats.LLAMA)
    assert format_of(made).bare


def test_a_template_that_refuses_two_calls_in_a_message_is_noticed() -> None:
    assert format_of(tokenizer(formats.HERMES)).several
    assert not format_of(tokenizer(formats.ONE_CALL + formats.LLAMA_32)).several
    never = "{{ raise_exception('no') if messages | length > 1 }}"
    assert format_of(tokenizer(never + formats.HERMES)).several


@pytest.mark.parametrize(
    ("template", "why"),
    [
        (None, "some/model has no chat template"),
        (formats.NO_TOOLS, "the chat template of some/model takes no tools"),
        (formats.UNKNOWN, "some/model takes tools, but how the model writes calls isn't known"),
    ],
)
def test_what_is_missing_is_named(template: str | None, why: str) -> None:
    with pytest.raises(PromptError, match=why):
        format_of(tokenizer(template))
