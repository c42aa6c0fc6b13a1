"""Two turns of the user in a row, for templates that take them and for templates that don't."""

import pytest
from transformers import PreTrainedTokenizerFast

from specstream.engine.core.prompt import PromptEncoder
from specstream.errors import PromptError
from specstream.types import Message
from tests.support.tiny import byte_tokenizer

LENIENT = "{% for m in messages %}{{ m.role[0] }}:{{ m.content }};{% endfor %}a:"
STRICT = (
    "{% for m in messages %}{% if loop.index0 % 2 != (m.role == 'assistant') %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}{% endfor %}" + LENIENT
)


def tokenizer(template: str) -> PreTrainedTokenizerFast:
    made = byte_tokenizer()
    made.chat_template = template
    return made


def prompt(template: str, *turns: str) -> str:
    roles = {"u": "user", "a": "assistant", "s": "system"}
    messages: list[Message] = [{"role": roles[t[0]], "content": t[2:]} for t in turns]  # type: ignore[typeddict-item]
    made = tokenizer(template)
    return str(made.decode(PromptEncoder(made).encode(messages, 512).ids))


def test_a_template_that_takes_them_gets_them_as_they_are() -> None:
    assert prompt(LENIENT, "u:one", "u:two") == "u:one;u:two;a:"


def test_a_template_that_refuses_them_gets_them_joined() -> None:
    assert prompt(STRICT, "u:one", "u:two", "a:yes", "u:three") == "u:one\ntwo;a:yes;u:three;a:"
    assert prompt(STRICT, "u:one", "u:two", "u:three") == "u:one\ntwo\nthree;a:"


@pytest.mark.parametrize("turns", [["a:hello"], ["u:one", "a:yes", "a:no"], ["a:x", "u:1", "u:2"]])
def test_what_joining_does_not_mend_is_told_in_the_templates_own_words(turns: list[str]) -> None:
    with pytest.raises(PromptError, match="roles must alternate"):
        prompt(STRICT, *turns)


NO_SYSTEM = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}" + STRICT
SILENT = "{% for m in messages if m.role != 'system' %}{{ m.role[0] }}:{{ m.content }};{% endfor %}a:"


@pytest.mark.parametrize(
    ("template", "read"), [(LENIENT, "s:Greet;a:"), (NO_SYSTEM, "u:Greet;a:"), (SILENT, "u:Greet;a:")]
)
def test_the_model_speaks_first_by_its_system_message(template: str, read: str) -> None:
    assert prompt(template, "s:Greet") == read


def test_a_model_that_has_spoken_first_may_go_on() -> None:
    assert prompt(LENIENT, "s:Greet", "a:Hello!") == "s:Greet;a:Hello!;a:"
    assert prompt(NO_SYSTEM, "s:Greet", "a:Hello!") == "u:Greet;a:Hello!;a:"
    with pytest.raises(PromptError, match="no system"):
        prompt(NO_SYSTEM, "s:Greet", "u:Hello!")  # both are told: the system message isn't dropped


NAMED = (  # goes through the arguments by name, as Qwen3-Coder's template does
    "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}"
    "{% for name, value in c.function.arguments.items() %}{{ name }}={{ value }};{% endfor %}"
    "{% endfor %}{% endfor %}a:"
)


@pytest.mark.parametrize(
    ("arguments", "read"),
    [('{"a": 1}', "a=1;"), ("", ""), ('{"a":', 'arguments={"a":;'), ("null", "arguments=null;")],
)
def test_broken_arguments_of_a_call_dont_end_the_conversation(arguments: str, read: str) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "now", "arguments": arguments}}
    messages = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
    ]
    made = tokenizer(NAMED)
    ids = PromptEncoder(made).encode(messages, 512).ids  # type: ignore[arg-type]
    assert str(made.decode(ids)) == f"Hi{read}a:"
