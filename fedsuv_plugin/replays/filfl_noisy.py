"""FilFL with clients whose labels are wrong: does it leave them out, and does that help?

Not an experiment of the paper, but its claim at its plainest: a fifth of the clients of configs/filfl/mnist_noisy.yml
take every digit for the next one. `random` against FilFL around `random`, everything else the same: data, public set,
who has wrong labels, initial model.

What to expect: with partition=iid or dirichlet (alpha 0.5) wrong labels are mostly found out and accuracy rises by
points. With two shards a client an honest model is about as bad for the public set as a lying one: lying clients are
dropped a little more often than others, and no gain in accuracy stands out from the spread of the seeds.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedsuv_plugin.config.job_file import load_job
from fedsuv_plugin.params import Params, param
from fedsuv_plugin.pictures import finish, mean_and_range, picture
from fedsuv_plugin.replays import REPLAYS, Replay, Report, Say, Table, parallel
from fedsuv_plugin.replays.jobs import CONFIGS, Records, last_mean, play_job
from fedsuv_plugin.tasks.federated_data import DEFAULT_CLIENTS, noisy_clients


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


@dataclass(frozen=True)
class Case:
    variant: str | None  # of filfl; None: no filtering
    seed: int
    params: NoisyParams

    @property
    def label(self) -> str:
        return (
            self.params.inner
            if self.variant is None
            else f"filfl {self.variant}, {self.params.inner}"
        )


def overrides(case: Case) -> dict[str, object]:
    keys: dict[str, object] = {
        "seed": case.seed,
        "rounds": case.params.rounds,
        "partition": case.params.partition,
    }
    if case.variant is None:
        return {**keys, "sample_mode": case.params.inner}
    return {
        **keys,
        "sample_mode": "filfl",
        "filfl.inner": case.params.inner,
        "filfl.variant": case.variant,
        "filfl.weights": case.params.weights,
    }


def run_case(case: Case) -> dict[str, Any]:
    config = load_job(case.params.config, overrides(case)).config
    wrong = noisy_clients(config, config.num_clients or DEFAULT_CLIENTS)
    rounds, metrics = play_job(case.params.config, overrides(case))
    accuracy = [m["accuracy"] for m in metrics]
    asked = [c for r in rounds for c in r["asked"]]
    return {
        "at_100": last_mean(accuracy),
        "accuracy": accuracy,
        "asked_wrong": sum(c in wrong for c in asked) / len(asked),
        **(drop_rates(rounds, wrong, case.params.weights) if case.variant else {}),
    }


def drop_rates(rounds: Records, wrong: frozenset[int], weights: str) -> dict[str, Any]:
    """How often a client with wrong labels was dropped when a filtering visited it, and how often any other."""
    seen, visits, drops = set[int](), np.zeros(2), np.zeros(2)
    for r in rounds:
        report = r["selector"]["filtering"]
        if report:
            visited = seen if weights == "last" else set(range(1, 1 + report["visited"]))
            visits += [len(visited & wrong), len(visited - wrong)]
            drops += [
                len(wrong.intersection(report["dropped"])),
                len(set(report["dropped"]) - wrong),
            ]
        seen |= set(r["valid"])
    reports = [r["selector"]["filtering"] for r in rounds if r["selector"]["filtering"]]
    return {
        "dropped_wrong": float(drops[0] / max(visits[0], 1)),
        "dropped_right": float(drops[1] / max(visits[1], 1)),
        "kept_share": float(1 - drops.sum() / max(visits.sum(), 1)),
        "filter_seconds": float(np.mean([report["filter_seconds"] for report in reports]))
        if reports
        else 0.0,
    }


Found = dict[str, dict[int, dict[str, Any]]]  # label -> seed -> result


@REPLAYS.add("filfl/noisy")
class Noisy(Replay):
    name = "filfl/noisy"
    shows = "FilFL on MNIST where a fifth of the clients have wrong labels: accuracy, and who is filtered out"
    Params = NoisyParams

    def run(self, folder: Path, say: Say) -> Report:
        todo = [
            Case(variant, seed, self.params)
            for seed in range(self.params.seeds)
            for variant in (None, "dgf", "rgf")
        ]
        found: Found = {case.label: {} for case in todo}
        for done, (case, result) in enumerate(
            parallel(run_case, todo, self.params.workers), start=1
        ):
            found[case.label][case.seed] = result
            say(f"{done}/{len(todo)}  {case.label}, seed {case.seed}: {result['at_100']:.4f}")
        draw(folder / "noisy.png", found, self.params)
        return Report(
            [table(found, self.params)],
            [],
            ["noisy.png"],
            {
                label: {str(seed): by_seed[seed] for seed in sorted(by_seed)}
                for label, by_seed in found.items()
            },
        )


def table(found: Found, params: NoisyParams) -> Table:
    rows = []
    for label, by_seed in found.items():
        results = [by_seed[seed] for seed in sorted(by_seed)]

        def mean(key: str, form: str = ".1%", results: list[dict[str, Any]] = results) -> str:
            return (
                format(float(np.mean([r[key] for r in results])), form)
                if key in results[0]
                else "-"
            )

        rows.append(
            [
                label,
                mean("at_100", ".4f"),
                " ".join(f"{r['at_100']:.3f}" for r in results),
                mean("asked_wrong"),
                mean("dropped_wrong"),
                mean("dropped_right"),
                mean("kept_share"),
                mean("filter_seconds", ".2f"),
            ]
        )
    return Table(
        f"Mean of {params.seeds} seeds, {params.rounds} rounds, partition {params.partition}",
        [
            "method",
            "accuracy, last ten rounds",
            "each seed",
            "asked: wrong labels",
            "dropped: wrong labels",
            "dropped: right labels",
            "kept of those visited",
            "s per filtering",
        ],
        rows,
    )


def draw(path: Path, found: Found, params: NoisyParams) -> None:
    """Accuracy by round: the mean of the seeds, and their range."""
    with picture(path) as (_, (ax,)):
        for label, by_seed in found.items():
            curves = np.array(
                [by_seed[seed]["accuracy"] for seed in sorted(by_seed)]
            )  # (seeds, rounds + 1)
            mean_and_range(ax, np.arange(curves.shape[1]), curves, label)
        finish(
            ax,
            xlabel="round",
            ylabel="test accuracy",
            title=f"Mean and range of {params.seeds} seeds",
        )
