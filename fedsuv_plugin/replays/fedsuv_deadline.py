"""FedSUV on real FedScale jobs with a deadline, beside other selectors.

Who is in time, and how fast does the model learn? The job is configs/fedsuv/mnist_deadline.yml,
once for every selector and seed: the question of the paper's table 2, at a size for two cores.
README.md has what came out.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedsuv_plugin.experiments.comparison import Comparison, Say, summarise
from fedsuv_plugin.experiments.curves import accuracy_curve
from fedsuv_plugin.params import Params, param
from fedsuv_plugin.pictures import STYLES, mean_and_range, picture
from fedsuv_plugin.records import Run
from fedsuv_plugin.replays import CONFIGS, REPLAYS, RUNS, Replay, Report, Table

Found = dict[str, dict[int, dict[str, Any]]]  # selector -> seed -> summary of its run


@dataclass(frozen=True, kw_only=True)
class DeadlineParams(Params):
    seeds: int = param(5, "jobs per selector", low=1)
    selectors: str = param("fedsuv,oort,random", "what to compare, by name")
    target: float = param(0.9, "accuracy to be reached", above=0, high=1)
    rounds: int = param(100, "rounds of each job", low=2)
    config: str = param(str(CONFIGS / "fedsuv" / "mnist_deadline.yml"), "the job file")
    workers: int | None = param(None, "processes; none: one per core", low=1)


@REPLAYS.add("fedsuv/deadline")
class Deadline(Replay):
    name = "fedsuv/deadline"
    shows = (
        "FedSUV on real jobs (MNIST, 200 clients, a deadline 60 % meet): share valid, "
        "rounds to a target accuracy"
    )
    Params = DeadlineParams

    def run(self, folder: Path, say: Say) -> Report:
        params = self.params
        comparison = Comparison(
            params.config,
            {name: {"sample_mode": name} for name in params.selectors.split(",")},
            range(params.seeds),
            {"rounds": params.rounds},
        )
        runs = comparison.run(folder / RUNS, params.workers, say)
        found = summarise(runs, lambda run: summary(run, params.target))
        plot_deadline(folder / "deadline.png", found, params)
        return Report([table(found, params)], [], ["deadline.png"], found)


def summary(run: Run, target: float) -> dict[str, Any]:
    """What the report needs of a run."""
    rounds = run.rounds
    metrics = run.metrics
    last_half = rounds[len(rounds) // 2 :]
    asked = sum(len(r["asked"]) for r in last_half)
    valid = sum(len(r["valid"]) for r in last_half)
    reached = [m["round"] for m in metrics if m["accuracy"] >= target]
    return {
        "valid_share": valid / max(1, asked),
        "rounds_to_target": reached[0] if reached else None,
        "accuracy": metrics[-1]["accuracy"],
        "distinct_clients": len({c for r in rounds for c in r["asked"]}),
        "select_seconds": float(np.mean([r["select_seconds"] for r in rounds])),
        "curve": accuracy_curve(metrics),
    }


def table(found: Found, params: DeadlineParams) -> Table:
    head = [
        "selector",
        "valid/asked, last half",
        f"rounds to {params.target:g}",
        "each seed",
        "final accuracy",
        "each seed",
        "distinct clients asked",
        "ms per selection",
    ]
    title = f"Mean of {params.seeds} seeds, {params.rounds} rounds"
    return Table(title, head, [_row(name, found[name], params) for name in found])


def _row(name: str, by_seed: dict[int, dict[str, Any]], params: DeadlineParams) -> list[str]:
    results = list(by_seed.values())
    # A job that never reached the target counts with all its rounds: it needs at least as many.
    rounds = [r["rounds_to_target"] or params.rounds for r in results]
    return [
        name,
        f"{np.mean([r['valid_share'] for r in results]):.1%}",
        f"{np.mean(rounds):.1f}",
        " ".join(str(r["rounds_to_target"] or f">{params.rounds}") for r in results),
        f"{np.mean([r['accuracy'] for r in results]):.4f}",
        " ".join(f"{r['accuracy']:.3f}" for r in results),
        f"{np.mean([r['distinct_clients'] for r in results]):.0f}",
        f"{1000 * np.mean([r['select_seconds'] for r in results]):.1f}",
    ]


def plot_deadline(path: Path, found: Found, params: DeadlineParams) -> None:
    """Accuracy by round, the mean of the seeds and their range; beside it, who was in time."""
    with picture(path, 2, (8.2, 4.4)) as (_, (accuracy, valid)):
        accuracy.get_gridspec().set_width_ratios([2.1, 1])
        for place, (name, by_seed) in enumerate(found.items()):
            results = list(by_seed.values())
            colour, _ = style = STYLES[place % len(STYLES)]
            curves = np.array([r["curve"] for r in results])  # (seeds, evaluations, 2)
            mean_and_range(accuracy, curves[0, :, 0], curves[:, :, 1], name, style)
            shares = np.array([100 * r["valid_share"] for r in results])
            valid.bar(place, shares.mean(), 0.7, color=colour, alpha=0.35)
            valid.plot(np.full(len(shares), place), shares, "o", color=colour, markersize=5)
            label = f"{shares.mean():.1f} %"
            valid.annotate(label, (place, 4), ha="center", fontsize=12, fontweight="bold")
        _label_accuracy(accuracy, params)
        valid.set_ylim(0, 104)
        valid.set_xticks(range(len(found)), list(found))
        valid.set_title("% of those asked\nwho met the deadline", fontsize=13)
        valid.set_xlabel("last half; a dot is a seed", fontsize=12)
        for ax in (accuracy, valid):
            ax.tick_params(labelsize=12)


def _label_accuracy(ax: Any, params: DeadlineParams) -> None:
    ax.axhline(params.target, color="black", linewidth=0.8)
    below = (params.rounds, params.target - 0.006)
    ax.annotate(f"target {params.target:g}", below, ha="right", va="top", fontsize=11)
    ax.set_ylim(0.5, 1)
    ax.set_xlim(0, params.rounds)
    ax.set_xlabel("round", fontsize=13)
    ax.set_title(f"test accuracy: mean and range of {params.seeds} seeds", fontsize=13)
    ax.legend(loc="lower right", fontsize=13, handlelength=2.6)
    ax.grid(alpha=0.3)
