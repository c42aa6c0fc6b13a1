"""Lookahead decoding (Fu et al. 2024): the target guesses several positions at once, without a draft.

Each target pass also reads a window of guessed tokens. Row 0 of the window is a chain after the
committed text; token i of row r follows row 0 up to i and then column i of the rows before r. The
target's predictions after the last row become the next row. A column of a full window is an n-gram,
which goes into a pool under its first token. Each round proposes the latest n-grams whose first token is
the last committed one. N-grams and window form one tree, so any path in it that agrees with the target
is accepted.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from specstream.drafting.candidate import EngineParts, Task, TaskProposal, TaskProposer
from specstream.drafting.policy.records import Candidate, Offer
from specstream.drafting.proposal import Capabilities, Proposal, SpecRequest, Verdict
from specstream.methods import LookaheadProposerConfig
from specstream.model.numerics import to_device

__all__ = ["LOOKAHEAD", "LookaheadProposer", "NgramPool", "build"]

LOOKAHEAD = Candidate("lookahead", "lookahead decoding", "none")
_MAX_KEYS = 2048  # first tokens that a pool keeps n-grams of


class NgramPool:
    """N-grams by first token: the latest ``most`` for each of the latest `_MAX_KEYS` first tokens."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: OrderedDict[int, list[tuple[int, ...]]] = OrderedDict()

    def add(self, first: int, rest: tuple[int, ...]) -> None:
        """Add an n-gram, or make it the latest of its first token."""
        known = self._known.setdefault(first, [])
        self._known.move_to_end(first)
        if rest in known:
            known.remove(rest)
        known.append(rest)
        del known[: -self._most]
        if len(self._known) > _MAX_KEYS:
            self._known.popitem(last=False)

    def after(self, first: int) -> list[tuple[int, ...]]:
        """The n-grams that begin with ``first``, without that token; the latest first."""
        return self._known.get(first, [])[::-1]

    def __len__(self) -> int:
        return len(self._known)


class _Trie:
    """A tree whose siblings are different tokens, as verification requires."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self._nodes: dict[tuple[int, int], int] = {}

    def add(self, parent: int, token: int) -> int:
        """Return the child of a node with this token, added if need be."""
        node = self._nodes.get((parent, token))
        if node is None:
            node = self._nodes[parent, token] = len(self.tokens)
            self.tokens.append(token)
            self.parents.append(parent)
        return node


@dataclass(slots=True)
class GuessWindow:
    """One request's window of guessed tokens.

    Attributes:
        request_id: The request.
        pool: Its n-grams.
        rows: Guessed tokens, the oldest row first. Column i of row r is at position ``at + i + r``.
        ages: For each column, how many of its rows the target has predicted since it was filled anew.
        at: Position of the first guessed token: the length of the committed text.
        room: The greatest depth that this round's tree may have.
        last: The nodes of the last row in the tree that is being verified.
        nodes: How many nodes that tree has; 0: none is being verified.
    """

    request_id: int
    pool: NgramPool
    rows: list[list[int]]
    ages: list[int]
    at: int
    room: int = 0
    last: list[int] = field(default_factory=list)
    nodes: int = 0

    def plant(self, trie: _Trie, columns: int) -> None:
        """Add the window's first columns to a tree."""
        self.last, chain = [], -1
        for column in range(columns):
            node = chain = trie.add(chain, self.rows[0][column])
            for row in self.rows[1:]:
                node = trie.add(node, row[column])
            self.last.append(node)

    def advance(self, predictions: Sequence[int], height: int) -> None:
        """Append the predicted row; if the window was full, pool its n-grams and drop the oldest row.

        A column counts as an n-gram once each of its tokens was predicted after the one before.

        Args:
            predictions: The target's tokens after the committed text and after each node.
            height: Rows of a full window.
        """
        new = [predictions[node + 1] for node in self.last]
        self.rows.append([*new, *self.rows[-1][len(new) :]])
        if len(self.rows) > height:
            for column in range(len(new)):
                if self.ages[column] >= height - 1:
                    first, *rest = (row[column] for row in self.rows)
                    self.pool.add(first, tuple(rest))
            del self.rows[0]
            self.at += 1
        for column in range(len(new)):
            self.ages[column] += 1
        self.ages[len(new) :] = [0] * (len(self.ages) - len(new))

    def follow(self, text: list[int]) -> None:
        """Move the window to the end of the committed text; new last columns get filler tokens."""
        width, passed = len(self.rows[0]), len(text) - self.at
        for row in self.rows:
            del row[:passed]
            row += _filler(text, width - len(row))
        self.ages = [*self.ages[passed:], *[0] * min(passed, width)]
        self.at = len(text)


def _filler(text: list[int], count: int) -> list[int]:
    """``count`` initial guesses: the text's last tokens, backwards."""
    return [text[-1 - i % len(text)] for i in range(count)]


class LookaheadProposer(TaskProposer):
    """Proposes n-grams from the target's earlier guesses, and adds a window that yields new ones.

    Drafts are deterministic, so the verifier needs no probabilities. Each round adds up to ``(window +
    branches) * (ngram - 1)`` tokens to the target's pass.

    Attributes:
        device: Of the proposals.
        windows: By slot, the guesses for its latest request.
    """

    name = "lookahead"
    candidate = LOOKAHEAD
    capabilities = Capabilities(trees=True, predictions=True)

    def __init__(self, config: LookaheadProposerConfig, device: torch.device) -> None:
        self._config = config
        self.most = self._height = config.ngram - 1
        self.device = device
        self.windows: dict[int, GuessWindow] = {}

    def offer(self, request: SpecRequest, budget: int) -> Offer:
        """Offer n-grams; the window's nodes count as part of the first level."""
        window, levels = self._window(request), min(self._height, budget)
        window.room = budget
        guessed = self._columns(budget, len(window.rows)) * len(window.rows)
        tried = len(window.pool.after(request.token_ids[-1]))
        if levels < 1 or not guessed + tried:
            return Offer(0)
        return Offer(levels, nodes=[guessed + tried * level for level in range(1, levels + 1)])

    def draft(self, tasks: Sequence[Task]) -> list[TaskProposal]:
        """Draft the n-grams up to the planned depth, and the whole window, as one tree."""
        return [TaskProposal(self._tree(task.request, task.count)) for task in tasks]

    def _tree(self, request: SpecRequest, levels: int) -> Proposal:
        """A tree of n-grams of at most ``levels`` tokens, and the window cut to its room."""
        window, trie = self._window(request), _Trie()
        window.follow(request.token_ids)
        # N-grams first, so that tokens which they share with the window are tried in the n-grams' order.
        for rest in window.pool.after(request.token_ids[-1]):
            node = -1
            for token in rest[:levels]:
                node = trie.add(node, token)
        window.plant(trie, self._columns(window.room, len(window.rows)))
        window.nodes = len(trie.tokens)
        tokens = to_device(trie.tokens, self.device)
        return Proposal(tokens, parents=tuple(trie.parents), source="lookahead")

    def _columns(self, room: int, rows: int) -> int:
        """How many columns of ``rows`` rows fit into a depth of ``room``: the last is the deepest."""
        return max(0, min(self._config.window, room + 1 - rows))

    def _window(self, request: SpecRequest) -> GuessWindow:
        window = self.windows.get(request.slot)
        if window is None or window.request_id != request.id:
            text = request.token_ids
            pool, width = NgramPool(self._config.branches), self._config.window
            rows = [_filler(text, width)]
            window = GuessWindow(request.id, pool, rows, [0] * width, len(text))
            self.windows[request.slot] = window
        return window

    def observe(self, requests: Sequence[SpecRequest], verdicts: Sequence[Verdict]) -> None:
        """Advance the windows by the target's predictions."""
        for request, verdict in zip(requests, verdicts, strict=True):
            window = self.windows.get(request.slot)
            if window is None or window.request_id != request.id:
                continue
            # If the engine refused the proposal, the predictions don't belong to its tree.
            if window.nodes and len(verdict.predictions) == window.nodes + 1:
                window.advance(verdict.predictions, self._height)
            window.nodes = 0

    def release(self, slot: int) -> None:
        """Drop the window and its n-grams."""
        self.windows.pop(slot, None)


def build(config: LookaheadProposerConfig, parts: EngineParts) -> LookaheadProposer:
    """Build the proposer; the target must be able to verify trees."""
    return LookaheadProposer(config, parts.target.device)
