"""PCZFL's question: accuracy and accumulated energy beside other selectors.

"Optimizing Federated Learning Client Selection via Multi-Objective Contextual Bandits", Section 5,
figures 6 and 7. The job is configs/pczfl/fmnist.yml: the paper's clients, data and energies, with a
smaller model. The others ask as many clients a round as PCZFL does in the mean. README.md says how
energy is counted, how `a_b` was chosen, and what came out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedsuv_plugin import named
from fedsuv_plugin.experiments.comparison import Comparison, Overrides, Say, summarise
from fedsuv_plugin.experiments.curves import accuracy_curve, last_mean
from fedsuv_plugin.params import Params, param
from fedsuv_plugin.pictures import finish, mean_and_range, picture
from fedsuv_plugin.randomness import stream
from fedsuv_plugin.records import Run
from fedsuv_plugin.replays import REPLAYS, RUNS, Replay, Report, Table
from fedsuv_plugin.replays.pczfl_fig3 import A_B, CONFIG
from fedsuv_plugin.selectors.accuracy_energy import uniform_scores

LAST = 10  # evaluations that make a final accuracy
# FMNIST: accuracy, accumulated energy.
PAPER = {"pczfl": ("0.919", "286.71"), "pow_d": ("0.8905", "364.87")}

Found = dict[str, dict[int, dict[str, Any]]]  # selector -> seed -> summary of its run


@dataclass(frozen=True, kw_only=True)
class EnergyParams(Params):
    seeds: int = param(3, "jobs per selector", low=1)
    rounds: int = param(200, "rounds of a job", low=2)
    selectors: str = param(
        "random,pow_d",
        "beside pczfl, at its mean cohort size after the warm-up; those not installed are left out",
    )
    a_b: float = param(1e-3, A_B, above=0)
    workers: int | None = param(None, "processes; none: one per core", low=1)


@REPLAYS.add("pczfl/energy")
class Energy(Replay):
    name = "pczfl/energy"
    shows = (
        "PCZFL beside random and pow_d at its mean cohort size: accuracy and accumulated energy "
        "(Fashion-MNIST)"
    )
    Params = EnergyParams

    def run(self, folder: Path, say: Say) -> Report:
        wanted = [name for name in self.params.selectors.split(",") if name != "pczfl"]
        others = [name for name in wanted if name in named.installed()]
        missing = sorted(set(wanted) - set(others))
        found = self._compare({"pczfl": {"sample_mode": "pczfl"}}, folder, say)
        # Only now is it known how many clients PCZFL asks.
        cohort = {seed: max(1, round(r["cohort"])) for seed, r in found["pczfl"].items()}
        found |= self._compare({name: of_cohort(name, cohort) for name in others}, folder, say)
        plot_energy(folder / "energy.png", found)
        notes = [f"Not installed here, so left out: {', '.join(missing)}."] if missing else []
        return Report([energy_table(found, self.params)], notes, ["energy.png"], found)

    def _compare(
        self,
        variants: dict[str, Overrides | Callable[[int], Overrides]],
        folder: Path,
        say: Say,
    ) -> Found:
        common = {"rounds": self.params.rounds, "pczfl.a_b": self.params.a_b}
        comparison = Comparison(CONFIG, variants, range(self.params.seeds), common)
        return summarise(comparison.run(folder / RUNS, self.params.workers, say), summary)


def of_cohort(selector: str, cohort: dict[int, int]) -> Callable[[int], Overrides]:
    """A selector that asks, by seed, so many clients a round."""
    return lambda seed: {"sample_mode": selector, "num_participants": cohort[seed]}


def summary(run: Run) -> dict[str, Any]:
    """What the report needs of a run."""
    config = run.job.config
    metrics = run.metrics
    asked = [np.array(r["asked"], np.int64) - 1 for r in run.rounds]  # rows of each round
    # The scores that pczfl has: it samples them from the same stream.
    scores = uniform_scores(config.num_clients or 0, stream(config.seed, "selector"))
    spent = [(1 - scores)[rows].sum() for rows in asked]
    after_warm_up = asked[config.warmup_rounds :] or asked
    return {
        "energy": float(sum(spent)),
        "cohort": float(np.mean([len(rows) for rows in after_warm_up])),
        "accuracy": last_mean([m["accuracy"] for m in metrics], LAST),
        "curve": accuracy_curve(metrics),
        "energy_curve": np.cumsum(spent).tolist(),
    }


def energy_table(found: Found, params: EnergyParams) -> Table:
    head = [
        "selector",
        "accuracy",
        "each seed",
        "accumulated energy",
        "each seed",
        "clients a round",
        "paper: accuracy / energy",
    ]
    rows = []
    for name, by_seed in found.items():
        each = list(by_seed.values())
        rows.append(
            [
                name,
                f"{np.mean([r['accuracy'] for r in each]):.4f}",
                " ".join(f"{r['accuracy']:.3f}" for r in each),
                f"{np.mean([r['energy'] for r in each]):.1f}",
                " ".join(f"{r['energy']:.1f}" for r in each),
                f"{np.mean([r['cohort'] for r in each]):.2f}",
                " / ".join(PAPER.get(name, ("", ""))),
            ]
        )
    title = (
        f"Mean of {params.seeds} seeds, {params.rounds} rounds; "
        f"accuracy: the last {LAST} evaluations"
    )
    return Table(title, head, rows)


def plot_energy(path: Path, found: Found) -> None:
    """The paper's figures 6 and 7: means over the seeds, and their range."""
    with picture(path, 2, (12, 5)) as (_, (left, right)):
        for name, by_seed in found.items():
            curves = np.array([r["curve"] for r in by_seed.values()])  # (seeds, evaluations, 2)
            spent = np.array([r["energy_curve"] for r in by_seed.values()])  # (seeds, rounds)
            mean_and_range(left, curves[0, :, 0], curves[:, :, 1], name)
            mean_and_range(right, np.arange(1, spent.shape[1] + 1), spent, name)
        finish(left, xlabel="round", ylabel="test accuracy")
        finish(right, legend="upper left", xlabel="round", ylabel="accumulated energy")
