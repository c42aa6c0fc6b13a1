"""Compiled code computes what the model computes, is kept, and is refused when it can't be had."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from specstream.errors import ConfigError, ModelUnsupported
from specstream.model.decoder import Decoder
from specstream.model.forward import Extras, ForwardInput
from specstream.model.graphs import (
    CapturePlan,
    Progress,
    aot,
    compile_passes,
    count_packages,
    inductor,
)
from specstream.model.graphs.inductor import InductorPasses
from specstream.model.graphs.static import StaticPass
from specstream.model.graphs.store import PackageStore
from specstream.model.runner import ModelRunner
from specstream.model.tree import Tree
from tests.model.families import VOCAB, build, text, whole
from tests.model.graphs.uncompiled import Uncompiled

# A compiler on a busy machine takes its time.
pytestmark = pytest.mark.timeout(600)
PLAN = CapturePlan((1, 3), chain_widths=(2,), chain_steps=3)
CHAIN = CapturePlan((), chain_widths=(2,), chain_steps=3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compiling takes some ten seconds a package: what one test compiled serves the next ones."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def runner(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> ModelRunner:
    """A model of four layers, compiled two at a time, and the head by itself."""
    monkeypatch.setenv("SPECSTREAM_CACHE", str(folder))
    monkeypatch.setattr(inductor, "_BLOCK", 2)
    monkeypatch.setattr(inductor, "_LEAST", 2)
    caplog.set_level(logging.INFO, logger="specstream.model")
    return compiled(build("qwen2", num_hidden_layers=4))


def compiled(
    model: PreTrainedModel, plan: CapturePlan = PLAN, vocab_size: int | None = None
) -> ModelRunner:
    made = ModelRunner(model, captured=plan, vocab_size=vocab_size)
    made.compile()
    return made


def captured(runner: ModelRunner) -> tuple[tuple[int, ...], tuple[int, ...]]:
    assert runner.compiled is not None
    return runner.compiled.widths, runner.compiled.chains


@torch.inference_mode()
def test_passes_of_all_kinds_in_turn_give_the_models_own_logits(
    runner: ModelRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With junk behind, taken back, past the cache's first capacity and the first angles."""
    assert captured(runner) == ((1, 3), ())
    compiled = 0
    call = InductorPasses.__call__

    def count(self: InductorPasses, *args: Any) -> list[torch.Tensor] | None:
        nonlocal compiled
        found = call(self, *args)
        compiled += found is not None
        return found

    monkeypatch.setattr(InductorPasses, "__call__", count)
    ids = text(300)
    wanted, cache, at = whole(runner.model, ids), runner.new_cache(), 0
    for tokens in (1, 5, 1, 2, 3, 240, 1, 1, 3, 2, 20, 2, 1, 3, 3, 12):
        runner.forward([ForwardInput(text(2, seed=at), cache)])
        cache.rollback_to(at)
        part = ids[at : at + tokens]
        (rows,) = runner.forward([ForwardInput(part, cache, keep=len(part))]).logits
        torch.testing.assert_close(rows, wanted[at : at + tokens], atol=1e-4, rtol=1e-4)
        at += tokens
    assert cache.length == at == 300
    assert compiled == 16 + 11  # the junk, and all but the wide ones and the very first token


@torch.inference_mode()
def test_trees_and_hidden_states_come_from_compiled_passes(
    runner: ModelRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the captured width and below; as the eager pass computes them, the cache included."""
    eager, ids, depths = ModelRunner(runner.model), text(12), (0, 1, 2, 4)
    caches = [each.new_cache() for each in (runner, eager)]
    for each, cache in zip((runner, eager), caches, strict=True):
        each.forward([ForwardInput(ids[:6], cache)])
    monkeypatch.setattr(runner.decoder, "run", None)  # no eager pass from here on
    for part, tree in (
        (ids[6:9], Tree((-1, -1))),
        (ids[6:8], Tree((-1, -1))),
        (ids[6:9], Tree((-1, 0, 0))),
        (ids[6:7], None),
        (ids[7:10], None),
    ):
        found = [
            each.forward([ForwardInput(part, cache, len(part), tree)], Extras(depths))
            for each, cache in zip((runner, eager), caches, strict=True)
        ]
        for kind in ("logits", "states"):
            ((ours,), (wanted,)) = (getattr(one, kind) for one in found)
            torch.testing.assert_close(ours, wanted, atol=1e-4, rtol=1e-4)
        for cache in caches:
            cache.rollback_to(7 if tree is None else 6)
    rows = [
        each.forward([ForwardInput(ids[7:9], cache, 2)]).logits[0]
        for each, cache in zip((runner, eager), caches, strict=True)
    ]
    torch.testing.assert_close(*rows, atol=1e-4, rtol=1e-4)


@torch.inference_mode()
def test_several_sequences_and_a_compiled_one_read_the_same_caches(runner: ModelRunner) -> None:
    texts = [text(12, seed=n) for n in (1, 2)]
    caches = [runner.new_cache() for _ in texts]
    runner.forward([ForwardInput(t[:8], c) for t, c in zip(texts, caches, strict=True)])
    for ids, cache in zip(texts, caches, strict=True):
        runner.forward([ForwardInput(ids[8:10], cache)])
    rows = runner.forward(
        [ForwardInput(t[10:], c, 2) for t, c in zip(texts, caches, strict=True)]
    ).logits
    for ids, found in zip(texts, rows, strict=True):
        torch.testing.assert_close(found, whole(runner.model, ids)[10:], atol=1e-4, rtol=1e-4)


def test_the_next_start_compiles_nothing(
    runner: ModelRunner, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*args: object) -> None:
        raise AssertionError("compiled again")

    monkeypatch.setattr(aot, "_compile", never)
    assert captured(compiled(runner.model)) == ((1, 3), ())
    # Other weights of the same sizes share the code, and keep their own numbers.
    other = build("qwen2", num_hidden_layers=4)
    with torch.inference_mode():
        for parameter in other.parameters():
            parameter.mul_(1.1)
        shared = compiled(other)
        ids, cache = text(6), shared.new_cache()
        shared.forward([ForwardInput(ids[:3], cache)])
        (rows,) = shared.forward([ForwardInput(ids[3:], cache, keep=3)]).logits
        torch.testing.assert_close(rows, whole(other, ids)[3:], atol=1e-4, rtol=1e-4)
    assert "not used" not in caplog.text


def test_a_start_without_a_compiler_is_not_told_that_its_packages_are_outdated(
    runner: ModelRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch._inductor.exc import InvalidCxxCompiler
    from torch._inductor.package import package

    def asks_the_compiler(*args: object, **options: object) -> None:
        raise InvalidCxxCompiler

    told: list[str] = []
    monkeypatch.setattr(package, "load_pt2", asks_the_compiler)
    monkeypatch.setattr(
        package.log, "callHandlers", lambda record: told.append(record.getMessage())
    )
    again = compiled(runner.model)
    assert captured(again) == ((1, 3), ())
    assert told == []


def test_a_damaged_package_is_made_again(
    runner: ModelRunner,
    folder: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    files = sorted((folder / "compiled").glob("*.pt2"))
    good = {path.name: path.read_bytes() for path in files}
    files[0].write_bytes(b"not a package")
    monkeypatch.setattr(aot, "_compile", lambda *args: args[-1].write_bytes(good[args[-1].name]))
    assert captured(compiled(runner.model)) == ((1, 3), ())
    assert "can't be loaded and is made again" in caplog.text
    assert files[0].read_bytes() == good[files[0].name]


@torch.inference_mode()
def test_code_that_computes_something_else_is_not_used(
    runner: ModelRunner,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    call = InductorPasses.__call__

    def off(
        self: InductorPasses, tokens: list[torch.Tensor], *args: Any
    ) -> list[torch.Tensor] | None:
        found = call(self, tokens, *args)
        return found and [found[0] + 0.1 * (tokens[0].shape[0] == 3)]

    monkeypatch.setattr(InductorPasses, "__call__", off)
    again = compiled(runner.model)
    assert captured(again) == ((1,), ())
    assert "the compiled pass of 3 tokens is off by" in caplog.text


@torch.inference_mode()
def test_a_chain_writes_what_single_steps_write(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Over tokens that may be chosen only, from the end of any sequence, again and again."""
    monkeypatch.setenv("SPECSTREAM_CACHE", str(folder))
    draft = compiled(build("llama"), CHAIN, VOCAB - 9)
    assert captured(draft) == ((), (2,))
    ids, cache, plain = text(5), draft.new_cache(), draft.new_cache()
    for side in (cache, plain):
        draft.forward([ForwardInput(ids[:3], side)])
    read = ids[3:]
    for _ in range(3):
        found = draft.chain(read, cache)
        assert found is not None
        tokens, confidences = found
        assert cache.length == plain.length + 4
        for token, confidence in zip(tokens, confidences, strict=True):
            (row,) = draft.forward([ForwardInput(read, plain)]).logits
            top, best = row[0].softmax(-1).max(-1)
            assert int(token) == int(best) < VOCAB - 9
            torch.testing.assert_close(confidence, top, atol=1e-4, rtol=1e-4)
            read = token.reshape(1)
        draft.forward([ForwardInput(read, cache)])
        draft.forward([ForwardInput(read, plain)])
        read = text(2, seed=plain.length)
    assert draft.chain(text(1), cache) is None and cache.length == plain.length
    call = InductorPasses.chain
    monkeypatch.setattr(InductorPasses, "chain", lambda *args: tuple(reversed_tokens(call(*args))))
    assert captured(compiled(build("llama"), CHAIN, VOCAB - 9)) == ((), ())
    assert "the compiled chain from 2 tokens is off by" in caplog.text


def reversed_tokens(chained: tuple[torch.Tensor, torch.Tensor] | None) -> list[torch.Tensor]:
    """A planted bug: the right tokens in the wrong order."""
    assert chained is not None
    return [chained[0].flip(0), chained[1]]


def test_no_compiler_is_said_in_one_line(tmp_path: Path) -> None:
    from torch._inductor import config

    decoder = Decoder.of(build("llama", num_hidden_layers=1))
    assert decoder is not None
    said = r"^compile: .*\(g\+\+, or the one that CXX names\) – or leave compile off$"
    with config.patch({"cpp.cxx": ("/nowhere/g++",)}), pytest.raises(ConfigError, match=said):
        compile_passes(decoder, CapturePlan((1,)), context_length=64, store=PackageStore(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_a_cache_that_can_not_be_written_is_said_in_one_line(tmp_path: Path) -> None:
    decoder = Decoder.of(build("llama"))
    assert decoder is not None
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="set SPECSTREAM_CACHE to a folder that can be written"):
        compile_passes(
            decoder, CapturePlan((1,)), context_length=64, store=PackageStore(tmp_path / "file")
        )


@pytest.mark.parametrize(
    ("depth", "blocks", "packages"),
    [
        (2, [(0, 2)], 3),
        (8, [(0, 8)], 3),
        (30, [(start, start + 6) for start in range(0, 30, 6)], 4),
        (32, [(start, start + 8) for start in range(0, 32, 8)], 4),
        (13, [(0, 8), (8, 13)], 6),
    ],
)
def test_blocks_are_alike_where_possible(
    depth: int, blocks: list[tuple[int, int]], packages: int
) -> None:
    assert inductor._blocks(depth) == blocks
    assert inductor.packages_of(depth, PLAN) == packages


def test_packages_are_counted_as_they_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 12 layers two blocks and a head are loaded for each width; a block is compiled once."""
    compiler = Uncompiled(monkeypatch)
    decoder = Decoder.of(build("llama", num_hidden_layers=12))
    assert decoder is not None
    calls: list[int] = []
    progress = Progress(count_packages(decoder, PLAN), lambda: calls.append(1))
    store = PackageStore(tmp_path)
    InductorPasses(decoder, PLAN, VOCAB, store, progress)
    assert len(calls) == len(compiler.made) == count_packages(decoder, PLAN) == 4


def test_tied_and_untied_models_have_code_of_their_own() -> None:
    """The exporter makes one constant of two that are the same tensor."""
    recipes = []
    for tied in (True, False):
        decoder = Decoder.of(build("llama", tie_word_embeddings=tied))
        assert decoder is not None
        graph = StaticPass(decoder.weights, 1, 0, 2, ends=True)
        recipes.append(aot._recipe(decoder.weights, graph))
    assert recipes[0] != recipes[1]
    assert recipes[0] | {"tied": False} == recipes[1]


def test_models_of_other_kinds_are_refused_by_name() -> None:
    with pytest.raises(
        ModelUnsupported, match="MistralForCausalLM here is none; leave compile off"
    ):
        ModelRunner(build("mistral", sliding_window=8), captured=PLAN)
