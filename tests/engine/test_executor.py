"""An executor at work: tasks of several clients, the state they carry, what it says if it fails."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import numpy as np
import pytest
import torch
from conftest import MakeJob, records, run
from engine_worlds import data_of

from fedsuv_plugin.config.argv import Place
from fedsuv_plugin.config.resolved import resolve
from fedsuv_plugin.engine.aggregator import PluginAggregator
from fedsuv_plugin.engine.client import PluginClient
from fedsuv_plugin.engine.evaluation import evaluate
from fedsuv_plugin.engine.executor import PluginExecutor
from fedsuv_plugin.engine.executor_pool import ExecutorPool, JobFailed
from fedsuv_plugin.engine.launchers.loopback import LoopbackChannel, LoopbackPool
from fedsuv_plugin.engine.model import ModelAdapter
from fedsuv_plugin.engine.stock import commons
from fedsuv_plugin.engine.task import NOTHING, PROBE, TEST, TRAIN, Event, Task
from fedsuv_plugin.errors import UserError
from fedsuv_plugin.run_directory import RunDirectory
from fedsuv_plugin.selectors import signals
from fedsuv_plugin.tasks.federated_data import Samples, initial_model

ROUND = {"round": 1, "learning_rate": 0.1}


class Remembering(PluginClient):
    """A client that carries the number of its rounds with it."""

    def train(
        self, client_data: Samples, model: torch.nn.Module, conf: Namespace
    ) -> dict[str, Any]:
        result = super().train(client_data, model, conf)
        return {**result, "state": {"rounds": conf.state.get("rounds", 0) + 1}}


class RememberingExecutor(PluginExecutor):
    def get_client_trainer(self, conf: Namespace) -> PluginClient:
        return Remembering(conf)


def started(job: MakeJob, kind: type[PluginExecutor] = PluginExecutor) -> PluginExecutor:
    """An executor with the small job's data and its initial model."""
    made = kind(resolve(job()), Place(), LoopbackChannel(ExecutorPool()))
    made.start()
    weights = ModelAdapter(initial_model(job().config)).get_weights()
    assert made.handle(Event(commons.UPDATE_MODEL, {"round": 0}, weights)) is None
    return made


def done(executor: PluginExecutor, task: Task) -> Any:
    result = executor.handle(task.to_event())
    assert result is not None
    assert (result.task, result.kind, result.error) == (task.number, task.kind, None)
    return result.value


def test_every_client_of_a_group_starts_from_the_global_model(job: MakeJob) -> None:
    executor = started(job)
    together = done(executor, Task(1, TRAIN, np.array([4, 2, 9]), ROUND))
    assert list(together) == [4, 2, 9]
    for number, client in enumerate([9, 4, 2], start=2):
        (alone,) = done(executor, Task(number, TRAIN, np.array([client]), ROUND)).values()
        for name, weights in alone["update_weight"].items():
            np.testing.assert_array_equal(weights, together[client]["update_weight"][name])
        assert alone["utility"] == together[client]["utility"]


def test_clients_carry_their_state_in_and_bring_it_back(job: MakeJob) -> None:
    executor = started(job, RememberingExecutor)
    clients = np.array([1, 2])
    states = {2: {"rounds": 10}}
    for number in (1, 2):
        reports = done(executor, Task(number, TRAIN, clients, ROUND, states))
        states = {client: report["state"] for client, report in reports.items()}
    assert states == {1: {"rounds": 2}, 2: {"rounds": 12}}


def test_a_client_whose_state_has_a_model_starts_from_it(job: MakeJob) -> None:
    executor = started(job)
    clients = np.array([4, 2])
    plain = done(executor, Task(1, TRAIN, clients, ROUND))
    own = [array + 0.5 for array in ModelAdapter(initial_model(job().config)).get_weights()]
    mixed = done(executor, Task(2, TRAIN, clients, ROUND, {2: {"model": own}}))
    # Client 4 starts from the global model as before; client 2 is elsewhere, near its own model.
    for name, weights in plain[4]["update_weight"].items():
        np.testing.assert_array_equal(weights, mixed[4]["update_weight"][name])
    moved = list(mixed[2]["update_weight"].values())
    assert all(np.abs(a - b).max() < 0.25 for a, b in zip(moved, own, strict=True))


def test_chunks_of_the_test_set_add_up_to_all_of_it(job: MakeJob) -> None:
    executor = started(lambda: job(test_bsz=16))
    shared: dict[int, Any] = {}
    for first in range(3):
        settings = {"samples": None, "first": first, "every": 3}
        shared |= done(executor, Task(first + 1, TEST, settings=settings))
    whole = evaluate(initial_model(job().config), data_of(job()).test, "lr", 64)
    assert len(shared) == -(-whole.n // 16)
    assert sum(chunk["test_len"] for chunk in shared.values()) == whole.n
    assert sum(chunk["top_1"] for chunk in shared.values()) == whole.correct
    assert sum(chunk["test_loss"] for chunk in shared.values()) == pytest.approx(whole.loss)
    few = done(executor, Task(9, TEST, settings={"samples": 20, "first": 0, "every": 1}))
    assert [chunk["test_len"] for chunk in few.values()] == [16, 4]


@pytest.mark.parametrize("kind", [signals.DIRECTION, signals.WEIGHTS])
def test_a_probe_that_trains_leaves_no_trace(job: MakeJob, kind: str) -> None:
    """It answers as the round would, and the next task starts from the global model again."""
    executor = started(job)
    clients = np.array([3, 5])
    plain = done(executor, Task(1, TRAIN, clients, ROUND))
    first, again = (
        done(executor, Task(number, PROBE, clients, {**ROUND, "probe": kind})) for number in (2, 3)
    )
    for client in (3, 5):
        np.testing.assert_array_equal(first[client], again[client])
        if kind == signals.WEIGHTS:
            weights = plain[client]["update_weight"].values()
            np.testing.assert_array_equal(
                first[client], np.concatenate([w.ravel() for w in weights])
            )


def test_a_failure_is_an_answer(job: MakeJob) -> None:
    result = started(job).handle(Task(5, TRAIN, np.array([99]), ROUND).to_event())
    assert result is not None
    assert (result.task, result.value) == (5, None)
    assert result.error is not None
    assert "Error: " in result.error


def test_an_executor_that_fails_ends_the_job_with_its_reason(
    job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: object) -> dict[str, Any]:
        raise ZeroDivisionError("a bug in training")

    monkeypatch.setattr(PluginClient, "train", broken)
    with pytest.raises(JobFailed, match="executor 1 failed: ZeroDivisionError: a bug in training"):
        run(job())


def test_an_executor_that_registers_again_changes_nothing(job: MakeJob) -> None:
    directory = RunDirectory.create(job())
    pool = LoopbackPool()
    place = Place(num_executors=1)
    aggregator = PluginAggregator(directory.job, place, pool, directory)
    pool.executor = PluginExecutor(directory.job, place, LoopbackChannel(pool))
    pool.executor.start()
    pool.executor.start()
    aggregator.run()
    assert aggregator.num_of_clients == 20
    assert len(records(directory.path)) == 6


def test_it_stops_when_it_is_told_to(job: MakeJob) -> None:
    executor = started(job)
    assert executor.handle(NOTHING) is None
    assert not executor.received_stop_request
    assert executor.handle(Event(commons.SHUT_DOWN, None, None)) is None
    assert executor.received_stop_request


def test_cuda_without_a_gpu_is_refused(job: MakeJob) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(UserError, match="use_cuda"):
        run(job(use_cuda=True))
