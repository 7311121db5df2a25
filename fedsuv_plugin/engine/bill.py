"""What a job asks of its clients beside the training that goes into the model, added up.

Each signal declares what it costs (`selectors/signals.py`). The virtual clock does not move for it:
a selector that asks much is not slower by the clock, but its bill says so.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from fedsuv_plugin.config.keys import JobConfig
from fedsuv_plugin.engine.rounds import Bill, Round
from fedsuv_plugin.selectors.signals import HELD_OUT, SEEN, SIGNALS, TRAINING, Signal
from fedsuv_plugin.traces.clock import Work, durations, energy, fluctuation, inference
from fedsuv_plugin.traces.population import Population

# An answer of eight bytes, a number or 64 bits, in FedScale's unit of 1024 bits.
NUMBER_KBIT = 8 * 8 / 1024


def megabytes(kbit: float) -> float:
    return kbit * 1024 / 8 / 1e6


@dataclass(frozen=True)
class Prices:
    """What a probe, or a signal that comes with an update, costs each client."""

    config: JobConfig
    population: Population
    work: Work
    sizes: np.ndarray  # (n,) training samples of each client

    def of_probe(self, now: Round, kind: str, clients: np.ndarray) -> Bill:
        """A question to clients, by their ids: the work, the answer up, and if the question is of
        a model, that one down."""
        signal = SIGNALS[kind]
        if not signal.by_client:
            return Bill()
        rows = clients - 1
        up = self.work.upload_kbit if signal.sends_model else NUMBER_KBIT
        down = self.work.download_kbit if signal.of_model else 0.0
        computing = self._passing(signal, rows)
        if signal.trains:
            computing = computing + durations(self.population, self.work, rows)[0]
        population = self.population
        communicating = up / population.kbps_up[rows] + down / population.kbps_down[rows]
        traffic = len(rows) * megabytes(up + down)
        return self._bill(now, clients, computing, communicating, traffic)

    def of_signals(self, now: Round, needs: Iterable[str], clients: np.ndarray) -> Bill:
        """The extra passes of those who train, for what they send along."""
        signals = [SIGNALS[name] for name in needs if SIGNALS[name].with_update]
        working = [signal for signal in signals if signal.by_client and signal.passes]
        bill = Bill()
        for signal in working:
            computing = self._passing(signal, clients - 1)
            bill += self._bill(now, clients, computing, np.zeros(len(clients)), 0.0)
        return bill

    def _passing(self, signal: Signal, rows: np.ndarray) -> np.ndarray:
        """Seconds of the forward passes of a signal, (m,)."""
        samples = signal.passes * self._samples(signal.over, rows)
        return inference(self.population, samples, rows)

    def _samples(self, which: str, rows: np.ndarray) -> np.ndarray:
        sizes = self.sizes[rows]
        if which == TRAINING:
            return sizes
        if which == SEEN:
            return np.minimum(sizes, self.work.samples(rows))
        assert which == HELD_OUT
        held = self.config.holdout_fraction or 0.0
        return np.rint(sizes * held / (1 - held))  # of a client's samples `sizes` are the rest

    def _bill(
        self,
        now: Round,
        clients: np.ndarray,
        computing: np.ndarray,
        communicating: np.ndarray,
        traffic: float,
    ) -> Bill:
        config = self.config
        factor = fluctuation(config.seed, config.duration_jitter, clients, now.number)
        computing = computing * factor
        communicating = communicating * factor
        joules = energy(self.population, clients - 1, computing, communicating).sum()
        seconds = (computing + communicating).sum()
        return Bill(len(clients), float(seconds), float(joules), traffic)
