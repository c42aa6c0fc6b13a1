"""The table of methods, against figures by hand."""

from specstream.bench.results import Results
from specstream.bench.table import methods_table
from tests.bench.made import made_record, made_run, plain_run


def results(*arms: str) -> Results:
    records = [made_record("own", plain_run(20, 4.0), domain=d) for d in ("chat", "math")]
    for arm in arms:
        for domain, ms in (("chat", 4.0), ("math", 8.0)):
            run = made_run([(ms, 3, 4)] * 5)  # four tokens a round: chat 4 times, math twice as fast
            records.append(made_record(arm, run, domain=domain))
    return Results(records)


def test_every_method_has_its_speedup_acceptance_and_weights() -> None:
    weights = {"draft": {"parameters": 1_570_000, "nbytes": 3 * 2**20}, "suffix": {"nbytes": 0}}
    head, *rows, empty = methods_table(results("suffix", "draft", "auto"), weights)
    assert head.split() == [
        *("speedup", "of", "each", "method", "chat", "math", "geo.", "mean"),
        *("accepted", "tokens", "a", "pass", "memory", "trained"),
    ]
    assert [row.split()[0] for row in rows] == ["suffix", "draft", "auto"]
    assert rows[0].split()[1:] == ["4.00x", "2.00x", "2.83x", "75%", "3.50", "-", "-"]
    assert rows[1].split()[-3:] == ["3.0", "MB", "1.57M"]
    assert empty == ""


def test_few_methods_make_no_table() -> None:
    assert methods_table(results("suffix", "auto"), {}) == []
