"""The metrics as a scraper reads them: both text formats, checked by their rules."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from specstream.server.counters import OPEN_METRICS, PLAIN_TEXT, Counters, Histogram, format_for
from specstream.testing import ScriptedEngine, chunks_of
from tests.server.doubles import Stand
from tests.server.test_http import get

SUFFIXES = {
    "counter": {"_total"},
    "gauge": {""},
    "histogram": {"_bucket", "_sum", "_count"},
}
_SAMPLE = re.compile(
    r'(?P<name>[a-z_]+)(?:\{(?P<label>[a-z]+)="(?P<value>[^"\\\n]+)"\})? (?P<number>[0-9.e+-]+)'
)


def families(text: str, *, open_metrics: bool) -> dict[str, dict[str, float]]:
    """Samples by family, read by the rules of the format.

    OpenMetrics 1.0: one block a family, its HELP and TYPE before its samples, no two families or
    samples with one name, the type's suffixes, and an end mark. In the older text format a counter's
    family has its samples' name.
    """
    assert text.endswith("# EOF\n") == open_metrics
    lines = text.removesuffix("# EOF\n").splitlines()
    found: dict[str, dict[str, float]] = {}
    family, type = "", ""
    for line in lines:
        if line.startswith("# HELP "):
            family = line.split(" ", 3)[2]
            assert family not in found, "a family is one block"
            found[family] = {}
        elif line.startswith("# TYPE "):
            _, _, named, type = line.split(" ")
            assert named == family
            assert type == "counter" or not family.endswith("_total")
        else:
            match = _SAMPLE.fullmatch(line)
            assert match is not None, line
            base = family.removesuffix("_total") if not open_metrics else family
            assert match["name"].removeprefix(base) in SUFFIXES[type], line
            assert line.rpartition(" ")[0] not in found[family]
            found[family][line.rpartition(" ")[0]] = float(match["number"])
    names = [sample for family in found for sample in _reserved(family, open_metrics, type)]
    assert len(names) == len(set(names)), "no name means two things"
    return found


def _reserved(family: str, open_metrics: bool, type: str) -> Iterator[str]:
    yield family
    if open_metrics:
        for suffix in ("_total", "_created", "_bucket", "_count", "_sum", "_info"):
            yield family + suffix


def histogram(samples: dict[str, float], family: str) -> list[float]:
    """Return the bucket counts, checked to be cumulative and to end with the total count."""
    buckets = {k: v for k, v in samples.items() if k.startswith(f"{family}_bucket")}
    bounds = [float(key.split('"')[1]) for key in buckets]
    counts = list(buckets.values())
    assert bounds == sorted(bounds)
    assert bounds[-1] == float("inf")
    assert counts == sorted(counts)
    assert counts[-1] == samples[f"{family}_count"]
    return counts


@pytest.mark.parametrize("kind", [OPEN_METRICS, PLAIN_TEXT])
async def test_a_scraper_reads_what_happened(kind: str) -> None:
    reply = chunks_of("one two three four five six", [1, 3, 2])
    stand = Stand(ScriptedEngine([reply]))
    async with stand.running(), stand.client() as wire:
        for modality in ("text", "audio"):
            await wire.reply("Hi", output_modalities=[modality])
        code, head, body = await get(stand.port, "/metrics", "GET", f"Accept: {kind}")
    assert code == 200
    assert f"content-type: {kind}" in head.lower()
    assert "vary: accept" in head.lower()
    found = families(body, open_metrics=kind == OPEN_METRICS)
    total = "" if kind == OPEN_METRICS else "_total"
    assert found["specstream_open_sessions"] == {"specstream_open_sessions": 1}
    assert found[f"specstream_sessions{total}"] == {"specstream_sessions_total": 1}
    assert found[f"specstream_tokens{total}"] == {"specstream_tokens_total": 12}
    assert found[f"specstream_rounds{total}"] == {"specstream_rounds_total": 6}
    done = found[f"specstream_responses{total}"]
    assert done['specstream_responses_total{status="completed"}'] == 2
    for name, times in (("time_to_first_token", 2), ("time_to_first_audio", 1), ("chunk_gap", 4)):
        family = f"specstream_{name}_seconds"
        assert histogram(found[family], family)[-1] == times


def test_a_clash_of_names_would_be_seen() -> None:
    clash = (
        "# HELP a_sessions x\n# TYPE a_sessions gauge\na_sessions 1\n"
        "# HELP a_sessions x\n# TYPE a_sessions counter\na_sessions_total 1\n# EOF\n"
    )
    with pytest.raises(AssertionError, match="one block"):
        families(clash, open_metrics=True)


def test_times_fall_into_their_buckets() -> None:
    times = Histogram((0.5, 1.0))
    for seconds in (0.0, 0.5, 0.50001, 1.0, 7.0):
        times.observe(seconds)
    assert list(times.samples()) == [
        ('_bucket{le="0.5"}', 2),
        ('_bucket{le="1.0"}', 4),
        ('_bucket{le="+Inf"}', 5),
        ("_sum", 9.00001),
        ("_count", 5),
    ]
    assert families(Counters().text(OPEN_METRICS), open_metrics=True)


@pytest.mark.parametrize(
    ("accept", "wanted"),
    [
        ("", PLAIN_TEXT),
        ("*/*", PLAIN_TEXT),
        ("text/plain", PLAIN_TEXT),
        ("application/openmetrics-text", OPEN_METRICS),
        (
            "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,"
            "application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=0.0.4;q=0.2,*/*;q=0.1",
            OPEN_METRICS,
        ),
        ("application/openmetrics-text;q=0.2, text/plain;q=0.7", PLAIN_TEXT),
        ("application/openmetrics-text;q=0", PLAIN_TEXT),
        ("application/openmetrics-text;q=lots", PLAIN_TEXT),
    ],
)
def test_the_format_is_the_scrapers_choice(accept: str, wanted: str) -> None:
    assert format_for(accept) == wanted
