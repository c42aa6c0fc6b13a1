"""Judges scene prompts by labelled prose: what share is usable, and what was left out.

Each line of ``prose/*.txt`` is a sentence with a label given by hand before any prompt was made of it
(``V``: something can be seen, ``M``: so it can, and somebody speaks as well, ``S``: speech only,
``X``: nothing to see), and the words of which one must be in the prompt because a pronoun of the
sentence stands for it (alternatives by ``/``, several by ``;``).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from specstream.stages.interfaces import PromptRewriter
from specstream.text.segmenter import Segmenter
from specstream.types import Chunk, Phrase, ScenePrompt, Span

PROSE = Path(__file__).parent / "prose"
QUOTED = re.compile(r"\"[^\"]*\"|“[^”]*”|«[^»]*»|„[^“]*“|—[¿¡]?\w[^—]*(?:—|$)")


@dataclass(frozen=True)
class Line:
    """A labelled sentence and its place in the text."""

    label: str
    needs: tuple[tuple[str, ...], ...]
    text: str
    span: Span

    @property
    def told(self) -> list[str]:
        """Its words without what is quoted."""
        return re.findall(r"\w+", QUOTED.sub(" ", self.text).casefold())


@dataclass(frozen=True)
class Piece:
    """A text and its sentences."""

    title: str
    text: str
    lines: tuple[Line, ...]

    def phrases(self, size: int = 4) -> list[Phrase]:
        """What the segmenter makes of the text when it comes ``size`` characters at a time."""
        segmenter, out = Segmenter(), list[Phrase]()
        for at in range(0, len(self.text), size):
            text = self.text[at : at + size]
            token = Span(at // size, at // size + 1)
            chars = Span(at, at + len(text))
            out += segmenter.add(Chunk(text, (0,), token, chars, (chars.end,), t_ms=at * 20.0))
        return [*out, *segmenter.close()]


@dataclass
class Verdict:
    """What became of one piece: final shots, and the reasons why some are not usable."""

    piece: Piece
    shots: list[ScenePrompt]
    faults: dict[str, list[str]]
    told: set[Line]
    first_at: float  # share of the text that was read when the first usable prompt came

    @property
    def usable(self) -> int:
        return sum(not self.faults[shot.shot_id] for shot in self.shots)

    @property
    def visible(self) -> list[Line]:
        return [line for line in self.piece.lines if line.label in "VM"]


def read(name: str) -> list[Piece]:
    """The pieces of one file."""
    out = []
    for block in (PROSE / name).read_text("utf-8").split("# ")[1:]:
        title, *rows = block.strip("\n").split("\n")
        text, lines = "", []
        for row in rows:
            label, needs, sentence = row.split("\t")
            groups = tuple(tuple(group.split("/")) for group in needs.split(";") if group)
            lines.append(Line(label, groups, sentence, Span(len(text), len(text) + len(sentence))))
            text += sentence + " "
        out.append(Piece(title, text.rstrip(), tuple(lines)))
    return out


async def judge(piece: Piece, rewriter: PromptRewriter) -> Verdict:
    """Make prompts of a piece and judge the last revision of each shot."""
    board, latest, first = rewriter.open(), dict[str, ScenePrompt](), 1.0
    for phrase in piece.phrases():
        for shot in await board.add(phrase):
            latest[shot.shot_id] = shot
            if not faults(shot, piece):
                first = min(first, phrase.chars.end / len(piece.text))
    latest |= {shot.shot_id: shot for shot in await board.close()}
    shots = list(latest.values())
    found = {shot.shot_id: faults(shot, piece) for shot in shots}
    told = {line for shot in shots for line in shown(shot, piece)}
    return Verdict(piece, shots, found, told, first)


def shown(shot: ScenePrompt, piece: Piece) -> list[Line]:
    """The sentences that a prompt tells: at least half of their words, in order of the text."""
    words = set(re.findall(r"\w+", shot.prompt.casefold()))
    near = [s for s in piece.lines if s.span.start < shot.span.end and s.span.end > shot.span.start]
    return [s for s in near if s.told and sum(w in words for w in s.told) >= 0.5 * len(s.told)]


def faults(shot: ScenePrompt, piece: Piece) -> list[str]:
    """Why a prompt is not usable; empty if it is."""
    out, prompt = [], shot.prompt.casefold()
    told = shown(shot, piece)
    if not any(line.label in "VM" for line in told):
        out.append("nothing to see")
    for line in told:
        if line.label in "VM":
            out += [
                f"who is meant by {'/'.join(group)}?"
                for group in line.needs
                if not any(name.casefold() in prompt for name in group)
            ]
    words = re.findall(r"\w+", prompt)
    grams = {tuple(words[i : i + 4]) for i in range(len(words))}
    for line in piece.lines:
        for quote in QUOTED.findall(line.text):
            said = re.findall(r"\w+", quote.casefold())
            if any(tuple(said[i : i + 4]) in grams for i in range(len(said) - 3)):
                out.append("dialogue")
                break
    if len(prompt) > 900 or re.search(r"  |,\.|\b(?:and|or|the|a|of|und|der|y|el)\.", prompt):
        out.append("not well formed")
    return out


def figures(verdicts: Sequence[Verdict]) -> dict[str, float]:
    """Shares over several pieces."""
    shots = sum(len(v.shots) for v in verdicts)
    visible = sum(len(v.visible) for v in verdicts)
    return {
        "shots": shots,
        "usable": sum(v.usable for v in verdicts) / max(1, shots),
        "visible sentences told": sum(
            line in v.told for v in verdicts for line in v.visible
        ) / max(1, visible),
        "first usable at": max(v.first_at for v in verdicts),
    }  # fmt: skip
