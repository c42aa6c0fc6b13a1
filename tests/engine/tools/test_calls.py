"""Calls told apart from the reply, however the text is dealt out."""

import itertools
import random
from collections.abc import Iterable

import pytest

from specstream.engine.tools.calls import Calls
from specstream.engine.tools.formats import CallFormat
from specstream.tools import MAX_CALLS, ToolCall, ToolCallDelta, Tools, new_call_id
from tests.engine.tools.formats import NOW, TOOLS, WEATHER

HERMES = CallFormat({"<tool_call>": "</tool_call>"})
CODER = CallFormat({"<tool_call>": "</tool_call>", "<function=": ""})
GLM = CallFormat({"<tool_call>": "</tool_call>"}, template="<arg_key>")
LLAMA = CallFormat({"<|python_tag|>": ""}, bare=True)
MISTRAL = CallFormat({"[TOOL_CALLS]": ""})
PHI = CallFormat({"<|tool_call|>": "<|/tool_call|>"})
ROME = '{"city": "Rome"}'
ONE = '{"name": "get_weather", "arguments": {"city": "Rome"}}'
LLAMA_ONE = '{"name": "get_weather", "parameters": {"city": "Rome"}}'
WEATHER_CALL = ("get_weather", ROME, "")
NOW_CALL = ("now", "{}", "")

CASES = [
    # form, written, reply, calls
    (HERMES, f"Let me see.\n<tool_call>\n{ONE}\n</tool_call>", "Let me see.\n", [WEATHER_CALL]),
    (HERMES, f'\n<tool_call>{ONE}</tool_call>\n<tool_call>{{"name":"now"}}</tool_call>\n', "",
     [WEATHER_CALL, NOW_CALL]),
    (HERMES, f"<tool_call>[{ONE}, {ONE}]</tool_call>", "", [WEATHER_CALL] * 2),  # SmolLM2
    (HERMES, f"a<tool_call>{ONE}</tool_call>\n b", "a\n b", [WEATHER_CALL]),
    (HERMES, f'<tool_call>{{"arguments": {ROME}, "name": "get_weather"}}</tool_call>', "",
     [WEATHER_CALL]),
    (HERMES, '<tool_call>{"name": "now", "arguments": "{}"}</tool_call>', "", [NOW_CALL]),
    (HERMES, '<tool_call>{"name": "now", "arguments": null}</tool_call>', "", [NOW_CALL]),
    (HERMES, f'<tool_call>{{"type": "function", "function": {ONE}}}</tool_call>', "",
     [WEATHER_CALL]),
    (HERMES, '<tool_call>{"name": "now", "arguments": {"a": "</tool_call> {\\"}"}}</tool_call>.',
     ".", [("now", '{"a": "</tool_call> {\\"}"}', "")]),
    (HERMES, f"<tool_call>{ONE[:-1]}</tool_call>.", ".", [WEATHER_CALL]),  # a brace too few
    (HERMES, f"<tool_call>{ONE}}}</tool_call>.", ".", [WEATHER_CALL]),  # one too many
    (HERMES, f"<tool_call>{ONE}", "", [WEATHER_CALL]),  # a model may end its turn here
    (HERMES, '<tool_call>{"name": "now", "arguments": {"a": tru}}</tool_call>.', ".",
     [("now", '{"a": tru}', "bad_json")]),
    (HERMES, '<tool_call>{"name": "now", "arguments": [1]}</tool_call>.', ".",
     [("now", "[1]", "bad_json")]),
    (HERMES, '<tool_call>{"name": "now", "arguments": {"a": NaN}}</tool_call>.', ".",
     [("now", '{"a": NaN}', "bad_json")]),
    (HERMES, '<tool_call>{"name": "later", "arguments": {}}</tool_call>.', ".",
     [("later", "{}", "unknown_tool")]),
    (HERMES, "<tool_call>now!</tool_call>.", ".", [("", "now!", "no_name")]),
    (HERMES, '<tool_call>{"arguments": {}}</tool_call>.', ".",
     [("", '{"arguments": {}}', "no_name")]),
    (HERMES, f"<tool_call>{ONE} and more</tool_call>.", ".",
     [WEATHER_CALL, ("", " and more", "no_name")]),
    (HERMES, f"<tool_call>{ONE[:-5]}", "", [("get_weather", '{"city": "Ro', "cut_off")]),
    (HERMES, '<tool_call>{"na', "", [("", '{"na', "cut_off")]),
    (HERMES, "<tool_call>", "", [("", "", "cut_off")]),
    (HERMES, f"<tool_call>{ONE}\n</tool_c", "", [WEATHER_CALL]),
    (HERMES, f"<tool_call>{ONE}\n</tool_c</tool_call>", "",
     [WEATHER_CALL, ("", "\n</tool_c", "no_name")]),
    (HERMES, '<tool_call>{"name": "now", "arguments": "{\\"z\\": \\"\\\\ud83d\\"}"}</tool_call>', "",
     [("now", '{"z": "\\ud83d"}', "")]),
    (HERMES, '<tool_call>{"name": "now", "arguments": "{\\"z\\": \\"\\ud83d\\"}"}</tool_call>.', ".",
     [("now", "}", "bad_json")]),
    (HERMES, "a <tool_ca", "a <tool_ca", []),
    (HERMES, " \n", " \n", []),
    (HERMES, LLAMA_ONE, LLAMA_ONE, []),
    (PHI, f"<|tool_call|>[{ONE}]<|/tool_call|>", "", [WEATHER_CALL]),
    (PHI, f"<|tool_call|>[{ONE}]", "", [WEATHER_CALL]),  # Granite has no closing tag
    (LLAMA, f" {LLAMA_ONE}; {LLAMA_ONE}", "", [WEATHER_CALL] * 2),
    (LLAMA, f"<|python_tag|>{LLAMA_ONE}", "", [WEATHER_CALL]),
    (LLAMA, f'{{"type": "function", {LLAMA_ONE[1:]}', "", [WEATHER_CALL]),
    (LLAMA, '{"name": "Bob", "age": 3}', '{"name": "Bob", "age": 3}', []),
    (LLAMA, ' {"age": 3', ' {"age": 3', []),
    (LLAMA, ' {"na', ' {"na', []),
    (LLAMA, f"So: {LLAMA_ONE}", f"So: {LLAMA_ONE}", []),
    (LLAMA, "<|python_tag|>import os", "", [("", "import os", "no_name")]),
    (MISTRAL, f"[TOOL_CALLS] [{ONE}, {ONE}]", "", [WEATHER_CALL] * 2),
    (MISTRAL, f"[TOOL_CALLS] [{ONE}", "", [WEATHER_CALL]),
    (MISTRAL, f"[TOOL_CALLS]get_weather{ROME}", "", [WEATHER_CALL]),
    (MISTRAL, f"[TOOL_CALLS]get_weather[ARGS]{ROME}[TOOL_CALLS]now[CALL_ID]x[ARGS]{{}}", "",
     [WEATHER_CALL, NOW_CALL]),
    (MISTRAL, "[TOOL_CALLS]now", "", [("", "now", "cut_off")]),
    (CODER, "<tool_call>\n<function=get_weather>\n<parameter=city>\nRome\n</parameter>\n"
     "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>.", ".",
     [("get_weather", '{"city": "Rome", "days": 3}', "")]),
    (CODER, "<function=now>\n</function>", "", [NOW_CALL]),
    (CODER, "<function=now>\nwhen?</function>", "",
     [("now", "when?</function>", "bad_json")]),
    (CODER, "<function=get_weather><parameter=city>Ro", "", [("get_weather", "", "cut_off")]),
    (GLM, "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Rome</arg_value>\n"
     "<arg_key>days</arg_key><arg_value>many</arg_value>\n</tool_call>.", ".",
     [("get_weather", '{"city": "Rome", "days": "many"}', "")]),
    (GLM, "<tool_call>now</tool_call>", "", [NOW_CALL]),
]  # fmt: skip


def reading(form: CallFormat, tools: Tools = TOOLS) -> Calls:
    numbers = itertools.count()
    return Calls(form, tools, lambda: f"id{next(numbers)}")


def play(pieces: Iterable[str], calls: Calls) -> tuple[str, tuple[ToolCall, ...]]:
    """The reply and the calls, which are the same by their deltas as by the log."""
    reply, deltas = "", list[ToolCallDelta]()
    for piece in pieces:
        reply += calls.add(piece)
        deltas += calls.log.take()
    reply += calls.finish()
    deltas += calls.log.take()
    assert calls.finish() == ""
    assert ToolCall.collect(deltas) == calls.log.calls
    return reply, calls.log.calls


@pytest.mark.parametrize(("form", "written", "reply", "calls"), CASES)
def test_a_reply_is_split(
    form: CallFormat, written: str, reply: str, calls: list[tuple[str, str, str]]
) -> None:
    found = play([written], reading(form))
    assert (found[0], [(call.name, call.arguments, call.problem) for call in found[1]]) == (reply, calls)
    assert play(written, reading(form)) == found


@pytest.mark.parametrize(
    ("form", "written", "names"),
    [
        (HERMES, '<tool_call>{"name": "get_', []),
        (HERMES, f"<tool_call>{ONE[:-5]}", ["get_weather"]),
        (MISTRAL, "[TOOL_CALLS]now", []),
        (HERMES, "<tool_ca", []),
    ],
)
def test_what_is_cut_before_its_name_is_whole_is_no_call(
    form: CallFormat, written: str, names: list[str]
) -> None:
    calls = reading(form)
    assert calls.add(written) + calls.finish(cut=True) == ""
    assert [call.name for call in calls.log.calls] == names


def test_any_chunking_gives_the_same_split() -> None:
    rng = random.Random(7)
    bits = [piece for form in (HERMES, MISTRAL, LLAMA) for piece in form.openers]
    bits += ["</tool_call>", '{"name": "now", ', '"arguments": ', '{"a": 1}', "}", "{", '"', "\\"]
    bits += ["[", "]", ",", ";", "Hello", " ", "\n", "<function=", "now>", "<parameter=a>", "3", "é"]
    bits += ["</parameter>", "</function>", "<arg_key>", "</arg_key>", "<arg_value>", "null", ":"]
    bits += ["</arg_value>", "[ARGS]", '"name": "now"', '"parameters"', "<tool", "_call>", LLAMA_ONE]
    every = CallFormat(CODER.openers | MISTRAL.openers | LLAMA.openers, True, template="<arg_key>")
    for _ in range(2500):
        written = "".join(rng.choices(bits, k=rng.randrange(14)))
        form = rng.choice([HERMES, MISTRAL, LLAMA, CODER, GLM, every])
        tools = rng.choice([TOOLS, Tools(TOOLS.tools, parallel=False)])
        whole = play([written], reading(form, tools))
        cuts = sorted(rng.choices(range(len(written) + 1), k=rng.randrange(6)))
        pieces = [written[a:b] for a, b in zip([0, *cuts], [*cuts, len(written)])]
        assert play(pieces, reading(form, tools)) == whole, (written, pieces)
        assert play(list(written), reading(form, tools)) == whole, written


def test_a_forced_call_that_is_cut_within_its_opener_is_no_text() -> None:
    forced = Tools(TOOLS.tools, choice="required")
    assert play(["\n<tool", "_ca"], reading(HERMES, forced)) == ("", ())
    assert play(["\n<tool", "_ca"], reading(HERMES)) == ("\n<tool_ca", ())
    assert play(['{"name": "get'], reading(LLAMA, forced)) == ("", ())
    assert play(['{"name": "get'], reading(LLAMA)) == ('{"name": "get', ())


def test_arguments_come_out_while_they_are_written() -> None:
    calls = reading(HERMES)
    calls.add('<tool_call>{"name": "get_weather", "argu')
    assert calls.log.take() == (ToolCallDelta(0, "id0", "get_weather"),)
    calls.add('ments": {"city": "Ro')
    assert calls.log.take() == (ToolCallDelta(0, "id0", "get_weather", '{"city": "Ro'),)
    assert calls.log.take() == ()
    calls.add('me"}}</tool_call>')
    assert calls.log.take() == (ToolCallDelta(0, "id0", "get_weather", 'me"}', done=True),)


def test_tokens_of_a_call_are_told_from_those_of_the_reply() -> None:
    calls = reading(HERMES)
    ends = []
    for piece in ("Hm", ".", "<", "tool_call>", ONE, "</tool_", "call>", "\n", "So"):
        calls.add(piece)
        ends.append(calls.end)
    assert ends == [0, 0, 0, 4, 5, 6, 7, 7, 7]


def test_tokens_that_only_might_have_been_a_call_belong_to_the_reply() -> None:
    calls = reading(LLAMA)
    assert [calls.add(piece) for piece in ('{"name"', ': "Bob', '"}', " is it")] == [
        "", "", '{"name": "Bob"}', " is it",
    ]  # fmt: skip
    assert calls.end == 0
    calls = reading(LLAMA)
    ends = []
    for piece in ('{"name"', ': "now"', ', "parameters": {', "}}", " So"):
        calls.add(piece)
        ends.append(calls.end)
    assert ends == [0, 2, 3, 4, 4]


def test_a_reply_that_may_have_one_call_ends_with_it() -> None:
    calls = reading(HERMES, Tools((WEATHER, NOW), parallel=False))
    assert calls.add(f"<tool_call>{ONE}</tool_") == "" and calls.log.full
    assert calls.add(f"call>So.<tool_call>{ONE}</tool_call>") == ""
    assert len(calls.log.calls) == 1


def test_the_number_of_calls_has_a_bound() -> None:
    calls = reading(HERMES)
    for _ in range(MAX_CALLS + 3):
        calls.add(f"<tool_call>{ONE}</tool_call>")
    assert calls.log.full and len(calls.log.calls) == MAX_CALLS


def test_ids_fit_the_strictest_template() -> None:
    assert all(len(new_call_id()) == 9 and new_call_id().isalnum() for _ in range(50))
    assert len({new_call_id() for _ in range(50)}) == 50


def test_endless_wrapping_is_a_broken_call() -> None:
    calls, written = reading(HERMES), '{"name": ' * 3000
    assert play(["<tool_call>", written, "</tool_call>."], calls)[0] == "."
    assert [(call.arguments, call.problem) for call in calls.log.calls] == [(written, "no_name")]
