"""Runs a whole training: from options to a folder that ``--draft`` loads."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from specstream.config import EngineConfig
from specstream.engine.build import end_ids
from specstream.errors import ConfigError, ModelUnsupported, TrainingError, TrainingStopped
from specstream.model.load import load_model, load_tokenizer
from specstream.model.runner import ModelRunner
from specstream.training.batches import Batches
from specstream.training.files import read_tensors, tell_acceptance, write_tensors
from specstream.training.inputs import check_out, digest
from specstream.training.loop import Loop, measure
from specstream.training.options import TrainOptions, trainee_of
from specstream.training.output import Trained, facts_of, locked, open_work, output_folder, predict
from specstream.training.replies import ON_POLICY, Prompts, Writing, hold_out, read_data, write_replies
from specstream.training.store import ReplyFolder
from specstream.training.trainee import ChoosesTokens, Trainee, TrainingBatch

__all__ = ["Tell", "train"]

_log = logging.getLogger("specstream.training")

_FOR_REPLIES = 1 / 3  # share of the time for writing training replies
_FOR_HELD = 0.1  # share of the time for writing held-out replies
_FOR_TRAINING = 0.95  # share of the rest for steps; loading, saving and timing need some, too
_HELD = 64  # held-out prompts or replies, at most
_HELD_A_MINUTE = 4  # sequences held out of given replies that are measured, per minute of training
_BATCH_LOGITS = 1 << 27  # logits (elements) of a batch, about
_MOST_TOKENS, _LEAST_TOKENS = 2048, 1024  # bounds of a batch's tokens by default

Tell = Callable[[str, float, str], None]
"""Progress callback: the stage ("replies", "training" …), the part done (0 to 1), figures in words."""


def train(
    options: TrainOptions,
    tell: Tell = lambda what, done, says: None,
    stop: Callable[[], bool] = lambda: False,
) -> Trained:
    """Train and write ``options.out``. Runs on the calling thread until it is done.

    ``options.work`` holds all that is needed to resume: after a crash, a full disk or a stop, the same
    options continue from the last checkpoint.

    Args:
        options: The options.
        tell: Called with the progress.
        stop: Called often; once it returns True the training is saved and ends.

    Raises:
        TrainingStopped: ``stop`` returned True.
        ConfigError: options, data or folders that don't fit.
        ModelError: the target can't be loaded, or can't be learnt from.
        OutputError: a file can't be written; files written before are kept.
        TrainingError: the loss is not a number, or there was no time for a reply or nothing to measure.
    """
    check_out(options)
    return _Training(options, tell, stop).run()


class _Training:
    def __init__(self, options: TrainOptions, tell: Tell, stop: Callable[[], bool]) -> None:
        self._options, self._tell, self._stop = options, tell, stop
        # Report unreadable files before models are loaded.
        named = {"data": options.data, "eval": options.eval}
        self._digests = {name: digest(path) for name, path in named.items() if path is not None}
        torch.set_num_threads(options.threads or max(1, (os.cpu_count() or 2) - 1))
        tell("loading", 0.0, options.target)
        self._engine = EngineConfig.model_validate(
            {"target": options.target, "device": options.device, "dtype": options.dtype,
             "threads": options.threads}
        )  # fmt: skip
        self._tokenizer: PreTrainedTokenizerBase = load_tokenizer(options.target)
        self._target = ModelRunner(load_model(options.target, self._engine))
        self._target.model.requires_grad_(False)
        config: Any = self._target.model.config
        self._layers, self._hidden = int(config.num_hidden_layers), int(config.hidden_size)
        try:
            self._target.check_states([self._layers])
        except ModelUnsupported as error:
            raise ModelUnsupported(
                f"{options.target} can't be learnt from: training needs a plain target of the Llama "
                "family (Llama, Mistral, Qwen2, Qwen3; no sliding windows); as its draft take suffix, "
                "or a small model of its own family"
            ) from error
        torch.manual_seed(options.seed)
        self._trainee: Trainee = trainee_of(self._target, self._tokenizer, options)
        self._depths = tuple(sorted({*self._trainee.depths, self._layers}))

    def run(self) -> Trained:
        options = self._options
        prompts, held_prompts = self._prompts()  # first: with bad files no folder is made
        with locked(options):
            return self._train(prompts, held_prompts)

    def _train(self, prompts: Prompts | None, held_prompts: Prompts | None) -> Trained:
        options = self._options
        open_work(options, options.identity() | {"digests": self._digests})
        replies, held, skip = self._data(prompts, held_prompts)
        self._choose_tokens(replies, skip)
        batches = self._batches(replies, prompts=options.learn_prompts, skip=skip)
        spent = replies.seconds if options.replies is None else 0.0
        left = max(0.0, options.minutes * 60 - spent - held.seconds) * _FOR_TRAINING
        measured = held if skip == 0 else replies
        loop = Loop(self._trainee, options, batches, lambda: self._held(measured, skip), left)
        loop.resume()
        if not loop.run(self._tell_step, self._stop):
            raise self._stopped(f"step {loop.progress.step}")
        found = measure(self._trainee, self._held(measured, skip))
        if not found.positions:
            raise TrainingError("nothing was measured: the held-out replies are empty")
        self._tell("saving", 1.0, "")
        now, out = loop.progress, options.out
        result = Trained(out, options.kind, found, "", now, replies.tokens)
        facts = facts_of(options, self._target.model, self._trainee.module, result)
        with output_folder(options) as folder:
            self._trainee.save(folder, facts)
            tell_acceptance(folder, found.positions)
            speed = predict(folder, options.kind, found.positions, self._engine)
        return replace(result, speed=speed)

    def _choose_tokens(self, replies: ReplyFolder, skip: int) -> None:
        """Let the trainee choose its vocabulary by token frequency; a resumed one keeps its choice."""
        if not isinstance(self._trainee, ChoosesTokens) or not self._trainee.chooses:
            return
        path = self._options.work / "counts.pt"
        if not path.exists():
            write_tensors(path, replies.count(self._target.model_vocab_size, skip))
        self._trainee.choose(read_tensors(path))

    def _prompts(self) -> tuple[Prompts | None, Prompts | None]:
        """Read training prompts and held-out prompts; None if there are none."""
        options = self._options
        room = max(8, min(self._target.context_length - 8, 2 * options.longest))
        prompts = held = None
        if options.data is not None:
            prompts = read_data(options.data, self._tokenizer, room)
            if options.eval is None:
                prompts, held = hold_out(prompts, _HELD)
        if options.eval is not None:
            found = read_data(options.eval, self._tokenizer, room, least=1)
            held = found.chosen(range(0, len(found), -(-len(found) // _HELD)))
        return prompts, held

    def _data(
        self, prompts: Prompts | None, held_prompts: Prompts | None
    ) -> tuple[ReplyFolder, ReplyFolder, int]:
        """Write or open the replies.

        Returns the replies to train on, the held-out replies, and how many sequences of the last shard
        are held out (0 if there are held-out replies).
        """
        options, depths = self._options, self._depths
        held = ReplyFolder.create(options.work / "held", depths, self._hidden)
        if held_prompts is not None:
            self._write("held-out replies", held, held_prompts, (1.0,), _FOR_HELD, None)
        if options.replies is not None:
            replies = ReplyFolder.open(options.replies, depths, self._hidden)
            count = len(replies.read(replies.names[-1]))
            return replies, held, 0 if held.names else max(1, min(_HELD, count // 2))
        assert prompts is not None, "checked by the options"
        replies = ReplyFolder.create(options.work / "replies", depths, self._hidden)
        self._write("replies", replies, prompts, ON_POLICY, _FOR_REPLIES, options.tokens)
        return replies, held, 0

    def _write(
        self,
        what: str,
        replies: ReplyFolder,
        prompts: Prompts,
        temperatures: tuple[float, ...],
        share: float,
        tokens: int | None,
    ) -> None:
        options = self._options
        timed = options.steps is None and tokens is None
        seconds = options.minutes * 60 * share if timed else None
        total = len(prompts) * options.max_reply

        def told(written: int, spent: float) -> None:
            done = spent / seconds if seconds else written / (tokens or total)
            self._tell(what, min(1.0, done), f"{written} tokens")

        whole = write_replies(
            self._target,
            replies,
            Writing(
                prompts, end_ids(self._target.model, self._tokenizer), options.max_reply,
                temperatures, tokens, seconds, options.seed,
            ),
            tell=told,
            stop=self._stop,
        )  # fmt: skip
        if prompts.left_out:
            _log.warning(
                "%d of %d prompts for %s have more than %d tokens and were left out",
                len(prompts.left_out), len(prompts), what, prompts.longest,
            )  # fmt: skip
        if not whole:
            raise self._stopped(f"{replies.tokens} tokens of {what}")
        if not replies.names:
            if len(prompts.left_out) == len(prompts):
                raise ConfigError(f"no prompt for {what} is short enough: shorten them")
            raise TrainingError(f"no time for a single reply: raise --minutes ({options.minutes:g})")

    def _batches(self, replies: ReplyFolder, *, prompts: bool, skip: int = 0) -> Batches:
        options, vocabulary = self._options, self._target.model_vocab_size
        by_logits = max(_LEAST_TOKENS, min(_MOST_TOKENS, _BATCH_LOGITS // vocabulary))
        model: Any = self._target.model
        return Batches(
            replies=replies,
            depths=(*self._trainee.depths, self._layers),
            norm=model.model.norm,
            tokens=options.batch_tokens or by_logits,
            longest=options.longest,
            dtype=self._target.dtype,
            device=self._target.device,
            prompts=prompts,
            skip=skip,
            seed=options.seed,
        )

    def _held(self, replies: ReplyFolder, skip: int) -> Iterator[TrainingBatch]:
        if self._options.steps is None:
            skip = min(skip, math.ceil(_HELD_A_MINUTE * self._options.minutes))
        return self._batches(replies, prompts=False).held_out(skip or None)

    def _tell_step(self, done: float, loss: float, accepted: float) -> None:
        if loss != loss:
            raise TrainingError("the loss is not a number: try a smaller --lr")
        self._tell("training", done, f"loss {loss:.3f}, held-out acceptance {accepted:.3f}")

    def _stopped(self, at: str) -> TrainingStopped:
        return TrainingStopped(
            f"stopped at {at}; saved in {self._options.work}: the same command goes on from there"
        )
