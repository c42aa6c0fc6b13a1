"""The reproducible mode at scale: every way of getting a reply must give the tokens of plain decoding.

A tiny transformer, thousands of generations. Each is compared, token by token, with the reply that an
engine without any draft gives for the same prompt, parameters and seed.
"""

import json
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from transformers import LlamaForCausalLM

from specstream.bench.exactness.harness import Varying, run_requests
from specstream.config import EngineConfig
from specstream.drafting.proposal import Proposer
from specstream.drafting.proposers.draft_model import DraftModelProposer
from specstream.drafting.proposers.off import OffProposer
from specstream.drafting.proposers.suffix import SuffixProposer
from specstream.engine.core.request import Delivery, Request
from specstream.engine.core.step import EngineCore
from specstream.methods import DraftProposerConfig, SuffixProposerConfig
from specstream.model.runner import ModelRunner
from specstream.model.selfcheck import find_fixed_width
from specstream.types import SamplingParams
from tests.exactness.toy import Numbers, make_core, noisy_copy, tiny_llama

__all__ = ["WAYS", "Bench", "Job", "count_identical", "in_a_new_process", "make_job"]

VOCAB, TOKENS = 96, 24
_NONE: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Job:
    """One reply that is asked for in many ways."""

    prompt: tuple[int, ...]
    params: SamplingParams

    @property
    def text(self) -> str:
        """The prompt as `Numbers` reads it."""
        return " ".join(map(str, self.prompt))


def make_job(number: int) -> Job:
    """Prompt and parameters, random but fixed. Penalties that tell prompt from reply are left out.

    (A resumed reply's first half is prompt to the engine, so they would see another text.)
    """
    rng = random.Random(number)
    prompt = tuple(rng.randrange(2, VOCAB) for _ in range(rng.randrange(3, 20)))
    params = SamplingParams(
        temperature=rng.choice([0.5, 0.8, 1.0, 1.4]),
        top_p=rng.choice([1.0, 0.9]),
        top_k=rng.choice([0, 20]),
        min_p=rng.choice([0.0, 0.02]),
        repetition_penalty=rng.choice([1.0, 1.2]),
        seed=rng.randrange(2**63),
        max_tokens=TOKENS,
    )
    return Job(prompt, params)


class Bench:
    """A target, its width, and drafts of several qualities, in one dtype."""

    def __init__(self, dtype: torch.dtype, device: str = "cpu") -> None:
        self.dtype, self._device = dtype, device
        self.model = self._make()
        self.width = find_fixed_width(self.model, EngineConfig())

    def _make(self) -> LlamaForCausalLM:
        made: Any = tiny_llama(VOCAB, 0, layers=2, hidden=32, spread=4.0, dtype=self.dtype)
        placed: LlamaForCausalLM = made.to(self._device)
        return placed

    @cached_property
    def drafts(self) -> list[LlamaForCausalLM]:
        """From nearly the target itself to one that knows nothing of it."""
        other: Any = tiny_llama(VOCAB, 9, layers=1, spread=4.0, dtype=self.dtype)
        near = [noisy_copy(self.model, noise, 1) for noise in (0.02, 0.1, 0.3)]
        return [*near, other.to(self._device)]

    def draft(self, quality: int, k: int) -> Proposer:
        """A draft model that proposes ``k`` tokens."""
        runner = ModelRunner(self.drafts[quality % len(self.drafts)])
        return DraftModelProposer(DraftProposerConfig(num_tokens=k), runner, _NONE)

    def core(self, proposer: Proposer, *, anew: bool = False) -> EngineCore:
        """An engine; ``anew`` makes the weights again, as after a restart."""
        model = self._make() if anew else self.model
        runner = ModelRunner(model, fixed_width=self.width)
        return make_core(runner, Numbers(), proposer, _NONE, mode="reproducible", max_running=4)

    def plain(self, job: Job) -> list[int]:
        """The reply without speculation."""
        return self.reply(self.core(OffProposer()), job)

    @staticmethod
    def reply(core: EngineCore, job: Job, *, neighbours: int = 0) -> list[int]:
        """One reply, with others beside it."""
        others = [SamplingParams(temperature=1.0, max_tokens=5 + i) for i in range(neighbours)]
        request = run_requests(core, job.text, [job.params, *others])[0]
        return request.token_ids[len(job.prompt) :]

    def resumed(self, job: Job, proposer: Proposer, rounds: int, *, fresh: bool) -> list[int]:
        """Cancelled after some rounds, then asked to go on from what was written."""
        core = self.core(proposer)
        session = None if fresh else "talk"
        messages = [{"role": "user", "content": job.text}]
        request = Request(
            messages,  # type: ignore[arg-type]
            job.params,
            Delivery(lambda item: None, limit=2**62),
            session=session,
            proposer="bench",
        )
        core.submit(request)
        for _ in range(rounds):
            core.step()
        request.delivery.cancelled = True
        while core.step():
            pass
        done = request.token_ids[len(job.prompt) :]
        if len(done) == TOKENS:
            return done
        if fresh:
            core = self.core(proposer)
        rest = replace(job.params, max_tokens=TOKENS - len(done))
        again = Job((*job.prompt, *done), rest)
        request = run_requests(core, again.text, [rest], session=session)[0]
        return done + request.token_ids[len(again.prompt) :]


Way = Callable[[Bench, Job, int], list[int]]
WAYS: dict[str, Way] = {
    "draft, K 1 to 8": lambda b, j, i: b.reply(b.core(b.draft(i, 1 + i % 8)), j),
    "draft, K changing": lambda b, j, i: b.reply(b.core(Varying(b.draft(i, 8), 8)), j),
    "suffix lookup": lambda b, j, i: b.reply(
        b.core(SuffixProposer(SuffixProposerConfig(min_score=0), b.model.device)), j
    ),
    "neighbours in the batch": lambda b, j, i: b.reply(
        b.core(b.draft(i, 1 + i % 8)), j, neighbours=1 + i % 3
    ),
    "cancelled, resumed from the cache": lambda b, j, i: b.resumed(
        j, b.draft(i, 1 + i % 8), 1 + i % 5, fresh=False
    ),
    "cancelled, resumed afresh": lambda b, j, i: b.resumed(
        j, b.draft(i, 1 + i % 8), 1 + i % 5, fresh=True
    ),
    "engine made anew": lambda b, j, i: b.reply(b.core(b.draft(i, 4), anew=True), j),
}


def count_identical(dtype: torch.dtype, jobs: int) -> dict[str, tuple[int, int]]:
    """Way → (identical replies, replies), over ``jobs`` prompts and seeds."""
    bench = Bench(dtype)
    same: Counter[str] = Counter()
    for number in range(jobs):
        job = make_job(number)
        wanted = bench.plain(job)
        for name, way in WAYS.items():
            same[name] += way(bench, job, number) == wanted
    return {name: (same[name], jobs) for name in WAYS}


def in_a_new_process(dtype: torch.dtype, jobs: int) -> tuple[int, int]:
    """(identical, replies) with a draft, in another process than the plain reply."""
    name = str(dtype).removeprefix("torch.")
    command = [sys.executable, "-m", __name__, name, str(jobs)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    theirs = json.loads(done.stdout.splitlines()[-1])
    bench = Bench(dtype)
    same = sum(bench.plain(make_job(i)) == theirs[i] for i in range(jobs))
    return same, jobs


if __name__ == "__main__":
    _bench = Bench(getattr(torch, sys.argv[1]))
    _replies = [
        _bench.reply(_bench.core(_bench.draft(i, 4)), make_job(i)) for i in range(int(sys.argv[2]))
    ]
    sys.stdout.write(json.dumps(_replies) + "\n")
