"""FilFL, figure 6: how near greedy filtering comes to the best of all subsets.

Section 4.3: the value of the filtered set against that of the best of all 2^10 - 1 sets of the
available clients, over the rounds. The training is that of configs/filfl/mnist_ratio.yml.

Federated averaging is done by hand here, with the engine's clients and public set: every round ten
clients, sampled anew, train from the global model; they are filtered; three of those kept, at
random, are averaged. README.md says why there are two ratios, and what came out.
"""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedsuv_plugin.config.argv import Place
from fedsuv_plugin.config.job_file import load_job
from fedsuv_plugin.config.resolved import ResolvedJob, resolve
from fedsuv_plugin.experiments.comparison import Say, run_grid
from fedsuv_plugin.params import Params, param
from fedsuv_plugin.pictures import finish, picture
from fedsuv_plugin.randomness import stream
from fedsuv_plugin.replays import CONFIGS, REPLAYS, Replay, Report, Table
from fedsuv_plugin.selectors.filfl import HOPELESS, Filtering, dgf, greedy_filter, rgf

PAPER_RATIO = 0.96
# The paper's ratio takes the worst of all sets for 0, the strict one a model that guesses.
LINES = {
    "paper_filtered": "filtered, worst set = 0",
    "paper_everyone": "no filtering, worst set = 0",
    "strict_filtered": "filtered, guessing = 0",
    "strict_everyone": "no filtering, guessing = 0",
}
STYLES = dict(zip(LINES, ("-", ":", "--", "-."), strict=True))  # of the lines in the picture
BLOCK = 64  # subsets whose averages are in memory at a time

Found = dict[str, dict[int, list[dict[str, Any]]]]  # variant -> seed -> comparisons


@dataclass(frozen=True, kw_only=True)
class Fig6Params(Params):
    seeds: int = param(3, "trainings per variant", low=1)
    rounds: int = param(60, "rounds of each training", low=1)
    every: int = param(10, "rounds between comparisons with all subsets", low=1)
    available: int = param(
        10, "clients available in a round; the cost is 2 to this power", low=2, high=16
    )
    k: int = param(3, "clients averaged a round", low=1)
    config: str = param(str(CONFIGS / "filfl" / "mnist_ratio.yml"), "the job file")
    workers: int | None = param(None, "processes; none: one per core", low=1)


@dataclass(frozen=True)
class Case:
    """One training."""

    label: str  # the variant of the filter, dgf or rgf
    seed: int
    params: Fig6Params


class Federation:
    """The clients of a job and its server, without the rounds."""

    def __init__(self, job: ResolvedJob):
        import torch

        from fedsuv_plugin.engine import fedscale_env
        from fedsuv_plugin.engine.client import PluginClient
        from fedsuv_plugin.engine.model import flat
        from fedsuv_plugin.engine.public_loss import PublicLoss
        from fedsuv_plugin.tasks import federated_data

        torch.set_num_threads(job.config.torch_threads)
        self._args = fedscale_env.namespace(job, Place())
        self._data = federated_data.FederatedData(job.config, torch.device("cpu"))
        self._client = PluginClient(self._args)
        self._flat = flat
        self._model = federated_data.initial_model(job.config)
        self.weights = flat(self._model.parameters())  # (p,) of the global model
        public = federated_data.public_set(job.config)
        self.loss: Callable[[np.ndarray], float] = PublicLoss(job.config, public)
        self.guess = math.log(federated_data.data_set(job.config).classes)  # loss of a guess
        self.clients = len(self._data.getSize()["size"])

    def update_of(self, client_id: int, round_number: int) -> np.ndarray:
        """What one client's training adds to the global model, (p,)."""
        import torch

        start = torch.from_numpy(self.weights.copy())
        torch.nn.utils.vector_to_parameters(start, self._model.parameters())
        args = Namespace(**{**vars(self._args), "client_id": client_id, "round": round_number})
        self._client.train(self._data.training(client_id), self._model, args)
        return self._flat(self._model.parameters()) - self.weights

    def value(self, total: np.ndarray, count: int) -> float:
        """R of eq. (2), C = 0, of a set by the sum of its updates. The empty set's is a guess's."""
        loss = self.loss(self.weights + total / count) if count else self.guess
        return -loss if math.isfinite(loss) else -HOPELESS


def every_value(updates: np.ndarray, value: Callable[[np.ndarray, int], float]) -> np.ndarray:
    """The values of all non-empty subsets of the rows, (n, p) -> (2^n - 1,)."""
    n = len(updates)
    members = (np.arange(1, 2**n)[:, None] >> np.arange(n)) & 1  # (2^n - 1, n)
    values: list[float] = []
    for start in range(0, len(members), BLOCK):
        block = members[start : start + BLOCK]
        values += map(value, block @ updates, block.sum(axis=1).tolist())
    return np.array(values)


def run_case(case: Case) -> list[dict[str, Any]]:
    """Train, and compare the filtered set with all others every few rounds."""
    params = case.params
    world = Federation(resolve(load_job(params.config, {"seed": case.seed})))
    luck = stream(case.seed, "fig6")
    accept = dgf if case.label == "dgf" else rgf(luck)
    found = []
    for t in range(1, params.rounds + 1):
        available = np.sort(luck.choice(world.clients, params.available, replace=False)) + 1
        updates = np.array([world.update_of(c, t) for c in available.tolist()], np.float64)
        result = greedy_filter(list(updates), world.value, accept)
        if t % params.every == 0:
            found.append(compare(t, result, updates, world))
        kept = np.flatnonzero(result.kept) if result.kept.any() else np.arange(params.available)
        chosen = luck.choice(kept, min(params.k, len(kept)), replace=False)
        world.weights = (world.weights + updates[chosen].mean(axis=0)).astype(np.float32)
    return found


def compare(t: int, result: Filtering, updates: np.ndarray, world: Federation) -> dict[str, Any]:
    """The filtered set, and all available clients, against the best of all sets.

    Where even the best set is worth no more than 0, there is no ratio.
    """
    values = every_value(updates, world.value)
    best = float(values.max())
    worst = float(values.min())
    found = {"filtered": result.after, "everyone": result.before}
    ratios = {
        f"{name}_{key}": (value + c) / (best + c) if best + c > 0 else None
        for name, c in (("paper", -worst), ("strict", world.guess))
        for key, value in found.items()
    }
    return {
        "round": t,
        "best": best,
        "worst": worst,
        "kept": int(result.kept.sum()),
        "rank": float((values > result.after).mean()),
        **found,
        **ratios,
    }


@REPLAYS.add("filfl/fig6")
class Fig6(Replay):
    name = "filfl/fig6"
    shows = (
        "FilFL's greedy filtering against the best of all 2^10 subsets, over the rounds of a "
        "training on MNIST"
    )
    Params = Fig6Params

    def run(self, folder: Path, say: Say) -> Report:
        params = self.params
        cases = [Case(v, seed, params) for seed in range(params.seeds) for v in ("dgf", "rgf")]
        found = run_grid(run_case, cases, params.workers, say)
        plot_ratios(folder / "fig6.png", found, params)
        note = f"The paper (CIFAR-10, its own C): above {PAPER_RATIO} in all rounds, for both."
        return Report([table(found, params)], [note], ["fig6.png"], found)


def table(found: Found, params: Fig6Params) -> Table:
    head = [
        "",
        "mean",
        "5th percentile",
        "smallest",
        f">= {PAPER_RATIO}",
        "comparisons",
        "clients kept",
        "sets that are better",
    ]
    title = (
        f"Value of the set / value of the best of all {2**params.available - 1} sets, "
        f"{params.seeds} seeds, every {params.every}th of {params.rounds} rounds"
    )
    rows = []
    for variant, by_seed in found.items():
        compared = [c for comparisons in by_seed.values() for c in comparisons]
        rows += [_row(variant, key, compared) for key in LINES]
    return Table(title, head, rows)


def _row(variant: str, key: str, compared: list[dict[str, Any]]) -> list[str]:
    ratios = np.array([c[key] for c in compared if c[key] is not None] or [np.nan])
    filtered = key.endswith("filtered")
    return [
        f"{variant}: {LINES[key]}",
        f"{ratios.mean():.4f}",
        f"{np.quantile(ratios, 0.05):.4f}",
        f"{ratios.min():.4f}",
        f"{(ratios >= PAPER_RATIO).mean():.0%}",
        str(len(ratios)),
        f"{np.mean([c['kept'] for c in compared]):.1f}" if filtered else "-",
        f"{np.mean([c['rank'] for c in compared]):.1%}" if filtered else "-",
    ]


def plot_ratios(path: Path, found: Found, params: Fig6Params) -> None:
    """Each ratio by round, the mean of the seeds where it exists."""
    title = f"Mean of {params.seeds} seeds"
    with picture(path) as (_, (ax,)):
        for variant, by_seed in found.items():
            rounds = [c["round"] for c in next(iter(by_seed.values()))]
            for key, label in LINES.items():
                # None becomes NaN, which nanmean leaves out.
                each = [[c[key] for c in comparisons] for comparisons in by_seed.values()]
                curves = np.array(each, float)  # (seeds, comparisons)
                with np.errstate(all="ignore"):
                    mean = np.nanmean(curves, axis=0)
                ax.plot(rounds, mean, STYLES[key], label=f"{variant}: {label}")
        ax.axhline(PAPER_RATIO, color="grey", linestyle="--", linewidth=1)
        finish(ax, xlabel="round", ylabel="approximation ratio", title=title)
