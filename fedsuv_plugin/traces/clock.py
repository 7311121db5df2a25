"""Virtual time: how long a client takes, who makes it into the round, and how long the round lasts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedsuv_plugin.randomness import normals
from fedsuv_plugin.traces.population import Population

TRAINING_FACTOR = 3.0  # FedScale: training a sample takes three times its inference latency
IDLE_SECONDS = 60.0  # what a round costs when nobody is online to be asked and no deadline is set


@dataclass(frozen=True)
class Work:
    """What one participation asks of a device."""

    batch_size: int
    local_steps: int
    upload_kbit: float
    download_kbit: float
    epoch_samples: np.ndarray | None = (
        None  # (n,) with local_epochs: what each client of the population goes through
    )

    def samples(self, rows: np.ndarray) -> np.ndarray:
        """Samples that `rows` go through, repeats included."""
        if self.epoch_samples is None:
            return np.full(len(rows), self.batch_size * self.local_steps)
        return self.epoch_samples[rows]


def durations(
    population: Population, work: Work, rows: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(computing, communicating) seconds of `rows`, by FedScale's completion-time formula."""
    computing = TRAINING_FACTOR * work.samples(rows) * population.ms_per_sample[rows] / 1000.0
    return computing, work.upload_kbit / population.kbps_up[
        rows
    ] + work.download_kbit / population.kbps_down[rows]


def energy(
    population: Population, rows: np.ndarray, computing: np.ndarray, communicating: np.ndarray
) -> np.ndarray:
    """Joules that `rows` spend in these seconds: compute power x time + radio power x time; 0 for what the trace tells
    no power of."""
    joules = np.zeros(len(rows))
    if population.compute_w is not None:
        joules += population.compute_w[rows] * computing
    if population.radio_w is not None:
        joules += population.radio_w[rows] * communicating
    return joules


def fluctuation(seed: int, sigma: float, ids: np.ndarray, round_number: int) -> np.ndarray:
    """The factor by which each client's time differs in this round; a function of (seed, client, round) alone."""
    return np.exp(sigma * normals(seed, "duration", ids, round_number))


@dataclass(frozen=True)
class Settlement:
    valid: np.ndarray  # (m,) bool, who is in the round
    seconds: float  # how long the round lasts


def settle(
    times: np.ndarray, online_at_end: np.ndarray, k: int, deadline: float | None
) -> Settlement:
    """Who of those asked makes it, given their times and whether each is still online when it would be done.

    With a deadline: everyone who is done by then; the round ends with the last of them or, if anyone missed it, at
    the deadline. Without: the k fastest, FedScale's overcommitment rule; when nobody makes it the server has waited
    for the slowest."""
    if not len(times):
        return Settlement(np.zeros(0, bool), IDLE_SECONDS if deadline is None else deadline)
    if deadline is not None:
        valid = online_at_end & (times <= deadline)
        return Settlement(valid, float(times.max()) if valid.all() else deadline)
    valid = np.zeros(len(times), bool)
    finishers = np.flatnonzero(online_at_end)
    valid[finishers[np.argsort(times[finishers], kind="stable")[:k]]] = True
    return Settlement(valid, float(times[valid].max() if valid.any() else times.max()))
