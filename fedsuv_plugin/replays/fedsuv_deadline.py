"""FedSUV on real FedScale jobs with a deadline, beside other selectors: who is in time, and how fast it learns.

The paper's training runs (table 2) want GPUs; this is their question at a size for two cores: the job of
configs/fedsuv/mnist_deadline.yml, once for every selector and seed. Swapping the selector changes nothing else: data,
devices, their luck and the initial model depend on the seed alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedsuv_plugin.params import Params, param
from fedsuv_plugin.pictures import finish, mean_and_range, picture
from fedsuv_plugin.replays import REPLAYS, Replay, Report, Say, Table, parallel
from fedsuv_plugin.replays.jobs import CONFIGS, play_job


@dataclass(frozen=True, kw_only=True)
class DeadlineParams(Params):
    seeds: int = param(5, "jobs per selector", low=1)
    selectors: str = param("fedsuv,oort,random", "what to compare, by name")
    target: float = param(0.9, "accuracy to be reached", above=0, high=1)
    rounds: int = param(100, "rounds of each job", low=2)
    config: str = param(str(CONFIGS / "fedsuv" / "mnist_deadline.yml"), "the job file")
    workers: int | None = param(None, "processes; none: one per core", low=1)


@dataclass(frozen=True)
class Case:
    selector: str
    seed: int
    params: DeadlineParams


def run_case(case: Case) -> dict[str, Any]:
    """One real job; what the report needs of it."""
    rounds, metrics = play_job(
        case.params.config,
        {"sample_mode": case.selector, "seed": case.seed, "rounds": case.params.rounds},
    )
    late = rounds[len(rounds) // 2 :]
    reached = [m["round"] for m in metrics if m["accuracy"] >= case.params.target]
    return {
        "valid_share": sum(len(r["valid"]) for r in late)
        / max(1, sum(len(r["asked"]) for r in late)),
        "rounds_to_target": reached[0] if reached else None,
        "accuracy": metrics[-1]["accuracy"],
        "distinct_clients": len({c for r in rounds for c in r["asked"]}),
        "select_seconds": float(np.mean([r["select_seconds"] for r in rounds])),
        "curve": [[m["round"], m["accuracy"]] for m in metrics],
    }


@REPLAYS.add("fedsuv/deadline")
class Deadline(Replay):
    name = "fedsuv/deadline"
    shows = "FedSUV on real jobs (MNIST, 200 clients, a deadline 60 % meet): share valid, rounds to a target accuracy"
    Params = DeadlineParams

    def run(self, folder: Path, say: Say) -> Report:
        names = self.params.selectors.split(",")
        todo = [
            Case(name, seed, self.params) for seed in range(self.params.seeds) for name in names
        ]
        found: dict[str, dict[int, dict[str, Any]]] = {name: {} for name in names}
        for done, (case, result) in enumerate(
            parallel(run_case, todo, self.params.workers), start=1
        ):
            found[case.selector][case.seed] = result
            say(
                f"{done}/{len(todo)}  {case.selector}, seed {case.seed}: accuracy {result['accuracy']:.4f}, "
                f"valid {result['valid_share']:.0%}"
            )
        draw(folder / "deadline.png", found, self.params)
        return Report(
            [table(found, self.params)],
            [],
            ["deadline.png"],
            {
                name: {str(seed): by_seed[seed] for seed in sorted(by_seed)}
                for name, by_seed in found.items()
            },
        )


def table(found: dict[str, dict[int, dict[str, Any]]], params: DeadlineParams) -> Table:
    def rounds_of(result: dict[str, Any]) -> int:
        return int(
            result["rounds_to_target"] or params.rounds
        )  # never reached: at least all of them

    rows = []
    for name, by_seed in found.items():
        results = [by_seed[seed] for seed in sorted(by_seed)]
        rows.append(
            [
                name,
                f"{np.mean([r['valid_share'] for r in results]):.1%}",
                f"{np.mean([rounds_of(r) for r in results]):.1f}",
                " ".join(str(r["rounds_to_target"] or f">{params.rounds}") for r in results),
                f"{np.mean([r['accuracy'] for r in results]):.4f}",
                " ".join(f"{r['accuracy']:.3f}" for r in results),
                f"{np.mean([r['distinct_clients'] for r in results]):.0f}",
                f"{1000 * np.mean([r['select_seconds'] for r in results]):.1f}",
            ]
        )
    return Table(
        f"Mean of {params.seeds} seeds, {params.rounds} rounds",
        [
            "selector",
            "valid/asked, last half",
            f"rounds to {params.target:g}",
            "each seed",
            "final accuracy",
            "each seed",
            "distinct clients asked",
            "ms per selection",
        ],
        rows,
    )


def draw(path: Path, found: dict[str, dict[int, dict[str, Any]]], params: DeadlineParams) -> None:
    """Accuracy by round: the mean of the seeds, and their range."""
    with picture(path) as (_, (ax,)):
        for name, by_seed in found.items():
            curves = np.array(
                [by_seed[seed]["curve"] for seed in sorted(by_seed)]
            )  # (seeds, evaluations, 2)
            mean_and_range(ax, curves[0, :, 0], curves[:, :, 1], name)
        ax.axhline(params.target, color="grey", linestyle=":", linewidth=1)
        finish(
            ax,
            xlabel="round",
            ylabel="test accuracy",
            title=f"Mean and range of {params.seeds} seeds",
        )
