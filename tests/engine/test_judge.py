"""How good a model is: executors share the test set and the clients' opinions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from conftest import MakeJob, checkpoint, records, run
from engine_worlds import Worker, data_of

from fedsuv_plugin.engine import training
from fedsuv_plugin.engine.evaluation import evaluate
from fedsuv_plugin.engine.executor_pool import ExecutorPool
from fedsuv_plugin.engine.judge import Judge, accuracy_and_loss
from fedsuv_plugin.engine.task import PROBE, TEST, Task
from fedsuv_plugin.tasks.federated_data import initial_model

CHUNKS = 5  # of the test set of these executors
SLOTS = {"sample_mode": "quick_init_ucb", "quick_init_ucb__slot_rounds": 2, "overcommitment": 1.0}


def chunk_of(number: int) -> dict[str, float]:
    return {"top_1": number, "top_5": number + 1, "test_loss": 2.0 * number, "test_len": 10}


class World:
    """Executors whose test set has chunks and whose clients have opinions of known worth."""

    def __init__(self, executors: int):
        self.pool = ExecutorPool()
        self.tasks: list[Task] = []
        self.pool.publish(0, [np.zeros(1)])
        for number in range(executors):
            Worker(self.pool, str(number), self._work)

    def _work(self, task: Task) -> dict[int, Any]:
        self.tasks.append(task)
        if task.kind == TEST:
            chunks = range(task.settings["first"], CHUNKS, task.settings["every"])
            return {chunk: chunk_of(chunk) for chunk in chunks}
        assert task.kind == PROBE
        # Client 3 holds nothing out and has no opinion; client c has c / 100.
        return {c: np.float64(c / 100) for c in task.clients.tolist() if c != 3}


@pytest.fixture(params=[1, 2, 3])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    made = World(request.param)
    yield made
    made.pool.shut_down()


def test_the_test_set_comes_in_its_own_order_however_many_share_it(world: World) -> None:
    assert Judge(world.pool).test(None) == [chunk_of(number) for number in range(CHUNKS)]
    assert len(world.tasks) == len(world.pool)
    Judge(world.pool).test(70)
    assert {task.settings["samples"] for task in world.tasks} == {None, 70}


def test_opinions_are_shared_in_whole_groups(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "CLIENTS_AT_ONCE", 4)
    clients = np.array([7, 1, 2, 3, 9, 8])  # two groups: [7, 1, 2, 3] and [9, 8]
    opinions = Judge(world.pool).opinions(clients)
    assert list(opinions.items()) == [(7, 0.07), (1, 0.01), (2, 0.02), (9, 0.09), (8, 0.08)]
    asked = sorted(task.clients.tolist() for task in world.tasks)
    whole = [[7, 1, 2, 3, 9, 8]] if len(world.pool) == 1 else [[7, 1, 2, 3], [9, 8]]
    assert asked == whole
    assert Judge(world.pool).opinions(np.zeros(0, np.int64)) == {}


def test_how_the_clients_find_the_model_by_hand(world: World) -> None:
    # Clients 1 to 20 without 3; two of 19 are the worst tenth, rounded up.
    found = Judge(world.pool).clients_accuracy(np.arange(1, 21))
    assert found["clients_mean"] == pytest.approx((210 - 3) / 19 / 100)
    assert found["clients_worst_tenth"] == pytest.approx((0.01 + 0.02) / 2)


def test_accuracy_and_loss_of_chunks_by_hand() -> None:
    # Chunks 1 and 2: 3 of 20 right, a loss of (2 + 4) / 20.
    assert accuracy_and_loss([chunk_of(1), chunk_of(2)]) == pytest.approx((0.15, 0.3))
    assert accuracy_and_loss([]) == (None, None)
    overflowed = {**chunk_of(1), "test_loss": float("inf")}
    assert accuracy_and_loss([overflowed, chunk_of(2)]) == (0.15, None)


def test_evaluations_tell_how_the_clients_find_the_model(job: MakeJob) -> None:
    """The mean is the reward that the selector hears of the same model.

    Up to 20 clients hold samples out; their worst tenth are two."""
    small = job(rounds=4, eval_interval=2, holdout_fraction=0.2, **SLOTS)
    path = run(small)
    metrics = records(path, "metrics.jsonl")
    selector = checkpoint(path)["client_manager"]["selector"]
    # Of the first slot; the second's value is asked for in round 5.
    heard = selector["value"][selector["known"]]
    assert [metrics[1]["clients_mean"]] * 4 == pytest.approx(heard.tolist())
    data = data_of(small)
    model = initial_model(small.config)
    held = [data.held_out(c) for c in range(1, 21)]
    each = sorted(evaluate(model, own, "lr", 64).accuracy for own in held if len(own))
    assert 10 < len(each) <= 20
    assert metrics[0]["clients_mean"] == pytest.approx(np.mean(each))
    assert metrics[0]["clients_worst_tenth"] == pytest.approx(np.mean(each[:2]))
    assert not any("clients_mean" in m for m in records(run(job(rounds=1)), "metrics.jsonl"))
