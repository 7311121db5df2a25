"""Which deadline to choose: the share of clients that would be in time, for a job's model and work.

A participation is valid if the client is done by the deadline and still online then.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedsuv_plugin.randomness import stream
from fedsuv_plugin.traces.clock import Work, durations
from fedsuv_plugin.traces.population import Population

SAMPLES = 200_000  # participations; the standard error of a share is then at most 0.12 %


@dataclass(frozen=True)
class Participations:
    """What would become of clients asked at random times while online."""

    seconds: np.ndarray  # (m,) how long each takes
    stays: np.ndarray  # (m,) bool, still online when it is done

    def share_valid(self, deadlines: np.ndarray) -> np.ndarray:
        """Share of those asked that are done by each deadline, and still there."""
        if not len(self.seconds):
            return np.zeros(len(deadlines))
        done = np.sort(self.seconds[self.stays])
        return np.searchsorted(done, deadlines, "right") / len(self.seconds)

    def deadline_for(self, shares: np.ndarray) -> np.ndarray:
        """The shortest deadline that makes each share (> 0) of those asked valid, or inf."""
        done = np.append(np.sort(self.seconds[self.stays]), np.inf)
        needed = np.ceil(shares * len(self.seconds) - 1e-9).astype(np.int64)
        return done[np.clip(needed - 1, 0, len(done) - 1)]


def participations(population: Population, work: Work, jitter: float, seed: int) -> Participations:
    """A large sample of participations.

    Clients are asked in proportion to the time they are online, because that is how often a
    selector finds them online."""
    rng = stream(seed, "deadline curve")
    rows, times = _asked(population, rng)
    computing, communicating = durations(population, work, rows)
    seconds = (computing + communicating) * np.exp(jitter * rng.standard_normal(len(rows)))
    return Participations(seconds, population.online(times + seconds, rows))


def _asked(population: Population, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Clients and the times at which they are asked, (m,) each."""
    if population.availability is None:
        return rng.integers(len(population), size=SAMPLES), np.zeros(SAMPLES)
    trace = population.availability
    owners = np.repeat(np.arange(len(trace)), trace.lengths)
    seconds = np.maximum(np.minimum(trace.ends, trace.periods[owners]) - trace.starts, 0.0)
    # Intervals are drawn in proportion to the share of its period that each takes.
    reach = np.cumsum(seconds / trace.periods[owners])
    if not len(reach) or reach[-1] == 0:
        return np.zeros(0, np.int64), np.zeros(0)
    picked = np.searchsorted(reach, rng.random(SAMPLES) * reach[-1], "right")
    return owners[picked], trace.starts[picked] + rng.random(SAMPLES) * seconds[picked]
