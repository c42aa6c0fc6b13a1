"""The script of a turn: it tiles the audio in order, whatever marks there are and whenever."""

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from specstream.errors import AdapterFailed, ConfigError
from specstream.types import PAUSE, AvatarCue, Mark, Span, Speech
from specstream_adapters.avatar import VisemeScripter
from specstream_adapters.avatar.directions import ARKIT_SHAPES, CLOSURES, VISEMES

RATE = 16_000
FRAME = RATE * 40 // 1000
SOUNDS = "p b m f v t d k s z ʃ tʃ θ n l ɹ h ʔ aɪ oʊ ə iː uː ɑː ˈɛ ən".split()
VOWELS = {"aa", "E", "I", "O", "U"}


def ms(value: float) -> int:
    return round(RATE * value / 1000)


def tone(samples: int, loud: float = 0.3, hertz: float = 200.0) -> bytes:
    wave = np.sin(np.arange(samples) * 2 * math.pi * hertz / RATE) * loud * 32767
    return wave.astype("<i2").tobytes()


def cut(
    marks: Sequence[Mark],
    total: int,
    rng: random.Random,
    *,
    start: int = 0,
    phrase: int = 0,
    size: tuple[int, int] = (1, 2000),
    pcm: bytes | None = None,
    late: bool = False,
    ahead: int = FRAME,
) -> list[Speech]:
    """One phrase in pieces; a mark comes with the piece that it begins in, or when it ends (``late``).

    A tag comes with the word that follows it, or at the end. ``ahead``: marks come so much earlier.
    """
    pcm = tone(total - start) if pcm is None else pcm
    chars, tokens = Span(100 * phrase, 100 * phrase + 100), Span(20 * phrase, 20 * phrase + 20)
    pieces, at, left = [], start, sorted(marks, key=lambda m: (m.samples.end, m.samples.start))
    ends = sorted(m.samples for m in marks if m.kind == "word")

    def known_at(mark: Mark) -> int:
        if mark.kind == "tag":
            words = [w for w in ends if w.start >= mark.samples.start]
            if not words:
                return total + 1
            mark = replace(mark, samples=words[0])
        return mark.samples.end if late else mark.samples.start + 1 - ahead

    while at < total:
        end = min(total, at + rng.randint(*size))
        due = [m for m in left if known_at(m) <= end]
        left = [m for m in left if m not in due]
        data = pcm[2 * (at - start) : 2 * (end - start)]
        pieces.append(Speech(data, RATE, Span(at, end), tuple(due), chars, tokens, phrase))
        at = end
    last = Speech(b"", RATE, Span(total, total), tuple(left), chars, tokens, phrase, last=True)
    return [*pieces, last]


def random_phrase(rng: random.Random, start: int, phrase: int) -> tuple[list[Mark], int]:
    """Words of random sounds, some very short, with pauses and tags between."""
    marks: list[Mark] = []
    at, char = start, 100 * phrase
    for _ in range(rng.randint(1, 8)):
        if rng.random() < 0.3:
            pause = ms(rng.choice([5, 60, 400, 1500]))
            marks.append(Mark("phoneme", PAUSE, Span(at, at + pause), Span(char, char)))
            at += pause
        if rng.random() < 0.2:
            marks.append(Mark("tag", rng.choice(["smile", "nod"]), Span(at, at), Span(char, char)))
        begin, chars = at, Span(char, char + 4)
        for sound in rng.choices(SOUNDS, k=rng.randint(1, 7)):
            length = ms(rng.choice([3, 15, 30, 60, 90, 200]))
            marks.append(Mark("phoneme", sound, Span(at, at + length), chars))
            at += length
        marks.append(Mark("word", "bumf", Span(begin, at), chars))
        char += 5
    return marks, at


def play(pieces: Sequence[Speech], patience_ms: float = 0.0) -> list[AvatarCue]:
    """All cues of a turn; none may come after the piece that it begins in."""
    track = VisemeScripter(patience_ms=patience_ms).open(RATE)
    cues: list[AvatarCue] = []
    for piece in pieces:
        made = track.add(piece)
        for cue in made:
            assert patience_ms or cue.samples.start >= piece.samples.start
        cues += made
        if not patience_ms and piece.pcm:
            mouth = next(cue for cue in reversed(cues) if cue.kind == "viseme")
            assert mouth.samples.end >= piece.samples.end  # it is covered
    return cues + list(track.close())


def turn(
    rng: random.Random,
    cuts: random.Random,
    *,
    kinds: str = "phoneme word tag",
    late: bool = False,
    ahead: int = FRAME,
) -> tuple[list[Speech], int]:
    pieces: list[Speech] = []
    at = 0
    for phrase in range(rng.randint(1, 4)):
        marks, end = random_phrase(rng, at, phrase)
        pcm = bytearray(tone(end - at))
        for mark in marks:
            if mark.text == PAUSE:
                a, b = 2 * (mark.samples.start - at), 2 * (mark.samples.end - at)
                pcm[a:b] = bytes(b - a)
        if "word" not in kinds:  # then a tag stands at the end
            marks = [replace(m, samples=Span(end, end)) if m.kind == "tag" else m for m in marks]
        marks = [mark for mark in marks if mark.kind in kinds.split()]
        pieces += cut(marks, end, cuts, start=at, phrase=phrase, pcm=bytes(pcm), late=late, ahead=ahead)
        at = end
    return pieces, at


def visemes(cues: Sequence[AvatarCue]) -> list[AvatarCue]:
    """The mouth's cues as a player has them: one that begins earlier takes back what is behind it.

    Slices of one sound are joined.
    """
    out: list[AvatarCue] = []
    for cue in (cue for cue in cues if cue.kind == "viseme"):
        at = cue.samples.start
        out = [c for c in out if c.samples.start < at]
        if out and out[-1].samples.end > at:
            out[-1] = lasting(out[-1], at)
        if not cue.samples.length:
            continue
        if out and (out[-1].name, out[-1].sound, out[-1].weights, out[-1].tokens) == (
            *(cue.name, cue.sound, cue.weights, cue.tokens),
        ):
            out[-1] = lasting(out[-1], cue.samples.end)
        else:
            out.append(cue)
    return out


def lasting(cue: AvatarCue, end: int) -> AvatarCue:
    samples = Span(cue.samples.start, end)
    return replace(cue, samples=samples, duration_ms=samples.length * 1000 / RATE)


def check_tiling(cues: Sequence[AvatarCue], total: int) -> None:
    track = visemes(cues)
    assert track[0].samples.start == 0
    assert track[-1].samples.end == total
    assert all(a.samples.end == b.samples.start for a, b in pairwise(track))
    for cue in [*track, *(c for c in cues if c.kind != "viseme")]:
        assert cue.t_ms == cue.samples.start * 1000 / RATE
        assert cue.duration_ms == cue.samples.length * 1000 / RATE
        assert 0.0 < cue.weight <= 1.0 or cue.name == "sil"
        assert set(cue.weights) <= set(ARKIT_SHAPES)
        assert all(0.0 <= w <= 1.0 for w in cue.weights.values())
        if cue.kind == "viseme":
            assert cue.name in VISEMES


@pytest.mark.parametrize("kinds", ["phoneme word tag", "word tag", "phoneme", "tag", ""])
def test_the_visemes_tile_the_turn_in_time_order(kinds: str) -> None:
    for seed in range(30):
        pieces, total = turn(random.Random(seed), random.Random(-seed), kinds=kinds)
        cues = play(pieces)
        check_tiling(cues, total)
        # In order of time, but a tag before the mouth's cue that it falls into.
        mouth = [cue.kind == "viseme" and cue.samples.length > 0 for cue in cues]
        times = [c.samples[m] + (not m) / 2 for c, m in zip(cues, mouth, strict=True)]
        assert times == sorted(times)
        by_phrase = {p.tokens: p.chars for p in pieces}
        for cue in cues:
            assert by_phrase[cue.tokens].start <= cue.chars.start
            assert cue.chars.end <= by_phrase[cue.tokens].end


def test_late_marks_leave_no_hole_and_change_nothing_afterwards() -> None:
    for kinds in ("phoneme word tag", "word tag"):
        for seed in range(20):
            pieces, total = turn(random.Random(seed), random.Random(2), kinds=kinds, late=True)
            tags = [mark for piece in pieces for mark in piece.marks if mark.kind == "tag"]
            track = VisemeScripter().open(RATE)
            cues = [cue for piece in pieces for cue in track.add(piece)]
            check_tiling(cues, total)
            assert len([c for c in cues if c.kind != "viseme"]) == len(tags)


def test_equal_neighbours_are_one_cue() -> None:
    at, marks = 0, []
    for sound in "t d p m n l n".split():
        marks.append(Mark("phoneme", sound, Span(at, at + 640), Span(0, 3)))
        at += 640
    whole = cut(marks, at, random.Random(0), size=(at, at))
    track = visemes(play(whole))
    assert [(c.name, c.sound) for c in track] == [
        ("DD", "t"), ("PP", "p"), ("nn", "n"), ("nn", "l"), ("nn", "n"),
    ]  # fmt: skip


def test_every_closure_is_reached_and_seen() -> None:
    for seed in range(40):
        pieces, _ = turn(random.Random(seed), random.Random(5), ahead=ms(300))
        track = visemes(play(pieces))
        starts = {p.samples.end for p in pieces if p.last} | {0}
        for i, cue in enumerate(track):
            if cue.name not in CLOSURES:
                continue
            assert cue.weight >= 0.9
            if cue.samples.length >= FRAME:
                continue
            # Shorter only where no neighbour in the phrase has anything left to give.
            near = [track[i - 1]] if i and cue.samples.start not in starts else []
            near += track[i + 1 : i + 2] if cue.samples.end not in starts else []
            for other in near:
                soft = other.name in VOWELS | {"sil"}
                assert other.name in CLOSURES or not soft or other.samples.length <= ms(10), seed


def test_a_short_closure_borrows_from_the_vowels_around_it() -> None:
    at, marks = 0, []
    for sound, length in [("ɑː", 120), ("p", 15), ("iː", 120)]:
        marks.append(Mark("phoneme", sound, Span(at, at + ms(length)), Span(0, 3)))
        at += ms(length)
    a, p, i = visemes(play(cut(marks, at, random.Random(0))))
    assert [a.name, p.name, i.name] == ["aa", "PP", "I"]
    assert p.samples == Span(ms(95), ms(135))  # the lips meet early rather than part late


def test_a_closure_waits_for_all_that_its_neighbour_can_give() -> None:
    at, marks = 0, []
    for sound, length in [("p", 15), ("a", 15), ("a", 60), ("t", 50)]:
        marks.append(Mark("phoneme", sound, Span(at, at + ms(length)), Span(0, 3)))
        at += ms(length)
    track = visemes(play(cut(marks, at, random.Random(0), size=(80, 80))))
    assert [(c.name, c.samples.end) for c in track[:2]] == [("PP", ms(40)), ("aa", ms(90))]


def test_a_closure_without_duration_is_not_lost() -> None:
    marks = [
        Mark("phoneme", "ɑː", Span(0, 1600), Span(0, 2)),
        Mark("phoneme", "m", Span(1600, 1600), Span(0, 2)),
    ]
    track = visemes(play(cut(marks, 1600, random.Random(0))))
    assert [(c.name, c.samples.length) for c in track] == [("aa", 1600 - FRAME), ("PP", FRAME)]


def test_vowels_grow_with_length_and_stress() -> None:
    def weight(sound: str, length: float) -> float:
        marks = [Mark("phoneme", sound, Span(0, ms(length)), Span(0, 1))]
        return visemes(play(cut(marks, ms(length), random.Random(0))))[0].weight

    assert weight("a", 30) < weight("a", 80) < weight("a", 120) == weight("a", 300)
    assert weight("a", 80) < weight("ˌa", 80) < weight("ˈa", 80)


def test_a_sound_without_a_shape_takes_its_neighbour_s() -> None:
    def names(*sounds: str) -> list[str]:
        marks = [
            Mark("phoneme", s, Span(i * 800, (i + 1) * 800), Span(0, 1)) for i, s in enumerate(sounds)
        ]
        return [c.name for c in visemes(play(cut(marks, 800 * len(sounds), random.Random(0))))]

    assert names("h", "iː") == ["I", "I"]
    assert names("ɑː", "h", PAUSE) == ["aa", "aa", "sil"]
    assert names("h") == ["sil"]
    assert names("ɑː", "ː", "n") == ["aa", "nn"]
    assert names("t", "ˈ", "uː") == ["DD", "U"]


def test_words_stand_in_where_sounds_are_missing() -> None:
    marks = [
        Mark("word", "mama", Span(1600, 8000), Span(0, 4)),
        Mark("word", "up", Span(8000, 11_200), Span(5, 7)),
    ]
    pcm = bytes(3200) + tone(9600) + bytes(3200)
    track = visemes(play(cut(marks, 12_800, random.Random(0), pcm=pcm, size=(12_800, 12_800))))
    assert [c.name for c in track] == ["sil", "PP", "aa", "PP", "aa", "U", "PP", "sil"]
    assert track[1].chars == Span(0, 4)
    assert track[-2].chars == Span(5, 7)


def test_without_marks_the_mouth_follows_the_loudness() -> None:
    rng = random.Random(3)
    levels = [rng.choice([0.0, 0.05, 0.15, 0.5]) for _ in range(60)]
    pcm = b"".join(tone(1600, level, rng.choice([150.0, 700.0, 5000.0])) for level in levels)
    total = 1600 * len(levels)
    track = visemes(play(cut([], total, rng, pcm=pcm)))
    check_tiling(track, total)
    for i, level in enumerate(levels):
        middle = 1600 * i + 800
        cue = next(c for c in track if c.samples.start <= middle < c.samples.end)
        assert (cue.name == "sil") == (level == 0.0)
    assert {"sil", "SS"} < {c.name for c in track}
    assert len({c.weight for c in track}) >= 3
    assert max(c.samples.length for c in track if c.name != "sil") < RATE


def test_a_quiet_voice_opens_the_mouth_as_well() -> None:
    track = visemes(play(cut([], RATE, random.Random(0), pcm=tone(RATE, 0.02))))
    assert {c.name for c in track} != {"sil"}
    assert max(c.weight for c in track) == 1.0


def test_the_delay_is_bounded() -> None:
    for kinds in ("phoneme word tag", "word", "phoneme", ""):
        for seed in range(20):
            track = VisemeScripter(patience_ms=500).open(RATE)
            seen = heard = 0
            pieces, _ = turn(random.Random(seed), random.Random(6), kinds=kinds)
            for piece in pieces:
                heard = piece.samples.end
                for cue in visemes(track.add(piece)):
                    seen = cue.samples.end
                # two more cues, or a word, or a long pause, and then the patience
                assert heard - seen <= ms(500 + 1700 + 200 * 3), (kinds, seed)
                if piece.last:
                    assert seen == heard


def test_tags_become_cues_at_their_sample() -> None:
    marks = [
        Mark("tag", "smile", Span(0, 0), Span(0, 7)),
        Mark("word", "ba", Span(0, 4000), Span(8, 10)),
        Mark("tag", "shakes her head", Span(4000, 4000), Span(11, 28)),
        Mark("tag", "juggle plates", Span(4000, 4000), Span(28, 43)),
        Mark("word", "bo", Span(4000, 8000), Span(44, 46)),
        Mark("tag", "sad", Span(9000, 9000), Span(47, 52)),
    ]
    cues = play(cut(marks, 9000, random.Random(0), size=(100, 500)))
    told = [c for c in cues if c.kind != "viseme"]
    assert [(c.kind, c.name, c.samples.start) for c in told] == [
        ("emotion", "smile", 0),
        ("gesture", "shake head", 4000),
        ("gesture", "juggle plates", 4000),
        ("emotion", "sad", 9000),
        ("emotion", "neutral", 9000),  # the turn ends while the face is still sad
    ]
    assert told[0].duration_ms == 4000.0
    assert told[0].weights["mouthSmileLeft"] > 0.3
    assert told[2].weights == {}
    assert [c.chars for c in told[:3]] == [Span(0, 7), Span(11, 28), Span(28, 43)]


def test_an_emotion_that_is_over_needs_no_neutral() -> None:
    marks = [
        Mark("tag", "surprised", Span(0, 0), Span(0, 11)),
        Mark("word", "oh", Span(0, 640), Span(11, 13)),
    ]
    cues = play(cut(marks, 4 * RATE, random.Random(0)))
    assert [c.name for c in cues if c.kind == "emotion"] == ["surprised"]


def test_close_in_the_middle_brings_the_face_to_rest() -> None:
    for seed in range(40):
        pieces, _ = turn(random.Random(seed), random.Random(7))
        stop = random.Random(seed).randint(1, len(pieces))
        track = VisemeScripter().open(RATE)
        cues = [cue for piece in pieces[:stop] for cue in track.add(piece)]
        rest = list(track.close())
        check_tiling([*cues, *rest], pieces[stop - 1].samples.end)
        assert [c for c in [*cues, *rest] if c.kind == "viseme"][-1].name == "sil"
        assert track.close() == []


def test_a_track_without_speech_closes_with_nothing() -> None:
    assert VisemeScripter().open(RATE).close() == []


def test_what_was_taken_back_gives_its_place_to_what_comes_instead() -> None:
    for seed in range(20):
        rng = random.Random(seed)
        first, end = random_phrase(rng, 0, 0)
        wrong, wrong_end = random_phrase(rng, end, 1)
        right, right_end = random_phrase(rng, end, 1)
        track = VisemeScripter().open(RATE)
        cues: list[AvatarCue] = []
        for piece in cut(first, end, rng):
            cues += track.add(piece)
        revoked: list[AvatarCue] = []
        for piece in cut(wrong, wrong_end, rng, start=end, phrase=1)[:-2]:
            revoked += track.add(piece)
        instead: list[AvatarCue] = []
        for piece in cut(right, right_end, rng, start=end, phrase=1):
            instead += track.add(piece)
        instead += track.close()
        check_tiling([*cues, *revoked, *instead], right_end)
        if revoked:
            rest = instead[0]
            assert (rest.name, rest.samples) == ("sil", Span(end, end))  # from here on, all is new
        assert visemes([*cues, *revoked, *instead]) == visemes([*cues, *instead])


def test_kept_tags_outlive_the_revoke_of_what_came_behind_them() -> None:
    """A smile that lasts is ended at the end; a wave at the last kept sample is given again."""
    rng = random.Random(0)
    kept = [
        Mark("tag", "smile", Span(0, 0), Span(0, 7)),
        Mark("word", "ba", Span(0, 4000), Span(8, 10)),
        Mark("tag", "wave", Span(4000, 4000), Span(11, 17)),
    ]
    wrong = [
        Mark("tag", "sad", Span(4000, 4000), Span(100, 105)),
        Mark("word", "bo", Span(4000, 8000), Span(106, 108)),
    ]
    track = VisemeScripter().open(RATE)
    for piece in [*cut(kept, 4000, rng), *cut(wrong, 8000, rng, start=4000, phrase=1)[:-2]]:
        track.add(piece)
    right = [Mark("word", "bi", Span(4000, 8000), Span(100, 102))]
    again = [c for piece in cut(right, 8000, rng, start=4000, phrase=1) for c in track.add(piece)]
    told = [(c.kind, c.name, c.samples.start) for c in [*again, *track.close()]]
    assert told[:2] == [("viseme", "sil", 4000), ("gesture", "wave", 4000)]
    assert told[-1] == ("emotion", "neutral", 8000)


def test_audio_may_be_missing_where_marks_say_everything() -> None:
    marks = [Mark("phoneme", "ɑː", Span(0, 800), Span(0, 1))]
    piece = Speech(b"", RATE, Span(0, 1600), tuple(marks), Span(0, 1), Span(0, 1), 0)
    assert [c.name for c in visemes(play([piece]))] == ["aa", "sil"]


def test_wrong_rates_and_options_are_refused() -> None:
    track = VisemeScripter().open(RATE)
    piece = Speech(b"", 24_000, Span(0, 0), (), Span(0, 0), Span(0, 0), 0)
    with pytest.raises(AdapterFailed, match="24000"):
        track.add(piece)
    track.add(replace(piece, sample_rate=RATE))
    with pytest.raises(ConfigError, match="sample_rate"):
        VisemeScripter().open(0)
    with pytest.raises(ConfigError, match="patience_ms"):
        VisemeScripter(patience_ms=-1)
    with pytest.raises(ConfigError, match="arkit"):
        VisemeScripter(rig="muppet")  # type: ignore[arg-type]
