"""The prompt adapters that ship keep their contract; each broken one is found by the right check."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from specstream.testing import ScriptedModel, check_prompt
from specstream.types import Message, Phrase, ScenePrompt, Span
from specstream_adapters.prompt.model import ModelRewriter
from specstream_adapters.prompt.template import TemplateRewriter


class Generator:
    """Repeats the prompt that it is given, a little richer."""

    async def complete(
        self, messages: Sequence[Message], *, max_tokens: int, reference: str = ""
    ) -> str:
        await asyncio.sleep(0)
        return reference.rpartition("\n")[2] + ", soft light, long shadows"


async def test_the_template_passes() -> None:
    report = await check_prompt(TemplateRewriter)
    report.assert_passed()
    assert report.skipped == ("cancel_stage",)


@pytest.mark.slow
async def test_a_language_model_s_prompts_pass() -> None:
    made = list[ModelRewriter]()

    def make() -> ModelRewriter:
        made.append(ModelRewriter(Generator()))
        return made[-1]

    report = await check_prompt(make)
    report.assert_passed()
    assert report.skipped == ("copies", "cancel_stage")
    assert sum(rewriter.rewritten for rewriter in made)


@pytest.mark.slow
@pytest.mark.virtual_time
async def test_a_slow_language_model_s_prompts_pass() -> None:
    report = await check_prompt(lambda: ModelRewriter(ScriptedModel(["Nothing of use."])))
    report.assert_passed()


class Altered:
    """The template; a subclass breaks one thing. It numbers shots through, so that ids are unique."""

    copies = True

    def open(self) -> AlteredBoard:
        return AlteredBoard(self)

    def alter(self, shots: Sequence[ScenePrompt]) -> Sequence[ScenePrompt]:
        return shots


class AlteredBoard:
    def __init__(self, owner: Altered) -> None:
        self.owner = owner
        self.board = TemplateRewriter().open()

    async def add(self, phrase: Phrase) -> Sequence[ScenePrompt]:
        return self.owner.alter(await self.board.add(phrase))

    async def revoke(self, from_char: int) -> Sequence[ScenePrompt]:
        return self.owner.alter(await self.board.revoke(from_char))

    async def close(self) -> Sequence[ScenePrompt]:
        return self.owner.alter(await self.board.close())


class TooLong(Altered):
    """Its shots reach beyond the text."""

    def alter(self, shots: Sequence[ScenePrompt]) -> Sequence[ScenePrompt]:
        # Revisions and revokes are other checks'.
        return [
            replace(s, span=Span(s.span.start, s.span.end + 500)) if s.span.end > 200 else s
            for s in shots
        ]


class Renumbered(Altered):
    """Every shot says that it replaces one."""

    def alter(self, shots: Sequence[ScenePrompt]) -> Sequence[ScenePrompt]:
        return [replace(shot, supersedes=f"{shot.shot_id}@{shot.rev}") for shot in shots]


class Wordless(Altered):
    """Its prompts are empty."""

    def alter(self, shots: Sequence[ScenePrompt]) -> Sequence[ScenePrompt]:
        return [replace(shot, prompt=" ") for shot in shots]


class Elsewhere(Altered):
    """Its tokens are characters."""

    def alter(self, shots: Sequence[ScenePrompt]) -> Sequence[ScenePrompt]:
        return [replace(shot, tokens=Span(shot.span.start + 50, shot.span.end + 50)) for shot in shots]


class Remembering(AlteredBoard):
    async def revoke(self, from_char: int) -> Sequence[ScenePrompt]:
        return ()


class Stubborn(Altered):
    """It says that it takes text back, and doesn't."""

    def open(self) -> AlteredBoard:
        return Remembering(self)


class Eager(AlteredBoard):
    async def add(self, phrase: Phrase) -> Sequence[ScenePrompt]:
        if phrase.text and not any(map(str.isalnum, phrase.text)):
            return await super().add(replace(phrase, text="A fox runs."))
        return await super().add(phrase)


class Inventive(Altered):
    """It shows a fox where the text says nothing."""

    def open(self) -> AlteredBoard:
        return Eager(self)


class SharedBoard(AlteredBoard):
    def __deepcopy__(self, memo: object) -> SharedBoard:
        return self


class Shared(Altered):
    """A copy of a board is the board."""

    def open(self) -> AlteredBoard:
        return SharedBoard(self)


class PickyBoard(AlteredBoard):
    async def add(self, phrase: Phrase) -> Sequence[ScenePrompt]:
        if any(map(str.isalpha, phrase.text)):
            phrase.text.encode("ascii")
        return await super().add(phrase)


class Picky(Altered):
    """It raises a foreign error for what isn't ASCII."""

    def open(self) -> AlteredBoard:
        return PickyBoard(self)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("broken", "found"),
    [
        (Wordless, "shots"),
        (TooLong, "spans"),
        (Elsewhere, "tokens"),
        (Renumbered, "revisions"),
        (Stubborn, "revoke"),
        (Inventive, "nothing_told"),
        (Shared, "copies"),
        (Picky, "unusual_text"),
    ],
)
async def test_a_broken_prompt_adapter_is_found_by_the_check_for_its_fault(
    broken: Callable[[], Altered], found: str
) -> None:
    report = await check_prompt(broken)
    assert report.failed == (found,), report.lines()


async def test_an_honest_one_of_the_same_make_passes() -> None:
    (await check_prompt(Altered)).assert_passed()
