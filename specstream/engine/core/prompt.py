"""Checks messages and their tool calls, and encodes them with the model's own chat template."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, lru_cache
from typing import Any, NamedTuple, TypeVar, cast

from specstream.checks import meant
from specstream.engine.core.controls import ControlTokens
from specstream.engine.core.reasoning import ReasoningTag, opened_by
from specstream.errors import ModelBroken, PromptError, PromptTooLong
from specstream.tools import CallMessage, Tools, json_copy
from specstream.types import Message, RawPrompt

__all__ = [
    "RAW",
    "EncodedPrompt",
    "PromptEncoder",
    "check_messages",
    "checked_calls",
    "checked_text",
    "for_template",
    "raw_tokens",
    "template_variables",
    "texts_of",
]


def checked_calls(given: Mapping[str, Any], number: int, before: Sequence[Message]) -> Message:
    """Return a copy of a message whose tool calls, or whose reference to a call, are checked.

    Args:
        given: The message as the caller wrote it; its ``role`` and ``content`` are checked already.
        number: The message's index, for error texts.
        before: The messages before it, which hold the call, and so the tool's name, behind a result.

    Raises:
        PromptError: a call or a result doesn't have the shape of the OpenAI API.
    """
    message: Message = {"role": given["role"], "content": given.get("content") or ""}
    if given.get("tool_calls"):
        if given["role"] != "assistant" or not isinstance(given["tool_calls"], Sequence):
            raise PromptError(f"message {number}: tool_calls are a list in an assistant's message")
        message["tool_calls"] = [_call(call, number) for call in given["tool_calls"]]
    if given["role"] == "tool":
        if (call_id := given.get("tool_call_id")) is not None:
            message["tool_call_id"] = checked_text(call_id, f"message {number}: tool_call_id")
        name = given.get("name") or _name_of(call_id, before)
        if name:
            message["name"] = checked_text(name, f"message {number}: name")
    return message


def _call(given: Any, number: int) -> CallMessage:
    function = given.get("function") if isinstance(given, Mapping) else None
    if not isinstance(function, Mapping) or given.get("type", "function") != "function":
        raise PromptError(
            f"message {number}: a tool call needs an id and a function with name and arguments"
        )
    arguments = function.get("arguments", {})
    what = f"message {number}: arguments"
    if isinstance(arguments, Mapping):
        arguments = json_copy(arguments, what)
    else:
        arguments = checked_text(arguments, what)
    return {
        "id": checked_text(given.get("id"), f"message {number}: the id of a call"),
        "type": "function",
        "function": {
            "name": checked_text(function.get("name"), f"message {number}: the name of a call"),
            "arguments": arguments,
        },
    }


def checked_text(value: object, what: str) -> str:
    """Return ``value`` if it is a text that a tokenizer can encode.

    Raises:
        PromptError: ``what``, the name of the value, is no text, or not valid Unicode.
    """
    if not isinstance(value, str):
        raise PromptError(f"{what} must be a text, not {value!r:.80}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise PromptError(f"{what} is not valid Unicode: half a surrogate") from None
    return value


def _name_of(call_id: Any, messages: Sequence[Message]) -> str:
    calls = [call for message in messages for call in message.get("tool_calls", ())]
    return next((call["function"]["name"] for call in calls if call["id"] == call_id), "")


def for_template(messages: Sequence[Message], *, wrapped: bool = False) -> list[Message]:
    """Parse the arguments of calls into objects, since chat templates serialise them themselves.

    Those that aren't a JSON object stay text; ``wrapped``: that text is the one argument of an object.
    """
    return [
        {**m, "tool_calls": [_parsed(call, wrapped) for call in m["tool_calls"]]}
        if m.get("tool_calls") else m for m in messages
    ]  # fmt: skip


def _parsed(call: CallMessage, wrapped: bool) -> CallMessage:
    function, arguments, parsed = call["function"], call["function"]["arguments"], None
    if isinstance(arguments, str):
        with suppress(ValueError, RecursionError):
            parsed = json.loads(arguments) if arguments.strip() else {}
        if isinstance(parsed, dict):
            arguments = parsed
        elif wrapped:
            arguments = {"arguments": arguments}
    return {**call, "function": {**function, "arguments": arguments}}


def texts_of(message: Message) -> Iterator[str]:
    """Yield the texts of a message whose length is unbounded: its content and its calls' arguments."""
    yield message["content"]
    for call in message.get("tool_calls", ()):
        arguments = call["function"]["arguments"]
        yield arguments if isinstance(arguments, str) else json.dumps(arguments)


_log = logging.getLogger("specstream.engine")
RAW = "raw"
"""The role of a prompt that is encoded as it is; no caller's message may have it."""
_ROLES = ("system", "user", "assistant", "tool")
_NAME = re.compile(r"[^\W\d]\w*")
R = TypeVar("R", bound=tuple[str, list[int]])
_EXTENSIONS = ["jinja2.ext.loopcontrols"]


def check_messages(messages: Sequence[Message] | RawPrompt | str) -> list[Message]:
    """Copy and check messages; a plain string is one user turn, a raw prompt one of the role `RAW`.

    Raises:
        PromptError: all contents are blank, or a message lacks a known role or a text content, or its
            calls are malformed.
    """
    if isinstance(messages, RawPrompt):
        return [_raw(messages)]
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    if not isinstance(messages, Sequence) or isinstance(messages, bytes):
        raise PromptError(f"a prompt is a text or a list of messages, not {messages!r}")
    checked: list[Message] = []
    for number, message in enumerate(messages):
        given = message if isinstance(message, Mapping) else {}
        role, content = given.get("role"), given.get("content")
        content = "" if content is None and given.get("tool_calls") else content
        if role not in _ROLES or not isinstance(content, str):
            raise PromptError(f"message {number} needs a role ({', '.join(_ROLES)}) and a text content")
        checked_text(content, f"message {number}")
        checked.append(checked_calls(given, number, checked))
    if not any(message["content"].strip() for message in checked):
        raise PromptError("the prompt is empty: say something, or give a system message")
    return checked


def _raw(prompt: RawPrompt) -> Message:
    """A raw prompt as a message that no caller can write; its tokens, if any, are in it as well."""
    text, tokens = checked_text(prompt.text, "a raw prompt"), prompt.tokens
    if not isinstance(tokens, tuple | list) or not all(type(one) is int for one in tokens):
        raise PromptError("the tokens of a raw prompt are whole numbers")
    if not text and not tokens:
        raise PromptError("the prompt is empty: give the model something to go on with")
    if text and tokens:
        raise PromptError("a raw prompt has a text or tokens, not both")
    return cast(Message, {"role": RAW, "content": text, "tokens": list(tokens)})


def raw_tokens(messages: Sequence[Message]) -> list[int]:
    """The tokens of a raw prompt that was given as tokens; else none."""
    return list(cast("dict[str, Any]", messages[0]).get("tokens", ()))


def check_template(name: str, tokenizer: Any) -> None:
    """Refuse a model whose chat template isn't valid Jinja; no template is valid, too.

    What a template refuses by an error of its own, such as a first message of a certain role, depends on
    the messages and is told per request.

    Raises:
        ModelBroken: the template has a syntax error; ``name``, the model's, is in the error.
    """
    from jinja2 import TemplateSyntaxError

    try:
        tokenizer.apply_chat_template([{"role": "user", "content": "Hello"}], tokenize=False)
    except TemplateSyntaxError as error:
        raise ModelBroken(
            f"{name}: its chat template is not valid Jinja: line {error.lineno}: {error.message}"
        ) from None
    except Exception as error:
        _log.debug("%s: its chat template refuses a message of the user: %s", name, error)


class EncodedPrompt(NamedTuple):
    """An encoded prompt.

    Attributes:
        ids: Its token ids.
        opened: Tag of the reasoning span that the chat template opens at the end of the prompt; None if
            it opens none.
        text: The text of a raw prompt that was given as tokens.
    """

    ids: list[int]
    opened: ReasoningTag | None = None
    text: str = ""


class PromptEncoder:
    """Encodes messages for one tokenizer; to be used by one thread only."""

    def __init__(self, tokenizer: Any, *, warns: bool = True) -> None:
        self._tokenizer = tokenizer
        self._warned = not warns

    def encode(
        self,
        messages: list[Message],
        context_length: int,
        options: Mapping[str, Any] | None = None,
        tools: Tools | None = None,
    ) -> EncodedPrompt:
        """Encode the prompt for a reply to ``messages``; ``options`` are the template's variables.

        Control tokens that a message or an option spells are encoded as text. Without a chat template
        (a base model) the prompt is the messages' contents, one per line.

        Raises:
            PromptError: the template refuses the messages or knows no such variable, or they leave
                no room for a reply (`PromptTooLong`).
        """
        options = variables = dict(options or {})
        text = ""  # what the reply goes on with, where that may open a span of reasoning
        if tools is not None:
            if "tools" in options:
                raise PromptError("tools are given twice: leave them out of chat_template_kwargs")
            variables = {**options, "tools": [tool.schema() for tool in tools.tools]}
        templated = bool(getattr(self._tokenizer, "chat_template", None))
        try:
            if messages[0]["role"] == RAW:
                if variables:
                    raise PromptError(f"a raw prompt has no chat template for {sorted(variables)}")
                if tokens := raw_tokens(messages):
                    return self._of_tokens(tokens, context_length)
                text = messages[0]["content"]
                ids = list(self._tokenizer.encode(text))
            elif templated:
                self._check(variables)
                text, ids = _render_calls(
                    lambda said: self._render({"messages": said, "options": variables}), messages
                )
            else:
                ids = self._join(messages, options)
        except PromptError:
            raise
        except Exception as error:
            given = f" with {json.dumps(options)}" if options else ""
            raise PromptError(
                f"the model's chat template refuses these messages{given}: {error}"
            ) from error
        if not ids:
            raise PromptError("the prompt is empty: say something")
        _check_length(ids, context_length)
        return EncodedPrompt([int(i) for i in ids], opened_by(text))

    def _of_tokens(self, ids: list[int], context_length: int) -> EncodedPrompt:
        _check_length(ids, context_length)
        text = str(self._tokenizer.decode(ids, clean_up_tokenization_spaces=False))
        return EncodedPrompt(ids, opened_by(text), text)

    def count(self, text: str) -> int:
        """The number of tokens of a text on its own."""
        return len(self._tokenizer.encode(text, add_special_tokens=False))

    def encode_text(self, text: str) -> list[int]:
        """Encode a text on its own; control tokens spelled in it become ordinary tokens."""
        return self._controls.encode(text)

    def _check(self, options: Mapping[str, Any]) -> None:
        """Refuse a misspelt variable, which Jinja would ignore."""
        template = self._tokenizer.get_chat_template(tools=options.get("tools"))
        names = template_variables(str(template))
        for name in options.keys() - names:
            raise PromptError(f"the model's chat template has no variable {name!r}{meant(name, names)}")

    def _render(self, given: dict[str, Any]) -> tuple[str, list[int]]:
        def template(values: dict[str, Any]) -> str:
            return str(
                self._tokenizer.apply_chat_template(
                    values["messages"], add_generation_prompt=True, tokenize=False, **values["options"]
                )
            )

        if self._controls.spelled_in(given):
            return self._controls.render(given, template)
        text = template(given)
        return text, self._tokenizer.encode(text, add_special_tokens=False)

    def _join(self, messages: list[Message], options: Mapping[str, Any]) -> list[int]:
        if options:
            raise PromptError(f"the model has no chat template, so no use for {sorted(options)}")
        if not self._warned:
            self._warned = True
            _log.warning(
                "the target has no chat template: it reads the messages' contents line by line and "
                "isn't told who said what; for a conversation, take an instruction-tuned model"
            )
        text = "\n".join(message["content"] for message in messages)
        if not self._controls.spelled_in(text):
            return list(self._tokenizer.encode(text))
        return [*self._tokenizer.encode(""), *self._controls.encode(text)]

    @cached_property
    def _controls(self) -> ControlTokens:
        template = getattr(self._tokenizer, "chat_template", None) or ""
        return ControlTokens(self._tokenizer, str(template))


def _check_length(ids: Sequence[int], context_length: int) -> None:
    if len(ids) >= context_length:
        raise PromptTooLong(
            f"the prompt has {len(ids)} tokens and the model's context {context_length}; shorten it"
        )


def _render_calls(render: Callable[[list[Message]], R], messages: list[Message]) -> R:
    """`_render_turns`; arguments that are no object are wrapped if the template refuses them."""
    turns = for_template(messages)
    try:
        return _render_turns(render, turns)
    except Exception:
        if (wrapped := for_template(messages, wrapped=True)) == turns:
            raise
        return _render_turns(render, wrapped)


def _render_turns(render: Callable[[list[Message]], R], messages: list[Message]) -> R:
    """Return ``render(messages)``, or that of a likeness if the chat template refuses the messages.

    An interrupted reply leaves consecutive user turns, which some templates refuse: they are joined by
    newlines. Where the model speaks first, some templates refuse the system messages or leave them out:
    they become a user turn. If nothing helps, the first error is raised.
    """
    alone = not any(message["role"] == "user" for message in messages)
    likeness = _joined(_as_user(messages) if alone else messages)
    try:
        rendered = render(messages)
        if not alone or all(message["content"].strip() in rendered[0] for message in messages):
            return rendered
        return render(likeness)
    except Exception:
        if likeness != messages:
            with suppress(Exception):
                return render(likeness)
        raise


def _as_user(messages: list[Message]) -> list[Message]:
    return [{**m, "role": "user"} if m["role"] == "system" else m for m in messages]


def _joined(messages: list[Message]) -> list[Message]:
    out: list[Message] = []
    for message in messages:
        if out and out[-1]["role"] == message["role"] == "user":
            out[-1] = {"role": "user", "content": f"{out[-1]['content']}\n{message['content']}"}
        else:
            out.append(message)
    return out


@lru_cache(maxsize=8)
def template_variables(template: str) -> frozenset[str]:
    """Return the names of the variables that a template takes from outside."""
    from jinja2 import Environment, TemplateSyntaxError, meta

    try:
        tree = Environment(extensions=_EXTENSIONS).parse(template)
        return frozenset(meta.find_undeclared_variables(tree))
    except TemplateSyntaxError:  # tags that transformers adds to the language
        return frozenset(_NAME.findall(template))
