"""Virtual time: how long a client takes, who is in time, and how long the round lasts."""

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
    # (n,) samples that each client of the population trains on; None without local_epochs, where
    # it is batch_size * local_steps for all.
    epoch_samples: np.ndarray | None = None

    def samples(self, rows: np.ndarray) -> np.ndarray:
        """The number of samples each of `rows` trains on; one seen twice counts twice."""
        if self.epoch_samples is None:
            return np.full(len(rows), self.batch_size * self.local_steps)
        return self.epoch_samples[rows]


def durations(
    population: Population, work: Work, rows: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Seconds that `rows` compute, and communicate, by FedScale's completion-time formula."""
    computing = TRAINING_FACTOR * work.samples(rows) * population.ms_per_sample[rows] / 1000.0
    uploading = work.upload_kbit / population.kbps_up[rows]
    downloading = work.download_kbit / population.kbps_down[rows]
    return computing, uploading + downloading


def energy(
    population: Population, rows: np.ndarray, computing: np.ndarray, communicating: np.ndarray
) -> np.ndarray:
    """Joules that `rows` spend in these seconds: power x time, of computing and of the radio.

    A power that the trace does not have counts as 0."""
    joules = np.zeros(len(rows))
    if population.compute_w is not None:
        joules += population.compute_w[rows] * computing
    if population.radio_w is not None:
        joules += population.radio_w[rows] * communicating
    return joules


def fluctuation(seed: int, sigma: float, ids: np.ndarray, round_number: int) -> np.ndarray:
    """The factor on each client's time in this round, a function of (seed, client, round) alone."""
    return np.exp(sigma * normals(seed, "duration", ids, round_number))


@dataclass(frozen=True)
class Settlement:
    """How a round ends."""

    valid: np.ndarray  # (m,) bool, who is in time
    seconds: float  # how long the round lasts


def settle(
    times: np.ndarray, online_at_end: np.ndarray, k: int, deadline: float | None
) -> Settlement:
    """Who of those asked is in time, given their times and whether each is online when done.

    With a deadline, everyone who is done by then is in time; the round ends with the last of them
    or, if anyone missed it, at the deadline. Without one the k fastest are, which is FedScale's
    overcommitment rule; if nobody is in time the server has waited for the slowest.

    >>> settle(np.array([3.0, 9.0]), np.array([True, True]), k=2, deadline=5.0)
    Settlement(valid=array([ True, False]), seconds=5.0)
    """
    if not len(times):
        return Settlement(np.zeros(0, bool), IDLE_SECONDS if deadline is None else deadline)
    if deadline is not None:
        valid = online_at_end & (times <= deadline)
        return Settlement(valid, float(times.max()) if valid.all() else deadline)
    valid = np.zeros(len(times), bool)
    finishers = np.flatnonzero(online_at_end)
    valid[finishers[np.argsort(times[finishers], kind="stable")[:k]]] = True
    return Settlement(valid, float(times[valid].max() if valid.any() else times.max()))
