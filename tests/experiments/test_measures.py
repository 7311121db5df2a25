"""A run in numbers, worked by hand on a hand-made run directory."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import yaml

from fedsuv_plugin.experiments.measures import BY_NAME, MEASURES, measure
from fedsuv_plugin.records import Run, read_run

# Four rounds of clients 1 to 4; per round: who was asked, who was valid, seconds, wasted seconds,
# joules, probing seconds, probing joules. Traffic is 2 MB a round, and 0.5 MB of probes.
ROUNDS = [
    ([1, 2], [1, 2], 10.0, 0.0, 5.0, 1.0, 0.5),
    ([1, 3], [1], 12.0, 6.0, 6.0, 1.0, 0.5),
    ([1, 2], [1, 2], 10.0, 0.0, 5.0, 1.0, 0.5),
    ([2, 3], [2], 8.0, 3.0, 4.0, 1.0, 0.5),
]
ACCURACY = {0: 0.1, 2: 0.6, 4: 0.5}


def write_run(path: Path, **changes: Any) -> Run:
    path.mkdir()
    settings = {"rounds": 4, "seed": 0, "sample_mode": "random", **changes}
    content = {"job_conf": [{key: value} for key, value in settings.items()]}
    (path / "config.yml").write_text(yaml.safe_dump(content))
    (path / "environment.json").write_text(json.dumps({"clients": 4, "wall_seconds": 3.5}))
    rounds = [
        {
            "round": number,
            "clock": 20.0 * number,
            "asked": asked,
            "valid": valid,
            "client_time": seconds,
            "energy_joules": joules,
            "megabytes": 2.0,
            "wasted": {"client_time": wasted, "energy_joules": 0.0},
            "probing": {
                "clients": 3,
                "client_time": probing,
                "energy_joules": probe_joules,
                "megabytes": 0.5,
            },
            "select_seconds": 0.002,
        }
        for number, (asked, valid, seconds, wasted, joules, probing, probe_joules) in enumerate(
            ROUNDS, start=1
        )
    ]
    metrics = [
        {"round": number, "clock": 20.0 * number, "accuracy": accuracy, "clients_worst_tenth": 0.3}
        for number, accuracy in ACCURACY.items()
    ]
    write_lines(path / "rounds.jsonl", rounds)
    write_lines(path / "metrics.jsonl", metrics)
    return read_run(path)


def write_lines(path: Path, lines: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_every_number_by_hand(tmp_path: Path) -> None:
    found = measure(write_run(tmp_path / "run"), target=0.6).values
    assert list(found) == [m.name for m in MEASURES]
    expected = {
        "final_accuracy": 0.5,  # the last tenth of four rounds is the evaluation of round 4
        "best_accuracy": 0.6,
        "rounds_to_target": 2,
        "seconds_to_target": 40,
        "client_seconds_to_target": 10 + 12 + 2,  # two rounds, and their probes
        "joules_to_target": 5 + 6 + 1,
        "megabytes_to_target": 5,
        "virtual_seconds": 80,
        "client_seconds": 40 + 4,
        "joules": 20 + 2,
        "megabytes": 10,
        "probing_share": 4 / 44,
        "valid_share": 6 / 8,
        "late_share": math.nan,  # this selector takes no late updates
        "wasted_share": 9 / 40,
        "asked_share": 3 / 4,  # client 4 never was
        # Asked 3, 3, 2 and 0 times: 8^2 / (4 x (9 + 9 + 4)).
        "jain": 64 / 88,
        "worst_tenth": 0.3,
        "wall_select_ms": 2.0,
        "wall_seconds": 3.5,
    }
    assert found == pytest.approx(expected, nan_ok=True)


def test_updates_that_come_late_are_counted_apart(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    rounds = [{**r, "late": []} for r in run.rounds]
    rounds[2]["late"] = [{"client": 3, "asked_in": 1, "staleness": 2, "weight": 0.1}]
    write_lines(run.path / "rounds.jsonl", rounds)
    found = measure(run, None).values
    assert (found["valid_share"], found["late_share"]) == (6 / 8, 1 / 8)


def test_a_target_that_was_not_reached_or_not_set_has_no_numbers(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    for target in (0.61, None):
        found = measure(run, target).values
        unknown = {m.name for m in MEASURES if m.to_target} | {"late_share"}
        assert {name for name, value in found.items() if math.isnan(value)} == unknown


def test_the_final_accuracy_is_the_mean_of_the_last_tenth(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", rounds=100)
    lines = [{"round": n, "clock": 1.0, "accuracy": n / 1000} for n in range(0, 101, 5)]
    write_lines(run.path / "metrics.jsonl", lines)
    # After round 90: 95 and 100.
    assert measure(run, None).values["final_accuracy"] == pytest.approx(0.0975)


def test_a_run_that_ended_early_is_measured_by_the_rounds_it_had(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", rounds=1000)
    assert measure(run, None).values["final_accuracy"] == 0.5


def test_what_was_not_recorded_is_unknown_not_zero(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    lines = run.rounds
    for line in lines:
        del line["probing"], line["client_time"], line["wasted"]
        line["energy_joules"] = 0.0  # no power in the trace
    write_lines(run.path / "rounds.jsonl", lines)
    found = measure(run, 0.6).values
    unknown = {"client_seconds", "joules", "megabytes", "probing_share", "wasted_share"}
    assert all(math.isnan(found[name]) for name in unknown)
    assert math.isnan(found["joules_to_target"])
    assert found["rounds_to_target"] == 2


def test_numbers_as_text() -> None:
    assert BY_NAME["final_accuracy"].show(0.98765) == "98.77 %"
    assert BY_NAME["seconds_to_target"].show(12345.6) == "12,346"
    assert BY_NAME["jain"].show(0.5) == "0.500"
    assert BY_NAME["joules"].show(float("nan")) == "–"
