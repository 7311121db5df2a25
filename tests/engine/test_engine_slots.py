"""The engine's part in time slots: opinions in bulk, restarts, lost uploads, free cohorts, raw pixels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import records, run_killed_and_resumed, same_records
from fedsuv_plugin.engine.launchers import run_job
from selector_worlds import five_sigma

from fedsuv_plugin.config.job import Job
from fedsuv_plugin.engine import executor as executor_module
from fedsuv_plugin.engine.client import accuracies, evaluate
from fedsuv_plugin.engine.client_manager import SelectorClientManager
from fedsuv_plugin.records import RunDirectory
from fedsuv_plugin.tasks.datasets import DATASETS
from fedsuv_plugin.tasks.federated_data import FederatedData, initial_model

MakeJob = Callable[..., Job]
CPU = torch.device("cpu")
SLOTS = {"sample_mode": "quick_init_ucb", "quick_init_ucb__slot_rounds": 2, "overcommitment": 1.0}


def run(job: Job, **options: Any) -> RunDirectory:
    directory = RunDirectory.create(job)
    assert run_job(directory, **options)
    return directory


@pytest.mark.parametrize("batch", [7, 64, 4096])
def test_opinions_in_bulk_are_those_one_by_one(job: MakeJob, batch: int) -> None:
    config = job(num_clients=40).config  # some of them have nothing to hold out
    data, model = FederatedData(replace(config, holdout_fraction=0.2), CPU), initial_model(config)
    clients, lengths, batches = data.held_out_together(np.arange(1, 41), batch)
    assert 0 < len(clients) < 40
    expected = [evaluate(model, data.held_out(c), "lr", 128).accuracy for c in clients.tolist()]
    assert accuracies(model, batches, lengths).tolist() == expected
    assert all(len(data.held_out(c)) == 0 for c in set(range(1, 41)) - set(clients.tolist()))


def test_nobody_holds_anything_out(job: MakeJob) -> None:
    config = job().config
    clients, lengths, batches = FederatedData(config, CPU).held_out_together(np.arange(1, 21), 64)
    assert len(clients) == len(accuracies(initial_model(config), batches, lengths)) == 0


def test_slots_in_both_launchers(job: MakeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two executors share the opinions; numbers and picks are those of one."""
    monkeypatch.setattr(
        executor_module, "CLIENTS_AT_ONCE", 3
    )  # here only: the size of a group must not matter
    here, there = (
        run(job(rounds=16, **SLOTS)),
        run(job(rounds=16, **SLOTS), launcher="processes", executors=2),
    )
    for file in ("rounds.jsonl", "metrics.jsonl"):
        assert records(here.path, file) == records(there.path, file)
    asked = [r["asked"] for r in records(here.path)]
    assert all(asked[t] == asked[t - t % 2] for t in range(16))
    assert records(here.path)[-1]["selector"]["sets_played"] >= 1


@pytest.mark.parametrize(
    "values",
    [
        {"sample_mode": "bp_ucb", "bp_ucb__slot_rounds": 2, "bp_ucb__mu": 0.5},
        {"sample_mode": "ucb", "ucb__slot_rounds": 2},
        {
            "sample_mode": "pczfl",
            "pczfl__warmup_rounds": 2,
            "pczfl__a_b": 0.1,
            "pczfl__energy": "uniform",
        },
    ],
)
def test_a_job_is_resumed_exactly(job: MakeJob, values: dict[str, object]) -> None:
    small = job(rounds=10, checkpoint_every=3, **values)
    whole = run(small)
    same_records(run_killed_and_resumed(small, 8), whole.path)
    assert len({tuple(r["asked"]) for r in records(whole.path)}) > 1


def test_pczfl_knows_the_untrained_model_and_what_clients_made_of_it(job: MakeJob) -> None:
    small = job(sample_mode="pczfl", rounds=1, pczfl__warmup_rounds=0, interview_fraction=0.3)
    state = run(small).load_checkpoint()
    assert state is not None
    data = FederatedData(replace(small.config, interview_fraction=0.3), CPU)
    untrained = evaluate(initial_model(small.config), data.interview, "lr", 64).accuracy
    ball = state["client_manager"]["selector"]
    # The first round has one ball, so everyone takes part, and the ball's one reward is the mean of what came of it.
    assert ball["started"]
    assert ball["mean"][0] == pytest.approx(ball["context"].mean(axis=0))
    assert ball["context"][:, 0].mean() > untrained


def test_a_cold_start_slot_begins_at_the_initial_model(job: MakeJob) -> None:
    """5 groups of 4, 2 rounds each: the same cohorts either way, but a slot's first round meets the initial model in
    one job and what the slots before have learnt in the other."""
    restarted = run(job(rounds=10, **SLOTS, momentum=0.0))
    carried = run(job(rounds=10, **SLOTS, momentum=0.0, quick_init_ucb__cold_start="carry"))
    assert [r["asked"] for r in records(restarted.path)] == [
        r["asked"] for r in records(carried.path)
    ]
    accuracy = {
        d.path: [m["accuracy"] for m in records(d.path, "metrics.jsonl")]
        for d in (restarted, carried)
    }
    assert accuracy[restarted.path][:2] == accuracy[carried.path][:2]
    # Training loss of a slot's first round is that of the initial model, whichever slot it is.
    first = [r["train_loss"] for r in records(restarted.path)[::2]]
    later = [r["train_loss"] for r in records(carried.path)[2::2]]
    assert min(first) > max(later)


@pytest.mark.parametrize("mode", ["ucb", "oracle"])
def test_slots_that_train_anew(job: MakeJob, mode: str) -> None:
    """A slot of two rounds: the first trains the initial model, the second what the first has made of it."""
    keys = {
        "sample_mode": mode,
        f"{mode}__slot_rounds": 2,
        f"{mode}__slot_start": "restart",
        "overcommitment": 1.0,
    }
    losses = np.array([r["train_loss"] for r in records(run(job(rounds=12, **keys)).path)])
    assert losses[::2].min() > losses[1::2].max()


@pytest.mark.parametrize("start", ["carry", "restart"])
def test_restarts_survive_a_resume(job: MakeJob, start: str) -> None:
    small = job(rounds=14, checkpoint_every=3, quick_init_ucb__slot_start=start, **SLOTS)
    same_records(run_killed_and_resumed(small, 8), run(small).path)


def test_evaluations_tell_how_the_clients_find_the_model(job: MakeJob) -> None:
    """The mean is the reward that the selector hears of the same model; the worst tenth of up to 20 are two."""
    directory = run(job(rounds=4, eval_interval=2, holdout_fraction=0.2, **SLOTS))
    metrics, state = records(directory.path, "metrics.jsonl"), directory.load_checkpoint()
    assert state is not None
    selector = state["client_manager"]["selector"]
    heard = selector["value"][
        selector["known"]
    ]  # of the first slot; the second's is asked for in round 5
    assert [metrics[1]["clients_mean"]] * 4 == pytest.approx(heard.tolist())
    data, model = (
        FederatedData(replace(directory.job.config, holdout_fraction=0.2), CPU),
        initial_model(directory.job.config),
    )
    each = sorted(
        evaluate(model, data.held_out(c), "lr", 64).accuracy
        for c in range(1, 21)
        if len(data.held_out(c))
    )
    assert 10 < len(each) <= 20
    assert metrics[0]["clients_mean"] == pytest.approx(np.mean(each))
    assert metrics[0]["clients_worst_tenth"] == pytest.approx(np.mean(each[:2]))
    assert not any("clients_mean" in m for m in records(run(job(rounds=1)).path, "metrics.jsonl"))


def test_uploads_are_lost_at_the_rate_given(job: MakeJob) -> None:
    # 40 rounds of 20 clients: Binomial(800, 0.75).
    lossy = {
        "upload_success": 0.75,
        "num_participants": 20,
        "overcommitment": 1.0,
        "rounds": 40,
        "local_steps": 1,
    }
    rounds = records(run(job(**lossy)).path)
    arrived = sum(len(r["valid"]) for r in rounds)
    assert all(len(r["asked"]) == 20 for r in rounds)
    assert abs(arrived - 600) < five_sigma(800, 0.75)
    # The luck depends on seed, client and round alone.
    other = records(run(job(**lossy, sample_mode="oort")).path)
    assert [r["valid"] for r in other] == [r["valid"] for r in rounds]


def test_a_lost_upload_changes_nothing_and_is_told(
    job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[bool] = []
    register = SelectorClientManager.register_feedback

    def listen(self: SelectorClientManager, *args: Any, **named: Any) -> None:
        told.append(named["success"])
        register(self, *args, **named)

    monkeypatch.setattr(SelectorClientManager, "register_feedback", listen)
    directory = run(job(upload_success=0.0, rounds=2))
    assert told
    assert not any(told)
    accuracies = [m["accuracy"] for m in records(directory.path, "metrics.jsonl")]
    assert accuracies[0] == accuracies[-1]


def test_a_free_cohort_is_aggregated_whole(job: MakeJob) -> None:
    rounds = records(
        run(job(sample_mode="oracle", oracle__clients="1,2,3,4,5,6,7,8,9", num_participants=4)).path
    )
    assert all(r["asked"] == r["valid"] == list(range(1, 10)) for r in rounds)


@pytest.mark.parametrize(("name", "folder"), [("Mnist", "mnist"), ("fmnist", "fashion_mnist")])
def test_raw_pixels(job: MakeJob, data_root: Path, name: str, folder: str) -> None:
    if not (data_root / folder).is_dir():
        pytest.skip(f"no {folder} in FEDSUV_DATA")
    raw, normal = (
        DATASETS[name](job(data_set=name, raw_pixels=flag).config) for flag in (True, False)
    )
    splits = raw.load()
    assert splits.train_x.shape == (60000, 1, 28, 28)
    assert splits.test_y.bincount().tolist()[:1] == [{"Mnist": 980, "fmnist": 1000}[name]]
    x = splits.train_x[:20000]
    assert (float(raw.prepare(x).min()), float(raw.prepare(x).max())) == (0.0, 255.0)
    prepared = normal.prepare(
        x
    )  # the constants are the training set's; 20,000 images are near enough to see it
    assert float(prepared.mean()) == pytest.approx(0, abs=0.02)
    assert float(prepared.std()) == pytest.approx(1, abs=0.02)
