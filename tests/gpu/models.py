"""Models for the GPU figures, made on the device: nothing of their size is read from a disk."""

from collections.abc import Sequence
from typing import Any, cast

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from specstream.bench.load.padded import choose_shape, pad
from specstream.bench.prompts import Padding
from specstream.config import DEFAULT_DRAFT, DEFAULT_TARGET, EngineConfig
from specstream.model.attention.pooled import PooledAttention
from specstream.model.decoder import Decoder
from specstream.model.graphs import CapturePlan, Graphs
from specstream.model.graphs.capture import Capture, capture_on_gpu
from specstream.model.graphs.chains import GraphedChains
from specstream.model.graphs.passes import GraphedPasses
from specstream.model.load import load_model
from specstream.model.runner import ModelRunner
from specstream.model.weights import DecoderWeights, RotaryTable
from tests.gpu.context import Context
from tests.support.fake_cuda import on_card
from tests.support.recorder import Recorder

__all__ = [
    "bundled",
    "capture",
    "capture_with",
    "copy_bandwidth",
    "padded",
    "place",
    "pooled_decoder",
    "random_llama",
    "read_bytes",
    "runner",
]

_SHAPES: dict[str, dict[str, Any]] = {  # as Llama 3 has them, and a draft to go with them
    "8B": {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32},
    "1B": {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16},
    "draft": {"hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 2},
}
_HEADS = {"8B": (32, 8), "1B": (32, 8), "draft": (8, 2)}
_VOCAB, _CONTEXT = 128_256, 8192
_TINY: dict[str, Any] = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2}
_TINY_VOCAB = 5000  # more than the bundled tokenizer has, as the full one is
_CPU_ROWS = 8192  # of a pool
_PADDINGS = {"8B": Padding(8 * 10**9, 32), "1B": Padding(10**9, 16)}
_TINY_PADDING = Padding(18 * 10**6, 9)


def place(context: Context, model: PreTrainedModel) -> PreTrainedModel:
    """Bring a model to the context's device."""
    if context.mode == "fake":
        return _pretended(model)
    return cast(PreTrainedModel, model.to(context.device))  # type: ignore[arg-type]


def _pretended(model: Any) -> PreTrainedModel:
    """Fake tensors in place of a model's own, and attention that a build for CPUs can pretend, too."""
    model.set_attn_implementation("eager")
    made: PreTrainedModel = on_card(model.eval())
    return made


@torch.no_grad()
def random_llama(context: Context, name: str, dtype: torch.dtype = torch.bfloat16) -> PreTrainedModel:
    """A model of the shape ``name`` with random weights, on the device."""
    heads, kv_heads = (4, 2) if context.tiny else _HEADS[name]
    config = LlamaConfig(
        **(_TINY if context.tiny else _SHAPES[name]),
        vocab_size=_TINY_VOCAB if context.tiny else _VOCAB,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=_CONTEXT,
        tie_word_embeddings=name != "8B",
        pad_token_id=None,
    )
    with (
        context.outside(),
        torch.device("meta"),
    ):  # transformers' own beginning takes a minute for 8 billion weights
        model: Any = LlamaForCausalLM(config)
        model = model.to(dtype)
    if context.mode == "fake":
        return _pretended(model)
    model.to_empty(device=context.device)
    model.model.rotary_emb = type(model.model.rotary_emb)(config).to(context.device)
    model.tie_weights()
    for label, weight in model.named_parameters():
        if label.endswith("norm.weight"):
            weight.fill_(1.0)
        else:
            weight.normal_(std=0.02)
    made: PreTrainedModel = model.eval()
    return made


def bundled(context: Context, dtype: str, which: str = "target") -> PreTrainedModel:
    """The target or the draft that is in the package."""
    folder = DEFAULT_TARGET if which == "target" else DEFAULT_DRAFT
    with context.outside():
        model = load_model(folder, EngineConfig(target=folder, device="cpu", dtype="float32"))
        model = model.to(getattr(torch, dtype))
    return place(context, model)


def padded(context: Context, name: str) -> PreTrainedModel:
    """The bundled target's distribution at the cost of the size ``name``, in bfloat16."""
    padding = _TINY_PADDING if context.tiny else _PADDINGS[name]
    with context.outside():
        model = load_model(
            DEFAULT_TARGET, EngineConfig(target=DEFAULT_TARGET, device="cpu", dtype="bfloat16")
        )
        assert isinstance(model, LlamaForCausalLM)
        shape = choose_shape(model.config, padding)
        there = "cpu" if context.mode == "fake" else context.device
        made = pad(model, shape, device=there)
    return place(context, made)


def pooled_decoder(context: Context, model: PreTrainedModel, rows: int) -> Decoder:
    """A decoder as on a GPU: over a pool, with fused kernels where they can run."""
    weights = DecoderWeights.of(model)
    assert weights is not None, f"{type(model).__name__} is not plain"
    rotary = RotaryTable.of(model, weights.head_dim)
    attention = PooledAttention(weights, min(rows, _CPU_ROWS) if context.tiny else rows)
    return Decoder(weights, rotary, attention, fuse=context.mode != "cpu")


def runner(context: Context, model: PreTrainedModel, **options: Any) -> ModelRunner:
    """A runner whose passes take the way that they take on a GPU."""
    if context.mode != "cpu":
        return ModelRunner(model, **options)
    made = ModelRunner(model, lean=False, **options)
    made.decoder = pooled_decoder(context, model, _CPU_ROWS)
    return made


def capture_with(context: Context) -> Capture:
    """What captures on this device."""
    return capture_on_gpu(context.device) if context.real else Recorder()


def capture(
    context: Context,
    made: ModelRunner,
    plan: CapturePlan,
    batches: Sequence[int],
    depths: Sequence[int] = (),
) -> Graphs:
    """Capture a runner's passes, without the comparisons that building an engine makes."""
    decoder, way = made.decoder, capture_with(context)
    before, _ = torch.cuda.mem_get_info()
    passes = GraphedPasses(decoder, plan, way, made.context_length, batches, depths)
    passes.record_all(lambda: None)
    chains = None
    if plan.steps and (passes.by_length or not context.real):
        chains = GraphedChains(decoder, plan, made.vocab_size, way, made.context_length, batches)
        chains.record_all(lambda: None)
    after, _ = torch.cuda.mem_get_info()
    return Graphs(passes, chains, max(0, before - after))


def copy_bandwidth(context: Context) -> float:
    """Bytes a second of a large copy on the device, reads and writes counted."""
    count = 2**20 if context.tiny else 2**31
    source = torch.empty(count, dtype=torch.uint8, device=context.device)
    target = torch.empty_like(source)
    best = 0.0
    for _ in range(context.size(12, 2)):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        target.copy_(source)
        end.record()
        torch.cuda.synchronize()
        best = max(best, 2 * count / (start.elapsed_time(end) / 1e3))
    return best


def read_bytes(weights: DecoderWeights, rows: int) -> int:
    """Bytes that a pass has to read: every matrix once, and the keys and values of so many rows."""
    head, embedding = weights.head.untyped_storage(), weights.embedding.untyped_storage()
    tied = head.data_ptr() == embedding.data_ptr()
    size = weights.nbytes - (0 if tied else weights.embedding.nbytes)
    return size + rows * weights.kv_bytes
