"""A comparison made by hand, whose numbers can be worked out on paper.

Every run has 10 rounds of 10 s, evaluated after 0, 5 and 10; the target is 80 %. In every round
clients 1 and 2 of 4 are asked, and 1 is in time; in the first both are."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import yaml

from fedsuv_plugin.experiments.results import Results, RunResult, label_of, results_of, run_result

TARGET = 0.8
ROUNDS = 10
# Accuracy after rounds 5 and 10, by seed.
ACCURACY: dict[str, Sequence[tuple[float, float]]] = {
    "random": [(0.5, 0.8), (0.5, 0.8), (0.5, 0.7)],  # seed 2 does not get there
    "oort": [(0.8, 0.9), (0.8, 0.9), (0.8, 0.9)],
    "pow_d": [(0.5, 0.8), (0.5, 0.8), (0.5, 0.7)],  # ties with random
    "never": [(0.1, 0.2), (0.1, 0.2), (0.1, 0.2)],
    "one seed": [(0.5, 0.85)],
}
REASON = "/home/ann/study/data has <b>no</b> data & more"
SHOWN_REASON = "…/study/data has <b>no</b> data & more"


def write_run(
    path: Path, keys: dict[str, object], seed: int, accuracies: Sequence[float], last: int = ROUNDS
) -> None:
    """A run directory of `last` rounds with evaluations at equal distances, from 0.1 on."""
    path.mkdir(parents=True)
    settings = {
        "seed": seed,
        "rounds": last,
        "data_set": "by_hand",
        "device_conf_file": "/home/ann/a study/device_traces/small.npz",
        "log_path": "/home/ann/runs",
        "round_deadline": 60,
        **keys,
    }
    content = {"job_conf": [{key: value} for key, value in settings.items()]}
    (path / "config.yml").write_text(yaml.safe_dump(content))
    environment = {
        "clients": 4,
        "wall_seconds": 2.5,
        "git_revision": "abc123",
        "command": ["fedsuv", "run", "--set", "data_dir=/home/ann/data/mnist"],
        "packages": {"fedsuv_plugin": "0.1.0"},
    }
    (path / "environment.json").write_text(json.dumps(environment))
    rounds = [_round(number) for number in range(1, last + 1)]
    every = last // len(accuracies)
    metrics = [
        {"round": i * every, "clock": 10.0 * i * every, "accuracy": accuracy}
        for i, accuracy in enumerate([0.1, *accuracies])
    ]
    for name, lines in (("rounds", rounds), ("metrics", metrics)):
        (path / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def _round(number: int) -> dict[str, object]:
    return {
        "round": number,
        "clock": 10.0 * number,
        "duration": 10.0,
        "asked": [1, 2],
        "valid": [1, 2] if number == 1 else [1],
        "select_seconds": 0.002,
        "client_time": 8.0,
        "energy_joules": 3.0,
        "megabytes": 1.0,
        "wasted": {"client_time": 4.0, "energy_joules": 1.0},
        "probing": {"clients": 1, "client_time": 2.0, "energy_joules": 1.0, "megabytes": 0.5},
    }


def by_hand(folder: Path) -> Results:
    """The variants of `ACCURACY`, and one whose first run failed and whose second is missing."""
    runs: list[RunResult] = []
    for label, seeds in ACCURACY.items():
        keys: dict[str, object] = {"sample_mode": label}
        for seed, accuracies in enumerate(seeds):
            path = folder / label.replace(" ", "-") / f"seed{seed}"
            write_run(path, keys, seed, accuracies)
            runs.append(run_result(label, keys, seed, path, TARGET, None))
    broken = {"sample_mode": "broken"}
    runs.append(run_result("broken", broken, 0, folder / "broken" / "seed0", TARGET, REASON))
    runs.append(run_result("broken", broken, 1, folder / "broken" / "seed1", TARGET, None))
    return results_of("by_hand", runs, ["sample_mode"], ("sample_mode", "random"), TARGET)


# Accuracy after rounds 5 and 10 of two seeds, by selector and partition_alpha.
UNDER_CONDITIONS: dict[tuple[str, float], Sequence[tuple[float, float]]] = {
    ("random", 0.1): [(0.5, 0.8), (0.4, 0.7)],  # mean .75, the better under 0.1
    ("random", 1.0): [(0.6, 0.8), (0.7, 0.85)],
    ("oort", 0.1): [(0.2, 0.7), (0.2, 0.7)],
    ("oort", 1.0): [(0.8, 0.9), (0.8, 0.95)],  # the better under 1
}


def under_conditions(folder: Path) -> Results:
    """Two selectors under two conditions; the reference is `random` under the same."""
    runs: list[RunResult] = []
    for (selector, alpha), seeds in UNDER_CONDITIONS.items():
        keys: dict[str, object] = {"sample_mode": selector, "partition_alpha": alpha}
        for seed, accuracies in enumerate(seeds):
            path = folder / f"{selector}-{alpha}" / f"seed{seed}"
            write_run(path, keys, seed, accuracies)
            runs.append(run_result(label_of(keys), keys, seed, path, TARGET, None))
    by = ["sample_mode", "partition_alpha"]
    return results_of("conditions", runs, by, ("sample_mode", "random"), TARGET)
