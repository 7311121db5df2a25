"""What the pictures show: means, bands, shares and maps."""

from __future__ import annotations

import base64
import io
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image
from report_worlds import TARGET, by_hand, under_conditions, write_run

from fedsuv_plugin.experiments.cohorts import cohorts_of
from fedsuv_plugin.experiments.report.charts import draw_chart
from fedsuv_plugin.experiments.report.figures import figure_of
from fedsuv_plugin.experiments.report.maps import LARGEST, cohort_map
from fedsuv_plugin.experiments.report.material import gather
from fedsuv_plugin.experiments.report.series import (
    is_flat,
    line_of,
    valid_by_tenth,
    validity_by_round,
)
from fedsuv_plugin.experiments.report.styles import colour, dash
from fedsuv_plugin.experiments.report.svg import Axis, nice_ticks
from fedsuv_plugin.experiments.results import results_of, run_result


def test_the_mean_ends_where_the_first_seed_ends() -> None:
    short = (np.array([0.0, 1.0, 2.0]), np.array([0.0, 0.5, 1.0]))
    long = (np.array([0.0, 4.0]), np.array([0.0, 1.0]))
    line = line_of("", 0, [short, long])
    assert line.x[-1] == 2.0
    assert np.allclose(line.mean, 0.375 * line.x)  # of slopes 1/2 and 1/4


def test_the_share_of_the_valid_is_taken_over_tenths() -> None:
    rounds = [{"round": n, "asked": [1, 2], "valid": [1] if n <= 10 else []} for n in range(1, 21)]
    assert valid_by_tenth(cohorts_of(rounds), 20).tolist() == [0.5] * 5 + [0.0] * 5


def test_charts_have_every_finished_variant_and_every_cost(tmp_path: Path) -> None:
    material = gather(by_hand(tmp_path))
    assert [chart.title for chart in material.curves] == [
        "by round",
        "by virtual time",
        "by energy",
        "by client time",
    ]
    labels = ["random", "oort", "pow_d", "never", "one seed"]
    for chart in [*material.curves, *material.validity]:
        assert [line.label for line in chart.lines] == labels
    energy = material.curves[2].lines[0]
    assert energy.x.tolist() == [0.0, 20.0, 40.0]  # 3 + 1 J a round
    assert len(material.maps) == 13


def test_valid_against_the_deadline_where_it_is_varied(tmp_path: Path) -> None:
    runs = []
    for deadline in (90, 30, None):
        for mode in ("random", "oort"):
            keys: dict[str, object] = {"sample_mode": mode, "round_deadline": deadline}
            path = tmp_path / f"{mode}-{deadline}"
            write_run(path, keys, 0, [0.5, 0.9])
            runs.append(run_result(f"{mode}, {deadline}", keys, 0, path, TARGET, None))
    results = results_of("deadlines", runs, ["sample_mode", "round_deadline"], None, TARGET)
    (chart,) = gather(results).by_deadline
    assert [line.label for line in chart.lines] == ["random", "oort"]
    assert [line.x.tolist() for line in chart.lines] == [[30.0, 90.0], [30.0, 90.0]]


def test_conditions_are_drawn_beside_each_other(tmp_path: Path) -> None:
    """What is compared looks the same under each, and all are to one scale."""
    chart = gather(under_conditions(tmp_path)).curves[0]
    assert list(chart.parts) == ["partition_alpha=0.1", "partition_alpha=1.0"]
    for lines in chart.parts.values():
        assert [(line.label, line.style) for line in lines] == [("random", 0), ("oort", 1)]
    drawn = list(draw_chart(chart, "clip").values())
    assert len(drawn) == 2
    assert len({tuple(re.findall('data-area="[^"]+"', svg)) for svg in drawn}) == 1
    figure = figure_of(chart)
    assert [ax.get_title() for ax in figure.axes] == list(chart.parts)
    assert len({ax.get_ylim() for ax in figure.axes}) == 1
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["random", "oort"]


def test_a_share_that_never_changes_is_not_drawn(tmp_path: Path) -> None:
    results = by_hand(tmp_path)
    chart = validity_by_round(results)  # all are valid in the first round, half of them later
    assert not is_flat(chart)
    halves = [replace(line, seeds=[(x[1:], y[1:]) for x, y in line.seeds]) for line in chart.lines]
    assert is_flat(replace(chart, lines=halves))


def test_a_map_shows_who_was_asked_and_whose_work_counted() -> None:
    rounds = [
        {"round": 1, "asked": [1, 3], "valid": [1]},
        {"round": 2, "asked": [2], "valid": [2]},
    ]
    found = cohort_map(cohorts_of(rounds), clients=3, last=2)
    valid, lost = 4, 8  # the darkest shade of each
    assert found.points.tolist() == [[valid, 0], [0, valid], [lost, 0]]
    assert not found.binned
    content = base64.b64decode(found.png().partition(",")[2])
    image = Image.open(io.BytesIO(content)).convert("RGBA")
    assert image.size == (2, 3)
    colours = [image.getpixel(place) for place in ((0, 0), (0, 2), (1, 0))]
    assert [isinstance(each, tuple) and each[3] for each in colours] == [255, 255, 0]
    assert len(set(colours)) == 3


def test_a_large_map_is_binned() -> None:
    rounds = [{"round": n, "asked": [n, 5000], "valid": [n]} for n in range(1, 1001)]
    found = cohort_map(cohorts_of(rounds), clients=5000, last=1000)
    assert found.points.shape == (LARGEST, LARGEST) and found.binned
    assert (found.points[-1] > 4).all()  # client 5000 was asked always, and in vain


def test_forty_variants_look_different() -> None:
    assert len({(colour(i), dash(i)) for i in range(40)}) == 40


def test_ticks_are_round_numbers() -> None:
    assert nice_ticks(0.0, 0.97) == [0.0, 0.2, 0.4, 0.6, 0.8]
    assert nice_ticks(3.0, 3.0) == [3.0]
    assert [text for _, text in Axis(0.9, 1.0, "", percent=True).ticks()] == [
        "90",
        "92",
        "94",
        "96",
        "98",
        "100",
    ]
    assert [text for _, text in Axis(100.5, 0.5, "client").ticks()] == [
        "20",
        "40",
        "60",
        "80",
        "100",
    ]
