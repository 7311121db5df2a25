"""Rounds of a protocol without devices or data: the test says who takes how long, and what the
training of a client does to the one number that is its model."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from engine_worlds import Worker
from selector_worlds import table

from fedsuv_plugin.config.keys import JobConfig
from fedsuv_plugin.engine.executor_pool import ExecutorPool
from fedsuv_plugin.engine.protocols import make_protocol
from fedsuv_plugin.engine.rounds import Cohort, Effort, Judgement, OnTheWay, Round, Settled, Trained
from fedsuv_plugin.engine.task import Task
from fedsuv_plugin.selectors.base import Selector

Training = Callable[[int, float, int], float]  # client, the model it starts from, round -> model


class Rounds:
    """A protocol, and a server around it that asks whom the test says."""

    def __init__(self, protocol: Any, pool: ExecutorPool, model: float):
        self.protocol = protocol
        self.model = model
        self.clock = 0.0
        self.number = 0
        self._pool = pool

    def play(
        self,
        asked: Mapping[int, float],
        away: tuple[int, ...] = (),
        expected: Mapping[int, float] | None = None,
    ) -> tuple[Settled, Trained, OnTheWay]:
        """Clients are asked, each done after so many seconds, some of them `away` by then."""
        self.number += 1
        now = Round(self.number, self.clock, len(asked), len(asked), None, 0.1, Judgement())
        self._pool.publish(self.number, [np.array([self.model])])
        pending = self.protocol.begin(now)
        clients = np.array(sorted(asked), np.int64)
        times = np.array([asked[client] for client in clients.tolist()], float)
        slow = expected or asked
        effort = Effort(
            times=times,
            expected=np.array([slow[client] for client in clients.tolist()], float),
            energy=2 * times,
            stays=~np.isin(clients, away),
            uploads=np.ones(len(clients), bool),
        )
        cohort = Cohort(clients, 0.0)
        settled = self.protocol.settle(now, cohort, effort)
        trained = self.protocol.train(now, cohort, settled, [np.array([self.model])])
        if trained.model is not None:
            self.model = float(trained.model[0][0])
        self.clock += settled.seconds
        return settled, trained, pending


@contextmanager
def rounds_of(
    selector: Selector,
    sizes: list[int],
    train: Training,
    model: float = 0.0,
    **keys: Any,
) -> Iterator[Rounds]:
    """A protocol as `selector` names it, on a real pool with one executor that trains numbers."""
    pool = ExecutorPool()

    def work(task: Task) -> dict[int, Any]:
        done = {}
        for client in task.clients.tolist():
            start = task.states.get(client, {}).get("model", worker.model)
            made = train(client, float(start[0][0]), task.settings["round"])
            done[client] = {
                "update_weight": {"w": np.array([made])},
                "moving_loss": 1.0,
                "utility": 1.0,
                "signals": {},
            }
        return done

    worker = Worker(pool, "1", work)
    pool.sizes = np.array(sizes)
    clients = table(len(sizes), samples=sizes)
    manager = Namespace(
        protocol=selector.protocol,
        selector=selector,
        mode=selector.name,
        clients=clients,
        rows=lambda ids: np.asarray(ids, np.int64) - 1,
    )
    config = JobConfig(aggregation_weights="samples", **keys)
    made = make_protocol(manager, config, pool, learnt=[True])
    try:
        yield Rounds(made, pool, model)
    finally:
        pool.shut_down()
        worker.join()
