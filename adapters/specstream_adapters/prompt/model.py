"""A language model rewrites the template's prompts; a rewrite with a fault is dropped."""

from __future__ import annotations

import asyncio
import logging
import re
import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field, replace

from specstream.errors import AdapterUnavailable, ConfigError, SpecstreamError
from specstream.stages.interfaces import PromptRewriter, RevocableStoryboard, Storyboard, TextGenerator
from specstream.types import Message, Phrase, ScenePrompt
from specstream_adapters.prompt.template import TemplateRewriter
from specstream_adapters.prompt.visible import fault

__all__ = ["ModelRewriter", "ModelStoryboard"]

_log = logging.getLogger(__name__)
_STORY = 1200  # characters of the story so far that the model is given

_TASK = (
    "You write prompts for a video generator. Rewrite the prompt as one richer line of plain"
    " English: shot and camera first, then who does what and where, then light, colour and small"
    " visible details. Say who is meant instead of he, she or they. Keep what the text and the story"
    " tell. Add no person, no animal and no quotation. Answer with the prompt only."
)


@dataclass(eq=False)
class ModelRewriter:
    """Lets a language model make each shot's prompt richer, without waiting for it between phrases.

    A shot goes out at once with the fallback's prompt. The model is told the story so far and the
    shot; its version follows as a revision, with a later phrase or when the text has ended. It is
    used only if it has what a picture needs and contradicts nothing (see
    `specstream_adapters.prompt.visible.fault`); otherwise, and if the model fails or is too slow, the
    fallback's prompt is kept. ``rewritten`` and ``kept`` count both outcomes over all turns,
    ``last_fault`` says why the last prompt was kept, and each kept prompt is logged.

    One shot is rewritten at a time. When more than ``max_waiting`` wait, the oldest is given up and
    counted as kept. A shot that the fallback revises is rewritten anew. The model is stopped when the
    board is no longer referenced (its turn was cancelled).

    Attributes:
        generator: The language model; a shot's action and prompt are passed as its reference.
        fallback: Makes the shots.
        max_tokens: Length of an answer.
        max_chars: Longest prompt of the model that is used.
        max_waiting: Shots that may wait for the model.
        timeout_s: How long one answer, and at the end of a turn all of them, may take.

    Raises:
        AdapterUnavailable: there is no generator.
        ConfigError: an option is out of range.
    """

    generator: TextGenerator | None = None
    _: KW_ONLY
    fallback: PromptRewriter = field(default_factory=TemplateRewriter)
    max_tokens: int = 160
    max_chars: int = 900
    max_waiting: int = 8
    timeout_s: float = 20.0
    rewritten: int = field(default=0, init=False)
    kept: int = field(default=0, init=False)
    last_fault: str = field(default="", init=False)

    def __post_init__(self) -> None:
        if self.generator is None:
            raise AdapterUnavailable(
                "the prompt adapter 'model' needs a language model: pass generator=..., an engine "
                "for example, or use the prompt adapter 'template'"
            )
        if min(self.max_tokens, self.max_chars, self.max_waiting) < 1 or self.timeout_s <= 0:
            raise ConfigError("max_tokens, max_chars, max_waiting and timeout_s must be above 0")

    def open(self) -> ModelStoryboard:
        """Begin a turn. Needs a running event loop once phrases are added."""
        return ModelStoryboard(self, self.fallback.open())

    def keep(self, why: str) -> None:
        """Count and log a prompt of the fallback that is kept, and why."""
        self.kept += 1
        self.last_fault = why
        _log.info("a prompt stays as the fallback made it: %s", why)


class _Queue:
    """The model's work of one turn: shots that wait, shots that are done, and the task that does them.

    It holds no reference to the storyboard, so that the storyboard of a cancelled turn is garbage
    collected, which cancels the task.
    """

    def __init__(self, rewriter: ModelRewriter) -> None:
        self._rewriter = rewriter
        self._waiting: deque[tuple[ScenePrompt, str]] = deque()  # with the story before it
        self._done: list[tuple[ScenePrompt, str]] = []
        self._task: asyncio.Task[None] | None = None

    def put(self, shot: ScenePrompt, story: str) -> None:
        """Have ``shot`` rewritten; an older revision of it that still waits is dropped."""
        self._waiting = deque(w for w in self._waiting if w[0].shot_id != shot.shot_id)
        self._waiting.append((shot, story))
        if len(self._waiting) > self._rewriter.max_waiting:
            self._waiting.popleft()
            self._rewriter.keep("too many shots wait for the model")
        if self._task is None or self._task.done():
            self._raise_failure()
            self._task = asyncio.get_running_loop().create_task(self._work())

    def drop(self, char: int) -> None:
        """Give up waiting shots that tell text at or past an offset."""
        self._waiting = deque(w for w in self._waiting if w[0].span.end <= char)

    def take(self) -> list[tuple[ScenePrompt, str]]:
        """Remove and return the shots that are done, each as it was put, with its new prompt."""
        done, self._done = self._done, []
        return done

    async def finish(self) -> None:
        """Wait until everything is done, or the time is up; cancelling stops the model."""
        if self._task is None:
            return
        try:
            async with asyncio.timeout(self._rewriter.timeout_s):
                await asyncio.shield(self._task)
        except TimeoutError:
            for _ in range(len(self._waiting) + 1):
                self._rewriter.keep("the model was too slow")
            self._waiting.clear()
        finally:
            self.stop()
            await asyncio.wait([self._task])
        self._raise_failure()

    def stop(self) -> None:
        """End the work now; idempotent."""
        if self._task is not None:
            self._task.cancel()

    def _raise_failure(self) -> None:
        if self._task is not None and self._task.done() and not self._task.cancelled():
            self._task.result()

    async def _work(self) -> None:
        rewriter = self._rewriter
        while self._waiting:
            shot, story = self._waiting.popleft()
            try:
                async with asyncio.timeout(rewriter.timeout_s):
                    prompt = _cleaned(await self._ask(shot, story))
                why = fault(prompt, shot, story, max_chars=rewriter.max_chars, task=_TASK)
            except TimeoutError:
                why = "the model was too slow"
            except SpecstreamError as error:
                why = str(error)
            if why:
                rewriter.keep(why)
            else:
                self._done.append((shot, prompt))

    async def _ask(self, shot: ScenePrompt, story: str) -> str:
        about = f"\nSubject: {shot.subject}" if shot.subject else ""
        before = f"Story so far: {story}\n" if story else ""
        messages: list[Message] = [
            {"role": "system", "content": _TASK},
            {"role": "user", "content": f"{before}Text: {shot.action}{about}\nPrompt: {shot.prompt}"},
        ]
        # The answer repeats parts of the text and of the old prompt: a draft for suffix lookup.
        reference = f"{shot.action}\n{shot.prompt}"
        assert self._rewriter.generator is not None
        return await self._rewriter.generator.complete(
            messages, max_tokens=self._rewriter.max_tokens, reference=reference
        )


class ModelStoryboard:
    """The shot list of one turn; see `ModelRewriter`."""

    def __init__(self, rewriter: ModelRewriter, board: Storyboard) -> None:
        self._rewriter = rewriter
        self._board = board
        self._queue = _Queue(rewriter)
        self._sent: dict[str, ScenePrompt] = {}  # newest version of each shot
        self._plain: dict[str, ScenePrompt] = {}  # newest version of the fallback, in order
        weakref.finalize(self, _Queue.stop, self._queue).atexit = False

    async def add(self, phrase: Phrase) -> Sequence[ScenePrompt]:
        """Take the next phrase; return its shots, and earlier ones that the model has finished.

        Doesn't wait for the model. Raises what the generator raised if that is no SpecstreamError.
        """
        return self._finished() + [self._send(shot) for shot in await self._board.add(phrase)]

    async def close(self) -> Sequence[ScenePrompt]:
        """The text has ended: wait for the model (``timeout_s`` at most) and return the rest.

        Cancelling stops the model; the shots that it had not finished stay as they are.
        """
        out = [self._send(shot) for shot in await self._board.close()]
        await self._queue.finish()
        return out + self._finished()

    async def revoke(self, from_char: int) -> Sequence[ScenePrompt]:
        """Withdraw the shots of the text from ``from_char`` on; return the fallback's revisions.

        Doesn't wait for the model; its prompts for shots that were withdrawn are not used.
        """
        self._queue.drop(from_char)
        self._plain = {name: s for name, s in self._plain.items() if s.span.end <= from_char}
        if isinstance(self._board, RevocableStoryboard):
            rest = await self._board.revoke(from_char)
        else:
            rest = [shot for shot in await self._board.close() if shot.span.end <= from_char]
            self._board = self._rewriter.fallback.open()
        return [self._send(shot) for shot in rest]

    def _send(self, shot: ScenePrompt) -> ScenePrompt:
        """Pass on one of the fallback's shots, and have it rewritten."""
        story = " ".join(s.action for s in self._plain.values() if s.span.start < shot.span.start)
        self._plain[shot.shot_id] = shot
        self._queue.put(shot, story[-_STORY:])
        return self._numbered(shot)

    def _finished(self) -> list[ScenePrompt]:
        out = []
        for shot, prompt in self._queue.take():
            if self._plain.get(shot.shot_id) is not shot:
                self._rewriter.keep("the shot had changed by the time the model answered")
                continue
            self._rewriter.rewritten += 1
            out.append(self._numbered(replace(shot, prompt=prompt)))
        return out

    def _numbered(self, shot: ScenePrompt) -> ScenePrompt:
        """The shot as the next revision after the one that was last sent under its id."""
        old = self._sent.get(shot.shot_id)
        if old is not None:
            shot = replace(shot, rev=old.rev + 1, supersedes=f"{old.shot_id}@{old.rev}")
        self._sent[shot.shot_id] = shot
        return shot


def _cleaned(answer: str) -> str:
    """An answer without a label, quotation marks or a code fence, which models put around a prompt."""
    text = answer.strip().strip("`").strip()
    text = re.sub(r"^(?:\w+ )?prompt:\s*", "", text, flags=re.IGNORECASE)
    return text.strip().strip('"“”').strip()
