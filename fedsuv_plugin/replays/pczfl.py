"""PCZFL: figure 3, the balls in the similarity space, and its question, accuracy and energy beside other selectors.

"Optimizing Federated Learning Client Selection via Multi-Objective Contextual Bandits", Section 5. The job is
configs/pczfl/fmnist.yml: the paper's clients, data and energies, with a smaller model. Its accumulated energy is the
sum of 1 - energy score over all participations, which is what the size of its numbers says.
"""

from __future__ import annotations

import math
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedsuv_plugin import named
from fedsuv_plugin.config.job import Job
from fedsuv_plugin.config.job_file import load_job
from fedsuv_plugin.errors import require
from fedsuv_plugin.params import Params, param
from fedsuv_plugin.pictures import finish, mean_and_range, picture
from fedsuv_plugin.randomness import stream
from fedsuv_plugin.replays import REPLAYS, Replay, Report, Say, Table, parallel
from fedsuv_plugin.replays.bandit_world import World
from fedsuv_plugin.replays.jobs import CONFIGS, last_mean, play_job
from fedsuv_plugin.selectors.base import RoundView
from fedsuv_plugin.selectors.pczfl import PCZFL, uniform_scores

CONFIG = CONFIGS / "pczfl" / "fmnist.yml"
A_B = (
    "pczfl.a_b, which the paper does not give; at 0.001 two to five of 30 clients are asked a round after the "
    "warm-up, near its five; at 0.05 some 7, at 0.2 some 9, at 1 16 to 19"
)
LAST = 10  # evaluations that make a final accuracy
PAPER = {
    "pczfl": ("0.919", "286.71"),
    "pow_d": ("0.8905", "364.87"),
}  # FMNIST; accuracy, accumulated energy


# ---- figure 3


@dataclass(frozen=True, kw_only=True)
class Fig3Params(Params):
    epochs: str = param("0,50,200", "rounds after which the balls are drawn, ascending")
    seed: int = param(0, "of the job", low=0)
    a_b: float = param(0.05, A_B, above=0)


@dataclass(frozen=True)
class Snapshot:
    epoch: int
    context: np.ndarray  # (n, 2)
    centre: np.ndarray  # (b, 2)
    radius: np.ndarray  # (b,)
    relevant: np.ndarray  # balls with a client in their domain
    front: np.ndarray  # balls that would be chosen next
    chosen: int  # clients in them


@REPLAYS.add("pczfl/fig3")
class Fig3(Replay):
    name = "pczfl/fig3"
    shows = "PCZFL's balls in the space of accuracy and energy score at three epochs (Fashion-MNIST, 30 clients)"
    Params = Fig3Params

    def run(self, folder: Path, say: Say) -> Report:
        epochs = parse_epochs(self.params.epochs)
        snapshots = run_snapshots(self.params, epochs, say)
        draw_balls(folder / "fig3.png", snapshots)
        rows = [
            [
                str(s.epoch),
                str(len(s.radius)),
                str(len(s.relevant)),
                str(len(s.front)),
                str(s.chosen),
                f"{s.context[:, 0].min():.2f}-{s.context[:, 0].max():.2f}",
                f"{s.radius.min():.3f}",
            ]
            for s in snapshots
        ]
        note = (
            "The paper's figure has one ball and accuracies near 0.1 at epoch 0, a spread along the accuracy axis "
            "and several balls at 50, and small balls, some with a single client, at 200."
        )
        return Report(
            [
                Table(
                    "Balls",
                    [
                        "epoch",
                        "balls",
                        "relevant",
                        "on the front",
                        "clients asked next",
                        "accuracies",
                        "smallest radius",
                    ],
                    rows,
                )
            ],
            [note],
            ["fig3.png"],
            {
                str(s.epoch): {
                    "context": s.context.tolist(),
                    "centre": s.centre.tolist(),
                    "radius": s.radius.tolist(),
                    "front": s.front.tolist(),
                }
                for s in snapshots
            },
        )


def parse_epochs(text: str) -> list[int]:
    numbers = [int(part) if part.strip().isdigit() else -1 for part in text.split(",")]
    require(
        min(numbers) >= 0 and sorted(set(numbers)) == numbers and numbers[-1] > 0,
        "epochs",
        "ascending rounds such as 0,50,200",
        text,
    )
    return numbers


def run_snapshots(params: Fig3Params, epochs: list[int], say: Say) -> list[Snapshot]:
    """One job; a checkpoint falls on every epoch and is read when the next round is over."""
    from fedsuv_plugin.job import run_job
    from fedsuv_plugin.records import RunDirectory

    found: dict[int, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        job = load_job(
            CONFIG,
            {
                "seed": params.seed,
                "rounds": epochs[-1],
                "checkpoint_every": math.gcd(*epochs),
                "pczfl.a_b": params.a_b,
                "log_path": folder,
            },
        )
        run = RunDirectory.create(job)

        def keep(record: dict[str, Any], metrics: dict[str, Any] | None) -> None:
            if metrics is not None and record["round"] % 20 == 0:
                say(
                    f"round {record['round']}: accuracy {metrics['accuracy']:.4f}, asked {len(record['asked'])}"
                )
            if record["round"] > 1 and record["round"] - 1 in epochs:
                found[record["round"] - 1] = (run.load_checkpoint() or {})["client_manager"][
                    "selector"
                ]

        run_job(run, on_round=keep)
        found[epochs[-1]] = (run.load_checkpoint() or {})["client_manager"]["selector"]
        untrained = run.records("metrics.jsonl")[0]["accuracy"]
    return [snapshot(epoch, job, found.get(epoch), untrained) for epoch in epochs]


def snapshot(epoch: int, job: Job, state: dict[str, Any] | None, untrained: float) -> Snapshot:
    """The balls as the selector has them, and whom it would ask next. No state: before the first round."""
    n = job.config.num_clients or 0
    clients = World(np.ones(n), np.ones(n), np.zeros((n, 0)), 0.0).clients()
    selector = PCZFL(job.params_of("pczfl"), clients, stream(job.config.seed, "selector"))  # type: ignore[arg-type]
    if state is None:
        selector.context[:, 0] = untrained
    else:
        selector.load_state_dict(state)
    after_warm_up = job.config.rounds + selector.params.warmup_rounds + 1
    asked = selector.select(
        RoundView(
            round=after_warm_up,
            total_rounds=after_warm_up,
            clock=0.0,
            online=np.arange(n),
            clients=clients,
        ),
        n,
    )
    return Snapshot(
        epoch,
        selector.context,
        selector.centre,
        selector.radius,
        np.unique(selector.ball),
        np.unique(selector.ball[asked]),
        len(asked),
    )


def draw_balls(path: Path, snapshots: list[Snapshot]) -> None:
    from matplotlib.patches import Circle

    with picture(path, len(snapshots), (5 * len(snapshots), 5.2)) as (figure, axes):
        figure.suptitle("Relevant balls (blue) and the Pareto front (red); clients are green")
        for ax, shot in zip(axes, snapshots, strict=True):
            for ball in shot.relevant.tolist():
                on_front = ball in shot.front
                ax.add_patch(
                    Circle(
                        shot.centre[ball],
                        shot.radius[ball],
                        fill=False,
                        linewidth=1.2 + on_front,
                        edgecolor="tab:red" if on_front else "tab:blue",
                        zorder=2 + on_front,
                    )
                )
            ax.scatter(*shot.context.T, s=18, color="tab:green", zorder=4)
            ax.set(
                title=f"epoch {shot.epoch}",
                xlabel="accuracy on the interview set",
                ylabel="energy score",
                xlim=(-0.25, 1.25),
                ylim=(-0.25, 1.25),
                aspect="equal",
            )
            ax.grid(alpha=0.3)


# ---- accuracy and energy


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


@dataclass(frozen=True)
class Case:
    selector: str
    seed: int
    params: EnergyParams
    cohort: int | None = None  # clients of a round; none: the selector's own


def run_case(case: Case) -> dict[str, Any]:
    size: dict[str, object] = {} if case.cohort is None else {"num_participants": case.cohort}
    rounds, metrics = play_job(
        CONFIG,
        {
            "sample_mode": case.selector,
            "seed": case.seed,
            "rounds": case.params.rounds,
            "pczfl.a_b": case.params.a_b,
            **size,
        },
    )
    asked = [np.array(r["asked"], np.int64) - 1 for r in rounds]
    config = load_job(CONFIG).config
    clients = config.num_clients or 0
    spent = 1 - uniform_scores(clients, stream(case.seed, "selector"))  # as pczfl draws them
    return {
        "energy": float(sum(spent[rows].sum() for rows in asked)),
        "cohort": float(np.mean([len(rows) for rows in asked[config.warmup_rounds :] or asked])),
        "accuracy": last_mean([m["accuracy"] for m in metrics], LAST),
        "curve": [[m["round"], m["accuracy"]] for m in metrics],
        "energy_curve": np.cumsum([spent[rows].sum() for rows in asked]).tolist(),
    }


@REPLAYS.add("pczfl/energy")
class Energy(Replay):
    name = "pczfl/energy"
    shows = "PCZFL beside random and pow_d at its mean cohort size: accuracy and accumulated energy (Fashion-MNIST)"
    Params = EnergyParams

    def run(self, folder: Path, say: Say) -> Report:
        params = self.params
        found: dict[str, dict[int, dict[str, Any]]] = {"pczfl": {}}
        self._play([Case("pczfl", seed, params) for seed in range(params.seeds)], found, say)
        others = [name for name in params.selectors.split(",") if name in named.installed()]
        self._play(
            [
                Case(name, seed, params, max(1, round(found["pczfl"][seed]["cohort"])))
                for seed in range(params.seeds)
                for name in others
            ],
            found,
            say,
        )
        draw_energy(folder / "energy.png", found)
        missing = sorted(set(params.selectors.split(",")) - set(others))
        notes = [f"Not installed here, so left out: {', '.join(missing)}."] if missing else []
        return Report(
            [energy_table(found, params)],
            notes,
            ["energy.png"],
            {
                name: {str(seed): by_seed[seed] for seed in sorted(by_seed)}
                for name, by_seed in found.items()
            },
        )

    def _play(
        self, todo: list[Case], found: dict[str, dict[int, dict[str, Any]]], say: Say
    ) -> None:
        for case, result in parallel(run_case, todo, self.params.workers):
            found.setdefault(case.selector, {})[case.seed] = result
            say(
                f"{case.selector}, seed {case.seed}: accuracy {result['accuracy']:.4f}, energy {result['energy']:.1f}, "
                f"{result['cohort']:.1f} clients a round"
            )


def energy_table(found: dict[str, dict[int, dict[str, Any]]], params: EnergyParams) -> Table:
    rows = []
    for name, by_seed in found.items():
        each = [by_seed[seed] for seed in sorted(by_seed)]
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
    return Table(
        f"Mean of {params.seeds} seeds, {params.rounds} rounds; accuracy: the last {LAST} evaluations",
        [
            "selector",
            "accuracy",
            "each seed",
            "accumulated energy",
            "each seed",
            "clients a round",
            "paper: accuracy / energy",
        ],
        rows,
    )


def draw_energy(path: Path, found: dict[str, dict[int, dict[str, Any]]]) -> None:
    """The paper's figures 6 and 7: means over the seeds, and their range."""
    with picture(path, 2, (12, 5)) as (_, (left, right)):
        for name, by_seed in found.items():
            each = [by_seed[seed] for seed in sorted(by_seed)]
            curves = np.array([r["curve"] for r in each])
            spent = np.array([r["energy_curve"] for r in each])
            mean_and_range(left, curves[0, :, 0], curves[:, :, 1], name)
            mean_and_range(right, np.arange(1, spent.shape[1] + 1), spent, name)
        finish(left, xlabel="round", ylabel="test accuracy")
        finish(right, legend="upper left", xlabel="round", ylabel="accumulated energy")
