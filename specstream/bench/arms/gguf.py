"""A peer outside torch: llama.cpp, through llama-cpp-python, on a GGUF file of the same model."""

from __future__ import annotations

import importlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from specstream.bench.arms.transformers_peers import PeerModels
from specstream.bench.records import Emission, Run
from specstream.errors import ConfigError
from specstream.types import Message, SamplingParams

__all__ = ["GgufArm"]


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

    async def run(self, messages: Sequence[Message], params: SamplingParams) -> Run:
        """Write one reply."""
        return await self._models.thread.call(lambda: self._run(messages, params))

    def _run(self, messages: Sequence[Message], params: SamplingParams) -> Run:
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
