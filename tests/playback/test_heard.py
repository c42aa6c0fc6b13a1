"""How much of a reply was heard, through Markdown, tags and figures spoken as several words."""

import re
from dataclasses import replace
from random import Random

import pytest

from specstream.playback.played import PlayedTrack
from specstream.stages.stages import VoiceStage
from specstream.types import Mark, Phrase, Span, Speech
from tests.support.standins import RATE, ToneVoice, feed, phrases_of


def piece(
    marks: list[tuple[str, Span, Span]], samples: Span, chars: Span, *, last: bool = True
) -> Speech:
    words = tuple(Mark("word", *mark) for mark in marks)
    return Speech(b"", RATE, samples, words, chars, Span(0, 1), 0, last)


def track_of(speech: Speech, text: str, tags: tuple[Span, ...] = ()) -> PlayedTrack:
    track = PlayedTrack(tags)
    track.add(speech.marks, speech, speech.samples, text)
    return track


def test_characters_spoken_as_several_words_were_heard_once_the_last_of_these_was() -> None:
    text = "Pay $5 now."
    five, dollars = Span(300, 600), Span(600, 900)
    marks = [
        ("Pay", Span(0, 300), Span(0, 3)),
        ("five", five, Span(4, 6)),
        ("dollars", dollars, Span(4, 6)),
        ("now", Span(900, 1200), Span(7, 10)),
    ]
    track = track_of(piece(marks, Span(0, 1200), Span(0, len(text))), text)
    heard = [text[: track.cut(text, at)] for at in (0, 299, 300, 600, 899, 900, 1199, 1200)]
    assert heard == ["", "", "Pay", "Pay", "Pay", "Pay $5", "Pay $5", "Pay $5 now."]


def test_a_form_whose_words_are_not_all_known_yet_was_not_heard() -> None:
    """A voice that is barely faster than speech marks a word as it ends."""
    text = "It costs $5.50 today."
    form = Span(9, 14)
    words = [
        ("It", Span(0, 100), Span(0, 2)),
        ("costs", Span(100, 200), Span(3, 8)),
        ("five", Span(200, 300), form),
        ("dollars", Span(300, 400), form),
        ("and", Span(400, 500), form),
        ("fifty", Span(500, 600), form),
        ("today", Span(600, 700), Span(15, 20)),
    ]
    track, heard = PlayedTrack(), []
    for word in words:
        speech = piece([word], word[1], Span(0, len(text)), last=False)
        track.add(speech.marks, speech, speech.samples, text)
        heard.append(text[: track.cut(text, word[1].end)])
    assert heard == ["It", *["It costs"] * 5, text], (
        "as far as they are written, words are heard at once"
    )
    assert [text[: track.cut(text, at)] for at in (500, 600)] == ["It costs", "It costs $5.50"]


@pytest.mark.parametrize("known", [True, False])
def test_of_a_form_of_which_a_process_has_given_half_another_counts_nothing(known: bool) -> None:
    text = "It costs $5.50 today."
    form = Span(9, 14)
    words = [("It", Span(0, 100), Span(0, 2)), ("costs", Span(100, 200), Span(3, 8))]
    words += [("five", Span(200, 300), form), ("dollars", Span(300, 400), form)]
    first, second = PlayedTrack(), PlayedTrack()
    now = piece(words[: 4 if known else 3], Span(0, 300), Span(0, len(text)), last=False)
    first.add(now.marks, now, now.samples, text)
    assert [first.half_given(at) for at in (0, 100, 200, 300, 399)] == [None, None, None, 9, 9]
    second.restore(first.words[:3])
    second.half = first.half_given(300)
    assert text[: second.cut(text, 300)] == "It costs"
    again = [("five", Span(300, 400), form), ("dollars", Span(400, 500), form)]
    for word in [*again, ("and", Span(500, 600), form), ("fifty", Span(600, 700), form)]:
        assert text[: second.cut(text, word[1].start)] == "It costs"
        speech = piece([word], word[1], Span(9, len(text)), last=False)
        second.add(speech.marks, speech, speech.samples, text)
        assert text[: second.cut(text, word[1].end)] == "It costs", "more of it may come"
    rest = piece([("today", Span(700, 800), Span(15, 20))], Span(700, 800), Span(9, len(text)))
    second.add(rest.marks, rest, rest.samples, text)
    cuts = [text[: second.cut(text, at)] for at in (300, 699, 700, 800)]
    assert cuts == ["It costs", "It costs", "It costs $5.50", text]


def test_words_spoken_in_another_order_than_they_are_written_count_once_all_were_heard() -> None:
    text = "$5 now"
    marks = [
        ("five", Span(0, 100), Span(1, 2)),
        ("dollars", Span(100, 200), Span(0, 1)),
        ("now", Span(200, 300), Span(3, 6)),
    ]
    track = track_of(piece(marks, Span(0, 300), Span(0, 6)), text)
    assert [track.cut(text, at) for at in (100, 199, 200, 300)] == [0, 0, 2, 6]


def test_a_word_that_is_rounded_to_end_behind_the_audio_was_heard_with_it() -> None:
    text = "One two. Three"
    track = PlayedTrack()
    for speech in (
        piece([("One", Span(0, 300), Span(0, 3)), ("two", Span(300, 640), Span(4, 7))],
              Span(0, 400), Span(0, 9), last=False),
        piece([], Span(400, 600), Span(0, 9)),
    ):  # fmt: skip
        track.add(speech.marks, speech, speech.samples, text)
    assert [track.cut(text, at) for at in (299, 300, 599, 600)] == [0, 3, 3, 8]


@pytest.mark.parametrize(
    ("written", "heard"),
    [
        ("This is **very bold** text.", ["This", "This is", "This is **very", "This is **very bold**"]),
        ("[smile] Well, [nods] good day.", ["[smile] Well,", "[smile] Well, [nods] good"]),
        ("Read [the page](http://x.y/z) now.", ["Read", "Read [the", "Read [the page](http://x.y/z)"]),
        ("# Title\n\n- one\n- two", ["# Title", "# Title\n\n- one", "# Title\n\n- one\n- two"]),
        ("Use `a.b` well.", ["Use", "Use `a.b`", "Use `a.b` well."]),
    ],
)  # fmt: skip
async def test_the_cut_is_in_the_text_as_the_model_wrote_it(written: str, heard: list[str]) -> None:
    tags = tuple(tag for phrase in phrases_of(written) for tag in phrase.tags)
    whole = Phrase(written, Span(0, len(written)), Span(0, 1), 0, tags)
    track = PlayedTrack([tag.chars for tag in tags])
    ends = []
    for speech in await feed(VoiceStage(ToneVoice()), [whole]):
        words = [mark for mark in speech.marks if mark.kind == "word"]
        track.add(words, speech, speech.samples, written)
        ends += [mark.samples.end for mark in words]
    cuts = [written[: track.cut(written, at)] for at in ends]
    assert cuts[: len(heard)] == heard
    assert track.cut(written, ends[0] - 1) == 0


@pytest.mark.parametrize("said", ["Oui, merci beaucoup.", "Oui.", "Yes, thank y**."])
async def test_a_phrase_of_another_text_was_heard_as_a_whole(said: str) -> None:
    """A translation; with as many characters, each stands for its own."""
    reply = "[nods] Yes. Yes, thank you. Good."
    first, second, third = phrases_of(reply)
    assert second.text == "Yes, thank you. "
    track = PlayedTrack([tag.chars for tag in first.tags])
    cuts, ends = [], []
    changed = [first, replace(second, text=said + " "), third]
    for speech in await feed(VoiceStage(ToneVoice()), changed):
        words = [mark for mark in speech.marks if mark.kind == "word"]
        track.add(words, speech, speech.samples, reply)
        ends += [mark.samples.end for mark in words if speech.chars == second.chars]
        if speech.chars == second.chars:
            cuts.append(reply[: track.cut(reply, speech.samples.end)].rstrip())
    heard = {"[nods] Yes.", "[nods] Yes. Yes, thank you."}
    if len(said) == second.chars.length - 1:
        heard |= {"[nods] Yes. Yes,", "[nods] Yes. Yes, thank"}
    assert set(cuts) == heard
    before, after = (reply[: track.cut(reply, end)].rstrip() for end in (max(ends) - 1, max(ends)))
    assert (before in heard, after) == (True, "[nods] Yes. Yes, thank you.")


def test_text_without_spaces_was_heard_up_to_the_end_of_its_phrase() -> None:
    text = "今天天气很好。我们去公园散步吧。"
    first = piece([("今天", Span(0, 100), Span(0, 2))], Span(0, 800), Span(0, 7))
    track = track_of(first, text)
    assert track.cut(text, 800) == 7
    second = piece([("我们", Span(800, 900), Span(7, 9))], Span(800, 1600), Span(7, 16))
    track.add(second.marks, second, second.samples, text)
    assert [track.cut(text, at) for at in (800, 900)] == [7, 16]


@pytest.mark.parametrize("tag", ["[nods] Yes.", "Yes [nods] or no."])
async def test_a_phrase_of_another_text_keeps_its_tags(tag: str) -> None:
    (phrase,) = phrases_of(tag)
    speeches = await feed(VoiceStage(ToneVoice()), [replace(phrase, text="Oui, je dis oui.")])
    kinds = [mark.kind for speech in speeches for mark in speech.marks if mark.kind != "phoneme"]
    assert kinds == ["tag", *["word"] * 4]
    kept = replace(phrase, text="[nods] Oui, je dis oui.")  # as a translator may leave it
    speeches = await feed(VoiceStage(ToneVoice()), [kept])
    words = [m.text for speech in speeches for m in speech.marks if m.kind == "word"]
    assert words == ["Oui,", "je", "dis", "oui."]


@pytest.mark.parametrize("seed", range(8))
def test_no_unheard_word_is_ever_inside_the_cut(seed: int) -> None:
    random = Random(seed)
    for _ in range(50):
        text = " ".join("w" * random.randrange(1, 7) for _ in range(random.randrange(1, 12)))
        marks, at = [], 0
        for word in re.finditer(r"\S+", text):
            for _ in range(random.choice([1, 1, 2, 3])):  # spoken as several words
                end = at + random.randrange(1, 900)
                marks.append((word[0], Span(at, end), Span(*word.span())))
                at = end
        track = track_of(piece(marks, Span(0, at), Span(0, len(text))), text)
        cuts = []
        for samples in sorted(random.randrange(at + 1) for _ in range(12)):
            cut = track.cut(text, samples)
            cuts.append(cut)
            assert not [m for m in marks if m[1].end > samples and m[2].start < cut]
            missed = [m for m in marks if m[1].end <= samples and m[2].end > cut]
            assert len({m[2] for m in missed}) <= 1, "at most the word that is half heard"
        assert cuts == sorted(cuts)


def test_a_phrase_without_marks_counts_no_faster_than_a_slow_voice_until_its_length_is_known() -> None:
    text = "one two three four five six"
    chars = Span(0, len(text))
    begun = piece([], Span(0, RATE), chars, last=False)
    track = track_of(begun, text)
    assert text[: track.cut(text, RATE)] == "one two"  # ten characters a second at most
    end = Span(RATE, 2 * RATE)
    track.add((), piece([], end, chars), end, text)
    assert text[: track.cut(text, RATE)] == "one two three"
    assert track.cut(text, 2 * RATE) == len(text)


def test_speech_that_begins_earlier_replaces_what_was_there() -> None:
    text = "one two"
    first = piece([("one", Span(0, 100), Span(0, 3))], Span(0, 100), Span(0, 4))
    old = piece([("two", Span(100, 200), Span(4, 7))], Span(100, 200), Span(4, 7))
    new = piece([("TWO", Span(100, 900), Span(4, 7))], Span(100, 900), Span(4, 7))
    track = track_of(first, text)
    for speech in (old, new):
        track.add(speech.marks, speech, speech.samples, text)
    assert [track.cut(text, at) for at in (100, 200, 900)] == [3, 3, 7]
