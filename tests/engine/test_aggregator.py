"""The rounds of a job: what the selector is shown, who is merged, when a model starts anew."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from conftest import DEVICES, MakeJob, records, run, run_killed_and_resumed, same_records
from engine_worlds import Listener, data_of, listen, model_with

from fedsuv_plugin.config.argv import Place
from fedsuv_plugin.engine.aggregator import PluginAggregator
from fedsuv_plugin.engine.evaluation import evaluate
from fedsuv_plugin.engine.executor_pool import ExecutorPool, JobFailed
from fedsuv_plugin.errors import UserError
from fedsuv_plugin.run_directory import RunDirectory
from fedsuv_plugin.selectors.base import Probe, RoundView
from fedsuv_plugin.selectors.signals import DIRECTION, GLOBAL_ACCURACY, LOSS
from fedsuv_plugin.tasks.federated_data import Samples
from fedsuv_plugin.traces.population import Population

SLOTS = {"sample_mode": "quick_init_ucb", "quick_init_ucb__slot_rounds": 2, "overcommitment": 1.0}


class Watcher(Listener):
    """Needs the global model's accuracy every round, and its weights."""

    name = "watcher"
    needs = frozenset({GLOBAL_ACCURACY, DIRECTION})


@pytest.fixture
def watcher(monkeypatch: pytest.MonkeyPatch) -> type[Watcher]:
    listen(monkeypatch, Watcher)
    return Watcher


# ---- what the selector is shown


@pytest.mark.parametrize("samples", [None, 50])
def test_the_global_model_is_evaluated_every_round_for_a_selector_that_needs_it(
    job: MakeJob, watcher: type[Watcher], samples: int | None
) -> None:
    small = job(sample_mode="watcher", rounds=5, eval_interval=3, selector_test_samples=samples)
    metrics = records(run(small), "metrics.jsonl")
    # As eval_interval says, on the whole test set.
    assert [m["round"] for m in metrics] == [0, 3, 5]
    assert len(watcher.outcomes) == 5
    assert all(o.accuracy is not None and o.test_loss is not None for o in watcher.outcomes)
    # The view of a round is the outcome of the one before.
    assert [v.accuracy for v in watcher.views[1:]] == [o.accuracy for o in watcher.outcomes[:-1]]
    # Every number belongs to the weights the same view gives.
    test = data_of(small).test
    heard_of = Samples(test.x[:samples], test.y[:samples])
    for view in watcher.views:
        assert view.weights is not None
        own = evaluate(model_with(small, view.weights), heard_of, "lr", 64)
        assert view.accuracy == pytest.approx(own.accuracy)
        assert view.test_loss == pytest.approx(own.mean_loss)
    if samples is None:
        assert watcher.outcomes[2].accuracy == pytest.approx(metrics[1]["accuracy"])


def test_nothing_is_evaluated_or_handed_out_unless_it_is_needed(
    job: MakeJob, watcher: type[Watcher], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watcher, "needs", frozenset())
    run(job(sample_mode="watcher", rounds=4, eval_interval=2))
    assert [o.accuracy is None for o in watcher.outcomes] == [True, False, True, False]
    assert all(v.weights is None and v.public_loss is None for v in watcher.views)


class Prober(Listener):
    """Asks twice before every selection."""

    name = "prober"
    probes = frozenset({LOSS})
    asked: list[RoundView] = []

    def probe(self, view: RoundView) -> Probe | None:
        self.asked.append(view)
        return Probe(LOSS, view.online[:2], more=view.probe is None)


def test_the_view_of_a_round_is_built_once(job: MakeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is online is looked up once a round for everyone, and once for the cohort's end."""
    listen(monkeypatch, Prober)
    monkeypatch.setattr(Prober, "asked", [])
    everyone: list[float] = []
    cohorts: list[int] = []
    online = Population.online

    def counted(self: Population, time: Any, rows: np.ndarray | None = None) -> np.ndarray:
        if rows is None:
            everyone.append(time)
        else:
            cohorts.append(len(rows))
        return online(self, time, rows)

    monkeypatch.setattr(Population, "online", counted)
    rounds = records(run(job(sample_mode="prober", rounds=3, overcommitment=1.0)))
    assert everyone == [0.0, *(r["clock"] for r in rounds[:-1])]
    assert cohorts == [4, 4, 4]
    assert len(Prober.asked) == 6
    for i, view in enumerate(Prober.views):
        first, second = Prober.asked[2 * i : 2 * i + 2]
        assert first.online is second.online is view.online
        assert first.clients is view.clients


class Streaming(Listener):
    """Asks twice a round for directions, and takes them one by one."""

    name = "streaming"
    needs = frozenset({DIRECTION})
    probes = frozenset({DIRECTION})
    received: list[tuple[int, int, np.ndarray]] = []  # rounds before, row, direction

    def probe(self, view: RoundView) -> Probe | None:
        first = view.probe is None
        rows = view.online[[3, 1]] if first else view.online[:1]
        return Probe(DIRECTION, rows, one_by_one=True, more=first)

    def receive(self, row: int, value: np.ndarray) -> None:
        self.received.append((len(self.views), row, value))


def test_answers_come_one_by_one_in_order_and_the_selector_may_ask_again(
    job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    listen(monkeypatch, Streaming)
    monkeypatch.setattr(Streaming, "received", [])
    run(job(sample_mode="streaming", rounds=2, overcommitment=1.0))
    heard = [(before, row) for before, row, _ in Streaming.received]
    assert heard == [(0, 3), (0, 1), (0, 0), (1, 3), (1, 1), (1, 0)]
    first = Streaming.views[0]
    assert first.seats == 4
    assert first.probe is not None
    assert first.probe.rows.tolist() == [0]  # of the second probe
    assert first.probe.values.shape == (1, 0)
    # The probe trains as the round does: the first cohort's directions come out again.
    outcome = Streaming.outcomes[0]
    trained = dict(zip(outcome.rows.tolist(), outcome.signals[DIRECTION], strict=True))
    for before, row, value in Streaming.received:
        if before == 0:
            np.testing.assert_allclose(trained[row], value, atol=1e-6)


# ---- cohorts


def test_a_free_cohort_is_aggregated_whole(job: MakeJob) -> None:
    nine = {"sample_mode": "oracle", "oracle__clients": "1,2,3,4,5,6,7,8,9"}
    rounds = records(run(job(**nine, num_participants=4)))
    assert all(r["asked"] == r["valid"] == list(range(1, 10)) for r in rounds)


@pytest.mark.parametrize("mode", ["random", "oort", "pow_d", "gpfl", "filfl", "ucb"])
def test_everyone_takes_part_in_the_warm_up(job: MakeJob, mode: str) -> None:
    keys = {"warmup_rounds": 2, "rounds": 4, "num_participants": 3, "overcommitment": 1.0}
    lines = records(run(job(sample_mode=mode, **keys)))
    everyone = [line["asked"] == line["valid"] == list(range(1, 21)) for line in lines]
    assert everyone == [True, True, False, False]
    assert [len(line["asked"]) for line in lines[2:]] == [3, 3]


def test_the_warm_up_knows_deadlines_and_who_is_there(
    job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    listen(monkeypatch)
    late = job(
        sample_mode="listener",
        overcommitment=1.0,
        duration_jitter=0.0,
        warmup_rounds=1,
        rounds=1,
        available_clients=7,
        device_conf_file=DEVICES,
        round_deadline=5.0,
    )
    line = records(run(late))[0]
    assert line["asked"] == (Listener.views[0].online + 1).tolist()
    assert set(line["valid"]) < set(line["asked"])
    assert line["duration"] == 5.0


# ---- restarts


def test_a_cold_start_slot_begins_at_the_initial_model(job: MakeJob) -> None:
    """5 groups of 4, 2 rounds each: the same cohorts, whether slots start anew or not.

    A slot's first round meets the initial model in one job, and in the other what the slots before
    have learnt."""
    restarted = run(job(rounds=10, **SLOTS, momentum=0.0))
    carried = run(job(rounds=10, **SLOTS, momentum=0.0, quick_init_ucb__cold_start="carry"))
    assert [r["asked"] for r in records(restarted)] == [r["asked"] for r in records(carried)]

    def accuracy(path: Any) -> list[float]:
        return [m["accuracy"] for m in records(path, "metrics.jsonl")]

    assert accuracy(restarted)[:2] == accuracy(carried)[:2]
    # Training loss of a slot's first round is that of the initial model, whichever slot it is.
    first = [r["train_loss"] for r in records(restarted)[::2]]
    later = [r["train_loss"] for r in records(carried)[2::2]]
    assert min(first) > max(later)


@pytest.mark.parametrize("mode", ["ucb", "oracle"])
def test_slots_that_train_anew(job: MakeJob, mode: str) -> None:
    """A slot's first round trains the initial model, the second what the first has made of it."""
    keys = {
        "sample_mode": mode,
        f"{mode}__slot_rounds": 2,
        f"{mode}__slot_start": "restart",
        "overcommitment": 1.0,
    }
    losses = np.array([r["train_loss"] for r in records(run(job(rounds=12, **keys)))])
    assert losses[::2].min() > losses[1::2].max()


@pytest.mark.parametrize("start", ["carry", "restart"])
def test_restarts_survive_a_resume(job: MakeJob, start: str) -> None:
    small = job(rounds=14, checkpoint_every=3, quick_init_ucb__slot_start=start, **SLOTS)
    same_records(run_killed_and_resumed(small, 8), run(small))


# ---- a job that cannot begin


def test_executors_that_do_not_come(job: MakeJob) -> None:
    directory = RunDirectory.create(job(connection_timeout=1))
    place = Place(this_rank=0, num_executors=2)
    aggregator = PluginAggregator(directory.job, place, ExecutorPool(), directory)
    with pytest.raises(JobFailed, match="expected 2 executors within 1 s, 0 came"):
        aggregator.run()


def test_nobody_with_enough_samples_is_one_line(job: MakeJob) -> None:
    with pytest.raises(UserError, match="no client has at least filter_less=1000"):
        run(job(filter_less=1000))
