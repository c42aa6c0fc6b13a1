"""Greedy replies of the bundled pair: the same tokens by every method, and by transformers."""

from typing import Any

import torch

from specstream.bench.exactness.checks import compare_greedy
from specstream.engine.build import end_ids
from specstream.model.graphs import TARGET
from specstream.types import SamplingParams
from tests.gpu.context import Context, NotRehearsed
from tests.gpu.pair import METHODS, Pair, make_pair, prompts, replies

__all__ = ["equality", "halves"]

_HEADS = ("bundled-eagle", "bundled-medusa")


def equality(context: Context) -> dict[str, Any]:
    """Float32 replies are equal, to the last token."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    count = context.size(20, 2)
    found: dict[str, Any] = {"prompts": count}
    pair = make_pair(context, "float32", heads=_HEADS)
    pair.capture(TARGET, (1, 8) if not context.tiny else (1,))
    asked, params = prompts(count), SamplingParams(max_tokens=context.size(64, 6))
    wanted = replies(pair.core("off"), asked, params)
    _transformers(context, pair, asked, params, wanted)
    ways = [
        ("captured, alone", 1, False),
        ("captured, 8 at once", 8, False),
        ("eager, 8 at once", 8, True),
        ("eager, alone", 1, True),
    ]
    for where, at_once, eager in ways[:: context.size(1, 2)]:
        methods = [name for name in METHODS if (where, name) != ("captured, alone", "off")]
        found[where] = _methods(context, pair, where, methods, at_once, eager, wanted)
    return found


def _methods(
    context: Context,
    pair: Pair,
    where: str,
    methods: list[str],
    at_once: int,
    eager: bool,
    wanted: list[list[int]],
) -> dict[str, int]:
    """Of each method, how many replies are those of plain captured decoding."""
    asked, params = prompts(len(wanted)), SamplingParams(max_tokens=context.size(64, 6))
    same = dict[str, int]()
    for name in methods:
        if not context.enough(6, f"float32 {where}: {name}"):
            break
        kept = pair.target.compiled, pair.draft.compiled
        if eager:
            pair.target.compiled = pair.draft.compiled = None
        try:
            found = replies(pair.core(name, at_once), asked, params)
        finally:
            pair.target.compiled, pair.draft.compiled = kept
        same[name] = sum(a == b for a, b in zip(found, wanted, strict=True))
    words = ", ".join(f"{name} {n}" for name, n in same.items())
    ok = all(n == len(wanted) for n in same.values())
    if same:
        context.check(f"float32, {where}: of {len(wanted)}", ok, words)
    return same


@torch.inference_mode()
def _transformers(
    context: Context, pair: Pair, asked: Any, params: SamplingParams, wanted: list[list[int]]
) -> None:
    """How many replies are those of ``generate``; fake tensors hold no tokens to compare."""
    if context.mode == "fake":
        context.row("float32: transformers' generate", "not rehearsed: it reads numbers")
        return
    model: Any = pair.target.model
    core, same = pair.core("off"), 0
    ends = sorted(end_ids(model, pair.tokenizer))
    for messages, reply in zip(asked, wanted, strict=True):
        ids = torch.tensor([core.admission.encode(messages).ids], device=pair.target.device)
        made = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=params.max_tokens,
            do_sample=False,
            eos_token_id=ends,
        )
        same += made[0, ids.shape[1] :].tolist() == reply
    said = f"{same} of {len(wanted)} replies of our engine"
    context.check("float32: transformers' generate", same == len(wanted), said)


def halves(context: Context) -> dict[str, Any]:
    """Bfloat16: every divergence is explained by a margin within the noise of a pass's width."""
    if context.mode == "fake":
        raise NotRehearsed("margins are numbers")
    pair = make_pair(context, "bfloat16")
    pair.capture(TARGET, (1,))
    asked = [(str(i), one, "") for i, one in enumerate(prompts(context.size(12, 2)))]
    core = pair.core("draft-4")
    report = compare_greedy(core, asked, max_tokens=context.size(48, 6))
    parted = len(report.divergences)
    explained = sum(one.explained for one in report.divergences)
    said = f"{parted} in {report.tokens} tokens, {explained} explained; noise {report.noise:.2g}"
    context.check("bfloat16: divergences", report.holds, said)
    return {"report": report.to_dict()}
