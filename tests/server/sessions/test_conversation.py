"""The conversation's items, what was heard of them, and the transcript."""

import json
import re
from random import Random
from typing import Any

import pytest

from specstream.realtime.items import parse_input
from specstream.realtime.protocol import ItemCreate, parse_client_event
from specstream.realtime.resources import Item, Part, Word
from specstream.realtime.wire import Refused
from specstream.server.sessions.entries import MAX_ITEMS, ConversationItems, ItemEntry, SpokenTrack
from specstream.testing import chunks_of
from specstream.text.segmenter import Segmenter
from specstream.text.tags import SpokenText, spoken_text
from specstream.types import Span, Speech

USER = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]}


def create(conversation: ConversationItems, text: str, after: str | None = None, **item: Any) -> str:
    content = [{"type": "input_text", "text": text}]
    created = {"type": "conversation.item.create", "item": {**USER, "content": content, **item}}
    event = parse_client_event(json.dumps(created))
    assert isinstance(event, ItemCreate)
    entry, _ = conversation.create(event.item, after)
    return entry.id


def test_items_stand_where_they_were_put() -> None:
    conversation = ConversationItems()
    first = create(conversation, "one")
    create(conversation, "three")
    create(conversation, "two", after=first, id="my-item")
    create(conversation, "zero", after="root", role="system")
    read = conversation.messages("Be kind.")
    assert [m["content"] for m in read] == ["Be kind.", "zero", "one", "two", "three"]
    assert [m["role"] for m in read] == ["system", "system", "user", "user", "user"]
    assert conversation.before(conversation.get("my-item")) == first
    conversation.delete(first)
    assert [m["content"] for m in conversation.messages("")] == ["zero", "two", "three"]
    items = parse_input([{"type": "item_reference", "id": "my-item"}, USER])
    assert [m["content"] for m in conversation.messages("", items)] == ["two", "Hi"]
    for refused in (
        lambda: create(conversation, "x", id="my-item"),
        lambda: create(conversation, "x", after="nowhere"),
        lambda: conversation.delete(first),
        lambda: conversation.get(first),
        lambda: conversation.messages("", parse_input([{"type": "item_reference", "id": "?"}])),
        lambda: parse_input([{"type": "message"}]),
    ):
        with pytest.raises(Refused):
            refused()


def put(conversation: ConversationItems, kind: str, call: str, after: str | None = None) -> str:
    fields = {"output": "5"} if kind == "function_call_output" else {"name": kind, "arguments": "{}"}
    item = {"type": "function_call" if "name" in fields else kind, "call_id": call, **fields}
    event = parse_client_event(json.dumps({"type": "conversation.item.create", "item": item}))
    assert isinstance(event, ItemCreate)
    return conversation.create(event.item, after)[0].id


def test_an_output_follows_its_call_and_each_call_has_one() -> None:
    conversation = ConversationItems()
    first = put(conversation, "look", "0")
    with pytest.raises(Refused, match="without an output"):
        put(conversation, "hear", "0")
    with pytest.raises(Refused, match="not found in conversation"):
        put(conversation, "function_call_output", "0", after="root")
    put(conversation, "function_call_output", "0", after=first)
    with pytest.raises(Refused, match="already"):
        put(conversation, "function_call_output", "0")
    put(conversation, "hear", "0")  # by a model that counts from 0 in every reply
    put(conversation, "function_call_output", "0")
    read = conversation.messages("")
    names = [m.get("name") or [call["function"]["name"] for call in m["tool_calls"]] for m in read]
    assert names == [["look"], "look", ["hear"], "hear"]
    output = {"type": "function_call_output", "call_id": "7", "output": "5"}
    with pytest.raises(Refused) as caught:
        conversation.messages("", parse_input([USER, output]))
    assert caught.value.param == "response.input[1].call_id"


def test_a_conversation_is_bounded() -> None:
    conversation = ConversationItems(entries=[ItemEntry(str(i), "user", "x") for i in range(MAX_ITEMS)])
    with pytest.raises(Refused) as caught:
        create(conversation, "one too many")
    assert caught.value.code == "conversation_full"


TEXT = 'He said: "Hello, world!" [smile] And left... at 5.'


def spoken_entry(*, words: bool) -> ItemEntry:
    """Each word takes 1000 samples; two phrases, the tag belongs to the second."""
    tags = [Span(25, 32)]
    track = SpokenTrack(tags)
    entry = ItemEntry("item", "assistant", TEXT, spoken=track)
    at = 0
    for chars in (Span(0, 25), Span(25, len(TEXT))):
        start = at
        marks = []
        for word in TEXT[chars.start : chars.end].replace("[smile]", "       ").split():
            place = TEXT.index(word.strip('.,:"!'), chars.start)
            bare = Span(place, place + len(word.strip('.,:"!')))
            marks.append(Word(text=word, samples=Span(at, at + 1000), chars=bare))
            at += 1000
        speech = Speech(b"", 24000, Span(start, at), (), chars, Span(0, 0), 0, last=True)
        track.add(marks if words else [], speech, Span(start, at), TEXT)
    track.sent = at
    return entry


@pytest.mark.parametrize(
    ("samples", "kept"),
    [
        (0, ""),
        (999, ""),
        (1000, "He"),
        (2000, "He said:"),
        (2999, "He said:"),
        (3000, 'He said: "Hello,'),
        (4000, 'He said: "Hello, world!"'),
        (5999, 'He said: "Hello, world!" [smile] And'),
        (6000, 'He said: "Hello, world!" [smile] And left...'),
        (8000, TEXT),
    ],
)
def test_a_cut_keeps_the_words_that_were_heard(samples: int, kept: str) -> None:
    entry = spoken_entry(words=True)
    entry.cut_to(samples)
    assert entry.text == kept
    shown = entry.wire()
    assert isinstance(shown, Item)
    assert shown.content == [Part(type="output_audio", transcript=kept.replace("[smile] ", ""))]
    entry.cut_to(8000)
    assert entry.text == kept, "a cut is not undone"


def test_without_word_marks_a_cut_is_estimated_and_never_grows() -> None:
    lengths = []
    for samples in range(0, 8001, 100):
        entry = spoken_entry(words=False)
        entry.cut_to(samples)
        assert TEXT.startswith(entry.text)
        lengths.append(len(entry.text))
    assert lengths == sorted(lengths)
    assert (lengths[0], lengths[-1]) == (0, len(TEXT))
    assert len(set(lengths)) == 9  # eight words, one by one


def test_truncation_is_refused_where_it_makes_no_sense() -> None:
    entry = spoken_entry(words=True)
    conversation = ConversationItems(entries=[entry, ItemEntry("typed", "assistant", "Hi")])
    cases = {
        ("nowhere", 0, 10): "item_truncate_invalid_item_id",
        ("typed", 0, 10): "unsupported_content_type",
        ("item", 1, 10): "unsupported_content_type",
        ("item", 0, 334): "invalid_value",
    }
    for (item_id, index, ms), code in cases.items():
        with pytest.raises(Refused) as caught:
            conversation.truncate(item_id, index, ms)
        assert caught.value.code == code
    conversation.truncate("item", 0, 333)
    assert entry.text == TEXT.removesuffix(" 5.")  # 7992 samples: the last word was cut off


@pytest.mark.parametrize(
    ("text", "spoken"),
    [
        ("Hello [smile] there.", "Hello there."),
        ("[smile] Hello.", "Hello."),
        ("Hello[nod] there.", "Hello there."),
        ("Hello.[nod][wave] Bye.", "Hello. Bye."),
        ("Hello. [nod] [wave]  Bye.", "Hello. Bye."),
        ("One.\n\n[nod]\nTwo.", "One.\n\nTwo."),
        ("Bye [wave]", "Bye "),
        ("x[0] stays.", "x[0] stays."),
    ],
)
def test_tags_leave_no_gap(text: str, spoken: str) -> None:
    tags = [Span(*found.span()) for found in re.finditer(r"\[[a-z]+\]", text)]
    assert spoken_text(text, tags) == spoken


def test_a_cut_does_not_take_a_tag_for_punctuation() -> None:
    text = "Hello,[smile] world."
    track = SpokenTrack([Span(6, 13)])
    words = [
        Word(text="Hello", samples=Span(0, 10), chars=Span(0, 5)),
        Word(text="world", samples=Span(10, 20), chars=Span(14, 19)),
    ]
    speech = Speech(b"", 24000, Span(0, 20), (), Span(0, 20), Span(0, 1), 0, last=True)
    track.add(words, speech, Span(0, 20), text)
    assert [text[: track.cut(text, at)] for at in (9, 10, 19, 20)] == ["", "Hello,", "Hello,", text]


def test_a_transcript_does_not_depend_on_the_cuts_and_comes_in_time() -> None:
    texts = [
        "Hello [smile] there. [wave] Bye[nod]. An array[3] and [not a tag](http://x.y) stay.",
        "[laugh] [sigh] Well. [a] [",
        "No tags at all.",
    ]
    random = Random(5)
    for text in texts * 30:
        chunks = chunks_of(text, [random.randrange(1, 4) for _ in range(40)])
        segmenter, speaker = Segmenter(), SpokenText[int]()
        said, phrases = [], []
        for chunk in chunks:
            said += speaker.add(chunk.text, chunk.round)
            for phrase in segmenter.add(chunk):
                phrases.append(phrase)
                said += speaker.learn(phrase)
                due = spoken_text(text[: phrase.chars.end], speaker.tags)
                assert "".join(text for text, _, _ in said).startswith(due)
        for phrase in segmenter.close():
            phrases.append(phrase)
            said += speaker.learn(phrase)
        said += speaker.close()
        tags = [tag.chars for phrase in phrases for tag in phrase.tags]
        whole = "".join(text for text, _, _ in said)
        assert whole == spoken_text(text, tags)
        assert [word for phrase in phrases for word in phrase.spoken.split()] == whole.split()
        ends = [span.end for _, span, _ in said]
        assert ends == sorted(ends)
