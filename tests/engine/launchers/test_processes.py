"""Executors as processes of their own: the numbers of one process, and what if one dies."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest
from conftest import MakeJob, records, run, same_records
from engine_worlds import MANY_KEYS

from fedsuv_plugin.engine import signals, training
from fedsuv_plugin.engine.executor_pool import JobFailed
from fedsuv_plugin.engine.launchers import run_job
from fedsuv_plugin.run_directory import RunDirectory


@pytest.mark.parametrize(
    "values",
    [
        {"sample_mode": "fedsuv", "rounds": 14, "round_deadline": 0.8},
        {"sample_mode": "oort", "gradient_policy": "fed-yogi", "model": "mlp"},
        {"sample_mode": "gpfl", "rounds": 5, "selector_test_samples": 60},
        {**MANY_KEYS, "rounds": 7},
    ],
    ids=["fedsuv", "oort", "gpfl", "keys"],
)
def test_processes_give_the_numbers_of_loopback(job: MakeJob, values: dict[str, object]) -> None:
    """Two executors finish in any order; the sums do not depend on it."""
    same_records(run(job(**values)), run(job(**values), launcher="processes", executors=2))


def test_slots_in_both_launchers(job: MakeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two executors share the opinions; numbers and picks are those of one."""
    # Here and in the aggregator, not in the executors: the size of a group must not matter.
    monkeypatch.setattr(signals, "CLIENTS_AT_ONCE", 3)
    monkeypatch.setattr(training, "CLIENTS_AT_ONCE", 3)
    slots = {"sample_mode": "quick_init_ucb", "quick_init_ucb__slot_rounds": 2}
    small = job(rounds=16, overcommitment=1.0, **slots)
    here = run(small)
    same_records(here, run(small, launcher="processes", executors=2))
    asked = [r["asked"] for r in records(here)]
    assert all(asked[t] == asked[t - t % 2] for t in range(16))
    assert records(here)[-1]["selector"]["sets_played"] >= 1


def test_an_executor_that_dies_ends_the_job_and_it_can_be_resumed(
    job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In stock FedScale the round waits for ever."""
    small = job(rounds=60, checkpoint_every=5)
    directory = RunDirectory.create(small)
    started: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen

    def noted(*args: Any, **options: Any) -> Any:
        process = popen(*args, **options)
        if "fedsuv_plugin.engine.executor" in args[0]:
            started.append(process)
        return process

    monkeypatch.setattr(subprocess, "Popen", noted)

    def kill_one(record: dict[str, Any], metrics: object) -> None:
        if record["round"] == 12:
            started[0].kill()

    with pytest.raises(JobFailed, match="executor 1 ended with exit code -9"):
        run_job(directory, "processes", 2, kill_one)
    assert all(process.poll() is not None for process in started)
    assert run_job(RunDirectory.open(directory.path))
    assert records(directory.path) == records(run(small))
