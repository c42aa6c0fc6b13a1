from __future__ import annotations

import json
from pathlib import Path

import specstream
from specstream.bench.provenance import load_average, provenance_of
from specstream.bench.run import Outcome
from specstream.bench.table import heading_of
from specstream.config import DEFAULT_TARGET, EngineConfig
from tests.tiny import save_pair


def test_it_names_versions_machine_models_and_options() -> None:
    config = EngineConfig(dtype="bfloat16", device="cpu", threads=2)
    found = provenance_of(config, {"quick": True}, DEFAULT_TARGET)
    assert json.loads(json.dumps(found)) == found
    assert found["specstream"] == specstream.__version__
    assert found["packages"]["torch"]
    assert (found["dtype"], found["device"], found["threads"]) == ("bfloat16", "cpu", 2)
    assert found["target"]["name"] == found["draft"]["name"] == "bundled"
    assert found["target"]["parameters"] > found["draft"]["parameters"] > 1e6
    assert found["cpu"]
    assert found["gpu"] is None
    assert found["options"] == {"quick": True}


def test_a_target_that_no_draft_fits_has_none(tmp_path: Path) -> None:
    target, _ = save_pair(tmp_path)
    found = provenance_of(EngineConfig(target=str(target), device="cpu"), {}, str(target))
    assert found["draft"] is None
    outcome = Outcome()
    origin = found | {"options": {"temperature": 0, "max_tokens": 8}, "load_average_before": None}
    assert "draft none" in heading_of(origin, outcome)[0]


def test_load_averages_are_three_numbers() -> None:
    assert len(load_average() or [0, 0, 0]) == 3
