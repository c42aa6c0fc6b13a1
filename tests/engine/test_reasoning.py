"""Reasoning told apart from the reply, token by token, however the text is dealt out."""

import pickle
import random
from collections.abc import Sequence

import pytest
from tokenizers import AddedToken

from specstream.engine.core.reasoning import Reasoning, ReasoningTag, markers_of, opened_by
from tests.support.tiny import byte_tokenizer

CASES = [
    # written, reasoning, reply
    ("<think>\nHm, 2 < 3.\n</think>\n\nYes.", "Hm, 2 < 3.\n", "Yes."),
    ("\n <think>a</think>b", "a", "\n b"),
    ("<thinking>a</think> b</thinking>c", "a</think> b", "c"),
    ("<reasoning>a</reasoning>b", "a", "b"),
    ("[THINK]a[/THINK]b [THINK]c[/THINK]", "a", "b [THINK]c[/THINK]"),
    ("<seed:think>a</seed:think>b", "a", "b"),
    ("<think>a </thi", "a </thi", ""),  # never closed
    ("<think>", "", ""),
    ("<thi", "", "<thi"),
    ("<think></think>\n\nb", "", "b"),
    ("<b>no</b>", "", "<b>no</b>"),
    ("Write `<think>x</think>`.", "", "Write `<think>x</think>`."),
    ("<think>a</think>Write `<think>x</think>`.", "a", "Write `<think>x</think>`."),
    ("  spaces  ", "", "  spaces  "),
    ("", "", ""),
]


def split(pieces: Sequence[str], reader: Reasoning) -> tuple[str, str]:
    reply = "".join(reader.add(piece) for piece in pieces) + reader.finish()
    return reader.text, reply


def reading(opened: ReasoningTag | None = None, stops: Sequence[str] = ()) -> Reasoning:
    return Reasoning({}, opened, stops)


@pytest.mark.parametrize(("written", "thought", "reply"), CASES)
def test_a_reply_is_split(written: str, thought: str, reply: str) -> None:
    assert split([written], reading()) == (thought, reply)


@pytest.mark.parametrize("opened", [None, ReasoningTag("<think>", "</think>")])
def test_any_chunking_gives_the_same_split(opened: ReasoningTag | None) -> None:
    rng = random.Random(5)
    bits = ["<think>", "</think>", "[THINK]", "[/THINK]", "<thi", "nk>", "</", "<", ">", "\n", " "]
    bits += ["ink>", "Hello", "é", "</think", "<thinking>", "</thinking>", "."]
    for _ in range(3000):
        written = "".join(rng.choices(bits, k=rng.randrange(9)))
        whole = split([written], reading(opened))
        cuts = sorted(rng.choices(range(len(written) + 1), k=rng.randrange(6)))
        pieces = [written[a:b] for a, b in zip([0, *cuts], [*cuts, len(written)])]
        assert split(pieces, reading(opened)) == whole, (written, pieces)
        assert split(list(written), reading(opened)) == whole, written


def test_a_template_that_opens_the_span_is_heard() -> None:
    assert opened_by("<|Assistant|><think>\n") == ReasoningTag("<think>", "</think>")
    assert opened_by("<|im_start|>assistant\n<think>\n\n</think>\n\n") is None
    assert opened_by("<|im_start|>assistant\n") is None
    reader = reading(opened_by("x<think>\n"))
    assert split(["so", "\n</thi", "nk>\n", "\nIt is."], reader) == ("so\n", "It is.")


def test_a_stop_string_that_lies_in_a_tag_is_looked_for_and_not_the_tag() -> None:
    assert split(["<", "think>a</think>b"], reading(stops=["\n<"])) == ("", "<think>a</think>b")
    assert reading(stops=["<"]).add("<") == "<"
    assert split(["<think>a</think>b"], reading(stops=["</", "."])) == ("a", "b")


def test_tokens_are_counted_once_it_is_known_what_they_are() -> None:
    reader = reading()
    for piece in ("\n", "<", "think", ">", "so", "</think>", "\n"):
        reader.add(piece)
    assert (reader.tokens, reader.end) == (6, 7)
    reader.add("")  # half a character
    reader.add("é")
    reader.add("")
    assert (reader.tokens, reader.end) == (6, 7)
    other = reading()
    for piece in ("<", "b>", "x"):
        other.add(piece)
    assert (other.tokens, other.end) == (0, 0)


def test_it_can_be_left_in_the_reply() -> None:
    written = "<think>a</think>b"
    assert split([written], Reasoning(None, ReasoningTag("<think>", "</think>"))) == ("", written)


def special(*names: str, hidden: bool = True) -> tuple[dict[int, str], dict[str, int]]:
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens([AddedToken(n, special=hidden) for n in names], special_tokens=hidden)
    vocabulary = tokenizer.get_vocab()
    return markers_of(tokenizer), {name: vocabulary[name] for name in names}


def play(markers: dict[int, str], ids: dict[str, int], *tokens: str) -> tuple[str, str, list[bool]]:
    """Special tokens have no text. Also: which tokens were known to be none of the reply at once."""
    reader, reply, aside = Reasoning(markers), "", list[bool]()
    for number, token in enumerate(tokens, 1):
        reply += reader.add("" if token in ids else token, ids.get(token, -1))
        aside.append(reader.end == number)
    assert reader.tokens == sum(aside)
    reply += reader.finish()
    return reader.text, reply, aside


def test_special_tokens_open_a_span_anywhere() -> None:
    markers, ids = special("[THINK]", "[/THINK]")
    thought, reply, aside = play(
        markers, ids, "[THINK]", "a", "[/THINK]", "\n", "b ", "[THINK]", "c", "[/THINK]", " d"
    )
    assert (thought, reply) == ("a\n\nc", "b  d")
    assert aside == [True, True, True, True, False, True, True, True, False]


def test_a_tag_that_is_an_ordinary_token_counts_as_text() -> None:
    """Some models have a token for ``<think>`` that is part of the text: an answer may mention it."""
    markers, _ = special("<think>", "</think>", hidden=False)
    assert markers == {}


def test_channels_other_than_the_final_one_are_reasoning() -> None:
    names = ("<|channel|>", "<|message|>", "<|start|>", "<|end|>")
    markers, ids = special(*names)
    channel, message, start, end = names
    thought, reply, aside = play(
        markers, ids, channel, "analysis", message, "User asks.", end, start, "assistant", channel,
        "comment", "ary", message, "Let me see.", end, start, "assistant", channel, "final",
        message, "It is <think>.",
    )  # fmt: skip
    assert thought == "User asks.\n\nLet me see."
    assert reply == "It is <think>."
    assert aside == [True] * 17 + [True, False]
    assert play(markers, ids, "Straight", " on")[:2] == ("", "Straight on")
    assert play(markers, ids, channel, "analysis", message, "never ends")[:2] == ("never ends", "")


def test_a_header_that_never_ends_takes_no_room() -> None:
    markers, ids = special("<|channel|>", "<|message|>")
    reader = Reasoning(markers)
    reader.add("", ids["<|channel|>"])
    for _ in range(1000):
        assert reader.add("word ") == ""
    assert len(pickle.dumps(reader)) < 1_000


def test_an_end_that_the_model_shares_with_others_is_no_channel() -> None:
    assert special("<|end|>", "<|start|>")[0] == {}
