"""The metrics as a scraper reads them."""

from dataclasses import replace

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from specstream.server.counters import Counters, Histogram
from specstream.testing import ScriptedEngine, chunks_of
from tests.server.doubles import Stand
from tests.server.test_http import get

OPEN_METRICS = "application/openmetrics-text; version=1.0.0"
PLAIN_TEXT = "text/plain"


def samples(text: str) -> dict[str, float]:
    """All samples of a page in the older text format, by name and labels."""
    found = dict[str, float]()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(f"{k}={v}" for k, v in sorted(sample.labels.items()))
            key = f"{sample.name}{{{labels}}}" if labels else sample.name
            assert key not in found, "no name means two things"
            found[key] = sample.value
    return found


async def test_a_scraper_reads_what_happened() -> None:
    reply = chunks_of("one two three four five six", [1, 3, 2])
    stand = Stand(ScriptedEngine([reply]))
    async with stand.running(), stand.client() as wire:
        for modality in ("text", "audio"):
            await wire.reply("Hi", output_modalities=[modality])
        code, head, body = await get(stand.port, "/metrics")
    assert code == 200 and "vary: accept" in head.lower()
    found = samples(body)
    assert found["specstream_open_sessions"] == 1
    assert found["specstream_sessions_total"] == 1
    assert found["specstream_tokens_total"] == 12
    assert found["specstream_rounds_total"] == 6
    assert found["specstream_responses_total{status=completed}"] == 2
    for name, times in (("time_to_first_token", 2), ("time_to_first_audio", 1), ("chunk_gap", 4)):
        family = f"specstream_{name}_seconds"
        assert found[f"{family}_count"] == found[f"{family}_bucket{{le=+Inf}}"] == times


@pytest.mark.parametrize(
    ("kind", "ends"),
    [(OPEN_METRICS, True), (PLAIN_TEXT, False), ("application/openmetrics-text; version=latest", False)],
)
async def test_the_format_is_the_scrapers_choice(kind: str, ends: bool) -> None:
    stand = Stand(ScriptedEngine(["fine."]))
    async with stand.running():
        code, head, body = await get(stand.port, "/metrics", "GET", f"Accept: {kind}")
    assert code == 200
    assert f"content-type: {OPEN_METRICS.split(';')[0] if ends else 'text/plain'}" in head.lower()
    assert body.endswith("# EOF\n") == ends


def test_times_fall_into_their_buckets() -> None:
    times = Histogram((0.5, 1.0))
    for seconds in (0.0, 0.5, 0.50001, 1.0, 7.0):
        times.observe(seconds)
    found = {(s.name, s.labels.get("le")): s.value for s in times.family("t", "…").samples}
    assert found == {
        ("t_bucket", "0.5"): 2,
        ("t_bucket", "1.0"): 4,
        ("t_bucket", "+Inf"): 5,
        ("t_sum", None): 9.00001,
        ("t_count", None): 5,
    }


def test_what_others_count_too_has_their_names() -> None:
    counters = Counters()
    for drafted, accepted in ((4, 2), (4, 0), (0, 0), (2, 2)):
        chunk = replace(chunks_of("one")[0], drafted=drafted, accepted=accepted)
        counters.count_chunk(chunk, 0.1, None)
    found = samples(generate_latest(counters.registry).decode())
    base = "specstream:spec_decode_num"
    assert found[f"{base}_drafts_total"] == 3
    assert found[f"{base}_draft_tokens_total"] == found["specstream_drafted_tokens_total"] == 10
    assert found[f"{base}_accepted_tokens_total"] == 4
    assert found[f"{base}_accepted_tokens_per_pos_total{{position=0}}"] == 2
    assert found[f"{base}_accepted_tokens_per_pos_total{{position=1}}"] == 2
