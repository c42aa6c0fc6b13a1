"""Products of eight-bit integers: near the exact ones, and the same whatever shares the pass."""

from __future__ import annotations

import pytest
import torch

from specstream.config import EngineConfig, parse_config
from specstream.errors import ConfigError, ModelUnsupported
from specstream.model.forward import ForwardInput
from specstream.model.quantised import check_int8, int8_product
from specstream.model.runner import ModelRunner
from specstream.types import SamplingParams
from tests.engine.plain import MODEL, TOKENIZER
from tests.tiny import ask, run_until_idle

if "x86" not in torch.backends.quantized.supported_engines:
    pytest.skip("no quantised kernels for this CPU", allow_module_level=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_rows_result_is_the_same_alone_and_among_others(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(96, 64, generator=generator).to(dtype)
    bias = torch.randn(96, generator=generator)
    rows = torch.randn(37, 64, generator=generator) * torch.logspace(-4, 3, 37).unsqueeze(1)
    rows[5] = 0.0
    rows = rows.to(dtype)
    multiply = int8_product(weight, bias)
    together = multiply(rows)
    assert together.dtype is dtype
    for number in range(37):
        assert torch.equal(multiply(rows[number : number + 1])[0], together[number])
    exact = rows.float() @ weight.float().T
    scale = exact.abs().amax(1, keepdim=True).clamp_min(1e-6)
    assert ((together.float() - bias - exact).abs() / (scale + bias.abs().max())).max() < 0.012
    assert torch.equal(together[5], bias.to(dtype))


@torch.inference_mode()
def test_a_tokens_logits_do_not_depend_on_the_width_of_the_pass() -> None:
    runner = ModelRunner(MODEL, int8=True)
    plain = ModelRunner(MODEL)
    ids = torch.randint(2, len(TOKENIZER), (12,), generator=torch.Generator().manual_seed(2))
    together = runner.forward([ForwardInput(ids, runner.new_cache(), keep=12)]).logits[0]
    cache = runner.new_cache()
    one = [runner.forward([ForwardInput(i.view(1), cache)]).logits[0] for i in ids]
    assert (torch.cat(one) - together).abs().max() < 1e-3 * together.abs().max()
    meant = plain.forward([ForwardInput(ids, plain.new_cache(), keep=12)]).logits[0]
    agree = (together.argmax(-1) == meant.argmax(-1)).float().mean()
    assert agree > 0.5 and not torch.equal(together, meant)


@pytest.mark.parametrize("both", [True, False])
def test_greedy_text_is_the_quantised_models_own(both: bool) -> None:
    from specstream.config import DraftProposerConfig
    from specstream.engine.step import EngineCore
    from specstream.speculation.proposers.draft_model import DraftModelProposer

    for text in ("abab", "the cat sat on the mat, the cat", "日本"):
        replies = []
        for who in ("off", "draft"):
            draft = ModelRunner(MODEL, int8=True)
            made = DraftModelProposer(DraftProposerConfig(), draft, frozenset())
            target = ModelRunner(MODEL, int8=both)
            core = EngineCore(EngineConfig(), target, TOKENIZER, made, frozenset())
            request, inbox = ask(core, text, SamplingParams(max_tokens=40), proposer=who)
            run_until_idle(core)
            replies.append(inbox.token_ids)
        assert replies[0] == replies[1] and len(replies[0]) == 40
        assert request.stats.accepted > 0


def test_what_cannot_be_quantised_is_refused_by_name() -> None:
    with pytest.raises(ModelUnsupported, match="leave quantize off"):
        ModelRunner(MODEL, lean=False, int8=True)
    with pytest.raises(ConfigError, match="leave quantize off"):
        check_int8(torch.device("meta"))
    for more in ({"compile": True}, {"mode": "reproducible"}):
        with pytest.raises(ConfigError, match="quantize"):
            parse_config({"quantize": "int8", **more})
