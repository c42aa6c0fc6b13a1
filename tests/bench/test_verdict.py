from __future__ import annotations

import pytest

from specstream.bench.document import analyse, document_of
from specstream.bench.results import Results
from specstream.bench.run import Outcome
from specstream.bench.table import table_of
from specstream.bench.verdict import verdict_of
from tests.bench.made import made_record, made_run, peer_run, plain_run


def experiment(*, round_ms: float, accepted: int) -> Results:
    """Plain rounds take 4 ms; drafting rounds of four drafts ``round_ms``."""
    records = []
    for domain in ("chat", "math"):
        fast = made_run([(round_ms, accepted, 4)] * 20, verify_ms=3.6)
        records += [
            made_record("own", plain_run(40, 4.0), domain=domain),
            made_record("auto", fast, domain=domain),
            made_record("generate", peer_run(40, 8.0), domain=domain),
            made_record("assisted", peer_run(40, 5.0), domain=domain, setting="3 tokens"),
            made_record("assisted", peer_run(40, 6.0), domain=domain, setting="5 tokens"),
        ]
    return Results(records)


@pytest.mark.parametrize(
    ("round_ms", "accepted", "says"),
    [
        (6.0, 2, "speculation earned its keep: 2.00x"),
        (8.0, 0, "turn it off: 0.50x"),
        (8.0, 1, "speculation made no difference here: 1.00x"),
    ],
)
def test_the_answer_comes_first(round_ms: float, accepted: int, says: str) -> None:
    results = experiment(round_ms=round_ms, accepted=accepted)
    lines = verdict_of(results, *analyse(results))
    assert lines[0].startswith(says)


def test_it_says_where_it_pays_and_what_the_most_would_be() -> None:
    results = experiment(round_ms=6.0, accepted=2)
    summary, costs, ceilings = analyse(results)
    lines = verdict_of(results, summary, costs, ceilings)
    assert lines[1] == "it pays on chat 2.00x, math 2.00x"
    assert "4.00x transformers generate, 2.50x its assisted generation" in lines[2]
    assert "67% acceptance" in lines[3]
    assert "measured 2.00x" in lines[3]
    assert ceilings["chat"].best.speedup >= ceilings["chat"].as_run - 0.3


def test_a_loss_beside_a_gain_is_in_the_headline() -> None:
    records = [
        made_record("own", plain_run(40, 4.0), domain=domain)
        for domain in ("chat", "tools", "math")
    ]
    for domain, ms in (("chat", 1.0), ("tools", 1.0), ("math", 8.0)):
        records.append(made_record("auto", plain_run(40, ms), domain=domain))
    results = Results(records)
    lines = verdict_of(results, *analyse(results))
    assert lines[0].endswith("but it cost time in one domain (0.50x)")
    assert lines[1] == "it pays on chat 4.00x, tools 4.00x; costs on math 0.50x"


def test_without_both_loops_there_is_no_verdict() -> None:
    results = Results([made_record("own", plain_run(5, 4.0))])
    assert "no verdict" in verdict_of(results, *analyse(results))[0]


def test_the_table_marks_the_best_setting_and_is_aligned() -> None:
    results = experiment(round_ms=6.0, accepted=2)
    lines = table_of(results, analyse(results)[0])
    row = next(line for line in lines if "assisted (3 tokens)" in line)
    assert row.count("*") == 2
    assert any("auto / own " in line and "2.00x" in line for line in lines)
    end = row.index("*")
    assert end == lines[0].index("chat") + len("chat") - 1  # numbers end where their heads do


def test_the_document_holds_everything_and_says_what_to_mind() -> None:
    results = experiment(round_ms=6.0, accepted=2)
    outcome = Outcome(cells=2, cut_short="the time budget was used up", broken={"lookup": "no"})
    origin = {"dtype": "bfloat16", "target_padded": "100M parameters"}
    document = document_of(results, outcome, origin, notes=("mine",))
    assert document["summary"]["speculation_vs_own"] == 2.0
    assert document["complete"] is False
    row = document["domains"]["chat"]["assisted (3 tokens)"]
    assert row["best_setting"] is True
    assert row["decode_tokens_per_second"] == 200.0
    assert document["formula"]["math"]["measured"] == 2.0
    text = " ".join(document["notes"])
    for said in ("padded: 100M", "bfloat16", "budget", "lookup broke", "mine", "no prompts of"):
        assert said in text
