"""How good the published model is: on the test set, and in the clients' own opinion."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedsuv_plugin.engine.executor_pool import ExecutorPool
from fedsuv_plugin.engine.task import TEST
from fedsuv_plugin.engine.training import ask_together
from fedsuv_plugin.records import finite_or_none
from fedsuv_plugin.selectors.signals import OPINIONS

Chunk = dict[str, float]  # FedScale's test result of a part of the test set


class Judge:
    """Has the executors evaluate the model that was published last."""

    def __init__(self, pool: ExecutorPool):
        self._pool = pool

    def test(self, samples: int | None) -> list[Chunk]:
        """The model on the first samples of the test set (none: all), chunk by chunk."""
        chunks: dict[int, Chunk] = {}
        every = self._pool.shares  # executors share the chunks
        tasks = [
            self._pool.task(TEST, samples=samples, first=first, every=every)
            for first in range(every)
        ]
        self._pool.run(tasks, chunks.update)
        return [chunks[chunk] for chunk in sorted(chunks)]

    def opinions(self, clients: np.ndarray) -> dict[int, Any]:
        """The model's accuracy on each client's held-out samples."""
        return ask_together(self._pool, OPINIONS, clients)

    def clients_accuracy(self, clients: np.ndarray) -> dict[str, float]:
        """How these clients find the model: their mean accuracy, and that of the worst tenth."""
        each = np.sort(list(self.opinions(clients).values()))
        if not len(each):
            return {}
        worst = each[: -(-len(each) // 10)]
        return {"clients_mean": float(each.mean()), "clients_worst_tenth": float(worst.mean())}


def accuracy_and_loss(tested: list[Chunk]) -> tuple[float | None, float | None]:
    """Over all samples of the chunks; (None, None) if there are none."""
    n = sum(chunk["test_len"] for chunk in tested)
    if not n:
        return None, None
    accuracy = sum(chunk["top_1"] for chunk in tested) / n
    return accuracy, finite_or_none(sum(chunk["test_loss"] for chunk in tested) / n)
