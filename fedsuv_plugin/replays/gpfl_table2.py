"""GPFL, table II and figure 4: accuracy on the way, and how soon everyone has been asked.

The job is configs/gpfl/mnist_shards.yml: the paper's setting "2SPC" with MNIST for FEMNIST. As in
the paper, "100 %" is the mean of the last ten rounds and +- the largest deviation from it. The
paper's numbers are quoted for their shape, not their size; README.md has what came out.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedsuv_plugin.experiments.comparison import Comparison, Say, summarise
from fedsuv_plugin.experiments.curves import last_mean
from fedsuv_plugin.params import Params, param
from fedsuv_plugin.pictures import finish, mean_and_range, picture
from fedsuv_plugin.records import Run
from fedsuv_plugin.replays import CONFIGS, REPLAYS, RUNS, Replay, Report, Table

# FEMNIST, 2SPC: accuracy after 15, 50 and 100 % of the rounds.
PAPER = {
    "random": ("0.5378", "0.5367", "0.6001 ± 0.11"),
    "pow_d": ("0.5824", "0.6327", "0.5859 ± 0.08"),
    "gpfl": ("0.6879", "0.7741", "0.7780 ± 0.04"),
}
# Rounds until everyone has been asked, read off figure 4.
PAPER_COVERAGE = {"random": "nearly 100", "pow_d": "nearly 100", "gpfl": "50"}

Found = dict[str, dict[int, dict[str, Any]]]  # selector -> seed -> summary of its run


@dataclass(frozen=True, kw_only=True)
class Table2Params(Params):
    seeds: int = param(3, "jobs per selector", low=1)
    selectors: str = param("random,pow_d,gpfl", "what to compare, by name")
    rounds: int = param(200, "rounds of each job", low=10)
    config: str = param(
        str(CONFIGS / "gpfl" / "mnist_shards.yml"), "the job file; eval_interval must be 1"
    )
    workers: int | None = param(None, "processes; none: one per core", low=1)


@REPLAYS.add("gpfl/table2")
class Table2(Replay):
    name = "gpfl/table2"
    shows = (
        "GPFL on MNIST, 100 clients of two shards: accuracy at 15, 50, 100 % of the rounds, "
        "and coverage"
    )
    Params = Table2Params

    def run(self, folder: Path, say: Say) -> Report:
        params = self.params
        comparison = Comparison(
            params.config,
            {name: {"sample_mode": name} for name in params.selectors.split(",")},
            range(params.seeds),
            {"rounds": params.rounds},
        )
        found = summarise(comparison.run(folder / RUNS, params.workers, say), summary)
        plot_coverage_and_accuracy(folder / "table2.png", found, params)
        note = "The paper's numbers are of another data set (FEMNIST) and 500 rounds."
        return Report([accuracy_table(found), coverage_table(found)], [note], ["table2.png"], found)


def summary(run: Run) -> dict[str, Any]:
    """What the report needs of a run."""
    rounds = run.rounds
    accuracy = [m["accuracy"] for m in run.metrics]  # (rounds + 1,), first the untrained model's
    seen: set[int] = set()
    coverage = []
    for r in rounds:
        seen |= set(r["asked"])
        coverage.append(len(seen))
    times = np.unique([c for r in rounds for c in r["asked"]], return_counts=True)[1]
    at_100 = last_mean(accuracy)
    return {
        "at_15": accuracy[round(0.15 * len(rounds))],
        "at_50": accuracy[round(0.5 * len(rounds))],
        "at_100": at_100,
        "deviation": float(np.abs(np.array(accuracy[-10:]) - at_100).max()),
        "accuracy": accuracy,
        "coverage": coverage,
        "most_asked": int(times.max()),
    }


def _values(by_seed: dict[int, dict[str, Any]], key: str) -> list[Any]:
    return [result[key] for result in by_seed.values()]


def accuracy_table(found: Found) -> Table:
    head = ["selector", "15 %", "50 %", "100 %", "each seed"]
    head += ["paper 15 %", "paper 50 %", "paper 100 %"]
    rows = []
    for name, by_seed in found.items():
        keys = ("at_15", "at_50", "at_100", "deviation")
        at_15, at_50, at_100, deviation = (np.mean(_values(by_seed, key)) for key in keys)
        rows.append(
            [
                name,
                f"{at_15:.4f}",
                f"{at_50:.4f}",
                f"{at_100:.4f} ± {deviation:.2f}",
                " ".join(f"{value:.3f}" for value in _values(by_seed, "at_100")),
                *PAPER.get(name, ("-",) * 3),
            ]
        )
    return Table("Accuracy, mean of the seeds", head, rows)


def rounds_to_all(coverage: list[int], clients: int) -> int | None:
    """The round by which everyone had been asked."""
    return next((t for t, seen in enumerate(coverage, start=1) if seen == clients), None)


def coverage_table(found: Found) -> Table:
    results = [result for by_seed in found.values() for result in by_seed.values()]
    clients = max(result["coverage"][-1] for result in results)
    rows = []
    for name, by_seed in found.items():
        curves = _values(by_seed, "coverage")
        to_all = [rounds_to_all(curve, clients) or f">{len(curve)}" for curve in curves]
        rows.append(
            [
                name,
                " ".join(map(str, to_all)),
                PAPER_COVERAGE.get(name, "-"),
                " ".join(str(curve[len(curve) // 10 - 1]) for curve in curves),
                " ".join(str(most) for most in _values(by_seed, "most_asked")),
            ]
        )
    head = ["selector", "rounds", "paper", "asked after a tenth of the rounds"]
    head += ["times the favourite was asked"]
    return Table(f"Rounds until all {clients} clients have been asked, each seed", head, rows)


def plot_coverage_and_accuracy(path: Path, found: Found, params: Table2Params) -> None:
    """Coverage as in figure 4, and accuracy, means over the seeds."""
    with picture(path, 2, (12, 5)) as (figure, (left, right)):
        figure.suptitle(f"Mean and range of {params.seeds} seeds")
        for name, by_seed in found.items():
            coverage = np.array(_values(by_seed, "coverage"), float)  # (seeds, rounds)
            accuracy = np.array(_values(by_seed, "accuracy"), float)  # (seeds, rounds + 1)
            mean_and_range(left, np.arange(1, coverage.shape[1] + 1), coverage, name)
            mean_and_range(right, np.arange(accuracy.shape[1]), accuracy, name)
        finish(left, title="clients asked at least once", xlabel="round")
        finish(right, title="test accuracy", xlabel="round", ylim=(0, 1))
