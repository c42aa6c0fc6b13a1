"""The decoder over a pool against transformers' own forward: chains, trees, rollback, moving slots."""

from typing import Any

import torch
from torch import Tensor

from specstream.model.decoder import Decoder
from specstream.model.forward import ForwardInput
from specstream.model.numerics import rounding
from specstream.model.tree import Tree
from tests.gpu.context import Context
from tests.gpu.models import place, pooled_decoder
from tests.model.families import FAMILY, VOCAB, build

__all__ = ["decoder"]

_TREE = Tree((-1, -1, 0, 0, 1, 2))
_SIZES = {"hidden_size": 256, "intermediate_size": 512}


def decoder(context: Context) -> dict[str, Any]:
    """Every family of `FAMILY` in bfloat16 and float32."""
    found = dict[str, Any]()
    for dtype in (torch.bfloat16, torch.float32):
        allowed = {torch.float32: 1e-3}.get(dtype, rounding(dtype))
        most, which, count = -1.0, "", 0
        few = context.tiny and dtype == torch.float32
        for name in [*FAMILY][: 2 if few else None]:
            if not context.enough(2, name):
                break
            sizes: dict[str, int] = dict(_SIZES)
            if name == "qwen3":
                sizes["head_dim"] = 64
            with context.outside():
                model = _calm(build(name, **sizes)).to(dtype)
            model = place(context, model)
            made = pooled_decoder(context, model, rows=4096)
            worst = _Trial(context, model, made).run()
            where, count = max(worst, key=lambda key: worst[key]), count + 1
            found[f"{name}, {str(dtype).removeprefix('torch.')}"] = worst
            if not worst[where] <= most:
                how = "fused" if made.special else "torch"
                most, which = worst[where], f"{name}, {where}, {how}"
        label = f"{count} families in {str(dtype).removeprefix('torch.')}"
        value = f"off by {most:.1e} at most: {which} (allowed {allowed:.1e})"
        context.check(label, 0 <= most <= allowed, value)
    return found


@torch.no_grad()
def _calm(model: Any) -> Any:
    """Scale a model's matrices so that rounding isn't amplified from layer to layer."""
    for weight in model.parameters():
        if weight.dim() > 1:
            weight.mul_(0.2)
    return model


class _Trial:
    """One model's passes, each compared with the model's own logits of the whole text."""

    def __init__(self, context: Context, model: Any, made: Decoder) -> None:
        self._context, self._model, self._made = context, model, made
        self._worst = dict[str, float]()

    @torch.inference_mode()
    def run(self) -> dict[str, float]:
        """The largest difference of each kind of pass."""
        texts = [self._text(600), self._text(40), self._text(90)]
        caches = [self._made.new_cache() for _ in texts]
        at = [3, 1, 40]
        self._compare("prompts", texts, caches, at)
        for counts in ((1, 1, 1), (5, 1, 2), (2, 9, 17)):
            self._compare("ragged chains", texts, caches, list(counts))
        for cache, count in zip(caches, (4, 2, 7), strict=True):
            cache.rollback_to(cache.length - count)
        self._compare("after rollback", texts, caches, [2, 3, 1])
        self._tree(texts, caches)
        self._compare("after a path is kept", texts, caches, [2, 1, 3])
        # Past the first slot's rows: it moves, while its neighbours stay where they are.
        self._compare("in a larger slot", texts[:1], caches[:1], [400])
        self._compare("beside a larger slot", texts, caches, [2, 2, 2])
        return self._worst

    def _text(self, count: int) -> Tensor:
        return torch.randint(VOCAB, (count,), device=self._context.device)

    def _whole(self, ids: Tensor) -> Tensor:
        found: Tensor = self._model(input_ids=ids.unsqueeze(0), use_cache=False).logits[0]
        return found

    def _compare(self, what: str, texts: list[Tensor], caches: list[Any], counts: list[int]) -> None:
        starts = [cache.length for cache in caches]
        parts = list(zip(texts, starts, counts, strict=True))
        inputs = [
            ForwardInput(text[at : at + n], cache, n)
            for (text, at, n), cache in zip(parts, caches, strict=True)
        ]
        for rows, (text, at, n) in zip(self._made(inputs).logits, parts, strict=True):
            self._note(what, rows, self._whole(text[: at + n])[at:])

    def _note(self, what: str, found: Tensor, wanted: Tensor) -> None:
        off = self._context.off(found, wanted)
        self._worst[what] = max(self._worst.get(what, 0.0), off)

    def _tree(self, texts: list[Tensor], caches: list[Any]) -> None:
        """A tree of the first text beside two chains; its second-longest path is kept."""
        at, size = caches[0].length, len(_TREE.parents)
        nodes = self._text(size + 1)
        inputs = [ForwardInput(nodes, caches[0], size + 1, _TREE)]
        inputs += [
            ForwardInput(text[cache.length : cache.length + 1], cache)
            for text, cache in zip(texts[1:], caches[1:], strict=True)
        ]
        rows = self._made(inputs).logits[0]
        for node, path in enumerate(_TREE.paths):
            branch = torch.cat([nodes[:1], *(nodes[1 + n : 2 + n] for n in path)])
            wanted = self._whole(torch.cat([texts[0][:at], branch]))[-1:]
            self._note("trees", rows[1 + node : 2 + node], wanted)
        kept = _TREE.paths[4]
        caches[0].keep_path(at + 1, kept)
        branch = torch.cat([nodes[:1], *(nodes[1 + n : 2 + n] for n in kept)])
        texts[0] = torch.cat([texts[0][:at], branch, texts[0][at + branch.shape[0] :]])
