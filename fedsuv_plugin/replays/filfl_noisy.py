"""FilFL with clients whose labels are wrong: does it leave them out, and does that help?

Not an experiment of the paper, but its claim at its plainest: a fifth of the clients of
configs/filfl/mnist_noisy.yml take every digit for the next one. A selector is compared with FilFL
around it; everything else is the same: data, public set, who has wrong labels, initial model.
README.md says what to expect on which partition, and what came out.
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
from fedsuv_plugin.records import Records, Run
from fedsuv_plugin.replays import CONFIGS, REPLAYS, RUNS, Replay, Report, Table

Found = dict[str, dict[int, dict[str, Any]]]  # method -> seed -> summary of its run


@dataclass(frozen=True, kw_only=True)
class NoisyParams(Params):
    seeds: int = param(3, "jobs per method", low=1)
    rounds: int = param(200, "rounds of each job", low=10)
    inner: str = param("random", "the selector to filter for, and to compare with")
    weights: str = param("last", "what filfl filters by", choices=("last", "fresh"))
    partition: str = param("shards", "how samples are shared out")
    config: str = param(
        str(CONFIGS / "filfl" / "mnist_noisy.yml"), "the job file; eval_interval must be 1"
    )
    workers: int | None = param(None, "processes; none: one per core", low=1)


@REPLAYS.add("filfl/noisy")
class Noisy(Replay):
    name = "filfl/noisy"
    shows = (
        "FilFL on MNIST where a fifth of the clients have wrong labels: accuracy, "
        "and who is filtered out"
    )
    Params = NoisyParams

    def run(self, folder: Path, say: Say) -> Report:
        params = self.params
        comparison = Comparison(
            params.config,
            {
                params.inner: {"sample_mode": params.inner},
                f"filfl dgf, {params.inner}": filtered("dgf", params),
                f"filfl rgf, {params.inner}": filtered("rgf", params),
            },
            range(params.seeds),
            {"rounds": params.rounds, "partition": params.partition},
        )
        runs = comparison.run(folder / RUNS, params.workers, say)
        found = summarise(runs, lambda run: summary(run, params.weights))
        plot_accuracy(folder / "noisy.png", found, params)
        return Report([table(found, params)], [], ["noisy.png"], found)


def filtered(variant: str, params: NoisyParams) -> dict[str, object]:
    """The keys of FilFL around the inner selector."""
    return {
        "sample_mode": "filfl",
        "filfl.inner": params.inner,
        "filfl.variant": variant,
        "filfl.weights": params.weights,
    }


def summary(run: Run, weights: str) -> dict[str, Any]:
    """What the report needs of a run; who was dropped, only where there is a filter."""
    from fedsuv_plugin.tasks.federated_data import DEFAULT_CLIENTS, noisy_clients

    config = run.job.config
    wrong = noisy_clients(config, config.num_clients or DEFAULT_CLIENTS)
    rounds = run.rounds
    accuracy = [m["accuracy"] for m in run.metrics]
    asked = [c for r in rounds for c in r["asked"]]
    return {
        "at_100": last_mean(accuracy),
        "accuracy": accuracy,
        "asked_wrong": sum(c in wrong for c in asked) / len(asked),
        **(drop_rates(rounds, wrong, weights) if config.sample_mode == "filfl" else {}),
    }


def drop_rates(rounds: Records, wrong: frozenset[int], weights: str) -> dict[str, Any]:
    """How often clients with wrong labels, and others, were dropped when a filtering visited them.

    By their last weights, a filtering visits those who have uploaded any; by fresh ones, all.
    """
    uploaded: set[int] = set()
    visits = np.zeros(2)  # of clients with wrong labels, of others
    drops = np.zeros(2)
    seconds = []
    for r in rounds:
        report = r["selector"]["filtering"]
        if report:
            visited = uploaded if weights == "last" else set(range(1, 1 + report["visited"]))
            dropped = set(report["dropped"])
            visits += [len(visited & wrong), len(visited - wrong)]
            drops += [len(dropped & wrong), len(dropped - wrong)]
            seconds.append(report["filter_seconds"])
        uploaded |= set(r["valid"])
    return {
        "dropped_wrong": float(drops[0] / max(visits[0], 1)),
        "dropped_right": float(drops[1] / max(visits[1], 1)),
        "kept_share": float(1 - drops.sum() / max(visits.sum(), 1)),
        "filter_seconds": float(np.mean(seconds)) if seconds else 0.0,
    }


def table(found: Found, params: NoisyParams) -> Table:
    head = [
        "method",
        "accuracy, last ten rounds",
        "each seed",
        "asked: wrong labels",
        "dropped: wrong labels",
        "dropped: right labels",
        "kept of those visited",
        "s per filtering",
    ]
    title = f"Mean of {params.seeds} seeds, {params.rounds} rounds, partition {params.partition}"
    return Table(title, head, [_row(label, list(found[label].values())) for label in found])


def _row(label: str, results: list[dict[str, Any]]) -> list[str]:
    def mean(key: str, form: str = ".1%") -> str:
        if key not in results[0]:
            return "-"
        return format(float(np.mean([r[key] for r in results])), form)

    return [
        label,
        mean("at_100", ".4f"),
        " ".join(f"{r['at_100']:.3f}" for r in results),
        mean("asked_wrong"),
        mean("dropped_wrong"),
        mean("dropped_right"),
        mean("kept_share"),
        mean("filter_seconds", ".2f"),
    ]


def plot_accuracy(path: Path, found: Found, params: NoisyParams) -> None:
    """Accuracy by round: the mean of the seeds, and their range."""
    title = f"Mean and range of {params.seeds} seeds"
    with picture(path) as (_, (ax,)):
        for label, by_seed in found.items():
            curves = np.array([r["accuracy"] for r in by_seed.values()])  # (seeds, rounds + 1)
            mean_and_range(ax, np.arange(curves.shape[1]), curves, label)
        finish(ax, xlabel="round", ylabel="test accuracy", title=title)
