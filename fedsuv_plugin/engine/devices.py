"""The clients' devices in a job: how long each takes in a round, and who makes it."""

from __future__ import annotations

import numpy as np

from fedsuv_plugin.config.keys import JobConfig
from fedsuv_plugin.engine.bill import Prices, megabytes
from fedsuv_plugin.engine.rounds import Cohort, Round, Settled
from fedsuv_plugin.randomness import stream
from fedsuv_plugin.traces.clock import Work, durations, energy, fluctuation, settle
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

    def settle(self, now: Round, cohort: Cohort) -> Settled:
        """Who makes it. Whoever is asked spends its energy, also if it turns out to be late."""
        config = self._config
        rows = cohort.clients - 1
        factor = fluctuation(config.seed, config.duration_jitter, cohort.clients, now.number)
        computing, communicating = durations(self.population, self.work, rows)
        computing = computing * factor
        communicating = communicating * factor
        times = computing + communicating
        joules = energy(self.population, rows, computing, communicating)
        online = self.population.online(now.clock + times, rows)
        wanted = len(rows) if now.wanted is None else now.wanted
        settlement = settle(times, online, wanted, config.round_deadline)
        order = np.argsort(times[settlement.valid], kind="stable")
        in_time = cohort.clients[settlement.valid][order]
        due = in_time[self._arrives(now, in_time)]
        traffic = len(rows) * megabytes(self.work.upload_kbit + self.work.download_kbit)
        return Settled(times, joules, due, settlement.seconds, traffic)

    def _arrives(self, now: Round, clients: np.ndarray) -> np.ndarray:
        """Whose update reaches the server, (m,) bool: see `upload_success`.

        It is luck that depends on the seed, the client and the round alone."""
        chance = self._config.upload_success
        if chance >= 1:
            return np.ones(len(clients), bool)
        seed = self._config.seed
        luck = [stream(seed, "upload", c, now.number).random() for c in clients.tolist()]
        return np.array(luck) < chance
