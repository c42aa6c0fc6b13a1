"""Grammar-constrained sampling follows the target, restricted place by place to the grammar.

The language is finite and spelled out here, so the exact distribution needs no grammar library: after
each prefix, the next letters of the words that go on from there, or the end if it is a word.
"""

import pytest
import torch

from specstream.bench.exactness.enumeration import g_test
from specstream.bench.exactness.harness import sample
from specstream.drafting.proposal import Proposer, SpecRequest
from specstream.drafting.proposers.draft_model import DraftModelProposer
from specstream.methods import DraftProposerConfig
from specstream.types import Grammar, SamplingParams
from tests.exactness.bugs import Meddling
from tests.exactness.toy import PairRunner, make_core
from tests.support.tiny import BOS, EOS, byte_tokenizer

pytestmark = pytest.mark.slow

pytest.importorskip("llguidance")

TOKENIZER = byte_tokenizer()
V = len(TOKENIZER)
REGEX = "(a|b)(a|c){1,2}b?|d(a|bb)"
WORDS = [
    *(x + y + z for x in "ab" for y in ("a", "c", "aa", "ac", "ca", "cc") for z in ("", "b")),
    "da",
    "dbb",
]
PARAMS = SamplingParams(temperature=1.2, max_tokens=6, grammar=Grammar("regex", REGEX))


def ids_of(word: str) -> list[int]:
    return [int(i) for i in TOKENIZER.encode(word, add_special_tokens=False)]


def bigrams(seed: int) -> torch.Tensor:
    return torch.randn(V, V, generator=torch.Generator().manual_seed(seed)) * 1.2


def runner(rows: torch.Tensor) -> PairRunner:
    return PairRunner(rows.unsqueeze(0).expand(V, V, V))


def exact_of(rows: torch.Tensor, last: int) -> dict[tuple[int, ...], float]:
    words = {tuple(ids_of(word)) for word in WORDS}
    exact: dict[tuple[int, ...], float] = {}

    def descend(reply: tuple[int, ...], mass: float) -> None:
        if reply and reply[-1] == EOS:
            exact[reply] = mass
            return
        n = len(reply)
        allowed = sorted({w[n] for w in words if len(w) > n and w[:n] == reply})
        allowed += [EOS] if reply in words else []
        row = rows[reply[-1] if reply else last].double()[allowed] / PARAMS.temperature
        for token, p in zip(allowed, row.softmax(-1).tolist()):
            descend((*reply, token), mass * p)

    descend((), 1.0)
    return exact


class Unruly(Meddling):
    """A draft that knows nothing of the grammar, and says truly what it drew from."""

    def disguise(self, request: SpecRequest) -> SpecRequest:
        class Plain:
            process = staticmethod(lambda logits, drafted: logits)

            def __getattr__(self, name: str) -> object:
                return getattr(request, name)

        return Plain()  # type: ignore[return-value]


@pytest.mark.parametrize("unruly", [False, True], ids=["draft follows it", "draft ignores it"])
@pytest.mark.parametrize("rule", ["ratio", "block", "reproducible"])
def test_the_distribution_is_the_targets_within_the_grammar(rule: str, unruly: bool) -> None:
    rows = bigrams(0)
    draft = rows + 0.8 * bigrams(1)
    inside = {token for word in WORDS for token in ids_of(word)} | {EOS}
    outside = [token for token in range(V) if token not in inside]
    draft[:, outside] -= 3.0  # so that an unruly draft is right now and then
    proposer: Proposer = DraftModelProposer(
        DraftProposerConfig(num_tokens=3), runner(draft), frozenset({EOS})
    )
    core = make_core(
        runner(rows),
        TOKENIZER,
        Unruly(proposer) if unruly else proposer,
        frozenset({EOS}),
        mode="reproducible" if rule == "reproducible" else "default",
        rule="block" if rule == "reproducible" else rule,
        max_running=16,
    )
    seen = sample(core, "xa", PARAMS, 500, length=6)
    assert BOS not in {token for reply in seen for token in reply}
    result = g_test(seen, exact_of(rows, ids_of("a")[0]))
    assert result.p_value > 1e-4, result
