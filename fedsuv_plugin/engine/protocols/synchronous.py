"""The synchronous protocol: who is in time is averaged, who misses the round is not trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedsuv_plugin.config.keys import JobConfig
from fedsuv_plugin.engine.executor_pool import ExecutorPool
from fedsuv_plugin.engine.merging import WeightedAverage, Weights
from fedsuv_plugin.engine.rounds import Cohort, Effort, OnTheWay, Round, Settled, Trained
from fedsuv_plugin.engine.training import train_clients
from fedsuv_plugin.traces.clock import settle


@dataclass(frozen=True, eq=False)
class Setting:
    """What a protocol works with."""

    config: JobConfig
    pool: ExecutorPool
    client_manager: Any  # has the selector's `late_weights`
    learnt: list[bool]  # of every entry of the model's weights, whether it is a parameter


class Synchronous:
    """FedScale's round. The other protocols begin with it and change some of its stages."""

    def __init__(self, setting: Setting):
        self.setting = setting
        self.config = setting.config
        self.pool = setting.pool

    def begin(self, now: Round) -> OnTheWay:
        """Before anybody is asked: whose updates of earlier rounds are on the way."""
        return OnTheWay()

    def settle(self, now: Round, cohort: Cohort, effort: Effort) -> Settled:
        """Who of the cohort is in time, and how long the round lasts."""
        wanted = len(cohort.clients) if now.wanted is None else now.wanted
        end = settle(effort.times, effort.stays, wanted, self.config.round_deadline)
        order = np.argsort(effort.times, kind="stable")
        due = order[(end.valid & effort.uploads)[order]]
        return Settled(
            times=effort.times,
            energy=effort.energy,
            due=cohort.clients[due],
            seconds=end.seconds,
            megabytes=effort.megabytes,
        )

    def train(self, now: Round, cohort: Cohort, settled: Settled, model: Weights) -> Trained:
        """Train those whose updates are due, and merge what they send."""
        merge = WeightedAverage(model)
        reports = train_clients(self.pool, self.config, now, settled.due, model, merge.add)
        return Trained(reports, merge.result() if reports else None)

    def state_dict(self) -> dict[str, Any]:
        """What outlives a round."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""


PROTOCOL = Synchronous
