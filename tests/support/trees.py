"""Proposers of trees for tests: one at random with an honest q, the best one, and one that lies."""

import random
from collections.abc import Sequence

import torch
from torch import Tensor

from specstream.drafting.proposal import Capabilities, Proposal, SpecRequest, Verdict


class TreeProposer:
    """The base: ``size`` nodes at most, ``table [V, V, V]`` are the draft's logits after two tokens."""

    name = "trees"
    capabilities = Capabilities(trees=True)

    def __init__(self, table: Tensor, size: int = 6, seed: int = 0) -> None:
        self.table, self.size, self.rng = table, size, random.Random(seed)
        self.accepted = self.branched = 0

    def propose(self, requests: Sequence[SpecRequest], budget: Sequence[int]) -> list[Proposal]:
        return [self.grow(r, depth) for r, depth in zip(requests, budget, strict=True)]

    def grow(self, request: SpecRequest, depth: int) -> Proposal:
        raise AssertionError

    def shape(self, depth: int) -> list[int]:
        """Random parents, at most ``depth`` deep."""
        parents: list[int] = []
        depths: list[int] = []
        for node in range(self.size):
            able = [-1, *(n for n in range(node) if depths[n] + 1 < depth)]
            parent = self.rng.choice(able)
            parents.append(parent)
            depths.append(depths[parent] + 1 if parent >= 0 else 0)
        return parents

    def row(self, request: SpecRequest, tokens: list[int], parents: list[int], node: int) -> Tensor:
        """The draft's distribution ``[V]`` after a node (-1: after the committed tokens)."""
        path: list[int] = []
        while node >= 0:
            path.insert(0, tokens[node])
            node = parents[node]
        ids = [*request.token_ids[-2:], *path]
        before = ids[-2] if len(ids) > 1 else ids[-1]
        return self.table[before, ids[-1]].softmax(-1)

    def observe(self, requests: Sequence[SpecRequest], verdicts: Sequence[Verdict]) -> None:
        self.accepted += sum(verdict.accepted for verdict in verdicts)
        for verdict in verdicts:
            self.branched += verdict.path != tuple(range(len(verdict.path)))

    def release(self, slot: int) -> None:
        pass


class RandomTree(TreeProposer):
    """Any shape; every child drawn from the draft with replacement, and q says so."""

    name = "random tree"

    def grow(self, request: SpecRequest, depth: int) -> Proposal:
        parents, tokens, probs = self.shape(depth), list[int](), list[Tensor]()
        for parent in parents:
            q = self.row(request, tokens, parents, parent)
            tokens.append(int(request.draw(q.unsqueeze(0), len(request.token_ids))))
            probs.append(q)
        return Proposal(torch.tensor(tokens), torch.stack(probs), tuple(parents), "tree")


class BestTree(TreeProposer):
    """The draft's likeliest paths, deterministic: expands the node with the likeliest path first."""

    name = "best tree"

    def grow(self, request: SpecRequest, depth: int) -> Proposal:
        tokens, parents = list[int](), list[int]()
        front = [(1.0, -1, 0)]
        while front and len(tokens) < self.size:
            chance, node, deep = max(front)
            front.remove((chance, node, deep))
            if deep == depth:
                continue
            q = self.row(request, tokens, parents, node)
            for choice in q.topk(2).indices.tolist():
                if len(tokens) < self.size:
                    tokens.append(choice)
                    parents.append(node)
                    front.append((chance * float(q[choice]), len(tokens) - 1, deep + 1))
        return Proposal(torch.tensor(tokens), None, tuple(parents), "tree")


class LyingTree(TreeProposer):
    """Any shape, any tokens, the same sibling twice; it declares no q, so nothing may come of it."""

    name = "lying tree"

    def grow(self, request: SpecRequest, depth: int) -> Proposal:
        parents = self.shape(depth)
        last = request.token_ids[-1]
        tokens = [(last + self.rng.randrange(2)) % self.table.shape[0] for _ in parents]
        return Proposal(torch.tensor(tokens), None, tuple(parents), "tree")


class OracleTree(TreeProposer):
    """Knows the reply and hides it in a random tree of wrong tokens."""

    name = "oracle tree"

    def __init__(self, reply: list[int], vocab: int, size: int = 7, seed: int = 0) -> None:
        super().__init__(torch.zeros(vocab, 1), size, seed)
        self.reply = reply

    def grow(self, request: SpecRequest, depth: int) -> Proposal:
        parents = self.shape(depth)
        node = self.rng.randrange(self.size)
        path: list[int] = []
        while node >= 0:
            path.insert(0, node)
            node = parents[node]
        tokens = [self.rng.randrange(self.table.shape[0]) for _ in parents]
        at = len(request.token_ids) - request.prompt_length
        for step, right in zip(path, self.reply[at:], strict=False):
            tokens[step] = right
        return Proposal(torch.tensor(tokens), None, tuple(parents), "tree")
