import pytest

from specstream.bench.document import analyse, document_of, verdict_of
from specstream.bench.results import Results
from specstream.bench.run import Outcome
from specstream.bench.table import table_of
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
        (6.0, 2, "speculation is faster here: 2.00 times the speed"),
        (8.0, 0, "speculation is slower here, so turn it off: 0.50 times"),
        (8.0, 1, "speculation makes no difference here: 1.00 times"),
    ],
)
def test_the_answer_comes_first(round_ms: float, accepted: int, says: str) -> None:
    results = experiment(round_ms=round_ms, accepted=accepted)
    lines = verdict_of(results, *analyse(results))
    assert lines[0].startswith(says)


def test_it_says_where_it_pays_and_what_the_most_would_be() -> None:
    results = experiment(round_ms=6.0, accepted=2)
    costs, ceilings = analyse(results)
    lines = verdict_of(results, costs, ceilings)
    assert lines[1] == "speculation by domain: faster on chat (2.00), math (2.00)"
    assert lines[2] == (
        "with speculation, ours is faster than transformers' generate: 4.00 times its speed; "
        "without speculation, 2.00 times"
    )
    assert "faster than transformers' assisted generation: 2.50 times" in lines[3]
    assert lines[4].startswith(
        "chat: a drafted token costs about an eighth (0.12) of a plainly decoded one, and its "
        "acceptance rate is 67% if all drafts before it were accepted; "
    )
    assert lines[4].endswith("(measured: 2.00)")
    assert ceilings["chat"].best_speedup >= ceilings["chat"].as_run - 0.3


def test_a_loss_beside_a_gain_is_in_the_headline() -> None:
    records = [
        made_record("own", plain_run(40, 4.0), domain=domain) for domain in ("chat", "tools", "math")
    ]
    for domain, ms in (("chat", 1.0), ("tools", 1.0), ("math", 8.0)):
        records.append(made_record("auto", plain_run(40, ms), domain=domain))
    results = Results(records)
    lines = verdict_of(results, *analyse(results))
    assert lines[0].endswith("but it is slower in a domain (0.50 times)")
    assert lines[1] == (
        "speculation by domain: faster on chat (4.00), tools (4.00); slower on math (0.50)"
    )


LLAMA = "llama.cpp's plain decoding"


def with_llama_cpp(ms: float) -> Results:
    """Plain rounds of ours take 4 ms, twice as fast with speculation; llama.cpp's take ``ms``."""
    peer = [
        made_record("llama.cpp", peer_run(40, ms), domain=domain, setting="model-q8")
        for domain in ("chat", "math")
    ]
    return Results([*experiment(round_ms=6.0, accepted=2).records, *peer])


@pytest.mark.parametrize(
    ("ms", "says"),
    [
        (8.0, "is faster than {}: 4.00 times its speed; without speculation, 2.00 times"),
        (1.0, "is slower than {}: 0.50 times its speed; without speculation, 0.25 times"),
        (2.0, "is about as fast as {}: 1.00 times its speed; without speculation, 0.50 times"),
    ],
)
def test_llama_cpp_is_in_verdict_table_and_ratios_be_it_faster_or_slower(ms: float, says: str) -> None:
    results = with_llama_cpp(ms)
    document = document_of(results, Outcome(cells=2), {"dtype": "float32"})
    assert f"with speculation, ours {says.format(LLAMA)}" in document["verdict"]
    assert document["summary"]["speculation_vs_llama_cpp"] == pytest.approx(ms / 2)
    assert document["summary"]["ar_vs_llama_cpp"] == pytest.approx(ms / 4)
    for domain in ("chat", "math"):
        ratios = document["ratios"][domain]
        assert ratios["auto / llama.cpp"]["decode"] == pytest.approx(ms / 2)
        assert ratios["own / llama.cpp"]["decode"] == pytest.approx(ms / 4)
    assert any("llama.cpp decodes the GGUF file" in note for note in document["notes"])
    lines = table_of(results)
    rows = {line.split("  ")[1].strip(): line for line in lines if line.startswith("  ")}
    assert "llama.cpp (model-q8)" in rows
    assert rows["auto / llama.cpp"].endswith(f"{ms / 2:.2f}x")
    assert rows["own / llama.cpp"].endswith(f"{ms / 4:.2f}x")


def test_llama_cpp_is_compared_where_only_the_plain_loop_ran() -> None:
    records = [made_record("own", plain_run(40, 4.0)), made_record("llama.cpp", peer_run(40, 2.0))]
    results = Results(records)
    lines = verdict_of(results, *analyse(results))
    assert lines == [
        "no verdict on speculation: it needs the arms own and auto",
        f"without speculation, ours is slower than {LLAMA}: 0.50 times its speed",
    ]


def test_a_domain_where_it_is_the_other_way_is_named() -> None:
    records = []
    for domain, theirs in (("chat", 1.0), ("tools", 16.0), ("math", 16.0)):
        records.append(made_record("own", plain_run(40, 4.0), domain=domain))
        records.append(made_record("auto", plain_run(40, 2.0), domain=domain))
        records.append(made_record("lookup", peer_run(40, theirs), domain=domain, setting="4"))
        records.append(made_record("llama.cpp", peer_run(40, 1 / theirs), domain=domain))
    results = Results(records)
    lines = verdict_of(results, *analyse(results))
    lookup = "transformers' prompt lookup: 3.17 times its speed; but slower on chat (0.50)"
    assert f"with speculation, ours is faster than {lookup}" in lines
    assert not any("but faster" in line for line in lines)  # slower than llama.cpp everywhere
    assert not any("the better of" in line for line in lines)  # there is only one of the two
    both = [
        *records,
        *(
            made_record("assisted", peer_run(40, 0.5), domain=domain, setting="3")
            for domain in ("tools", "math")
        ),
    ]
    lines = verdict_of(Results(both), *analyse(Results(both)))
    assert any("slower than the better of assisted generation and lookup" in line for line in lines)


def test_the_number_of_prompts_and_their_spread_are_told() -> None:
    records = []
    for number, ms in enumerate((1.0, 2.0, 4.0, 8.0, 16.0)):
        records.append(made_record("own", plain_run(40, 16.0), prompt=f"p{number}"))
        records.append(made_record("auto", plain_run(40, ms), prompt=f"p{number}"))
    results = Results(records)
    head = verdict_of(results, *analyse(results))[0]
    assert "(n = 5 prompts, the middle half of them between 2.00 and 8.00; only a hint" in head
    rows = [line.split() for line in table_of(results)]
    assert ["prompts", "5", "5"] in rows
    assert ["auto", "/", "own,", "middle", "half", "of", "prompts", "2.00-8.00x", "2.00-8.00x"] in rows
    found = document_of(results, Outcome(cells=5), {"dtype": "float32"})["ratios"]["chat"]
    assert found["auto / own"]["prompts"] == 5
    assert found["auto / own"]["decode_p25_of_prompts"] == 2.0
    assert found["auto / own"]["decode_p75_of_prompts"] == 8.0


@pytest.mark.parametrize(
    ("dtype", "sampled", "said"),
    [("bfloat16", False, True), ("float16", False, True), ("float32", False, False),
     ("bfloat16", True, False)],
)  # fmt: skip
def test_that_rounding_may_change_greedy_texts_is_said_where_it_may(
    dtype: str, sampled: bool, said: bool
) -> None:
    results = Results(experiment(round_ms=6.0, accepted=2).records, sampled=sampled)
    notes = document_of(results, Outcome(cells=2), {"dtype": dtype})["notes"]
    start = f"greedy texts in {dtype} may differ from transformers'"
    assert [note.startswith(start) for note in notes].count(True) == said


def test_without_both_loops_there_is_no_verdict() -> None:
    results = Results([made_record("own", plain_run(5, 4.0))])
    assert "no verdict" in verdict_of(results, *analyse(results))[0]


def test_the_table_marks_the_best_setting_and_is_aligned() -> None:
    results = experiment(round_ms=6.0, accepted=2)
    lines = table_of(results)
    row = next(line for line in lines if "assisted (3 tokens)" in line)
    assert row.count("*") == 2
    assert any("auto / own " in line and "2.00x" in line for line in lines)
    end = row.index("*")
    assert end == lines[0].index("chat") + len("chat") - 1  # numbers end where their heads do
    assert "assisted: transformers with the draft model" in " ".join(lines)
    assert "llama.cpp" not in " ".join(lines)


def test_the_document_holds_everything_and_says_what_to_mind() -> None:
    results = experiment(round_ms=6.0, accepted=2)
    outcome = Outcome(
        cells=2, cut_short="the time budget was used up", broken={"lookup": "no"}, notes=["mine"]
    )
    origin = {"dtype": "bfloat16", "target_padded": "100M parameters"}
    document = document_of(results, outcome, origin)
    assert document["summary"]["speculation_vs_own"] == 2.0
    assert document["complete"] is False
    row = document["domains"]["chat"]["assisted (3 tokens)"]
    assert row["best_setting"] is True
    assert row["decode_tokens_per_second"] == 200.0
    assert document["formula"]["math"]["measured"] == 2.0
    text = " ".join(document["notes"])
    for said in ("padded: 100M", "bfloat16", "budget", "lookup failed", "mine", "means are over"):
        assert said in text
