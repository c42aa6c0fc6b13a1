"""Cues of a remote avatar that don't fit the speech of its turn."""

from typing import Any, Literal

import pytest

from specstream.remote.frames import EndFrame, Violation
from specstream.remote.guards import CueOrder
from specstream.types import AvatarCue, Mark, Revoke, Span, Speech
from tests.support.standins import RATE

SLACK = RATE // 40


def piece(start: int, end: int, chars: tuple[int, int], *marks: Mark) -> Speech:
    tokens = Span(chars[0] // 2, chars[1] // 2)
    pcm = b"\0\0" * (end - start)
    return Speech(pcm, RATE, Span(start, end), marks, Span(*chars), tokens, chars[0])


ONE, TWO = piece(0, 8000, (0, 10)), piece(8000, 16_000, (10, 20))


def cue(
    start: int,
    end: int,
    chars: tuple[int, int] = (0, 10),
    kind: Literal["viseme", "gesture", "emotion"] = "viseme",
    **fields: Any,
) -> AvatarCue:
    wanted: dict[str, Any] = {
        "t_ms": start * 1000 / RATE,
        "duration_ms": (end - start) * 1000 / RATE,
        "weight": 1.0,
        "samples": Span(start, end),
        "chars": Span(*chars),
        "tokens": Span(chars[0] // 2, chars[1] // 2),
    }
    return AvatarCue(kind, "x", **(wanted | fields))


def order_of(*sent: Any) -> CueOrder:
    made = CueOrder()
    for item in sent:
        made.send(item)
    return made


def test_cues_in_their_speech_pass() -> None:
    order = order_of(ONE)
    order.check(cue(0, 4000))
    order.check(cue(0, 32_000, kind="emotion"))
    order.check(cue(4000, 8000))
    order.check(cue(3900, 4100, kind="gesture"))
    order.check(cue(8000 + SLACK, 8000 + RATE))  # to rest
    order.send(TWO)
    order.check(cue(15_000, 16_000, (10, 20)))
    order.send(EndFrame())
    order.check(cue(16_000, 16_000, (0, 0)))
    order.finish()


def test_a_mark_that_comes_before_its_audio_counts() -> None:
    mark = Mark("phoneme", "m", Span(8100, 12_000), Span(0, 2))
    order_of(piece(0, 8000, (0, 10), mark)).check(cue(8100, 12_000))
    with pytest.raises(Violation, match="behind its speech"):
        order_of(ONE).check(cue(8000 + SLACK + 1, 12_000))


WRONG: list[tuple[AvatarCue, str]] = [
    (cue(20_000, 20_100), "lies behind its speech, which ends at 16000"),
    (cue(20_000, 20_000), "lies behind its speech"),
    (cue(20_000, 20_100, kind="gesture"), "lies behind its speech"),
    (cue(15_000, 10**8), "lies behind its speech"),
    (cue(15_000, 10**8, kind="emotion"), "lies behind its speech"),
    (cue(15_000, 15_100, (10, 21)), "covers characters 10 to 21"),
    (cue(15_000, 15_100, tokens=Span(5, 11)), "tokens 5 to 11"),
    (cue(11_000, 12_000), "came after a viseme that begins at 12000"),
    (cue(11_000, 11_000), "came after a viseme that begins at 12000"),
    (cue(8000, 8100, kind="gesture"), "came after a gesture that begins at 9000"),
    (cue(15_000, 15_100, t_ms=-1.0), "is at -1.0 ms"),
    (cue(15_000, 15_100, duration_ms=-0.5), "for -0.5 ms"),
]


@pytest.mark.parametrize(("wrong", "why"), WRONG)
def test_cues_that_do_not_fit_are_violations(wrong: AvatarCue, why: str) -> None:
    order = order_of(ONE, TWO)
    order.check(cue(9000, 12_000, kind="gesture"))
    order.check(cue(12_000, 13_000))
    with pytest.raises(Violation, match=why):
        order.check(wrong)


def test_cues_go_back_once_for_speech_that_is_replaced() -> None:
    order = order_of(ONE, TWO)
    order.check(cue(14_000, 15_000, (10, 20)))
    order.send(Revoke(10))
    order.send(piece(8000, 9000, (10, 14)))
    order.check(cue(15_000, 15_500, (10, 20)))  # made before the revoke was read
    order.revoke(Revoke(10))
    order.check(cue(15_500, 16_000, (10, 20)))  # held back: nobody told the avatar
    order.check(cue(8000, 8500, (10, 14)))
    with pytest.raises(Violation, match="came after a viseme that begins at 8000"):
        order.check(cue(7000, 7500))
    order.check(cue(8500, 9000, (10, 14)))
    with pytest.raises(Violation, match="came after a viseme that begins at 8500"):
        order.check(cue(8000, 8200, (10, 14)))


def test_a_second_way_back_needs_a_second_revoke() -> None:
    order = order_of(ONE, TWO, Revoke(10), piece(8000, 9000, (10, 14)))
    order.check(cue(14_000, 15_000, (10, 20)))
    order.revoke(Revoke(10))
    order.check(cue(8000, 8500, (10, 14)))
    order.check(cue(8500, 9000, (10, 14)))
    with pytest.raises(Violation, match="came after a viseme that begins at 8500"):
        order.check(cue(8000, 8200, (10, 14)))


@pytest.mark.parametrize(("kind", "most"), [("viseme", 2), ("gesture", 600), ("emotion", 600)])
def test_cues_end_a_little_behind_the_speech(kind: Any, most: int) -> None:
    order_of(ONE).check(cue(8000 + SLACK, 8000 + most * RATE, kind=kind))
    for start, end in ((8001 + SLACK, 8001 + SLACK), (8000, 8001 + most * RATE)):
        with pytest.raises(Violation, match="behind its speech"):
            order_of(ONE).check(cue(start, end, kind=kind))


def test_cues_may_be_out_of_order_by_rounding_only() -> None:
    for start in (4000, 4000 - SLACK):
        order = order_of(ONE)
        order.check(cue(4000, 5000))
        order.check(cue(start, 5000))
    with pytest.raises(Violation, match="came after"):
        order.check(cue(4000 - SLACK - 1, 5000))


def test_no_cue_comes_from_a_draft_that_was_withdrawn_or_from_speech_behind_a_revoke() -> None:
    order = order_of(ONE, TWO, Revoke(10, drafted=True), piece(8000, 20_000, (10, 30)))
    order.check(cue(14_000, 15_000, (10, 20)))
    with pytest.raises(Violation, match="covers characters 10 to 30"):
        order.check(cue(14_000, 15_000, (10, 30)))
    order.revoke(Revoke(10, drafted=True))
    order.check(cue(8000, 19_000, (10, 30)))
    order.send(Revoke(10, drafted=True))
    order.revoke(Revoke(10, drafted=True))
    with pytest.raises(Violation, match="which ends at 8000"):
        order.check(cue(14_000, 15_000))
    with pytest.raises(Violation, match="text that it was given ends at character 10"):
        order.check(cue(8000, 8000, (10, 30)))


def test_the_cues_of_a_cancelled_turn_lie_in_its_speech() -> None:
    order = order_of(ONE, TWO, Revoke(10), piece(8000, 9000, (10, 14)))
    order.check_rest(cue(16_000, 16_000))
    order.check_rest(cue(0, 0, (10, 20)))
    for wrong in (cue(17_000, 17_000), cue(0, 0, (10, 21)), cue(0, 0, t_ms=-1.0)):
        with pytest.raises(Violation):
            order.check_rest(wrong)


def test_an_avatar_may_begin_before_there_is_speech() -> None:
    order = order_of()
    order.check(cue(0, 3 * RATE, (0, 0), kind="emotion"))
    order.check(cue(0, 0, (0, 0)))
    with pytest.raises(Violation, match="behind its speech"):
        order.check(cue(RATE, RATE, (0, 0)))
