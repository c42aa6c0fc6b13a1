"""Quantised products: near the exact ones, and the same whatever shares the pass; else refused."""

import copy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, TorchAoConfig

from specstream.config import DEFAULT_TARGET, EngineConfig, Scheme
from specstream.engine import build
from specstream.errors import ConfigError, ModelUnsupported
from specstream.model import decoder, quantised
from specstream.model.attention.contiguous import ContiguousAttention
from specstream.model.forward import ForwardInput
from specstream.model.load import load_model, load_tokenizer
from specstream.model.native.matrix import NativeMatrix
from specstream.model.quantised import check_scheme, loaded_scheme
from specstream.model.runner import ModelRunner
from specstream.model.weights import DecoderWeights, drop_matrices
from specstream.types import SamplingParams
from tests.engine.plain import MODEL, TOKENIZER
from tests.support.tiny import answered

SCHEMES: tuple[Scheme, ...] = ("int8", "int4")


@pytest.mark.parametrize(("scheme", "near"), [("int8", 0.012), ("int4", 0.16)])
def test_a_product_is_near_the_exact_one(scheme: Scheme, near: float) -> None:
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(96, 64, generator=generator).bfloat16()
    bias = torch.randn(96, generator=generator)
    rows = torch.randn(37, 64, generator=generator) * torch.logspace(-4, 3, 37).unsqueeze(1)
    rows[5] = 0.0
    found = quantised.native_product(weight, bias, scheme=scheme)(rows)
    exact = rows @ weight.float().T
    scale = exact.abs().amax(1, keepdim=True).clamp_min(1e-6)
    assert ((found - bias - exact).abs() / (scale + bias.abs().max())).max() < near
    assert torch.equal(found[5], bias)


def test_four_bits_keep_what_is_of_four_bits() -> None:
    generator = torch.Generator().manual_seed(3)
    whole = torch.randint(0, 16, (32, 64), generator=generator)
    whole[:, ::32], whole[:, 1::32] = 0, 15
    # Some CPUs' products read both factors in bfloat16.
    weight, rows = whole * 0.5 - 3.0, torch.randn(3, 64, generator=generator).bfloat16().float()
    found = quantised.native_product(weight, scheme="int4")(rows)
    assert torch.allclose(found, rows @ weight.T, atol=1e-4)


def test_a_weight_is_quantised_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Native passes and layers in torch's operations, which streams use, share the matrices."""
    made: list[NativeMatrix] = []

    def counted(*args: Any) -> NativeMatrix:
        made.append(NativeMatrix(*args))
        return made[-1]

    monkeypatch.setattr(quantised, "NativeMatrix", counted)
    runner = ModelRunner(copy.deepcopy(MODEL), quantize="int8")
    assert runner.invariant and len(made) == 4 * len(runner.decoder.layers) + 1
    assert runner.decoder.layers[0].qkv is made[0]


def test_attention_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU it takes a share of the free memory: a second one would get a share of what is left."""
    made: list[ContiguousAttention] = []

    def counted(weights: DecoderWeights) -> ContiguousAttention:
        made.append(ContiguousAttention(weights))
        return made[-1]

    monkeypatch.setattr(decoder, "ContiguousAttention", counted)
    runner = ModelRunner(copy.deepcopy(MODEL), quantize="int8")
    assert [runner.decoder.attention] == made


@pytest.mark.parametrize("scheme", SCHEMES)
@torch.inference_mode()
def test_a_tokens_logits_do_not_depend_on_the_width_of_the_pass(scheme: Scheme) -> None:
    model = copy.deepcopy(MODEL)
    runner, plain = ModelRunner(model, quantize=scheme), ModelRunner(MODEL)
    drop_matrices(model)
    with pytest.raises(TypeError):
        model(input_ids=torch.ones(1, 2, dtype=torch.int64))
    ids = torch.randint(2, len(TOKENIZER), (12,), generator=torch.Generator().manual_seed(2))
    together = runner.forward([ForwardInput(ids, runner.new_cache(), keep=12)]).logits[0]
    cache = runner.new_cache()
    one = [runner.forward([ForwardInput(i.view(1), cache)]).logits[0] for i in ids]
    assert torch.equal(torch.cat(one), together)
    meant = plain.forward([ForwardInput(ids, plain.new_cache(), keep=12)]).logits[0]
    agree = (together.argmax(-1) == meant.argmax(-1)).float().mean()
    assert agree > 0.5 and not torch.equal(together, meant)


@pytest.mark.parametrize(("scheme", "both"), [("int8", True), ("int4", False)])
def test_greedy_text_is_the_quantised_models_own(scheme: Scheme, both: bool) -> None:
    from specstream.drafting.proposers.draft_model import DraftModelProposer
    from specstream.engine.core.step import EngineCore
    from specstream.methods import DraftProposerConfig

    for text in ("abab", "the cat sat on the mat, the cat", "日本"):
        replies = []
        for who in ("off", "draft"):
            draft = ModelRunner(MODEL, quantize=scheme)
            made = DraftModelProposer(DraftProposerConfig(), draft, frozenset())
            target = ModelRunner(MODEL, quantize=scheme if both else None)
            core = EngineCore(EngineConfig(), target, TOKENIZER, made, frozenset())
            request, inbox = answered(core, text, SamplingParams(max_tokens=40), proposer=who)
            replies.append(inbox.token_ids)
        assert replies[0] == replies[1] and len(replies[0]) == 40
        assert request.stats.accepted > 0


def test_what_cannot_be_quantised_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModelUnsupported, match="leave quantize off"):
        ModelRunner(MODEL, lean=False, quantize="int8")
    with pytest.raises(ModelUnsupported, match="^draft_quantize: .* leave draft_quantize off"):
        ModelRunner(MODEL, lean=False, quantize="int8", setting="draft_quantize")
    with pytest.raises(ModelUnsupported, match="columns come in multiples of 32"):
        quantised.native_product(torch.zeros(32, 40), scheme="int4")
    with pytest.raises(ConfigError, match="needs a CPU or a GPU, not meta"):
        check_scheme("int8", torch.device("meta"))
    monkeypatch.setattr("specstream.model.native.library.native_library", lambda: "no compiler")
    with pytest.raises(ConfigError, match="int8 takes native passes. no compiler"):
        check_scheme("int8", torch.device("cpu"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'specstream-sdk\[torchao\]'"):
        check_scheme("int4", torch.device("cuda"))
    with pytest.raises(ConfigError, match="int8 on a GPU is slower than bfloat16"):
        check_scheme("int8", torch.device("cuda"))


class Rounded(nn.Module):
    """A linear layer whose input is rounded to eight bits, one scale a pass or one a token."""

    each = False

    def __init__(self, inner: nn.Linear) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        step = (x.abs().amax(-1, keepdim=True) if self.each else x.abs().max()) / 127
        rounded: Tensor = self.inner((x / step).round() * step)
        return rounded


def test_a_target_with_one_scale_for_all_tokens_of_a_pass_is_refused_unless_it_is_allowed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config, tokenizer = EngineConfig(), load_tokenizer(DEFAULT_TARGET)
    planted: Any = load_model(DEFAULT_TARGET, config)
    for layer in planted.model.layers:
        for name in ("gate_proj", "up_proj", "down_proj"):
            setattr(layer.mlp, name, Rounded(getattr(layer.mlp, name)))
    planted.hf_quantizer = SimpleNamespace(quantization_config=SimpleNamespace(quant_method="planted"))
    monkeypatch.setattr(build, "load_model", lambda *_: planted)
    with pytest.raises(ModelUnsupported, match="in planted, .*--allow-width-dependent"):
        build.load_target(config, tokenizer)
    allowed = config.model_copy(update={"allow_width_dependent": True})
    assert not build.load_target(allowed, tokenizer).lean
    monkeypatch.setattr(Rounded, "each", True)
    assert not build.load_target(config, tokenizer).lean


@pytest.mark.filterwarnings("ignore")
def test_torchaos_eight_bits_and_a_checkpoint_that_it_saved(tmp_path: Path) -> None:
    torchao = pytest.importorskip("torchao.quantization")
    generator = torch.Generator().manual_seed(5)
    weight, rows = torch.randn(32, 64, generator=generator), torch.randn(5, 64, generator=generator)
    exact = rows @ weight.T
    linear = nn.Linear(64, 32, bias=False)
    linear.weight = nn.Parameter(weight.clone(), requires_grad=False)
    torchao.quantize_(linear, torchao.Int8WeightOnlyConfig())
    assert (linear(rows) - exact).abs().max() < 0.02 * exact.abs().max()
    MODEL.save_pretrained(tmp_path / "plain")
    loaded: Any = AutoModelForCausalLM.from_pretrained(
        tmp_path / "plain", quantization_config=TorchAoConfig(torchao.Int8WeightOnlyConfig())
    )
    loaded.save_pretrained(tmp_path / "eight")
    TOKENIZER.save_pretrained(tmp_path / "eight")
    config = EngineConfig(target=str(tmp_path / "eight"))
    target = build.load_target(config, TOKENIZER)
    assert loaded_scheme(target.model) == "torchao" and not target.lean
    with pytest.raises(ModelUnsupported, match="leave quantize off"):
        build.load_target(config.model_copy(update={"quantize": "int8"}), TOKENIZER)
