"""Calls in the engine's loop: prompts with tools, chunks, reports, speculation and history."""

import json
import sys
from typing import Any

import pytest
from tokenizers import AddedToken

from specstream.drafting.proposers.off import OffProposer
from specstream.engine.core.prompt import check_messages
from specstream.engine.core.request import Request
from specstream.engine.tools.formats import CallFormat, with_choice
from specstream.errors import PromptError, SamplingError
from specstream.model.tokens.grammar import compiled
from specstream.text.window import TokenMap
from specstream.tools import Tool, ToolCall, Tools
from specstream.types import Grammar, Message, SamplingParams, Span
from tests.engine.test_stops_in_loop import Seer
from tests.engine.tools import formats
from tests.engine.tools.formats import TOOLS
from tests.support.tables import ScriptedRunner
from tests.support.tiny import EOS, Inbox, byte_tokenizer, make_core, run_until_idle

CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Röm"}}\n</tool_call>'
ASKED: list[Message] = [{"role": "user", "content": "How is it?"}]


class Bench:
    """An engine whose model writes a given text behind the prompt.

    Its tokenizer has the added tokens ``special`` and ``tags``; the latter are not declared special.
    """

    def __init__(
        self,
        template: str | None,
        *special: str,
        tags: tuple[str, ...] = (),
        block: int = 0,
        eager: float = 100.0,
    ):
        self.tokenizer: Any = byte_tokenizer()
        self.tokenizer.add_tokens([AddedToken(name, special=False) for name in tags])
        names = [AddedToken(name) for name in special]
        self.tokenizer.add_special_tokens({"additional_special_tokens": names})
        self.tokenizer.chat_template = template
        self.target = ScriptedRunner(len(self.tokenizer), eager=eager)
        proposer = Seer(self.target, block) if block else OffProposer()
        self.core = make_core(self.target, self.tokenizer, proposer)

    def ids(self, messages: list[Message], tools: Tools | None) -> list[int]:
        return self.core.admission.prompts.encode(messages, 9999, None, tools).ids

    def ask(
        self,
        written: str,
        messages: list[Message] | None = None,
        tools: Tools | None = TOOLS,
        params: SamplingParams | None = None,
        session: str | None = None,
    ) -> tuple[Request, Inbox]:
        inbox = Inbox()
        checked = check_messages(messages or ASKED)
        self.target.script = [*self.tokenizer.encode(written, add_special_tokens=False), EOS]
        told = None if tools is None or tools.choice == "none" else tools
        if told is None or self.core.admission.no_tools is None:
            self.target.start = len(self.ids(checked, told))
        options: dict[str, Any] = {"session": session, "proposer": "test", "tools": tools}
        request = Request(checked, params or SamplingParams(), inbox.delivery, **options)
        self.core.submit(request)
        run_until_idle(self.core)
        return request, inbox


def calls_of(request: Request) -> list[tuple[str, str, str]]:
    return [(call.name, call.arguments, call.problem) for call in request.report().tool_calls]


@pytest.mark.parametrize("block", [0, 1, 3, 7, 40])
def test_a_call_is_no_part_of_the_reply_however_long_the_rounds(block: int) -> None:
    bench = Bench(formats.HERMES, block=block)
    request, inbox = bench.ask(f"Let me see. {CALL}\n")
    report = request.report()
    assert (report.text, report.finish_reason) == ("Let me see. ", "tool_calls")
    assert calls_of(request) == [("get_weather", '{"city": "Röm"}', "")]
    deltas = [delta for chunk in inbox.chunks for delta in chunk.tool_calls]
    assert ToolCall.collect(deltas) == report.tool_calls
    assert inbox.text == report.text and len({delta.id for delta in deltas}) == 1
    plain = report.to_dict()["tool_calls"]
    assert plain == [
        {"id": deltas[0].id, "name": "get_weather", "arguments": '{"city": "Röm"}', "problem": ""}
    ]


@pytest.mark.parametrize("block", [0, 5, 40])
def test_text_behind_a_call_comes_from_its_own_tokens(block: int) -> None:
    written = f"Hm. {CALL}\nSo."
    _, inbox = Bench(formats.HERMES, block=block).ask(written)
    tokens, end = TokenMap(), 0
    for chunk in inbox.chunks:
        assert chunk.chars == (end, end + len(chunk.text))
        end = chunk.chars.end
        tokens.add(chunk)
    assert tokens.cover(Span(0, 3)) == (0, 3)
    first = len(f"Hm. {CALL}".encode())
    assert tokens.cover(Span(4, 7)) == (first, first + 3)


def test_special_tokens_without_a_text_tell_it_apart() -> None:
    bench = Bench(formats.MISTRAL_ARGS, "[TOOL_CALLS]", "[ARGS]", block=4)
    request, _ = bench.ask("Hm.[TOOL_CALLS]now[ARGS]{}[TOOL_CALLS]get_weather[ARGS]{}")
    assert (request.text, calls_of(request)) == ("Hm.", [("now", "{}", ""), ("get_weather", "{}", "")])


def test_reasoning_comes_first() -> None:
    written = f"<think>I could call <tool_call>.</think>\n{CALL}"
    request, _ = Bench(formats.HERMES, block=7).ask(written)
    report = request.report()
    assert (report.reasoning, report.text) == ("I could call <tool_call>.", "")
    assert [call.name for call in report.tool_calls] == ["get_weather"]


def test_a_reply_without_calls_is_as_ever() -> None:
    request, inbox = Bench(formats.HERMES, block=3).ask("It is <b>fine</b>.")
    assert (request.text, request.finish_reason) == ("It is <b>fine</b>.", "stop")
    assert not any(chunk.tool_calls for chunk in inbox.chunks)


def test_without_tools_nothing_is_looked_for() -> None:
    request, _ = Bench(formats.HERMES).ask(CALL, tools=None)
    assert (request.text, request.finish_reason) == (CALL, "stop")


def test_stop_strings_are_not_looked_for_in_a_call() -> None:
    params = SamplingParams(stop=("city", "!"))
    request, _ = Bench(formats.HERMES, block=5).ask(f"{CALL}No! More.", params=params)
    assert (request.text, request.finish_reason) == ("No", "tool_calls")


def test_a_reply_that_is_cut_off_keeps_what_was_written() -> None:
    params = SamplingParams(max_tokens=55)
    request, inbox = Bench(formats.HERMES, block=5).ask(CALL, params=params)
    assert request.finish_reason == "length"
    (call,) = request.report().tool_calls
    assert call.problem == "cut_off" and '{"city": "Röm"}'.startswith(call.arguments)
    assert inbox.chunks[-1].tool_calls[-1].done


def test_one_call_is_enough() -> None:
    tools = Tools(TOOLS.tools, parallel=False)
    request, inbox = Bench(formats.HERMES, block=7).ask(CALL * 3, tools=tools)
    assert (request.finish_reason, len(calls_of(request))) == ("tool_calls", 1)
    assert len(inbox.token_ids) < len(CALL.encode()) + 8


def test_a_model_whose_history_holds_one_call_a_message_makes_no_two() -> None:
    request, _ = Bench(formats.ONE_CALL + formats.HERMES, block=7).ask(CALL * 3)
    assert (request.finish_reason, len(calls_of(request))) == ("tool_calls", 1)


def test_a_template_that_takes_no_tools_is_named_before_anything_is_decoded() -> None:
    bench = Bench(formats.NO_TOOLS)
    _, inbox = bench.ask("Hm.")
    (error,) = inbox.errors
    assert isinstance(error, PromptError) and "takes no tools" in str(error)
    assert bench.target.forwards == 0
    assert bench.ask("Hm.", tools=None)[0].text == "Hm."


def test_results_are_read_and_what_was_written_is_still_cached() -> None:
    bench = Bench(formats.HERMES, block=7)
    first, _ = bench.ask(f"Hm. {CALL}", session="a")
    (call,) = first.report().tool_calls
    history: list[Message] = [
        *ASKED,
        {"role": "assistant", "content": "Hm. ", "tool_calls": [call.message()]},
        {"role": "tool", "content": "22 <tool_call>", "tool_call_id": call.id},
    ]
    second, _ = bench.ask("Warm.", history, session="a")
    assert second.text == "Warm."
    prompt = bench.tokenizer.decode(bench.ids(check_messages(history), TOOLS))
    assert f"assistant: Hm. {CALL}" in prompt.replace("\\u00f6", "ö")
    assert second.reused >= first.prompt_length + len("Hm. ")
    assert second.messages[-1].get("name") == "get_weather"


def test_control_tokens_in_calls_and_results_stay_text() -> None:
    bench = Bench(formats.HERMES, "<|eot|>")
    control = bench.tokenizer.convert_tokens_to_ids("<|eot|>")
    function: Any = {"name": "now", "arguments": '{"<|eot|>": "<|eot|>"}'}
    messages: list[Message] = [
        {"role": "user", "content": "x"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "1", "type": "function", "function": function}],
        },
        {"role": "tool", "content": "<|eot|>", "tool_call_id": "1"},
    ]
    ids = bench.ids(check_messages(messages), TOOLS)
    assert control not in ids and bench.tokenizer.decode(ids).count("<|eot|>") == 3


@pytest.mark.parametrize(
    ("message", "why"),
    [
        ({"role": "user", "content": "", "tool_calls": [{}]}, "in an assistant's message"),
        ({"role": "assistant", "content": "", "tool_calls": [{}]}, "needs an id and a function"),
        (
            {"role": "assistant", "tool_calls": [{"id": 1, "function": {"name": "a"}}]},
            "the id of a call must be a text",
        ),
        ({"role": "tool", "content": "1", "tool_call_id": 3}, "tool_call_id must be a text"),
        ({"role": "tool", "content": None}, "needs a role"),
    ],
)
def test_messages_with_calls_are_checked(message: Any, why: str) -> None:
    with pytest.raises(PromptError, match=why):
        check_messages([{"role": "user", "content": "x"}, message])


def test_tools_are_given_once() -> None:
    bench = Bench(formats.HERMES)
    encode = bench.core.admission.prompts.encode
    with pytest.raises(PromptError, match="given twice"):
        encode(ASKED, 9999, {"tools": []}, TOOLS)


def test_none_tells_the_model_of_no_tools_and_rules_a_call_out() -> None:
    bench = Bench(formats.HERMES)
    tools = Tools(TOOLS.tools, "none")
    request, inbox = bench.ask(f"So. {CALL}", tools=tools, params=SamplingParams(max_tokens=40))
    assert "<tool_call>" not in inbox.text and inbox.text.startswith("So. <tool_call")
    assert request.prompt_length == len(bench.ids(ASKED, None))


@pytest.mark.parametrize(
    "template", [formats.HERMES, formats.LLAMA, formats.MISTRAL, formats.MISTRAL_ARGS, formats.PHI]
)
@pytest.mark.parametrize(("choice", "parallel"), [("required", False), ("now", True)])
@pytest.mark.parametrize("tags", [(), ("<tool_call>", "</tool_call>", "<|tool_call|>", "[ARGS]")])
def test_a_call_can_be_required(
    template: str, choice: str, parallel: bool, tags: tuple[str, ...]
) -> None:
    pytest.importorskip("llguidance")
    days: dict[str, Any] = {"type": "object", "properties": {"day": {"enum": ["Mo", "Tu"]}}}
    days |= {"required": ["day"], "additionalProperties": False}
    tools = Tools((Tool("get_weather", "", days), Tool("now", "", days)), choice, parallel)
    bench = Bench(template, "[TOOL_CALLS]", tags=tags, block=3, eager=0.0)
    request, _ = bench.ask("No, never.", tools=tools, params=SamplingParams(max_tokens=160))
    calls = request.report().tool_calls
    assert request.text == "" and calls
    ids = {i for tag in tags if tag in template for i in bench.tokenizer.encode(tag)}
    assert not ids or ids & set(request.sequence.token_ids[request.prompt_length :])
    whole = [call for call in calls if call.problem != "cut_off"]
    assert whole
    assert {json.loads(call.arguments)["day"] for call in whole} <= {"Mo", "Tu"}
    assert {call.name for call in whole} <= ({"now"} if choice == "now" else {"now", "get_weather"})
    assert all(call.problem == "" for call in whole)


@pytest.mark.parametrize(
    "template", [formats.HERMES, formats.LLAMA_32, formats.MISTRAL, formats.MISTRAL_ARGS, formats.PHI]
)
def test_a_reply_with_a_schema_may_be_calls_or_that(template: str) -> None:
    pytest.importorskip("llguidance")
    schema = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}
    params = SamplingParams(max_tokens=120, grammar=Grammar("json_schema", json.dumps(schema)))
    bench = Bench(template, "[TOOL_CALLS]", block=3, eager=30.0)
    request, _ = bench.ask('{"sum": 12}', params=params)
    assert (request.text, request.finish_reason) == ('{"sum": 12}', "stop")
    arguments = '{"city": "Rome"}'
    written = {
        formats.LLAMA_32: f'{{"name": "get_weather", "parameters": {arguments}}}',
        formats.MISTRAL: f'[TOOL_CALLS][{{"name": "get_weather", "arguments": {arguments}}}]',
        formats.MISTRAL_ARGS: f"[TOOL_CALLS]get_weather[ARGS]{arguments}",
        formats.PHI: f'<|tool_call|>[{{"name": "get_weather", "arguments": {arguments}}}]<|/tool_call|>',
    }.get(template, CALL.replace("Röm", "Rome"))
    request, _ = bench.ask(written, params=params)
    assert calls_of(request)[:1] == [("get_weather", arguments, "")] and request.text == ""
    request, _ = bench.ask("No, never.", params=params)
    assert request.text == "" or request.text.startswith("{")


@pytest.mark.parametrize(
    ("template", "grammar", "why"),
    [
        (formats.QWEN_CODER, Grammar("json_schema", "{}"), "no grammar for the calls"),
        (formats.HERMES, Grammar("regex", "a+"), "a regex grammar can't be joined"),
    ],
)
def test_a_grammar_that_would_rule_out_calls_is_refused(
    template: str, grammar: Grammar, why: str
) -> None:
    pytest.importorskip("llguidance")
    given = SamplingParams(grammar=grammar)
    _, inbox = Bench(template).ask("x", params=given)
    (error,) = inbox.errors
    assert isinstance(error, SamplingError) and why in str(error) and "tool_choice" in str(error)
    without = Tools(TOOLS.tools, "none")
    assert not Bench(template).ask("a", tools=without, params=given)[1].errors


@pytest.mark.parametrize(
    ("template", "params", "why"),
    [
        (formats.QWEN_CODER, {}, "no grammar for the calls"),
        (formats.GLM, {}, "no grammar for the calls"),
        (formats.HERMES + "<think>\n", {}, "leaves no room for the reasoning"),
        (formats.HERMES, {"grammar": True}, "can't have another one"),
    ],
)
def test_what_cannot_be_required_is_refused(template: str, params: dict[str, Any], why: str) -> None:
    given = SamplingParams(grammar=Grammar("regex", "a")) if params else SamplingParams()
    bench = Bench(template)
    _, inbox = bench.ask("x", tools=Tools(TOOLS.tools, "required"), params=given)
    (error,) = inbox.errors
    assert isinstance(error, SamplingError) and why in str(error)
    assert bench.target.forwards == 0


@pytest.mark.parametrize("where", ["tool", "reply"])
def test_the_schema_that_cannot_be_used_is_named(where: str) -> None:
    pytest.importorskip("llguidance")
    bad = {"type": "object", "properties": {"a": {"type": "string", "pattern": "(?<x"}}}
    tools = Tools((Tool("fine"), Tool("bad", "", bad)), "required") if where == "tool" else TOOLS
    grammar = None if where == "tool" else Grammar("json_schema", json.dumps(bad))
    _, inbox = Bench(formats.HERMES).ask("x", tools=tools, params=SamplingParams(grammar=grammar))
    (error,) = inbox.errors
    begin = "the parameters of tool bad: " if where == "tool" else ""
    assert str(error).startswith(f"{begin}the json_schema grammar can't be used: ")
    assert "unclosed capture group" in str(error) and "call_0" not in str(error)


@pytest.mark.parametrize("where", ["tool", "reply"])
@pytest.mark.parametrize(("number", "taken"), [("5", False), ("5.25", True)])
def test_a_schema_beside_tools_is_kept_as_it_is_alone(where: str, number: str, taken: bool) -> None:
    llguidance = pytest.importorskip("llguidance")
    bounds = {"type": "number", "exclusiveMinimum": 5, "maximum": 5.5}
    schema = {"type": "object", "properties": {"a": bounds}, "required": ["a"]}
    text = f'{{"a": {number}}}'
    tools, params = (
        Tools((Tool("g"),)),
        SamplingParams(grammar=Grammar("json_schema", json.dumps(schema))),
    )
    if where == "tool":
        tools, params = Tools((Tool("g", "", schema),), "required"), SamplingParams()
        text = f'<tool_call>\n{{"name": "g", "arguments": {text}}}\n</tool_call>'
    form = CallFormat({"<tool_call>": "</tool_call>"})
    grammar = with_choice(params, tools, form, None).grammar
    assert grammar is not None
    vocabulary = llguidance.LLTokenizer("byte")
    matcher = llguidance.LLMatcher(vocabulary, compiled(grammar))
    tokens = vocabulary.tokenize_str(text)
    assert (matcher.try_consume_tokens(tokens) == len(tokens)) == taken


def test_a_number_of_a_tool_that_cannot_be_kept_is_refused() -> None:
    pytest.importorskip("llguidance")
    big = {"type": "object", "properties": {"a": {"const": 2**60 + 1}}}
    tools = Tools((Tool("fine"), Tool("big", "", big)), "required")
    _, inbox = Bench(formats.HERMES).ask("x", tools=tools)
    (error,) = inbox.errors
    assert str(error).startswith("the parameters of tool big: ") and "53 bits" in str(error)


def test_required_without_llguidance_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    _, inbox = Bench(formats.HERMES).ask("x", tools=Tools(TOOLS.tools, "required"))
    (error,) = inbox.errors
    assert isinstance(error, SamplingError) and "pip install" in str(error)
