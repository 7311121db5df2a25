"""The clients' devices in a job: how long each takes in a round, and whether it stays online."""

from __future__ import annotations

import numpy as np

from fedsuv_plugin.config.keys import JobConfig
from fedsuv_plugin.engine.bill import Prices, megabytes
from fedsuv_plugin.engine.rounds import Cohort, Effort, Round
from fedsuv_plugin.randomness import stream
from fedsuv_plugin.traces.clock import Work, durations, energy, fluctuation
from fedsuv_plugin.traces.population import load_population


class Devices:
    """The devices that a job's traces give its clients, and the work a round asks of them."""

    def __init__(self, config: JobConfig, sizes: np.ndarray, model_kbit: float):
        """`sizes`: training samples of each client; `model_kbit`: the trained model's size."""
        self._config = config
        self.population = load_population(
            len(sizes), config.device_conf_file, config.device_avail_file
        )
        self.work = Work.of(config, model_kbit, sizes)
        self.prices = Prices(config, self.population, self.work, sizes)

    def effort(self, now: Round, cohort: Cohort) -> Effort:
        """What a round asks of those in it. All spend their energy, also who turns out late."""
        config = self._config
        rows = cohort.clients - 1
        factor = fluctuation(config.seed, config.duration_jitter, cohort.clients, now.number)
        computing, communicating = durations(self.population, self.work, rows)
        expected = computing + communicating
        computing = computing * factor
        communicating = communicating * factor
        times = computing + communicating
        return Effort(
            times=times,
            expected=expected,
            energy=energy(self.population, rows, computing, communicating),
            stays=self.population.online(now.clock + times, rows),
            uploads=self._uploads(now, cohort.clients),
            megabytes=len(rows) * megabytes(self.work.upload_kbit + self.work.download_kbit),
        )

    def _uploads(self, now: Round, clients: np.ndarray) -> np.ndarray:
        """Whose update reaches the server, (m,) bool: see `upload_success`.

        It is luck that depends on the seed, the client and the round alone."""
        chance = self._config.upload_success
        if chance >= 1:
            return np.ones(len(clients), bool)
        seed = self._config.seed
        luck = [stream(seed, "upload", c, now.number).random() for c in clients.tolist()]
        return np.array(luck) < chance
