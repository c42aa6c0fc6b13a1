"""Messages to token ids, through the model's own chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from specstream.engine.turns import render_turns
from specstream.errors import PromptError
from specstream.types import Message

__all__ = ["check_messages", "encode_messages"]

_ROLES = ("system", "user", "assistant", "tool")


def check_messages(messages: Sequence[Message] | str) -> list[Message]:
    """Copy and check messages; a plain string is one user turn.

    Raises:
        PromptError: nothing is said, or a message has no known role or no text.
    """
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    if not isinstance(messages, Sequence) or isinstance(messages, bytes):
        raise PromptError(f"a prompt is a text or a list of messages, not {messages!r}")
    checked: list[Message] = []
    for number, message in enumerate(messages):
        given = message if isinstance(message, Mapping) else {}
        role, content = given.get("role"), given.get("content")
        if role not in _ROLES or not isinstance(content, str):
            raise PromptError(
                f"message {number} needs a role ({', '.join(_ROLES)}) and a text content"
            )
        try:
            content.encode()
        except UnicodeEncodeError:
            raise PromptError(f"message {number} is not valid Unicode: half a surrogate") from None
        checked.append({"role": role, "content": content})
    if not any(message["content"].strip() for message in checked if message["role"] != "system"):
        raise PromptError("the prompt is empty: say something")
    return checked


def encode_messages(tokenizer: Any, messages: list[Message], context_length: int) -> list[int]:
    """The ids that the model reads before it writes its turn.

    A tokenizer without a chat template belongs to a base model: it gets the contents, line by line.

    Raises:
        PromptError: the template refuses the messages, or they leave no room for a reply.
    """
    try:
        if getattr(tokenizer, "chat_template", None):
            text = render_turns(
                lambda said: tokenizer.apply_chat_template(
                    said, add_generation_prompt=True, tokenize=False
                ),
                messages,
            )
            ids = tokenizer.encode(text, add_special_tokens=False)
        else:
            ids = tokenizer.encode("\n".join(message["content"] for message in messages))
    except Exception as error:
        raise PromptError(f"the model's chat template refuses these messages: {error}") from error
    if not ids:
        raise PromptError("the prompt is empty: say something")
    if len(ids) >= context_length:
        raise PromptError(
            f"the prompt has {len(ids)} tokens and the model's context {context_length}; shorten it"
        )
    return [int(i) for i in ids]
