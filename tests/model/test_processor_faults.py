"""Processors of a request that go wrong, or leave no token: the fault is that request's, and named."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from specstream.errors import ModelBroken, RequestError, SamplingError
from specstream.model.tokens.processors import LogitsPipeline, ModelFacts, Processed
from specstream.types import SamplingParams
from tests.support.tiny import EOS, byte_tokenizer

TOKENIZER = byte_tokenizer()
WIDTH = len(TOKENIZER) + 6  # padded, as many models are
LETTERS = [int(i) for i in TOKENIZER.encode("abc ")]


def rows_of(params: SamplingParams, drafted: list[int], logits: Tensor | None = None) -> Processed:
    count = len(drafted) + 1
    logits = torch.zeros(count, WIDTH) if logits is None else logits
    ends = frozenset({EOS, 7})
    made = LogitsPipeline(params, ModelFacts(TOKENIZER, LETTERS, WIDTH, ends, torch.device("cpu")))
    return made.apply_rows(
        logits, LETTERS, torch.tensor(drafted, dtype=torch.int64), [range(j) for j in range(count)]
    )


WRONG: dict[str, Callable[[Tensor], Any]] = {
    "raises": lambda scores: 1 // 0,
    "returns nothing": lambda scores: None,
    "wrong shape": lambda scores: scores[0],
    "too narrow": lambda scores: scores[:, 1:],
    "not a number": lambda scores: scores * torch.nan,
    "infinite": lambda scores: scores.index_fill(1, torch.tensor([3]), torch.inf),
    "infinite in float32": lambda scores: scores.double() + 1e300,
    "complex": lambda scores: scores + 1j,
    "without values": lambda scores: scores.to("meta"),
    "sparse": lambda scores: scores.to_sparse(),
    "nested": lambda scores: torch.nested.nested_tensor([scores[0]]),
    "quantised": lambda scores: torch.quantize_per_tensor(scores, 1.0, 0, torch.quint8),
}


def broken(kind: str) -> Callable[[Tensor, Tensor], Any]:
    """A processor that goes wrong from five tokens of context on."""

    def processor(ids: Tensor, scores: Tensor) -> Any:
        scores += 1.0  # in place: what it spoils before it breaks must not get out
        return scores if ids.shape[1] <= len(LETTERS) else WRONG[kind](scores)

    return processor


@pytest.mark.parametrize("kind", WRONG)
def test_a_processor_that_breaks_is_named_where_it_broke(kind: str) -> None:
    bad = broken(kind)
    done = rows_of(SamplingParams(processors=(bad,)), LETTERS[:2])
    assert done.rows.isnan().all(-1).tolist() == [False, True, True]
    assert torch.equal(done.rows[0], torch.ones(WIDTH))
    assert all(type(done.fault(row)) is RequestError for row in (1, 2))
    assert repr(bad) in str(done.fault(1))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int64, torch.bool])
def test_scores_of_any_real_type_are_taken(dtype: torch.dtype) -> None:
    want = torch.arange(WIDTH) % 2
    done = rows_of(SamplingParams(processors=(lambda ids, scores: want[None].to(dtype),)), [])
    assert torch.equal(done.rows[0], want.float())


def test_another_default_device_is_put_back() -> None:
    def move(ids: Tensor, scores: Tensor) -> Tensor:
        torch.set_default_device("meta")
        return scores

    rows_of(SamplingParams(processors=(move,)), [])
    assert torch.empty(1).device.type == "cpu"


def test_a_function_that_would_have_to_be_awaited_is_refused() -> None:
    async def wait(ids: list[int], text: str) -> bool:
        return False

    with pytest.raises(SamplingError, match="stop_when must be .*not async"):
        SamplingParams(stop_when=(wait,))  # type: ignore[arg-type]


def nothing(ids: Tensor, scores: Tensor) -> Tensor:
    return torch.full_like(scores, -torch.inf)


def only_the_end(ids: Tensor, scores: Tensor) -> Tensor:
    allowed = torch.full_like(scores, -torch.inf)
    allowed[:, EOS] = 0
    return scores + allowed


def test_a_row_without_any_token_names_who_took_the_last() -> None:
    done = rows_of(SamplingParams(processors=(only_the_end, nothing)), [])
    assert isinstance(done.fault(0), SamplingError)
    assert "nothing" in str(done.fault(0))
    done = rows_of(SamplingParams(min_tokens=2, processors=(only_the_end,)), LETTERS[:3])
    assert done.rows.isfinite().any(-1).tolist() == [False, False, True, True]
    assert "only_the_end" in str(done.fault(0))
    assert "after min_tokens" in str(done.fault(0))


def test_logits_that_are_no_numbers_are_the_models_fault() -> None:
    logits = torch.zeros(2, WIDTH)
    logits[1] = torch.nan
    done = rows_of(SamplingParams(repetition_penalty=1.1), LETTERS[:1], logits)
    assert done.rows.isfinite().all(-1).tolist() == [True, False]
    assert isinstance(done.fault(1), ModelBroken)
