"""Virtual time: how long a client takes, who is in time, and how long the round lasts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedsuv_plugin.randomness import normals
from fedsuv_plugin.traces.population import Population

if TYPE_CHECKING:
    from fedsuv_plugin.config.keys import JobConfig

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
    # Samples that the clock counts for everyone, if it is to count others than are trained on.
    clock_samples: int | None = None

    @classmethod
    def of(cls, config: JobConfig, model_kbit: float, sizes: np.ndarray | None) -> Work:
        """The work of a job with a model of that size, whose clients have `sizes` samples, (n,).

        Sizes may be None where nothing depends on them: without local_epochs, or with
        clock_samples for the clock alone."""
        kbit = model_kbit if config.clock_kbit is None else config.clock_kbit
        epochs = config.local_epochs
        return cls(
            config.batch_size,
            config.local_steps,
            kbit,
            kbit,
            None if epochs is None or sizes is None else epochs * sizes,
            config.clock_samples,
        )

    def samples(self, rows: np.ndarray) -> np.ndarray:
        """The number of samples each of `rows` trains on; one seen twice counts twice."""
        if self.epoch_samples is None:
            return np.full(len(rows), self.batch_size * self.local_steps)
        return self.epoch_samples[rows]

    def timed_samples(self, rows: np.ndarray) -> np.ndarray:
        """The number of samples that the clock counts for each of `rows`."""
        if self.clock_samples is None:
            return self.samples(rows)
        return np.full(len(rows), self.clock_samples)


def durations(
    population: Population, work: Work, rows: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Seconds that `rows` compute, and communicate, by FedScale's completion-time formula."""
    computing = TRAINING_FACTOR * work.timed_samples(rows) * population.ms_per_sample[rows] / 1000.0
    downloading, uploading = transfers(population, work, rows)
    return computing, uploading + downloading


def transfers(
    population: Population, work: Work, rows: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Seconds that `rows` download, and upload: together what they communicate."""
    uploading = work.upload_kbit / population.kbps_up[rows]
    downloading = work.download_kbit / population.kbps_down[rows]
    return downloading, uploading


def inference(population: Population, samples: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Seconds that `rows` take to put so many samples through the model without training."""
    return np.asarray(samples * population.ms_per_sample[rows] / 1000.0)


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
