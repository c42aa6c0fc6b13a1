"""Barge-ins: cancel and truncate in any order, at any time, as often as a client likes."""

import re
from random import Random

import pytest

from specstream.realtime.resources import Word
from specstream.realtime.wire import SAMPLE_RATE, Refused
from specstream.server.sessions.entries import ConversationItems, ItemEntry, SpokenTrack
from specstream.testing import ScriptedEngine
from specstream.text.tags import spoken_text
from specstream.types import Span, Speech
from tests.server.doubles import WORDS, HandClock, Stand, wait_for

WORD_MS = 200  # a word of `WordVoice`


def a_spoken_reply(random: Random) -> tuple[ItemEntry, list[int]]:
    """Words, tags and punctuation at random; some phrases without word marks, some with gaps.

    Also the lengths that the text may be cut to: behind each word and what clings to it.
    """
    text, words, tags, at = "", [], [], 0
    for _ in range(random.randrange(1, 12)):
        if random.random() < 0.2:
            tags.append(Span(len(text), len(text) + len("[smile]")))
            text += "[smile]" + random.choice(["", " "])
        word = "".join(random.choice("abcdef") for _ in range(random.randrange(1, 6)))
        length = random.randrange(1, 9000)
        words.append((word, Span(at, at + length), Span(len(text), len(text) + len(word))))
        at += length + random.choice([0, 0, random.randrange(1, 5000)])
        text += word + random.choice([" ", ", ", ". ", '." ', "\n\n", "! ["])
    track = SpokenTrack(tags)
    marks = [Word(text=text, samples=samples, chars=chars) for text, samples, chars in words]
    whole = Speech(b"", SAMPLE_RATE, Span(0, at), (), Span(0, len(text)), Span(0, 1), 0, last=True)
    track.add(marks if random.random() < 0.8 else [], whole, Span(0, at), text)
    track.sent = at
    ends = [0, *(found.end() for found in re.finditer(r"[a-f]+[^\s\[a-f]*", text))]
    return ItemEntry("item", "assistant", text, spoken=track), ends


def barge_in(conversation: ConversationItems, samples: int, *, cancelled: bool) -> None:
    """What a cancel or a client's truncation does to the item."""
    if cancelled:
        conversation.get("item").cut_to(samples)
    else:
        conversation.truncate("item", 0, samples * 1000 // SAMPLE_RATE)


@pytest.mark.parametrize("seed", range(20))
def test_a_cut_is_a_prefix_that_ends_at_a_word_and_never_grows(seed: int) -> None:
    random = Random(seed)
    for _ in range(40):
        entry, ends = a_spoken_reply(random)
        assert entry.spoken is not None
        written, said = entry.text, spoken_text(entry.text, entry.spoken.tags)
        conversation = ConversationItems(entries=[entry])
        for _ in range(random.randrange(2, 8)):
            before, sent = entry.text, entry.spoken.sent
            samples = random.randrange(sent + 1)
            cancelled = random.random() < 0.3
            barge_in(conversation, samples, cancelled=cancelled)
            cut = entry.text
            assert before.startswith(cut)
            assert entry.spoken.sent <= sent
            assert cut == before or len(cut) in ends, (written, cut)
            assert said.startswith(spoken_text(cut, entry.spoken.tags).rstrip())
            barge_in(conversation, samples, cancelled=cancelled)
            assert entry.text == cut, "the same cut twice is one cut"


def test_marks_beyond_the_text_cut_nothing_that_is_not_there() -> None:
    track = SpokenTrack()
    marks = [
        Word(text="b", samples=Span(50, 60), chars=Span(900, 901)),
        Word(text="a", samples=Span(10, 20), chars=Span(0, 1)),
    ]
    speech = Speech(b"", SAMPLE_RATE, Span(0, 60), (), Span(0, 3), Span(0, 1), 0, last=True)
    track.add(marks, speech, Span(0, 60), "a b")
    assert [track.cut("a b", at) for at in (0, 20, 60)] == [0, 1, 3]


def test_a_form_that_is_several_words_is_heard_with_the_last_of_them() -> None:
    text = "It is $5.50, (555) now."
    spoken = [("It", 0, 2), ("is", 3, 5), *((word, 6, 11) for word in ("five", "dollars", "fifty"))]
    spoken += [("five", at, at + 1) for at in (14, 15, 16)] + [("now", 19, 22)]
    track = SpokenTrack()
    marks = [
        Word(text=word, samples=Span(10 * at, 10 * at + 10), chars=Span(start, end))
        for at, (word, start, end) in enumerate(spoken)
    ]
    speech = Speech(b"", SAMPLE_RATE, Span(0, 90), (), Span(0, 23), Span(0, 1), 0, last=True)
    track.add(marks, speech, Span(0, 90), text)
    heard = [text[: track.cut(text, at)] for at in range(10, 100, 10)]
    assert heard == [
        "It", "It is", "It is", "It is", "It is $5.50,",
        "It is $5.50, (5", "It is $5.50, (55", "It is $5.50, (555)", text,
    ]  # fmt: skip


@pytest.mark.parametrize("seed", range(12))
async def test_barge_ins_over_a_socket_leave_the_session_whole(seed: int) -> None:
    """Cancel, truncate, and truncate again inside the same gap between two words."""
    random, clock = Random(seed), HandClock()
    stand = Stand(ScriptedEngine([WORDS]), clock=clock)
    async with stand.running(), stand.client() as wire:
        for _ in range(4):
            await wire.ask("Hi")
            wanted = random.randrange(1, 40) * 1200
            sent, item = 0, ""
            clock.advance(60.0)  # what came before has been played
            while sent < wanted:
                event = await wire.next()
                assert event["type"] != "error", event
                if event["type"] == "response.output_audio.delta":
                    sent, item = event["specstream"]["samples"][1], event["item_id"]
            played = random.randrange(sent * 1000 // SAMPLE_RATE + 1)
            if random.random() < 0.7:
                await wire.send("response.cancel")
            end = min(played, random.randrange(1, 4) * WORD_MS)
            for ms in (played, played, max(end, played - random.randrange(WORD_MS)), 0):
                await wire.truncate(item, ms)
                await wire.send("conversation.item.retrieve", item_id=item)
            await wire.send("conversation.item.delete", item_id=item)
            seen: list[str] = []
            while (event := await wire.next())["type"] != "conversation.item.deleted":
                if event["type"] == "error":  # what was played already is past what was left
                    assert event["error"]["code"] == "invalid_value", event
                elif event["type"] == "conversation.item.retrieved":
                    seen.append(event["item"]["content"][0]["transcript"])
            assert len(seen) == 4
            assert all(WORDS.startswith(text) and not text.endswith(" ") for text in seen)
            assert [len(text) for text in seen] == sorted(map(len, seen), reverse=True)
            assert seen[0] == seen[1]
            assert seen[3] == ""
        await wait_for(lambda: stand.voices[-1].speaking == 0)


def test_a_refused_cut_changes_nothing() -> None:
    entry, _ = a_spoken_reply(Random(3))
    assert entry.spoken is not None
    before = entry.text
    with pytest.raises(Refused):
        ConversationItems(entries=[entry]).truncate("item", 0, entry.spoken.sent)
    assert entry.text == before
