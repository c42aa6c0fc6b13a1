"""Peers: transformers' own generate, assisted generation and lookup; llama.cpp on a GGUF file."""

from __future__ import annotations

import copy
import importlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import GenerationConfig
from transformers.generation.streamers import BaseStreamer

from specstream.bench.arms.base import BenchThread
from specstream.bench.records import BenchRun, Emission
from specstream.config import EngineConfig
from specstream.engine.build import end_ids
from specstream.engine.core.prompt import PromptEncoder
from specstream.errors import ConfigError, VocabularyMismatch
from specstream.model.load import load_model, load_tokenizer
from specstream.model.tokens.vocabulary import check_same_ids, find_draft
from specstream.types import Message, SamplingParams

__all__ = ["ASSISTED", "LOOKUP", "GgufArm", "PeerArm", "PeerModels", "Settings"]

Settings = dict[str, dict[str, Any]]  # by name: options of ``generate``
_CONSTANT = {"num_assistant_tokens_schedule": "constant", "assistant_confidence_threshold": 0.0}
ASSISTED: Settings = {
    "3 tokens": {"num_assistant_tokens": 3, **_CONSTANT},
    "5 tokens": {"num_assistant_tokens": 5, **_CONSTANT},
    "heuristic": {**_CONSTANT, "num_assistant_tokens": 5,
                  "num_assistant_tokens_schedule": "heuristic"},
    "library default": {},
}  # fmt: skip
"""Settings of the draft's generation config. A threshold of None would mean the default."""
LOOKUP: Settings = {
    "4 tokens": {"prompt_lookup_num_tokens": 4},
    "10 tokens": {"prompt_lookup_num_tokens": 10},
}


class _Watch(BaseStreamer):
    """Records when tokens are emitted. The first value that transformers puts is the prompt."""

    def __init__(self, now_ms: Callable[[], float], check: Callable[[], None]) -> None:
        self._now_ms = now_ms
        self._check = check
        self._prompt_seen = False
        self.emissions: list[Emission] = []
        self.token_ids: list[int] = []

    def put(self, value: torch.Tensor) -> None:
        at = self._now_ms()
        self._check()
        if not self._prompt_seen:
            self._prompt_seen = True
            return
        ids = value.reshape(-1).tolist()
        self.token_ids += ids
        self.emissions.append(Emission(at, len(ids), accepted=len(ids) - 1))

    def end(self) -> None:
        pass


class PeerModels:
    """The model pair, loaded as transformers models; made on ``thread``, where they compute.

    Raises:
        ModelError: the target can't be loaded.
    """

    def __init__(self, config: EngineConfig, thread: BenchThread) -> None:
        self._config = config
        self.thread = thread
        self.tokenizer = load_tokenizer(config.target)
        self.target: Any = load_model(config.target, config)
        self.draft: Any = None
        self._prompts = PromptEncoder(self.tokenizer)

    def load_draft(self) -> None:
        """Load the draft model.

        Raises:
            VocabularyMismatch: there is none with the target's tokenizer.
            ModelError: it can't be loaded.
        """
        name = find_draft(self._config, self.tokenizer)
        if name is None:
            raise VocabularyMismatch("no draft was named, and the bundled one doesn't fit")
        check_same_ids(self._config, name, self.tokenizer)
        self.draft = load_model(name, self._config)

    @property
    def context(self) -> int:
        """The target's context length."""
        return int(self.target.config.max_position_embeddings)

    def encode(self, messages: Sequence[Message]) -> list[int]:
        """Encode a prompt as the engine does."""
        variables = self._config.chat_template_kwargs
        return self._prompts.encode(list(messages), self.context, variables).ids

    @property
    def eos_ids(self) -> list[int]:
        """Every id that ends a turn, as the engine collects them."""
        return sorted(end_ids(self.target, self.tokenizer))

    def run_of(
        self, token_ids: Sequence[int], emissions: Sequence[Emission], started: float
    ) -> BenchRun:
        """The record of a reply that began at ``started`` (seconds) and has just ended."""
        total_ms = (time.perf_counter() - started) * 1e3
        ended = bool(token_ids) and token_ids[-1] in self.eos_ids
        return BenchRun(tuple(token_ids), tuple(emissions), total_ms, "stop" if ended else "length")


class PeerArm:
    """One of transformers' ways to generate, at one of its settings."""

    def __init__(self, name: str, setting: str, options: dict[str, Any], models: PeerModels) -> None:
        self.name = name
        self.setting = setting
        self._models = models
        self._options = {} if name == "assisted" else options
        self._draft_config: GenerationConfig | None = None  # of assisted generation
        if name == "assisted":
            # Each setting has a copy: the heuristic schedule changes it from reply to reply.
            self._draft_config = copy.deepcopy(models.draft.generation_config)
            for key, value in options.items():
                setattr(self._draft_config, key, value)

    async def run(self, messages: Sequence[Message], params: SamplingParams) -> BenchRun:
        """Write one reply."""
        return await self._models.thread.call(lambda: self._run(messages, params))

    @torch.inference_mode()
    def _run(self, messages: Sequence[Message], params: SamplingParams) -> BenchRun:
        models = self._models
        options = dict(self._options)
        if self._draft_config is not None:
            models.draft.generation_config = self._draft_config
            options["assistant_model"] = models.draft
        if params.seed is not None:
            torch.manual_seed(params.seed)
        started = time.perf_counter()
        watch = _Watch(lambda: (time.perf_counter() - started) * 1e3, models.thread.check)
        ids = models.encode(messages)
        prompt = torch.tensor([ids], device=models.target.device)
        models.target.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            generation_config=_generation_config(params, models.eos_ids, models.context - len(ids)),
            streamer=watch,
            **options,
        )
        return models.run_of(watch.token_ids, watch.emissions, started)


def _generation_config(params: SamplingParams, eos_ids: list[int], room: int) -> Any:
    """A config of the request's parameters alone, for the same distribution as in our engine."""
    new_config: Any = GenerationConfig  # transformers doesn't type it
    config: Any = new_config(
        max_new_tokens=min(params.max_tokens, room), eos_token_id=eos_ids, pad_token_id=eos_ids[0]
    )
    config.do_sample = params.temperature > 0
    if config.do_sample:
        for name in ("temperature", "top_k", "top_p"):
            setattr(config, name, getattr(params, name))
    return config


class GgufArm:
    """llama.cpp's plain generation from the target's token ids; the file's weights may be quantised.

    Made on the thread of ``models``, of a file that `check_gguf` has accepted.

    Raises:
        ConfigError: llama.cpp can't read it, or its vocabulary has another size than the target's.
    """

    name = "llama.cpp"

    def __init__(self, file: str, models: PeerModels, threads: int) -> None:
        module: Any = importlib.import_module("llama_cpp")
        layers = 0 if models.target.device.type == "cpu" else -1
        try:
            self._llama = module.Llama(
                model_path=file, n_ctx=models.context, n_threads=threads, n_threads_batch=threads,
                n_gpu_layers=layers, verbose=False,
            )  # fmt: skip
        except Exception as error:
            raise ConfigError(f"--llama-cpp: {file} can't be read: {error}") from error
        ours, theirs = models.target.config.vocab_size, self._llama.n_vocab()
        if theirs != ours:
            raise ConfigError(
                f"--llama-cpp: {file} has {theirs} tokens and the target {ours}: give a GGUF file of "
                "the target itself"
            )
        self.setting = Path(file).stem
        self._models = models

    async def run(self, messages: Sequence[Message], params: SamplingParams) -> BenchRun:
        """Write one reply."""
        return await self._models.thread.call(lambda: self._run(messages, params))

    def _run(self, messages: Sequence[Message], params: SamplingParams) -> BenchRun:
        models, llama = self._models, self._llama
        llama.reset()  # otherwise it would reuse the last prompt's KV cache for a common prefix
        if params.seed is not None:
            llama.set_seed(params.seed)
        started = time.perf_counter()
        ids = models.encode(messages)
        most = min(params.max_tokens, models.context - len(ids))
        ends, tokens, emissions = models.eos_ids, list[int](), list[Emission]()
        drawn = llama.generate(
            ids, temp=params.temperature, top_k=params.top_k, top_p=params.top_p, min_p=0.0,
            repeat_penalty=1.0,
        )  # fmt: skip
        for token in drawn:
            tokens.append(int(token))
            emissions.append(Emission((time.perf_counter() - started) * 1e3, 1))
            models.thread.check()
            if token in ends or len(tokens) >= most:
                break
        return models.run_of(tokens, emissions, started)
