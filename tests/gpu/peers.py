"""transformers' own ways to generate at the same shapes, one setting each."""

import time
from typing import Any

import torch

from tests.gpu.context import Context, NotRehearsed
from tests.gpu.models import padded

__all__ = ["peers"]

_TOKENS, _PROMPT = 64, 48


@torch.inference_mode()
def peers(context: Context) -> dict[str, Any]:
    """``generate`` with a dynamic cache at both shapes, then static and compiled at that of 1B."""
    if context.mode == "fake":
        raise NotRehearsed("generate reads numbers and compiles; the CPU rehearsal runs it")
    found = dict[str, float]()
    for name in ("1B", "8B"):
        if not context.enough(10, f"{name}, dynamic cache"):
            return found
        model = padded(context, name)
        found[f"{name} dynamic"] = _rate(context, model, 1)
        context.row(f"{name}, dynamic cache", f"{found[f'{name} dynamic']:.0f} tok/s")
        if name == "1B":
            small = model
        del model
    if context.enough(15, "1B, static cache, compiled") and _compiles(context):
        torch.cuda.empty_cache()
        found["1B static"] = _rate(context, small, 2, cache_implementation="static")
        context.row("1B, static cache, compiled", f"{found['1B static']:.0f} tok/s")
    return found


def _compiles(context: Context) -> bool:
    """On a CPU transformers doesn't compile, so that this setting shows nothing there."""
    if context.real:
        return True
    context.row("1B, static cache, compiled", "not rehearsed: it compiles on a GPU only")
    return False


def _rate(context: Context, model: Any, warm: int, **options: Any) -> float:
    """Tokens a second of one greedy reply."""
    count = context.size(_TOKENS, 4)
    ids = torch.arange(3, 3 + _PROMPT, device=model.device).unsqueeze(0)
    seconds = 0.0
    for _ in range(warm + 1):
        torch.cuda.synchronize()
        start = time.perf_counter()
        model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            min_new_tokens=count,
            max_new_tokens=count,
            do_sample=False,
            **options,
        )
        torch.cuda.synchronize()
        seconds = time.perf_counter() - start
    return count / seconds
