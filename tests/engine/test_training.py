"""What clients send: merged in a fixed order if it is sound, else as if it had never come."""

from __future__ import annotations

import logging
from argparse import Namespace
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from conftest import MakeJob, records, run
from engine_worlds import Worker

from fedsuv_plugin.config.keys import JobConfig
from fedsuv_plugin.engine.bill import Prices
from fedsuv_plugin.engine.client import PluginClient
from fedsuv_plugin.engine.executor_pool import ExecutorPool
from fedsuv_plugin.engine.feedback import keep_all
from fedsuv_plugin.engine.merging import WeightedAverage
from fedsuv_plugin.engine.rounds import Judgement, Round, Trained
from fedsuv_plugin.engine.task import Task
from fedsuv_plugin.engine.training import Questions, ask_clients, train_clients
from fedsuv_plugin.selectors.signals import FINGERPRINT, LOSS, OPINIONS
from fedsuv_plugin.tasks.federated_data import Samples
from fedsuv_plugin.traces.clock import Work
from fedsuv_plugin.traces.population import uniform

MODEL = [np.zeros(2, np.float32)]
NOW = Round(3, 0.0, 4, 4, None, 0.25, Judgement())
Spoil = Callable[[dict[str, Any]], Any]


# ---- by plain arrays


def report_of(client: int) -> dict[str, Any]:
    """What client c sends: the model c, c and a loss of c."""
    return {
        "update_weight": {"w": np.full(2, client, np.float32)},
        "moving_loss": float(client),
        "utility": 10.0 * client,
        "signals": {},
    }


@pytest.fixture
def pool() -> Iterator[ExecutorPool]:
    made = ExecutorPool()
    made.publish(0, MODEL)
    yield made
    made.shut_down()


def test_updates_are_merged_in_the_order_given_with_the_job_s_weights(pool: ExecutorPool) -> None:
    seen: list[dict[str, Any]] = []

    def work(task: Task) -> dict[int, Any]:
        seen.append(dict(task.settings))
        return {client: report_of(client) for client in task.clients.tolist()}

    Worker(pool, "1", work)
    pool.sizes = np.array([1, 2, 3])
    clients = np.array([3, 1, 2])
    for weights, expected in (("equal", 2.0), ("samples", 14 / 6)):
        merge = WeightedAverage(MODEL)
        config = JobConfig(aggregation_weights=weights)
        trained = Trained(train_clients(pool, config, NOW, clients, MODEL, merge.add))
        assert merge.result()[0].tolist() == pytest.approx([expected] * 2)
        assert list(trained.reports) == [3, 1, 2]
        assert (trained.mean_loss, trained.mean_utility) == (2.0, 20.0)
        # An update is let go once it is merged.
        assert all("update_weight" not in report for report in trained.reports.values())
    assert seen == [{"round": 3, "learning_rate": 0.25}] * 6


def test_q_fedavg_keeps_the_updates(pool: ExecutorPool) -> None:
    Worker(pool, "1", lambda task: {c: report_of(c) for c in task.clients.tolist()})
    config = JobConfig(gradient_policy="q-fedavg")
    reports = train_clients(pool, config, NOW, np.array([2]), MODEL, WeightedAverage(MODEL).add)
    assert reports[2]["update_weight"]["w"].tolist() == [2.0, 2.0]


def test_a_round_without_clients_has_no_mean(pool: ExecutorPool) -> None:
    nobody = np.zeros(0, np.int64)
    merge = WeightedAverage(MODEL)
    trained = Trained(train_clients(pool, JobConfig(), NOW, nobody, MODEL, merge.add))
    assert (trained.mean_loss, trained.mean_utility) == (None, 0.0)


def test_a_client_may_start_from_a_model_of_its_own(pool: ExecutorPool) -> None:
    started: dict[int, Any] = {}

    def work(task: Task) -> dict[int, Any]:
        started.update({client: task.states.get(client) for client in task.clients.tolist()})
        return {client: report_of(client) for client in task.clients.tolist()}

    Worker(pool, "1", work)
    own = [np.full(2, 7.0)]
    train_clients(
        pool,
        JobConfig(),
        NOW,
        np.array([2, 1]),
        MODEL,
        WeightedAverage(MODEL).add,
        starts={2: own}.get,
    )
    assert started == {2: {"model": own}, 1: None}


def test_clients_answer_a_probe_in_the_order_in_which_they_are_asked(pool: ExecutorPool) -> None:
    asked: list[dict[str, Any]] = []
    kept: list[int] = []

    def work(task: Task) -> dict[int, Any]:
        asked.append(dict(task.settings))
        return {client: np.float64(client) for client in task.clients.tolist()}

    def keep(client: int, answer: np.ndarray) -> np.ndarray:
        kept.append(client)
        return answer * 2

    Worker(pool, "1", work)
    Worker(pool, "2", work)
    clients = np.array([9, 4, 7, 1])
    answers = ask_clients(pool, NOW, "loss", clients, keep)
    assert list(answers) == [9, 4, 7, 1]
    assert [float(answer) for answer in answers.values()] == [18.0, 8.0, 14.0, 2.0]
    assert kept == [9, 4, 7, 1]
    assert asked == [{"probe": "loss", "round": 3, "learning_rate": 0.25}] * 4
    assert float(ask_clients(pool, NOW, "loss", clients[:1], keep_all)[9]) == 9.0


@pytest.mark.parametrize(("kind", "tasks"), [(LOSS, 4), (OPINIONS, 1), (FINGERPRINT, 1)])
def test_answers_are_kept_one_by_one_also_where_many_are_measured_at_once(
    pool: ExecutorPool, kind: str, tasks: int
) -> None:
    asked: list[str] = []
    kept: list[int] = []

    def work(task: Task) -> dict[int, Any]:
        asked.append(task.settings["probe"])
        return {client: np.float64(client) for client in task.clients.tolist()}

    def keep(client: int, answer: np.ndarray) -> np.ndarray:
        kept.append(client)
        return answer * 2

    Worker(pool, "1", work)
    config = JobConfig()
    sizes = np.full(9, 40)
    prices = Prices(config, uniform(9), Work.of(config, 1000.0, sizes), sizes)
    questions = Questions(pool, prices, NOW)
    answers = questions.ask(kind, np.array([9, 4, 7, 1]), keep)
    assert {client: float(a) for client, a in answers.items()} == {9: 18, 4: 8, 7: 14, 1: 2}
    assert list(answers) == kept == [9, 4, 7, 1]
    assert asked == [kind] * tasks
    assert questions.bill.clients == 4


# ---- nothing a client sends can break the job


def poisoned(monkeypatch: pytest.MonkeyPatch, spoil: Spoil, clients: set[int]) -> None:
    """Spoil what some clients send."""
    train = PluginClient.train

    def wrapped(
        self: PluginClient, data: Samples, model: torch.nn.Module, conf: Namespace
    ) -> dict[str, Any]:
        result = train(self, data, model, conf)
        if conf.client_id in clients:
            spoil(result)
        return result

    monkeypatch.setattr(PluginClient, "train", wrapped)


def nan_weights(result: dict[str, Any]) -> None:
    weights = result["update_weight"]
    weights.update({name: np.full_like(w, np.nan) for name, w in weights.items()})


@pytest.mark.parametrize(
    "spoil",
    [
        lambda r: r.update(moving_loss=float("nan")),
        lambda r: r.update(utility=float("inf")),
        lambda r: r.update(moving_loss=-1.0),
        nan_weights,
        lambda r: r.update(update_weight={"x": np.zeros(3, np.float32)}),
        lambda r: r["signals"].update(direction=np.array([np.inf])),
    ],
)
def test_rubbish_counts_as_having_missed_the_round(
    job: MakeJob, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, spoil: Spoil
) -> None:
    bad = set(range(1, 11))
    poisoned(monkeypatch, spoil, bad)
    with caplog.at_level(logging.WARNING):
        path = run(job(sample_mode="oort", rounds=4))
    rounds = records(path)
    assert any(set(r["asked"]) & bad for r in rounds)
    assert not any(set(r["valid"]) & bad for r in rounds)
    assert all(np.isfinite(m["loss"]) for m in records(path, "metrics.jsonl"))
    assert "not finite or does not fit" in caplog.text
