"""The model's prompts: never waited for, always checked, and numbered after the template's."""

import asyncio
import gc
import re
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from specstream.errors import AdapterUnavailable, ConfigError, EngineBusy
from specstream.types import Message, Phrase, ScenePrompt, Span, Tag
from specstream_adapters.prompt import ModelRewriter, TemplateRewriter

TEXT = (
    "A young painter named Iris stood at the edge of a quiet lake. [smile] Rain fell on the roof of "
    "a barn. A dog slept under a tree."
)
Answer = Callable[[str], str]


def phrases(text: str = TEXT) -> list[Phrase]:
    cuts = [m.end() for m in re.finditer(r"[.,] ", text)]
    out: list[Phrase] = []
    for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True):
        found = re.finditer(r"\[([a-z ]+)\]", text[a:b])
        tags = tuple(Tag(m[1], Span(a + m.start(), a + m.end())) for m in found)
        out.append(Phrase(text[a:b], Span(a, b), Span(a, b), len(out), tags, reason="sentence"))
    return out


class Writer:
    """A language model that answers with ``answer(old prompt)``, once ``gate`` is open."""

    def __init__(self, answer: Answer, gate: asyncio.Event | None = None) -> None:
        self.answer = answer
        self.gate = gate
        self.references: list[str] = []
        self.asked_for: list[str] = []
        self.asked = asyncio.Event()
        self.answered = asyncio.Event()
        self.cancelled = 0

    async def complete(
        self, messages: Sequence[Message], *, max_tokens: int, reference: str = ""
    ) -> str:
        self.references.append(reference)
        self.asked_for.append(messages[-1]["content"])
        self.asked.set()
        try:
            await (self.gate.wait() if self.gate is not None else asyncio.sleep(0))
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        self.answered.set()
        return self.answer(messages[-1]["content"].partition("Prompt: ")[2])


def richer(prompt: str) -> str:
    return f"  {prompt} Soft light falls on the water.  "


async def shoot(rewriter: ModelRewriter, text: str = TEXT) -> list[ScenePrompt]:
    board = rewriter.open()
    shots = [shot for phrase in phrases(text) for shot in await board.add(phrase)]
    return [*shots, *await board.close()]


async def test_the_template_comes_first_and_the_model_supersedes_it() -> None:
    rewriter = ModelRewriter(Writer(richer))
    shots = await shoot(rewriter)
    plain = [shot for shot in shots if shot.rev == 0]
    rich = [shot for shot in shots if shot.rev == 1]
    assert len(plain) == len(rich) == rewriter.rewritten == 3
    assert rewriter.kept == 0
    for old, new in zip(plain, rich, strict=True):
        assert new.prompt == f"{old.prompt} Soft light falls on the water."
        assert new.supersedes == f"{old.shot_id}@0"
        assert (new.subject, new.span, new.tokens) == (old.subject, old.span, old.tokens)


async def test_nothing_waits_for_the_model() -> None:
    gate = asyncio.Event()
    rewriter = ModelRewriter(Writer(richer, gate))
    board = rewriter.open()
    for phrase in phrases():
        shots = await board.add(phrase)
        assert [shot.rev for shot in shots] == [0]
    gate.set()
    assert [shot.rev for shot in await board.close()] == [1, 1, 1]


async def test_finished_prompts_come_with_the_next_phrase() -> None:
    gate = asyncio.Event()
    writer = Writer(richer, gate)
    board = ModelRewriter(writer).open()
    one, two, _ = phrases()
    await board.add(one)
    gate.set()
    await writer.answered.wait()
    await asyncio.sleep(0)
    assert [(s.shot_id, s.rev) for s in await board.add(two)] == [("shot-1", 1), ("shot-2", 0)]
    await board.close()


async def test_the_model_is_told_the_story_so_far_and_the_shot() -> None:
    writer = Writer(richer)
    await shoot(ModelRewriter(writer))
    first, second, third = writer.asked_for
    assert first.startswith("Text: A young painter named Iris stood")
    assert second.startswith("Story so far: A young painter named Iris stood at the edge of a quiet")
    assert "Text: Rain fell on the roof of a barn." in second
    assert "Rain fell" in third.partition("Text:")[0]
    assert writer.references[1].startswith("Rain fell on the roof of a barn.\nWide shot: Rain")
    assert "smile" not in "".join(writer.references)


async def test_the_story_that_the_model_is_told_is_bounded() -> None:
    writer = Writer(richer)
    await shoot(ModelRewriter(writer, max_waiting=99), "A dog slept under a tree by a wall. " * 60)
    assert max(map(len, writer.asked_for)) < 2000


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (lambda p: "", "empty"),
        (lambda p: f"{p}\nAnd more.", "one line"),
        (lambda p: "Two ships cross a stormy sea at night.", "nobody"),
        (lambda p: f"{p} [smile]", "markup"),
        (lambda p: p * 20, "characters"),
        (lambda p: "Iris.", "characters"),
    ],
)
async def test_an_answer_that_breaks_a_rule_is_not_taken(answer: Answer, why: str) -> None:
    rewriter = ModelRewriter(Writer(answer))
    shots = await shoot(rewriter, "A young painter named Iris opened her box.")
    assert [shot.rev for shot in shots] == [0]
    assert (rewriter.rewritten, rewriter.kept) == (0, 1)
    assert why in rewriter.last_fault


@pytest.mark.parametrize(
    "answer",
    [
        "Wide shot: Iris, a painter, looks at the Eiffel Tower at dawn. Golden light.",
        "Prompt: A young woman painter by the lake, soft morning light, Leica look.",
        '"Video prompt: Close-up of the painter Iris, her hands on a wooden box."',
    ],
)
async def test_a_good_answer_is_taken_whatever_words_it_finds(answer: str) -> None:
    rewriter = ModelRewriter(Writer(lambda p: answer))
    shots = await shoot(rewriter, "A young painter named Iris opened her box.")
    assert [shot.rev for shot in shots] == [0, 1]
    assert shots[1].prompt[0] not in '"P'


TOLD = {
    "iris": "A young painter named Iris opened her box at the edge of a quiet lake.",
    "fox": "At dusk, a fox crept along a stone wall.",
    "leo": "Leo kneads dough on a long wooden table.",
    "fog": "The fog came pouring in at every chink and keyhole.",
    "ferry": "Nadia leaned on the railing of the ferry at midnight and watched the harbour lights.",
    "ana": "A girl named Ana sang on the stage.",
}


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("iris", "Close-up: a young woman kneels on a grassy shore, lifting the lid of a wooden case."),
        ("iris", "An artist by the lake unlatches a small chest of brushes, golden hour."),
        ("fox", "Low angle, a red fox slinks beside an old dry-stone wall in fading blue light."),
        ("leo", "Leo the baker works the dough, sleeves rolled up, flour in the air, amber light."),
        ("leo", "Medium shot, a man with floury hands presses dough into a worn oak board."),
        ("fog", "Thick grey mist seeps through a keyhole into a dim hallway, cold light."),
        ("ana", "Close-up of Ana in warm light, smiling."),
        ("ana", "A tall woman in red sings on a wide stage at night."),
        ("iris", "Eine junge Frau öffnet am Ufer einen Kasten, das Licht ist weich."),
    ],
)
async def test_a_picture_in_other_words_is_taken(text: str, answer: str) -> None:
    shots = await shoot(ModelRewriter(Writer(lambda p: answer)), TOLD[text])
    assert [shot.prompt for shot in shots if shot.rev == 1] == [answer]


@pytest.mark.parametrize(
    ("text", "answer", "why"),
    [
        ("iris", "A bearded man opens his box by a lake at dawn.", "a man into a woman"),
        ("iris", "Iris and a knight stand beside a lake in the morning light.", "brings in"),
        ("iris", "It is about the feeling of beginning something new and hopeful.", "nobody"),
        ("fox", "A fox and a bear walk along a stone wall at dusk.", "brings in"),
        ("fog", "A beautiful sunset over the city with many cars.", "something else"),
        ("ferry", "Nadia leans on the railing of the ferry in the midday sunlight.", "contradicts"),
        ("ana", "Ana is a girl with a great many hopes and ideas.", "no action"),
        (
            "leo",
            "Leo kneads dough on a table, warm light, Leo kneads dough on a board, warm light, then"
            " Leo kneads dough on the wood.",
            "repeats itself",
        ),
        ("fog", "Fog pours in, fog pours in, fog pours in, fog pours in at a keyhole.", "repeats"),
        ("leo", "Say who is meant instead of he, she or they: Leo kneads dough.", "the task"),
        ("leo", "Here is one richer line of plain English: Leo kneads dough on a table.", "the task"),
        ("leo", "Medium shot: Leo kneads dough. Add no person, no animal and no quotation.", "the task"),
        ("fox", "Prompt for a video generator: a fox crept along a stone wall.", "the task"),
        ("leo", "Leo kneads dough on a wooden table. Text: Leo kneads dough.", "the task"),
        ("leo", "Leo says: “Good morning” and kneads the dough on the table.", "quotes"),
    ],
)
async def test_what_no_picture_can_be_made_of_or_contradicts_is_not_taken(
    text: str, answer: str, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    rewriter = ModelRewriter(Writer(lambda p: answer))
    with caplog.at_level("INFO"):
        shots = await shoot(rewriter, TOLD[text])
    assert [shot.rev for shot in shots] == [0]
    assert why in rewriter.last_fault
    assert why in caplog.text


async def test_what_the_model_writes_for_a_withdrawn_shot_is_not_used() -> None:
    gate = asyncio.Event()
    writer = Writer(richer, gate)
    rewriter = ModelRewriter(writer)
    board = rewriter.open()
    one, two, three = phrases()
    for phrase in (one, two, three):
        await board.add(phrase)
        await writer.asked.wait()
    assert await board.revoke(two.chars.start) == []
    gate.set()
    shots = [*await board.add(two), *await board.close()]
    assert [(s.shot_id, s.rev) for s in shots] == [("shot-4", 0), ("shot-1", 1), ("shot-4", 1)]
    assert len(writer.references) == 2  # neither the third nor the second twice


async def test_a_failing_model_keeps_the_template() -> None:
    def fail(prompt: str) -> str:
        raise EngineBusy("too many requests wait")

    rewriter = ModelRewriter(Writer(fail))
    assert [shot.rev for shot in await shoot(rewriter)] == [0, 0, 0]
    assert (rewriter.rewritten, rewriter.kept) == (0, 3)
    assert rewriter.last_fault == "too many requests wait"


async def test_a_broken_model_is_heard_of() -> None:
    def fail(prompt: str) -> str:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await shoot(ModelRewriter(Writer(fail)))


async def test_cancelling_close_stops_the_model() -> None:
    writer = Writer(richer, asyncio.Event())
    board = ModelRewriter(writer).open()
    for phrase in phrases():
        await board.add(phrase)
    closing = asyncio.create_task(board.close())
    await writer.asked.wait()
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert writer.cancelled == 1


async def test_a_board_that_is_dropped_stops_the_model() -> None:
    writer = Writer(richer, asyncio.Event())
    board = ModelRewriter(writer).open()
    await board.add(phrases()[0])
    await writer.asked.wait()
    del board
    gc.collect()
    for _ in range(3):
        await asyncio.sleep(0)
    assert writer.cancelled == 1


@pytest.mark.virtual_time
async def test_a_slow_model_is_given_up() -> None:
    rewriter = ModelRewriter(Writer(richer, asyncio.Event()), timeout_s=5)
    shots = await shoot(rewriter)
    assert [shot.rev for shot in shots] == [0, 0, 0]
    assert (rewriter.rewritten, rewriter.kept) == (0, 3)
    assert "slow" in rewriter.last_fault


async def test_revisions_of_the_template_are_numbered_on() -> None:
    one, two, three = clauses()
    gate = asyncio.Event()
    writer = Writer(richer, gate)
    rewriter = ModelRewriter(writer)
    board = rewriter.open()
    shots = list(await board.add(one))
    await writer.asked.wait()
    shots += await board.add(two)  # revises the shot that the model works on
    gate.set()
    shots += [*await board.add(three), *await board.close()]
    first = [s for s in shots if s.shot_id == "shot-1"]
    assert [(s.rev, s.supersedes) for s in first] == [
        (0, None), (1, "shot-1@0"), (2, "shot-1@1"),
    ]  # fmt: skip
    assert "at a lake" in first[1].prompt
    assert first[2].prompt == f"{first[1].prompt} Soft light falls on the water."
    assert (rewriter.rewritten, rewriter.kept) == (2, 1)


def clauses() -> list[Phrase]:
    """A sentence in two phrases, and a second sentence."""
    text = "A young painter named Iris stood under a tree, at a lake. A dog slept under a tree."
    one, two, three = phrases(text)
    return [replace(one, reason="clause"), two, three]


async def test_an_old_revision_that_still_waits_is_not_asked_for() -> None:
    gate = asyncio.Event()
    writer = Writer(richer, gate)
    board = ModelRewriter(writer).open()
    text = "A young painter named Iris sang. A dog slept under a tree, beside a lake."
    one, two, three = phrases(text)
    for phrase in (one, replace(two, reason="clause"), three):
        await board.add(phrase)
        await writer.asked.wait()
    gate.set()
    shots = await board.close()
    assert [(s.shot_id, s.rev) for s in shots] == [("shot-1", 1), ("shot-2", 2)]
    assert len(writer.references) == 2


async def test_what_waits_is_bounded() -> None:
    gate = asyncio.Event()
    rewriter = ModelRewriter(Writer(richer, gate), max_waiting=2)
    text = "A fox ran off. A wolf ran off. A bear ran off. A hare ran off. A deer ran off."
    board = rewriter.open()
    for phrase in phrases(text):
        await board.add(phrase)
    gate.set()
    await board.close()
    assert rewriter.kept + rewriter.rewritten == 5
    assert rewriter.kept >= 2


async def test_another_fallback_can_be_used() -> None:
    fallback = TemplateRewriter(style="Ink drawing", default_subject="a narrator")
    shots = await shoot(ModelRewriter(Writer(richer), fallback=fallback), "What time is it?")
    assert shots[0].subject == "a narrator"
    assert "Ink drawing" in shots[-1].prompt


def test_without_a_model_it_says_what_to_do() -> None:
    with pytest.raises(AdapterUnavailable, match="generator"):
        ModelRewriter()
    with pytest.raises(ConfigError):
        ModelRewriter(Writer(richer), timeout_s=0)
