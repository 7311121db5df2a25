"""PCZFL, figure 3: the balls in the similarity space, at some epochs of a job.

"Optimizing Federated Learning Client Selection via Multi-Objective Contextual Bandits", Section 5.
The job is configs/pczfl/fmnist.yml: the paper's clients, data and energies, with a smaller model.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedsuv_plugin.config.job import Job
from fedsuv_plugin.config.job_file import load_job
from fedsuv_plugin.errors import require
from fedsuv_plugin.experiments.comparison import Say
from fedsuv_plugin.params import Params, param
from fedsuv_plugin.pictures import picture
from fedsuv_plugin.randomness import stream
from fedsuv_plugin.replays import CONFIGS, REPLAYS, Replay, Report, Table
from fedsuv_plugin.replays.bandit_world import World
from fedsuv_plugin.selectors.base import RoundView
from fedsuv_plugin.selectors.pczfl import PCZFL

CONFIG = CONFIGS / "pczfl" / "fmnist.yml"
A_B = (
    "pczfl.a_b, which the paper does not give; at 0.001 two to five of 30 clients are asked a "
    "round after the warm-up, near its five; at 0.05 some 7, at 0.2 some 9, at 1 16 to 19"
)


@dataclass(frozen=True, kw_only=True)
class Fig3Params(Params):
    epochs: str = param("0,50,200", "rounds after which the balls are drawn, ascending")
    seed: int = param(0, "of the job", low=0)
    a_b: float = param(0.05, A_B, above=0)


@dataclass(frozen=True)
class Snapshot:
    """The balls after some round, and whom they would have PCZFL ask next."""

    epoch: int
    context: np.ndarray  # (n, 2)
    centre: np.ndarray  # (b, 2)
    radius: np.ndarray  # (b,)
    relevant: np.ndarray  # balls with a client in their domain
    front: np.ndarray  # balls that would be chosen next
    chosen: int  # clients in them

    def row(self) -> list[str]:
        """Its line in the report's table."""
        accuracies = self.context[:, 0]
        return [
            str(self.epoch),
            str(len(self.radius)),
            str(len(self.relevant)),
            str(len(self.front)),
            str(self.chosen),
            f"{accuracies.min():.2f}-{accuracies.max():.2f}",
            f"{self.radius.min():.3f}",
        ]

    def data(self) -> dict[str, Any]:
        return {
            "context": self.context.tolist(),
            "centre": self.centre.tolist(),
            "radius": self.radius.tolist(),
            "front": self.front.tolist(),
        }


@REPLAYS.add("pczfl/fig3")
class Fig3(Replay):
    name = "pczfl/fig3"
    shows = (
        "PCZFL's balls in the space of accuracy and energy score at three epochs "
        "(Fashion-MNIST, 30 clients)"
    )
    Params = Fig3Params

    def run(self, folder: Path, say: Say) -> Report:
        snapshots = run_snapshots(self.params, parse_epochs(self.params.epochs), say)
        plot_balls(folder / "fig3.png", snapshots)
        head = ["epoch", "balls", "relevant", "on the front", "clients asked next"]
        head += ["accuracies", "smallest radius"]
        note = (
            "The paper's figure has one ball and accuracies near 0.1 at epoch 0, a spread along "
            "the accuracy axis and several balls at 50, and small balls, some with a single "
            "client, at 200."
        )
        return Report(
            [Table("Balls", head, [shot.row() for shot in snapshots])],
            [note],
            ["fig3.png"],
            {str(shot.epoch): shot.data() for shot in snapshots},
        )


def parse_epochs(text: str) -> list[int]:
    numbers = [int(part) if part.strip().isdigit() else -1 for part in text.split(",")]
    ascending = min(numbers) >= 0 and sorted(set(numbers)) == numbers and numbers[-1] > 0
    require(ascending, "epochs", "ascending rounds such as 0,50,200", text)
    return numbers


def run_snapshots(params: Fig3Params, epochs: list[int], say: Say) -> list[Snapshot]:
    """One job. A checkpoint falls on every epoch and is read when the round after it is over."""
    from fedsuv_plugin.engine.launchers import run_job
    from fedsuv_plugin.records import read_run
    from fedsuv_plugin.run_directory import RunDirectory

    found: dict[int, dict[str, Any]] = {}  # epoch -> the selector's state after it
    keys = {
        "seed": params.seed,
        "rounds": epochs[-1],
        "checkpoint_every": math.gcd(*epochs),
        "pczfl.a_b": params.a_b,
    }
    with tempfile.TemporaryDirectory() as folder:
        job = load_job(CONFIG, {**keys, "log_path": folder})
        run = RunDirectory.create(job)

        def selector_state() -> dict[str, Any]:
            return (run.load_checkpoint() or {})["client_manager"]["selector"]

        def keep(record: Mapping[str, Any], metrics: Mapping[str, Any] | None) -> None:
            finished = record["round"]
            if metrics is not None and finished % 20 == 0:
                accuracy = metrics["accuracy"]
                say(f"round {finished}: accuracy {accuracy:.4f}, asked {len(record['asked'])}")
            if finished > 1 and finished - 1 in epochs:
                found[finished - 1] = selector_state()

        run_job(run, on_round=keep)
        found[epochs[-1]] = selector_state()
        untrained = read_run(run.path).metrics[0]["accuracy"]
    return [snapshot(epoch, job, found.get(epoch), untrained) for epoch in epochs]


def snapshot(epoch: int, job: Job, state: dict[str, Any] | None, untrained: float) -> Snapshot:
    """The balls as the selector has them, and whom it would ask next.

    Before the first round there is no state: all clients have the untrained model's accuracy.
    """
    n = job.config.num_clients or 0
    clients = World(np.ones(n), np.ones(n), np.zeros((n, 0)), 0.0).clients()
    rng = stream(job.config.seed, "selector")
    selector = PCZFL(job.params_of("pczfl"), clients, rng)  # type: ignore[arg-type]
    if state is None:
        selector.context[:, 0] = untrained
    else:
        selector.load_state_dict(state)
    after_warm_up = job.config.rounds + selector.params.warmup_rounds + 1
    view = RoundView(
        round=after_warm_up,
        total_rounds=after_warm_up,
        clock=0.0,
        online=np.arange(n),
        clients=clients,
    )
    asked = selector.select(view, n)
    return Snapshot(
        epoch,
        selector.context,
        selector.centre,
        selector.radius,
        np.unique(selector.ball),
        np.unique(selector.ball[asked]),
        len(asked),
    )


def plot_balls(path: Path, snapshots: list[Snapshot]) -> None:
    """The similarity space at each epoch, side by side."""
    from matplotlib.patches import Circle

    with picture(path, len(snapshots), (5 * len(snapshots), 5.2)) as (figure, axes):
        figure.suptitle("Relevant balls (blue) and the Pareto front (red); clients are green")
        for ax, shot in zip(axes, snapshots, strict=True):
            for ball in shot.relevant.tolist():
                on_front = ball in shot.front
                circle = Circle(
                    shot.centre[ball],
                    shot.radius[ball],
                    fill=False,
                    linewidth=1.2 + on_front,
                    edgecolor="tab:red" if on_front else "tab:blue",
                    zorder=2 + on_front,
                )
                ax.add_patch(circle)
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
