from pathlib import Path

import pytest

from specstream.bench.plots import Bar, Row, draw_plots, drawn_timeline
from specstream.bench.results import Results
from tests.bench.made import made_record, made_run, peer_run, plain_run

pytest.importorskip("matplotlib")


def size_of(path: Path) -> tuple[int, int]:
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    return int.from_bytes(data[16:20]), int.from_bytes(data[20:24])


def test_it_draws_every_arm(tmp_path: Path) -> None:
    records = []
    for domain in ("chat", "scene"):
        records += [
            made_record("own", plain_run(20, 4.0), domain=domain),
            made_record("auto", made_run([(6.0, 2, 4)] * 20), domain=domain),
            made_record("draft-4", made_run([(6.0, 3, 4)] * 20), domain=domain),
            made_record("assisted", peer_run(20, 5.0), domain=domain, setting="3 tokens"),
        ]
    draw_plots(Results(records), tmp_path / "a.png", "title")
    width, height = size_of(tmp_path / "a.png")
    assert width > 2 * height > 800


def test_it_draws_what_little_there_is(tmp_path: Path) -> None:
    draw_plots(Results([made_record("generate", peer_run(3, 5.0))]), tmp_path / "a.png", "title")
    assert size_of(tmp_path / "a.png")[0] > 1000


def test_the_number_of_prompts_and_their_spread_are_in_the_picture() -> None:
    from matplotlib import pyplot
    from matplotlib.collections import LineCollection

    from specstream.bench.plots import _draw_speed

    records = [
        made_record("own", plain_run(40, 1000 / speed), prompt=f"p{speed}")
        for speed in (100, 200, 300, 400, 500)
    ]
    figure, axes = pyplot.subplots()
    try:
        _draw_speed(axes, Results(records))
        (line,) = axes.collections
        assert isinstance(line, LineCollection)
        (ends,) = line.get_segments()
        assert [round(float(y)) for _, y in ends] == [200, 400]
        assert [text.get_text() for text in axes.get_xticklabels()] == ["chat, n = 5"]
        assert "middle half" in axes.get_title(loc="left")
    finally:
        pyplot.close(figure)


@pytest.mark.parametrize("count", [1, 9, 60])
@pytest.mark.parametrize("spread_ms", [0.0, 35.0, 900.0])
def test_labels_of_a_timeline_do_not_overlap(count: int, spread_ms: float) -> None:
    """Neither each other, nor a bar, nor the legend; early ones hang lower, so that no line crosses."""
    from matplotlib import pyplot

    bars = [
        Bar("phrase", i * spread_ms, i * spread_ms + 30.0, f"{i}: Wide\nwords, $5, $6 {'m' * i}")
        for i in range(count)
    ]
    rows = [Row("phrases", bars), Row("voice", [Bar("voice", 0.0, 3000.0)])]
    with drawn_timeline(rows, None, "title") as axes:
        figure = axes.figure
        figure.draw_without_rendering()
        renderer = figure.canvas.get_renderer()
        boxes = [text.get_window_extent(renderer) for text in axes.texts]
        assert len(boxes) == count or (count == 60 and len(boxes) >= 12)
        for at, box in enumerate(boxes):
            assert not any(box.overlaps(other) for other in boxes[:at])
            assert axes.bbox.x0 - 1 <= box.x0 and box.x1 <= axes.bbox.x1 + 1
            for patch in axes.patches:
                if patch.get_width():
                    assert not box.overlaps(patch.get_window_extent(renderer))
        shown = axes.get_yticklabels()[0].get_text()
        assert ("of 60 named" in shown) == (len(boxes) < count)
    assert not pyplot.get_fignums()
