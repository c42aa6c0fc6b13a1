"""Recognises the format in which a model writes calls, by its chat template and never by its name."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from specstream.engine.prompt import template_variables
from specstream.errors import PromptError

__all__ = ["CallFormat", "format_of"]

# Openers of calls with their closing tags ("": none). Hermes, Qwen and SmolLM write JSON between
# <tool_call> tags, Qwen3-Coder and GLM other tags; Granite and Phi-4 write <|tool_call|>.
_TAGS = {
    "<tool_call>": "</tool_call>",
    "<|tool_call|>": "<|/tool_call|>",
    "<function=": "",
    "[TOOL_CALLS]": "",
    "<|python_tag|>": "",
}
_OTHER_MARKS = ("</tool_call>", "<|/tool_call|>", "[CALL_ID]", "[ARGS]")
_EXAMPLE = [{"type": "function", "function": {"name": "f", "description": "", "parameters": {}}}]


@dataclass(frozen=True, slots=True)
class CallFormat:
    """The format of one model's calls.

    Attributes:
        openers: Texts that begin a call, each with its closing tag; "" if it has none.
        bare: Whether a reply may be a call without an opener, from its first brace on (Llama 3).
        markers: Special tokens among openers and other marks, which decode to no text, by id.
        template: The chat template from which the format was recognised.
        tokens: Marks that a grammar has to name as a token, with its id. Those that aren't special
            decode to their text, so they are not among ``markers``.
    """

    openers: dict[str, str]
    bare: bool = False
    markers: dict[int, str] = field(default_factory=dict)
    template: str = ""
    tokens: dict[str, int] = field(default_factory=dict)


def format_of(tokenizer: Any) -> CallFormat:
    """Return the call format of the tokenizer's model.

    Raises:
        PromptError: the chat template takes no tools, or its format of calls isn't known here.
    """
    name = getattr(tokenizer, "name_or_path", "") or "the target"
    if not getattr(tokenizer, "chat_template", None):
        raise PromptError(f"{name} has no chat template, so it can't be told of tools")
    try:
        template = str(tokenizer.get_chat_template(tools=_EXAMPLE))
    except ValueError as error:
        raise PromptError(f"{name} has no chat template for tools: {error}") from error
    if "tools" not in template_variables(template):
        raise PromptError(
            f"the chat template of {name} takes no tools: take a model that was trained to call them"
        )
    openers = {mark: end for mark, end in _TAGS.items() if mark in template}
    # Llama 3.1 has the tag and the bare form; 3.2 only describes and repeats the bare form.
    described = '{"name": ' in template and '"parameters": ' in template
    bare = "<|python_tag|>" in openers or (described and not openers)
    if not openers and not bare:
        raise PromptError(
            f"the chat template of {name} takes tools, but how the model writes calls isn't known: "
            f"it has none of {', '.join(_TAGS)}"
        )
    added = getattr(tokenizer, "added_tokens_decoder", {})
    marks = {*_TAGS, *_OTHER_MARKS}
    markers = {i: t.content for i, t in added.items() if t.special and t.content in marks}
    if bare and "<|python_tag|>" in markers.values():
        openers["<|python_tag|>"] = ""
    # llguidance takes an added token that looks like a tag for a special one, declared or not.
    tokens = {
        t.content: i
        for i, t in added.items()
        if t.content in marks and (t.special or t.content[0] + t.content[-1] == "<>")
    }
    return CallFormat(openers, bare, markers, template, tokens)
