"""Others under the same test: transformers' generators on the same tiny models."""

import copy
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import (
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    StoppingCriteria,
    StoppingCriteriaList,
)
from transformers.generation import utils as generation_utils

from specstream.bench.exactness.enumeration import GTest, g_test
from specstream.types import SamplingParams
from tests.exactness.toy import TinyRunner, exact_joint, noisy_copy, tiny_llama

__all__ = ["run_peers"]

VOCAB, LENGTH, PROMPT = 5, 4, [1, 2, 3, 1, 2]
NO_END: frozenset[int] = frozenset()
# (name, our parameters for the exact distribution, theirs)
_WARPERS: tuple[tuple[str, SamplingParams, dict[str, Any]], ...] = (
    ("T 1", SamplingParams(1.0), {}),
    ("top-p", SamplingParams(1.2, top_p=0.8), {"temperature": 1.2, "top_p": 0.8}),
    ("repetition penalty", SamplingParams(1.0, repetition_penalty=1.3), {"repetition_penalty": 1.3}),
)


def run_peers(n: int) -> Iterator[tuple[str, GTest | dict[str, Any]]]:
    """Name and result of every comparison; G-tests of ``n`` samples, and behaviours in words."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield from _samples(n)
        yield from _single_position(20 * n)
        yield "stop strings with an assistant", _stop_strings()
        yield "stopping criteria with an assistant", _overrun()


def _target() -> Any:
    model = TinyRunner(VOCAB, 0).model
    settings = model.generation_config
    settings.eos_token_id, settings.pad_token_id = None, 0
    settings.top_k, settings.top_p = 0, 1.0
    return model


def _assistant(target: Any, **settings: Any) -> LlamaForCausalLM:
    draft = noisy_copy(target, 0.4, 3)
    for name, value in settings.items():
        setattr(draft.generation_config, name, value)
    return draft


def _samples(n: int) -> Iterator[tuple[str, GTest]]:
    target = _target()
    constant = {
        "num_assistant_tokens": 3,
        "num_assistant_tokens_schedule": "constant",
        "assistant_confidence_threshold": 0.0,
    }
    ways: dict[str, dict[str, Any]] = {
        "generate": {},
        "assisted, 3 tokens": {"assistant_model": _assistant(target, **constant)},
        "assisted, default schedule": {"assistant_model": _assistant(target)},
        "prompt lookup": {"prompt_lookup_num_tokens": 3},
    }
    prompt = torch.tensor([PROMPT])
    runner = TinyRunner(VOCAB, 0)
    for label, params, theirs in _WARPERS:
        exact = exact_joint(runner.logits_after, params, PROMPT, LENGTH, NO_END)
        for name, options in ways.items():
            torch.manual_seed(0)
            at_once = 1 if options else 100
            seen: Counter[tuple[int, ...]] = Counter()
            for _ in range(-(-n // at_once)):
                out: Any = target.generate(
                    prompt.expand(at_once, -1), do_sample=True, max_new_tokens=LENGTH + 1,
                    **theirs, **options,
                )  # fmt: skip
                seen.update(tuple(row[len(PROMPT) :][:LENGTH]) for row in out.tolist())
            yield f"{name}, {label}", g_test(seen, exact)


def _single_position(n: int) -> Iterator[tuple[str, GTest]]:
    """The acceptance function of transformers, fed with what was drawn and with an argmax.

    A generator that drafts the most likely token but hands over the whole row of logits (as the
    single-position multi-token generator does) takes the second way.
    """
    p = torch.tensor([0.40, 0.30, 0.15, 0.10, 0.05])
    q = torch.tensor([0.50, 0.20, 0.15, 0.10, 0.05])
    rule: Callable[..., Any] = generation_utils._speculative_sampling
    rows, draft = p.log().expand(1, 2, -1), q.log().view(1, 1, -1)
    exact: dict[tuple[int, ...], float] = {
        (i,): float(value) for i, value in enumerate(p.double() / p.double().sum())
    }
    ways: dict[str, Callable[[], Tensor]] = {
        "drawn from q": lambda: torch.multinomial(q, 1).view(1, 1),
        "argmax of q": lambda: q.argmax().view(1, 1),
    }
    for name, propose in ways.items():
        torch.manual_seed(0)
        seen: Counter[tuple[int, ...]] = Counter()
        for _ in range(n):
            ids = torch.cat([torch.zeros(1, 1, dtype=torch.long), propose()], 1)
            valid, _count = rule(ids, draft, 1, rows)
            seen[(int(valid[0, 0]),)] += 1
        yield f"_speculative_sampling, {name}", g_test(seen, exact)


def _stop_strings() -> dict[str, Any]:
    """Do ``stop_strings`` work plainly, and with an assistant?"""
    letters = {chr(ord("a") + i): i for i in range(26)}  # more than the model has, as is common
    inner = Tokenizer(models.WordLevel(letters, unk_token="a"))
    inner.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    inner.decoder = decoders.Fuse()
    fast: Any = PreTrainedTokenizerFast
    tokenizer, target = fast(tokenizer_object=inner, unk_token="a"), _target()
    found: dict[str, Any] = {}
    ways: dict[str, dict[str, Any]] = {"plain": {}, "assisted": {"assistant_model": _assistant(target)}}
    for name, options in ways.items():
        try:
            target.generate(
                torch.tensor([PROMPT]), do_sample=False, max_new_tokens=8,
                stop_strings=["cc"], tokenizer=tokenizer, **options,
            )  # fmt: skip
            found[name] = "works"
        except Exception as error:
            found[name] = f"{type(error).__name__}: {str(error)[:90]}"
    return found


class _LastIs(StoppingCriteria):
    """Stop when the last token is a certain one."""

    def __init__(self, token: int) -> None:
        self._token = token

    def __call__(self, ids: Tensor, scores: Any, **kwargs: Any) -> Any:
        return torch.tensor([ids[0, -1].item() == self._token])


def _overrun() -> dict[str, Any]:
    """How far greedy assisted generation goes past a user's stop, beside plain generation."""
    target: Any = tiny_llama(60, 0, layers=2, hidden=32, spread=8.0)
    settings = target.generation_config
    settings.eos_token_id, settings.pad_token_id = None, 0
    draft = copy.deepcopy(target)
    draft.generation_config.num_assistant_tokens = 8
    draft.generation_config.num_assistant_tokens_schedule = "constant"
    draft.generation_config.assistant_confidence_threshold = 0.0
    prompt = torch.tensor([[5, 9, 13, 2]])

    def reply(**options: Any) -> list[int]:
        out: Any = target.generate(prompt, max_new_tokens=40, do_sample=False, **options)
        tokens: list[int] = out[0, 4:].tolist()
        return tokens

    plain, over = reply(), []
    for token in dict.fromkeys(plain[1:]):
        stop = StoppingCriteriaList([_LastIs(token)])
        over.append(
            len(reply(stopping_criteria=stop, assistant_model=draft))
            - len(reply(stopping_criteria=stop))
        )
    return {
        "same_text_without_a_stop": reply(assistant_model=draft) == plain,
        "runs": len(over),
        "overran": sum(extra > 0 for extra in over),
        "most_tokens_over": max(over),
    }
