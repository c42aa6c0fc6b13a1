import pytest

from specstream.bench.document import domains_note
from specstream.bench.results import Results
from tests.bench.made import made_record, peer_run, reply

DOMAINS = ("chat", "tools", "math", "code", "scene")
KEYS = {
    "ar_vs_generate",
    "speculation_vs_own",
    "speculation_vs_assisted",
    "speculation_vs_best_peer",
    "worst_domain_vs_own",
}


def made(speeds: dict[str, dict[str, float]]) -> Results:
    """By domain and arm (``arm/setting``): milliseconds a token."""
    return Results(
        made_record(
            name.partition("/")[0], peer_run(20, ms), domain=domain, setting=name.partition("/")[2]
        )
        for domain, arms in speeds.items()
        for name, ms in arms.items()
    )


def usual() -> Results:
    one = {"own": 10.0, "generate": 20.0, "assisted/3": 16.0, "assisted/5": 12.0, "lookup/4": 25.0}
    return made(
        {
            "scene": one | {"auto": 2.0},
            "chat": one | {"auto": 5.0},
            "tools": one | {"auto": 5.0, "lookup/4": 8.0},
            "math": one | {"auto": 20.0, "assisted/3": 10.0},
            "code": one | {"auto": 10.0},
        }
    )


def test_the_summary_is_geometric_means_over_the_four_domains() -> None:
    summary = usual().summary()
    assert summary.keys() >= KEYS
    # auto over own: 2, 2, .5, 1; scene (5) stands apart.
    assert summary["speculation_vs_own"] == pytest.approx(2**0.25, abs=1e-4)
    assert summary["ar_vs_generate"] == pytest.approx(2)
    assert summary["worst_domain_vs_own"] == pytest.approx(0.5)
    # assisted at its best: 12, 12, 10, 12 ms; so 12/5, 12/5, 10/20, 12/10.
    assisted = (2.4 * 2.4 * 0.5 * 1.2) ** 0.25
    assert summary["speculation_vs_assisted"] == pytest.approx(assisted, abs=1e-4)
    # in tools prompt lookup is the faster peer, at 8 ms: 8/5.
    best = (2.4 * 1.6 * 0.5 * 1.2) ** 0.25
    assert summary["speculation_vs_best_peer"] == pytest.approx(best, abs=1e-4)


def test_the_worst_domain_may_be_one_outside_the_mean() -> None:
    results = made({"chat": {"own": 4, "auto": 2}, "scene": {"own": 4, "auto": 8}})
    assert results.summary()["worst_domain_vs_own"] == pytest.approx(0.5)
    assert results.summary()["speculation_vs_own"] == pytest.approx(2)


def test_the_best_setting_is_chosen_domain_by_domain() -> None:
    results = usual()
    best = {domain: results.best(domain, "assisted") for domain in DOMAINS}
    assert {d: b[0] for d, b in best.items() if b} == {
        "chat": "5", "tools": "5", "math": "3", "code": "5", "scene": "5",
    }  # fmt: skip
    assert results.faster_peer("tools") == "lookup"
    assert results.faster_peer("chat") == "assisted"


def test_arms_that_were_not_run_leave_their_keys_empty() -> None:
    summary = made({"chat": {"own": 4, "auto": 2}}).summary()
    assert summary["speculation_vs_own"] == pytest.approx(2)
    assert summary["ar_vs_generate"] is None
    assert summary["speculation_vs_assisted"] is None
    assert summary["speculation_vs_best_peer"] is None


def test_means_are_over_all_domains_but_the_grammars() -> None:
    own = {"own": 4.0, "auto": 2.0}
    assert made({"poems": own, "scene": own}).mean_domains == ["poems"]
    assert made({"scene": own}).mean_domains == ["scene"]
    mixed = made({"poems": own, "chat": own})
    assert mixed.mean_domains == ["chat", "poems"]
    assert domains_note(mixed) == "geometric means are over chat, poems"
    assert "grammar" in domains_note(usual())


def test_the_median_over_prompts_and_the_sums_differ() -> None:
    rows = [("a", 10, 5.0), ("b", 10, 5.0), ("c", 1000, 20.0)]
    records = [made_record("auto", peer_run(n, ms), prompt=p) for p, n, ms in rows]
    records += [made_record("own", peer_run(n, 10.0), prompt=p) for p, n, _ in rows]
    results = Results(records)
    assert results.median_ratio("chat", "auto", "own") == pytest.approx(2)
    assert results.ratio("chat", "auto", "own") == pytest.approx(10.2 / 20.1)
    found = results.ratios_by_domain()["chat"]["auto / own"]
    assert found["decode_p10_of_prompts"] < found["decode_median_of_prompts"]


def test_equality_compares_the_same_repeat_and_finds_the_first_difference() -> None:
    records = [
        made_record("own", reply(1, 2, 3), prompt="a"),
        made_record("own", reply(1, 2, 3), prompt="b"),
        made_record("own", reply(9, 9, 9), prompt="b", repeat=1),
        made_record("auto", reply(1, 2, 3), prompt="a"),
        made_record("auto", reply(1, 5, 3), prompt="b"),
        made_record("auto", reply(9, 9, 9), prompt="b", repeat=1),
    ]
    found = Results(records).equality("chat", "auto", "", "own")
    wanted = {"prompts": 2, "identical": 1, "share": 0.5, "first_divergence": {"b": 1}}
    assert found == wanted
    row = Results(records).figures_by_domain()["chat"]["auto"]
    assert row["same_tokens_as_own"] == wanted
    assert row["same_tokens_as_generate"] is None


def test_sampled_tokens_are_not_compared() -> None:
    records = [made_record("own", reply(1, 2)), made_record("auto", reply(1, 2))]
    same = Results(records).equality("chat", "auto", "", "own")
    assert same is not None and same["share"] == 1.0
    assert Results(records, sampled=True).equality("chat", "auto", "", "own") is None


def test_a_longer_reply_diverges_where_the_other_ends() -> None:
    records = [made_record("own", reply(1, 2)), made_record("auto", reply(1, 2, 3))]
    found = Results(records).equality("chat", "auto", "", "own")
    assert found is not None and found["first_divergence"] == {"p1": 2}
