"""A preview is the text that its tokens will be: no more, and never what isn't the reply's."""

import random
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from specstream.drafting.proposal import Proposal
from specstream.engine.core.output import ReplyOutput
from specstream.engine.core.proposing import preview, previews
from specstream.engine.core.reasoning import Reasoning
from specstream.engine.core.request import Request
from specstream.engine.tools.calls import Calls
from specstream.engine.tools.formats import CallFormat
from specstream.types import Preview, SamplingParams
from tests.engine.test_reasoning_in_loop import WRITTEN, written
from tests.engine.tools.formats import TOOLS
from tests.support.tiny import EOS, byte_tokenizer

TOKENIZER = byte_tokenizer()
PIECES = ["ab", " b", "é", "日本", "🙂", "<think>", "</think>\n", ". ", "so", "s"]
CALL = '<tool_call>{"name": "now"}</tool_call>'


def request_of(stops: tuple[str, ...], *, tools: bool) -> Request:
    calls = Calls(CallFormat({"<tool_call>": "</tool_call>"}), TOOLS) if tools else None
    output = ReplyOutput(TOKENIZER, stops, Reasoning({}, stops=stops), calls)
    params = SamplingParams(stop=stops)
    sequence = SimpleNamespace(generated=0, eos_ids={EOS}, params=params)
    parts = {"sequence": sequence, "output": output, "stats": SimpleNamespace(rounds=4)}
    return cast(Request, SimpleNamespace(**parts, elapsed_ms=lambda: 0.0))


def commit(request: Any, token: int) -> str:
    request.sequence.generated += 1
    text: str = request.output.add(token)
    request.output.text += text
    return text


@pytest.mark.parametrize("tools", [False, True])
def test_it_says_what_the_tokens_will_say_if_they_stand(tools: bool) -> None:
    rng = random.Random(3)
    seen = 0
    for _ in range(150):
        words = rng.choices([*PIECES, CALL] if tools else PIECES, k=8)
        ids = [*TOKENIZER.encode("".join(words), add_special_tokens=False), EOS]
        stops = tuple(rng.sample(["so", "b.", "é日"], rng.randrange(2)))
        request, alone = request_of(stops, tools=tools), request_of(stops, tools=tools)
        at = 0
        while at < len(ids) - 1 and not request.output.stopped:
            proposed = ids[at : at + rng.randint(1, 30)]
            shown = preview(request, Proposal(torch.tensor(proposed)), proposed)
            texts = ""
            for token in proposed[: shown.tokens.length if shown else rng.randint(1, 4)]:
                if token == EOS or request.output.stopped:
                    break
                texts += commit(request, token)
                assert request.output.decoded.startswith(alone.output.decoded)
                commit(alone, token)
                at += 1
            assert request.output.text == alone.output.text, "a preview changes nothing"
            if shown is not None:
                seen += 1
                assert shown.text == texts and not request.output.stopped
                assert shown.chars.end == len(request.output.text)
                assert shown.ends[-1] == len(request.output.replied)
                assert (shown.tokens.end, shown.round) == (request.sequence.generated, 4)
                assert "tool_call" not in shown.text
    assert seen > 200


def test_of_a_tree_it_shows_the_first_children() -> None:
    request = request_of((), tools=False)
    a, b, c, d = TOKENIZER.encode("abcd", add_special_tokens=False)
    ids = [a, d, b, d, c]
    (shown,) = previews([(request, Proposal(torch.tensor(ids), parents=(-1, -1, 0, 0, 2)))])
    assert shown is not None
    assert (shown.text, shown.token_ids, shown.ends) == ("abc", (a, b, c), (1, 2, 3))
    assert previews([(request, Proposal.empty())]) == [None]
    assert previews([(request, Proposal(torch.tensor([EOS, a])))]) == [None]


def test_the_loop_sends_them_to_who_asked_and_only_the_reply() -> None:
    request, inbox = written(WRITTEN, block=5, previews=True)
    drafted = [item for item in inbox.items if isinstance(item, Preview)]
    assert drafted and all(request.text[slice(*item.chars)] == item.text for item in drafted)
    rounds = [item.round for item in inbox.chunks]
    assert [item.round for item in drafted] == [n for n in rounds if n in {d.round for d in drafted}]
    plain, other = written(WRITTEN, block=5)
    assert not any(isinstance(item, Preview) for item in other.items)
    assert [c.token_ids for c in other.chunks] == [c.token_ids for c in inbox.chunks]
    assert plain.text == request.text
