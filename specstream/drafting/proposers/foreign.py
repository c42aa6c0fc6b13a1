"""Drafting with a model whose tokenizer isn't the target's (Timor et al. 2025, arXiv 2502.05202)."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Sequence
from typing import Literal

import torch

from specstream.drafting.candidate import Task, TaskProposal, TaskProposer
from specstream.drafting.chain import Drafting
from specstream.drafting.policy.records import Candidate, Offer
from specstream.drafting.proposal import Capabilities, Proposal, SpecRequest
from specstream.drafting.proposers.draft_model import DraftModelProposer
from specstream.drafting.vocabularies import IntersectionRunner, Rendered
from specstream.methods import DraftProposerConfig
from specstream.model.numerics import to_device
from specstream.model.runner import ModelRunner
from specstream.model.tokens.spelling import Spelling, whole
from specstream.model.tokens.vocabulary import Translation
from specstream.types import SamplingParams

__all__ = ["ForeignDraftProposer", "Rendering", "retokenised"]

_REDONE = 8  # last draft tokens that are encoded anew, together with the text appended to them
_CONTEXTS = (8, 64)  # tokens before those that are encoded along to find the seam, tried in order


class Rendering:
    """One request's text in the draft's tokens, extended as the request grows, with bounded work.

    Text between control tokens is encoded as one string. Appended text is encoded together with the last
    few tokens before it; the new tokens replace the old ones from a character on at which a token begins
    in both encodings. Control tokens are translated, or left out if the draft has no counterpart. An
    incomplete character at the end is spelled in single bytes.

    Attributes:
        request_id: The request.
        ids: The draft's tokens, without those of ``half``.
        half: The bytes of an incomplete character at the end of the text.
    """

    def __init__(self, translation: Translation, request_id: int) -> None:
        self._translation = translation
        self.request_id = request_id
        self.ids: list[int] = []
        self.half = b""
        self._read = 0  # the request's tokens that are rendered
        self._text = ""  # since the last control token
        self._starts: list[int] = []  # the character at which each token of that text begins

    def read(self, token_ids: Sequence[int]) -> None:
        """Render the request's new tokens; ``token_ids`` are all of them, and only grow."""
        data, target = bytearray(), self._translation.target
        for token in itertools.islice(token_ids, self._read, None):
            piece = target.piece(token)
            if piece is not None:
                data += piece
                continue
            self._extend(bytes(data))
            self._close(self._translation.to_draft.get(token))
            data.clear()
        self._extend(bytes(data))
        self._read = len(token_ids)

    @property
    def context(self) -> list[int] | None:
        """The draft's tokens of the whole text; None: it can't spell the incomplete character."""
        if not self.half:
            return self.ids
        half = self._translation.draft.spelled(self.half)
        return None if half is None else self.ids + half

    def _close(self, control: int | None) -> None:
        """End the text at a control token (None: left out); nothing before it is encoded again."""
        if self.half:
            self.ids += self._translation.draft.spelled(self.half) or []
        if control is not None:
            self.ids.append(control)
        self._text, self._starts, self.half = "", [], b""

    def _extend(self, data: bytes) -> None:
        text, self.half = whole(self.half + data)
        if not text:
            return
        self._text += text
        count = len(self._starts)
        keep = max(0, count - _REDONE)
        while 0 < keep and self._starts[keep] == self._starts[keep - 1]:
            keep -= 1  # the token begins within a character
        for before in _CONTEXTS:
            if 0 < keep - before and self._splice(keep, keep - before):
                return
        self._splice(0, 0)

    def _splice(self, keep: int, begin: int) -> bool:
        """Encode the text from token ``begin`` on, and replace the tokens from ``keep`` on.

        False, and no change, if no token begins there in the new encoding or the token before differs.
        """
        offset = self._starts[begin] if begin else 0
        ids, starts = self._translation.draft.encode(self._text[offset:])
        starts = [offset + start for start in starts]
        first = 0
        if keep:
            seam = self._starts[keep]
            if seam not in starts:
                return False
            first = starts.index(seam)
            if first == 0 or ids[first - 1] != self.ids[keep - len(self._starts) - 1]:
                return False
        del self.ids[len(self.ids) - len(self._starts) + keep :]
        self.ids += ids[first:]
        self._starts[keep:] = starts[first:]
        return True


_LOOK_BEHIND = 16  # committed tokens that are encoded together with the drafted text
# Put before text that is encoded alone, tried in order: a tokenizer may add a space at a text's start.
_APART = ("", "\n", "\x02")


def retokenised(
    translation: Translation, committed: Sequence[int], half: bytes, drafted: Sequence[int]
) -> list[int]:
    """The target's tokens for a drafted text, without an incomplete character at its end.

    Args:
        translation: Between the two vocabularies.
        committed: The target's tokens so far.
        half: The bytes of an incomplete character at the end of ``committed``.
        drafted: The draft's tokens, which first complete that character. They are used up to the first
            control token, which is translated (such as the end of a turn) or dropped.
    """
    written, end = bytearray(), None
    for token in drafted:
        piece = translation.draft.piece(token)
        if piece is None:
            end = translation.to_target.get(token)
            break
        written += piece
    text, rest = whole(half + bytes(written))
    added = bytes(written[: len(written) - len(rest)])
    if len(written) < len(rest):
        return []  # the drafted bytes don't even complete the first character
    found = _behind(translation.target, committed, added) if text and added else []
    if found is None:
        found = _alone(translation.target, half, added)
        if found is None:
            return []
    return found if end is None or rest else [*found, end]


def _behind(target: Spelling, committed: Sequence[int], added: bytes) -> list[int] | None:
    """Tokens of ``added``, encoded with the text before it; None if no token begins at the border."""
    pieces: list[bytes] = []
    for token in reversed(committed[-_LOOK_BEHIND:]):
        piece = target.piece(token)
        if piece is None:
            break
        pieces.append(piece)
    pieces.reverse()
    before = b"".join(pieces)
    while before and before[0] & 0xC0 == 0x80:  # the rest of a character that began earlier
        before = before[1:]
    return _after(target, before, added)


def _alone(target: Spelling, half: bytes, added: bytes) -> list[int] | None:
    """Tokens of ``added`` encoded alone; the rest of a begun character is spelled byte by byte."""
    open_bytes = 0
    if half:
        while open_bytes < len(added) and added[open_bytes] & 0xC0 == 0x80:
            open_bytes += 1
    head, tail = target.spelled(added[:open_bytes]), added[open_bytes:]
    if head is None or not tail:
        return head or None
    for apart in _APART:
        found = _after(target, apart.encode(), tail)
        if found is not None:
            return head + found
    return head or None


def _after(target: Spelling, before: bytes, added: bytes) -> list[int] | None:
    """The tokens of ``added`` behind ``before``; None if the encoding doesn't reproduce the bytes."""
    data = before + added
    try:
        ids, _ = target.encode(data.decode())
    except UnicodeDecodeError:
        return None  # the committed bytes aren't valid UTF-8
    pieces = [target.piece(token) or b"" for token in ids]
    if not target.faithful:
        pieces, data, before = ([_squeezed(one) for one in pieces], _squeezed(data), _squeezed(before))
    written, at = b"".join(pieces), len(before)
    if before and written == b" " + data:
        at += 1
    elif written != data:
        return None
    passed = 0
    for place, piece in enumerate(pieces):
        if passed == at:
            return ids[place:]
        passed += len(piece)
    return None


def _squeezed(data: bytes) -> bytes:
    """The part of a text that survives a tokenizer which lowers case and changes blanks."""
    return b"".join(data.split()).lower()


_log = logging.getLogger("specstream.drafting")

Way = Literal["retokenised", "intersection"]
# Least share of common tokens for drafting by intersection. Greedy: below that, the draft's likeliest
# token is too often none of them. Sampled: below that, most of q would be cut off.
_MIN_OVERLAP_GREEDY, _MIN_OVERLAP_SAMPLED = 0.98, 0.5
_GREEDY, _SAMPLED = SamplingParams(), SamplingParams(temperature=1.0)
_WORDS = {"retokenised": "retokenised", "intersection": "from the common tokens"}


class ForeignDraftProposer(TaskProposer):
    """Drafts in another vocabulary than the target's, in one of two ways, chosen per request.

    Retokenised: the draft writes greedily in its own tokens, and its text is encoded in the target's
    tokens, without probabilities. Intersection: the draft draws among the tokens that both vocabularies
    have, with their probabilities.

    Args:
        config: Settings; ``vocabulary`` forces one way.
        runner: The draft model.
        target_eos: The target's token ids that end a turn.
        translation: Between the two vocabularies.
        device: The target's device.
        prefill_chunk: The most prompt tokens that one pass reads.

    Attributes:
        translation: As given.
        writers: The proposers that draft in the draft's tokens, by way.
        renderings: By slot, the text of its latest request in the draft's tokens.
    """

    name = "draft"
    capabilities = Capabilities()

    def __init__(
        self,
        config: DraftProposerConfig,
        runner: ModelRunner,
        target_eos: frozenset[int],
        translation: Translation,
        device: torch.device,
        prefill_chunk: int = 512,
    ) -> None:
        self._config, self.translation, self._device = config, translation, device
        self.most = config.num_tokens
        self._common = IntersectionRunner(runner, translation)
        own_ends = frozenset(translation.draft_ends)
        self.writers: dict[Way, DraftModelProposer] = {
            "retokenised": DraftModelProposer(config, runner, own_ends, prefill_chunk),
            "intersection": DraftModelProposer(config, self._common, target_eos, prefill_chunk),
        }
        self.renderings: dict[int, Rendering] = {}
        title = (
            f"the draft (another tokenizer, {translation.overlap:.0%} of tokens in common; greedy "
            f"replies {_WORDS[self.way(_GREEDY)]}, sampled ones {_WORDS[self.way(_SAMPLED)]})"
        )
        _log.info("%s", title)
        self.candidate = Candidate("draft", title, stops=self.writers["retokenised"].candidate.stops)

    def way(self, params: SamplingParams) -> Way:
        """The way in which a request with these parameters is drafted for."""
        if self._config.vocabulary != "auto":
            return self._config.vocabulary
        least = _MIN_OVERLAP_GREEDY if params.greedy else _MIN_OVERLAP_SAMPLED
        return "intersection" if self.translation.overlap >= least else "retokenised"

    def offer(self, request: SpecRequest, budget: int) -> Offer:
        """Offer up to ``budget`` tokens, once the draft has read the tokens that it lags behind.

        Nothing is offered after an incomplete character that the draft can't spell.
        """
        way = self.way(request.params)
        view = self._view(request, way)
        return Offer(0) if view is None else self.writers[way].offer(view, budget)

    def draft(self, tasks: Sequence[Task]) -> list[TaskProposal]:
        """Draft the tasks' chains; those drafted in the same way run in lockstep."""
        results: list[TaskProposal] = [TaskProposal(Proposal.empty(self._device)) for _ in tasks]
        chains: dict[Way, dict[int, Drafting]] = {way: {} for way in self.writers}
        for number, task in enumerate(tasks):
            way = self.way(task.request.params)
            if task.count > 0 and (view := self._view(task.request, way)) is not None:
                chains[way][number] = Drafting(view, task.count, task.go_on)
        passes = 0
        for way, each in chains.items():
            passes += self.writers[way].write(list(each.values()))
            for number, chain in each.items():
                proposal = self._proposal(tasks[number], chain, way)
                told = chain.confidences if way == "intersection" else ()
                results[number] = TaskProposal(proposal, told, passes, chain.read)
        return results

    def _proposal(self, task: Task, chain: Drafting, way: Way) -> Proposal:
        drafted = torch.cat(chain.tokens).tolist() if chain.tokens else []
        if chain.state is not None and drafted:
            # Their rows are in the cache; the next round compares them with the committed tokens.
            if way == "intersection":  # as `IntersectionRunner` names the draft's own tokens
                own = self.translation.to_draft
                read = [self._common.shift + own.get(token, 0) for token in drafted]
            else:
                read = drafted
            chain.state.rows.extend(read)
        if way == "intersection":
            return chain.proposal(self._device)
        request = task.request
        half = self.renderings[request.slot].half
        ids = retokenised(self.translation, request.token_ids, half, drafted)[: task.count]
        return Proposal(to_device(ids, self._device), source="draft")

    def _view(self, request: SpecRequest, way: Way) -> Rendered | None:
        """The request in the draft's tokens; None if its text is empty or can't be spelled."""
        kept = self.renderings.get(request.slot)
        if kept is None or kept.request_id != request.id:
            kept = self.renderings[request.slot] = Rendering(self.translation, request.id)
        kept.read(request.token_ids)
        ids = kept.context
        if not ids:
            return None
        if way == "retokenised":
            return Rendered(request, ids, _GREEDY)
        return Rendered(request, [self._common.shift + i for i in ids], request.params)

    def release(self, slot: int) -> None:
        """Drop the slot's rendered text and draft caches."""
        self.renderings.pop(slot, None)
        for writer in self.writers.values():
            writer.release(slot)
