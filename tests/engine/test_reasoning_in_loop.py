"""Reasoning in the engine's loop: what a chunk, a report and a stop string make of it."""

from typing import Any

import pytest
from tokenizers import AddedToken

from specstream.drafting.proposers.off import OffProposer
from specstream.engine.core.request import Request
from specstream.text.window import TokenMap
from specstream.types import Chunk, SamplingParams, Span
from tests.engine.test_stops_in_loop import Seer
from tests.support.tables import ScriptedRunner
from tests.support.tiny import EOS, Inbox, answered, byte_tokenizer, make_core

WRITTEN = "<think>\nA. B\n</think>\n\nYes. Nö."


def tokenizer(template: str | None = None) -> Any:
    made = byte_tokenizer()
    made.add_special_tokens(
        {"additional_special_tokens": [AddedToken("[THINK]"), AddedToken("[/THINK]")]}
    )
    made.chat_template = template
    return made


def written(
    text: str,
    *,
    block: int = 0,
    template: str | None = None,
    params: SamplingParams | None = None,
    previews: bool = False,
    **options: Any,
) -> tuple[Request, Inbox]:
    """Let the model write ``text``; with a block, as many tokens are proposed a round."""
    made = tokenizer(template)
    target = ScriptedRunner(len(made), eager=100.0)
    target.script = [*made.encode(text, add_special_tokens=False), EOS]
    proposer = Seer(target, block) if block else OffProposer()
    core = make_core(target, made, proposer, **options)
    target.start = len(core.admission.prompts.encode([{"role": "user", "content": "q"}], 99).ids)
    inbox = Inbox()
    inbox.delivery.previews = previews
    request, _ = answered(core, "q", params or SamplingParams(), inbox=inbox)
    assert not inbox.errors
    assert inbox.token_ids == target.script[: len(inbox.token_ids)]
    return request, inbox


@pytest.mark.parametrize("block", [0, 1, 3, 7, 40])
def test_reasoning_is_reported_apart_however_long_the_rounds(block: int) -> None:
    request, inbox = written(WRITTEN, block=block)
    report = request.report()
    assert (report.text, report.reasoning) == ("Yes. Nö.", "A. B\n")
    assert report.finish_reason == "stop" and len(report.token_ids) == len(WRITTEN.encode()) + 1
    assert report.reasoning_tokens == WRITTEN.index("Yes")
    assert report.to_dict()["reasoning"] == "A. B\n"
    assert inbox.text == report.text
    assert "".join(chunk.reasoning for chunk in inbox.chunks) == report.reasoning


@pytest.mark.parametrize("block", [0, 1, 3, 7, 40])
def test_chunks_keep_exact_spans(block: int) -> None:
    _, inbox = written(WRITTEN, block=block)
    check_spans(inbox.chunks, "Yes. Nö.", first=WRITTEN.index("Yes"))


def check_spans(chunks: list[Chunk], reply: str, first: int) -> None:
    tokens, end = TokenMap(), 0
    for chunk in chunks:
        assert chunk.chars == (end, end + len(chunk.text))
        assert len(chunk.ends) == chunk.tokens.length
        end = chunk.chars.end
        tokens.add(chunk)
    assert tokens.cover(Span(0, 4)) == (first, first + 4)  # "Yes." came from these, and no others
    assert tokens.cover(Span(5, 8)) == (first + 5, first + 9)
    assert end == len(reply)


@pytest.mark.parametrize("block", [0, 5])
def test_special_tokens_that_have_no_text_tell_it_apart(block: int) -> None:
    request, inbox = written("[THINK]So.[/THINK]Yes. Nö.", block=block)
    report = request.report()
    assert (report.reasoning, report.text) == ("So.", "Yes. Nö.")
    assert report.reasoning_tokens == 5
    check_spans(inbox.chunks, report.text, first=5)


def test_a_span_that_the_template_has_opened() -> None:
    template = "{{ messages[0].content }}<think>\n"
    request, _ = written("Hm.</think>\nYes.", template=template)
    assert (request.report().reasoning, request.report().text) == ("Hm.", "Yes.")


def test_stop_strings_are_not_looked_for_in_reasoning() -> None:
    request, inbox = written(WRITTEN, params=SamplingParams(stop=(". ",)), block=7)
    assert (request.report().text, request.report().reasoning) == ("Yes", "A. B\n")
    assert len(inbox.token_ids) == WRITTEN.index("Nö")
    assert request.report().finish_reason == "stop"


def test_max_tokens_counts_reasoning_and_an_open_span_is_all_reasoning() -> None:
    request, inbox = written(WRITTEN, params=SamplingParams(max_tokens=15))
    report = request.report()
    assert (report.finish_reason, report.text, report.reasoning) == ("length", "", "A. B\n</")
    assert report.reasoning_tokens == 15
    assert "".join(chunk.reasoning for chunk in inbox.chunks) == report.reasoning


def test_a_tag_within_the_reply_is_text() -> None:
    text = "Write `<think>x</think>`."
    request, _ = written(text)
    assert (request.report().text, request.report().reasoning) == (text, "")


def test_half_a_tag_at_the_end_is_text() -> None:
    request, inbox = written("<thi")
    assert request.report().text == inbox.text == "<thi"
    assert request.report().reasoning_tokens == 0


def test_criteria_see_everything() -> None:
    seen: list[str] = []

    def criterion(ids: list[int], text: str) -> bool:
        seen.append(text)
        return text.endswith("B")

    request, _ = written(WRITTEN, params=SamplingParams(stop_when=(criterion,)))
    assert seen[-1] == "<think>\nA. B"
    assert request.report().reasoning == "A. B"


def test_it_can_be_switched_off() -> None:
    request, _ = written(WRITTEN, reasoning="text")
    assert (request.report().text, request.report().reasoning) == (WRITTEN, "")
