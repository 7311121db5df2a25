"""What the replays of the goal-directed paper share: its methods as jobs on real MNIST.

J. Tong, Z. Chen, L. Fu, J. Zhang, Z. Han. "From Learning to Analytics: Improving Model Efficacy
with Goal-Directed Client Selection", Section VI. A comparison of methods, each with several
trials; data and luck depend on the trial alone, so that methods meet the same world. README.md
says how the clients' data, which the paper leaves open, were chosen.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedsuv_plugin.config.job_file import load_job
from fedsuv_plugin.experiments.comparison import Comparison, Say
from fedsuv_plugin.params import Params, param
from fedsuv_plugin.pictures import finish, mean_and_range, picture
from fedsuv_plugin.randomness import stream
from fedsuv_plugin.records import Run
from fedsuv_plugin.replays import CONFIGS

CONFIG = CONFIGS / "goal_directed" / "mnist_svm.yml"
CLIENTS = 20
K = 5  # clients of a set
IID = 5  # clients 1 to 5 have samples of all classes
CLASSES = 10
SLOT_ROUNDS = 15  # rounds of a time slot, as in the job file
IID_SIZES = (500, 1500)  # samples of an IID client, from and to
OTHER_SIZES = (300, 1000)
ROUND_ROBIN_FIRST = (1, 2, 11, 16, 20)  # the one set of the paper's round robin that it names
METHODS = ("optimal", "quick_init_ucb", "bp_ucb", "ucb", "round_robin", "random")


@dataclass(frozen=True, kw_only=True)
class JobsParams(Params):
    trials: int = param(5, "Monte-Carlo trials per method (the paper: 100)", low=1)
    slots: int = param(200, "time slots of a job; 80 take some 3 minutes on a core", low=1)
    methods: str = param(",".join(METHODS), "what to compare")
    classes_each: int = param(
        2, "classes of a client that is not IID; 1: the hardest", low=1, high=CLASSES
    )
    mu: float = param(1.0, "quick_init_ucb.mu; the paper's is 1", low=0)
    ties: str = param(
        "listed",
        "quick_init_ucb.ties; random: the IID clients' low numbers do not help",
        choices=("listed", "random"),
    )
    upload_success: float = param(
        1.0, "theta, the chance that an update reaches the server", low=0, high=1
    )
    workers: int | None = param(None, "processes; none: one per core", low=1)


@dataclass(frozen=True)
class Trial:
    """What became of a method in one world."""

    opinion: list[float]  # mean of all clients (eq. 8): before training, then after every slot
    accuracy: list[float]  # on the test set, at the same times
    times_selected: list[int]  # slots of each client

    @property
    def average(self) -> np.ndarray:
        """Objective (9) so far, from slot 1: what the paper calls average prediction accuracy."""
        after = np.array(self.opinion[1:])
        return np.asarray(after.cumsum() / np.arange(2, len(after) + 2))


def run_all(params: JobsParams, folder: Path, say: Say) -> dict[str, list[Trial]]:
    """Every method's trials; the runs and the clients' data are kept in `folder`."""
    shares = write_owners(folder, params)

    def keys(method: str, trial: int) -> dict[str, object]:
        return {"data_map_file": str(shares[trial]), **selector_keys(method, trial, params.slots)}

    comparison = Comparison(
        CONFIG,
        {method: partial(keys, method) for method in params.methods.split(",")},
        range(params.trials),
        {
            "rounds": params.slots * SLOT_ROUNDS,
            "upload_success": params.upload_success,
            "quick_init_ucb.mu": params.mu,
            "quick_init_ucb.ties": params.ties,
        },
    )
    runs = comparison.run(folder, params.workers, say)
    return {method: [read_trial(run) for run in runs[method].values()] for method in runs}


def read_trial(run: Run) -> Trial:
    metrics = run.metrics
    times = np.zeros(CLIENTS, np.int64)
    for first_round in run.rounds[::SLOT_ROUNDS]:
        times[np.array(first_round["asked"], np.int64) - 1] += 1
    return Trial(
        [m["clients_mean"] for m in metrics], [m["accuracy"] for m in metrics], times.tolist()
    )


# ---- methods


def selector_keys(method: str, trial: int, slots: int) -> dict[str, object]:
    """The method as a selector; where its sets are known beforehand, `oracle` with a schedule."""
    rng = stream(trial, "goal-directed sets")
    if method == "optimal":
        return schedule([list(range(1, IID + 1))])
    if method == "round_robin":
        return schedule([list(ROUND_ROBIN_FIRST), *(sample_set(rng) for _ in range(4))])
    if method == "random":
        return schedule([sample_set(rng) for _ in range(slots)])
    return {"sample_mode": method}


def sample_set(rng: np.random.Generator) -> list[int]:
    return (1 + rng.choice(CLIENTS, K, replace=False)).tolist()


def schedule(sets: list[list[int]]) -> dict[str, object]:
    """`oracle` with one set a slot, in turn."""
    text = ";".join(",".join(map(str, ids)) for ids in sets)
    return {"sample_mode": "oracle", "oracle.clients": text}


# ---- the clients' data


def write_owners(folder: Path, params: JobsParams) -> list[Path]:
    """FedScale's data map of every trial, a file each; a missing data set is an error."""
    from fedsuv_plugin.tasks.datasets import DATASETS
    from fedsuv_plugin.tasks.map_file import to_map_file
    from fedsuv_plugin.tasks.partitions import by_owner

    config = load_job(CONFIG).config
    labels = DATASETS[config.data_set](config).load().train_y.numpy()
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for trial in range(params.trials):
        owner = owners(labels, params.classes_each, stream(trial, "goal-directed owners"))
        # A job is known by its keys, so the file's name says all that its content depends on.
        file = folder.resolve() / f"owners-{params.classes_each}classes-seed{trial}.csv"
        to_map_file(file, by_owner(owner, CLIENTS), labels)
        files.append(file)
    return files


def owners(labels: np.ndarray, classes_each: int, rng: np.random.Generator) -> np.ndarray:
    """Who owns each sample, 0..19 or -1 for nobody."""
    owner = np.full(len(labels), -1)
    everything = np.arange(CLASSES)
    for client in range(CLIENTS):
        iid = client < IID
        low, high = IID_SIZES if iid else OTHER_SIZES
        classes = everything if iid else rng.choice(CLASSES, classes_each, replace=False)
        free = np.flatnonzero((owner < 0) & np.isin(labels, classes))
        owner[rng.choice(free, rng.integers(low, high + 1), replace=False)] = client
    return owner


# ---- what the reports have in common


def plot_curves(path: Path, found: dict[str, list[Trial]], title: str) -> None:
    """Mean opinion by slot, mean and range of the trials: averaged so far, and the slot's own."""
    with picture(path, 2, (13, 5)) as (figure, (left, right)):
        figure.suptitle(title)
        for method, trials in found.items():
            slots = np.arange(1, len(trials[0].accuracy))
            mean_and_range(left, slots, np.array([t.average for t in trials]), method)
            mean_and_range(right, slots, np.array([t.opinion[1:] for t in trials]), method)
        finish(left, xlabel="time slot", ylabel="mean opinion, average of the slots so far (eq. 9)")
        finish(right, xlabel="time slot", ylabel="mean opinion of the slot's model (eq. 8)")


def as_data(found: dict[str, list[Trial]]) -> dict[str, Any]:
    return {method: [vars(trial) for trial in trials] for method, trials in found.items()}
