"""Where the words lie between the samples."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from pipecat_specstream.word_cutter import WordCutter
from specstream import Chunk, Pipeline, Span, Speech
from specstream.stages import SegmentStage, VoiceStage
from specstream.testing import ScriptedVoice

RATE = 10_000


async def pieces_of(reply: str, *, language: str = "") -> tuple[list, list[Speech]]:
    """What the cutter makes of a scripted voice's words of 1000 samples each."""
    voice = ScriptedVoice(word_ms=100, sample_rate=RATE)
    if language:
        object.__setattr__(voice.capabilities, "language", language)

    async def chunks():
        yield Chunk(reply, (), Span(0, 0), Span(0, len(reply)), finish_reason="stop")

    words, pieces, speeches = WordCutter(), [], []
    async with Pipeline([[VoiceStage(voice)]], head=SegmentStage()).run(chunks()) as events:
        async for event in events:
            if isinstance(event.item, Speech):
                speeches.append(event.item)
                pieces += words.add(event.item, reply)
    pieces += words.close(reply)
    return pieces, speeches


class VoiceMarks:
    """Speech whose word marks (start and end in the text, and in samples) come with the first piece."""

    def __init__(self, reply: str, words: list[tuple[int, int, int, int]]) -> None:
        self.reply, self.end = reply, words[-1][3]
        self.marks = tuple(
            SimpleNamespace(kind="word", text=reply[a:b], samples=Span(start, end), chars=Span(a, b))
            for a, b, start, end in words
        )

    def pieces(self, size: int) -> list[tuple[str, int]]:
        words, pieces = WordCutter(), []
        where = (Span(0, len(self.reply)), Span(0, 0), 0)
        for start in range(0, self.end, size):
            end = min(start + size, self.end)
            marks = self.marks if not start else ()
            pcm = bytes(2 * (end - start))
            speech = Speech(pcm, RATE, Span(start, end), marks, *where, last=end == self.end)
            pieces += words.add(speech, self.reply)
        return text_at(pieces)


def text_at(pieces: list) -> list[tuple[str, int]]:
    """Each text, and how many samples come before it."""
    said, samples = [], 0
    for piece in pieces:
        if isinstance(piece, str):
            said.append((piece, samples))
        else:
            samples += len(piece) // 2
    return said


async def test_a_word_comes_at_its_middle_with_its_punctuation():
    pieces, speeches = await pieces_of("Well, yes. (No!)")
    # The voice gives a mark with the buffer (of 600 samples) that its word ends in.
    assert text_at(pieces) == [("Well,", 600), (" yes.", 1800), (" (No!)", 2600)]
    audio = b"".join(piece for piece in pieces if isinstance(piece, bytes))
    assert audio == b"".join(speech.pcm for speech in speeches)


def test_a_mark_that_comes_in_time_is_cut_in_the_middle():
    marks = VoiceMarks("Well, yes.", [(0, 4, 0, 100), (6, 9, 120, 200)])
    assert marks.pieces(60) == [("Well,", 50), (" yes.", 160)]


async def test_a_form_of_several_words_counts_as_one():
    pieces, _ = await pieces_of("It is $5.50 now.", language="en")
    said = text_at(pieces)
    assert "".join(text for text, _ in said) == "It is $5.50 now."
    (at,) = [at for text, at in said if text == " $5.50"]
    spoken = 5  # "five dollars and fifty cents"
    assert at == 2000 + 1000 * spoken // 2


@pytest.mark.parametrize(
    "reply",
    [
        "At 7:30 a table for 3. Dr. Smith, of St. Ives, comes too!",
        "**Bold** and `code`, a [link](https://example.org) – and more…",
        "First.\n\n- one\n- two\n\nLast [smile] line.",
        "… ",
    ],
)
async def test_all_pieces_are_the_reply(reply: str):
    pieces, _ = await pieces_of(reply, language="en")
    assert "".join(piece for piece in pieces if isinstance(piece, str)) == reply
