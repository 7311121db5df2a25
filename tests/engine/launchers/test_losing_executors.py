"""Jobs whose executors die, fall silent, come back, are too many or strangers: the same numbers.

Aggregator and executors are started as FedScale's driver starts them, each by its command line.
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
from conftest import SMALL, MakeJob, run, same_records
from process_worlds import Team, team, until

from fedsuv_plugin.config.job import Job, make_job
from fedsuv_plugin.engine.launchers import run_job
from fedsuv_plugin.run_directory import RunDirectory

# Rounds that take a while, so that there is time to do something in the middle of the job.
LONG: dict[str, Any] = {
    "rounds": 40,
    "local_steps": 50,
    "eval_interval": 10,
    "checkpoint_every": 5,
    "executor_timeout": 1.0,
    "connection_timeout": 120,
}


@pytest.fixture
def long(job: MakeJob) -> Job:
    return job(**LONG)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of the same job in one process."""
    runs = str(tmp_path_factory.mktemp("undisturbed"))
    return run(make_job({**SMALL, **LONG, "log_path": runs}))


def ended_as_undisturbed(made: Team, undisturbed: Path) -> None:
    assert made.aggregator.ended(300) == 0, made.aggregator.said
    same_records(made.run, undisturbed)


def test_the_work_of_a_killed_executor_goes_to_the_other(
    long: Job, tmp_path: Path, undisturbed: Path
) -> None:
    """The aggregator used to wait for ever."""
    with team(long, tmp_path, executors=2) as made:
        made.until_round(5)
        made.processes[1].signal(signal.SIGKILL)
        ended_as_undisturbed(made, undisturbed)
        assert "is given up: its connection ended" in made.log
        assert made.processes[2].ended() == 0


def test_a_stopped_executor_is_given_up_and_comes_back(
    long: Job, tmp_path: Path, undisturbed: Path
) -> None:
    with team(long, tmp_path, executors=2) as made:
        made.until_round(5)
        made.processes[1].signal(signal.SIGSTOP)
        made.until_logged("is given up: silent for 1 s")
        made.processes[1].signal(signal.SIGCONT)
        ended_as_undisturbed(made, undisturbed)
        assert made.processes[1].ended() == 0
        assert "registering again" in made.processes[1].said


def test_an_executor_started_again_under_its_id_gets_the_model_and_works(
    long: Job, tmp_path: Path, undisturbed: Path
) -> None:
    """The only one there is: without it the job would end."""
    with team(long, tmp_path, executors=1) as made:
        made.until_round(5)
        made.processes[1].signal(signal.SIGKILL)
        made.until_logged("is given up: its connection ended")
        again = made.executor(1)
        ended_as_undisturbed(made, undisturbed)
        assert again.ended() == 0


def test_more_executors_than_expected_may_join_during_the_job(
    long: Job, tmp_path: Path, undisturbed: Path
) -> None:
    """It used to stop the job. One that only registers and is silent does not, either."""
    with team(long, tmp_path, executors=1) as made:
        made.until_round(3)
        silent = made.executor(2)
        third = made.executor(3)
        made.until_round(10)
        silent.signal(signal.SIGSTOP)
        ended_as_undisturbed(made, undisturbed)
        assert third.ended() == 0


def test_an_executor_of_another_job_is_refused_and_changes_nothing(
    long: Job, tmp_path: Path, undisturbed: Path
) -> None:
    """It used to be accepted without a word, and every loss was another."""
    with team(long, tmp_path, executors=1) as made:
        made.until_round(3)
        stranger = made.executor(2, made.job.with_values(seed=4, batch_size=9))
        assert stranger.ended() == 2
        assert (
            "refuses this executor: another job: seed: 3 here, 4 there; batch_size: 8 here, 9"
            in (stranger.said)
        )
        assert len(stranger.said.splitlines()) == 1
        ended_as_undisturbed(made, undisturbed)


def test_with_nobody_left_the_job_waits_and_ends_with_the_reason_resumable(
    job: MakeJob, tmp_path: Path, undisturbed: Path
) -> None:
    with team(job(**{**LONG, "connection_timeout": 2}), tmp_path, executors=2) as made:
        made.until_round(12)
        for executor in made.processes[1:]:
            executor.signal(signal.SIGKILL)
        assert made.aggregator.ended() == 1
        assert "aggregator: no executor is left (executor " in made.aggregator.said
        assert ": its connection ended), and none came within 2 s" in made.aggregator.said
        assert f"resume with: fedsuv run --resume {made.run}" in made.aggregator.said
        assert len(made.aggregator.said.splitlines()) == 1
        assert run_job(RunDirectory.open(made.run))
        same_records(made.run, undisturbed)


@pytest.mark.parametrize("busy", [False, True], ids=["between tasks", "in a long task"])
def test_nothing_is_left_when_the_aggregator_is_killed(
    job: MakeJob, tmp_path: Path, busy: bool
) -> None:
    steps = 10**7 if busy else 50
    with team(job(**{**LONG, "local_steps": steps, "rounds": 500}), tmp_path, 2) as made:
        made.until_all_train() if busy else made.until_round(3)
        made.aggregator.signal(signal.SIGKILL)
        for executor in made.processes[1:]:
            assert executor.ended(seconds=5) == 1
            assert "the aggregator" in executor.said
            assert "is gone" in executor.said
            assert "Traceback" not in executor.said


def test_ctrl_c_for_all_processes_at_once_finishes_the_round(job: MakeJob, tmp_path: Path) -> None:
    """As a terminal sends it to those that were started in it."""
    with team(job(**{**LONG, "rounds": 500}), tmp_path, executors=2) as made:
        made.until_round(3)
        for process in made.processes:
            process.signal(signal.SIGINT)
        assert made.aggregator.ended() == 130
        assert "stopping after round" in made.aggregator.said
        assert f"stopped; resume with: fedsuv run --resume {made.run}" in made.aggregator.said
        for executor in made.processes[1:]:
            assert executor.ended() == 0
            assert "works on until the aggregator ends the job" in executor.said


def test_ctrl_c_twice_stops_at_once_without_a_traceback(job: MakeJob, tmp_path: Path) -> None:
    with team(job(**{**LONG, "local_steps": 10**7}), tmp_path, executors=2) as made:
        made.until_all_train()
        made.aggregator.signal(signal.SIGINT)
        until(lambda: "stopping after round 1" in made.aggregator.said, "stopping")
        made.aggregator.signal(signal.SIGINT)
        assert made.aggregator.ended(seconds=10) == 130
        assert "Traceback" not in made.aggregator.said
        assert "stopped; resume with" in made.aggregator.said
        for executor in made.processes[1:]:
            assert executor.ended(seconds=5) == 1
            assert "Traceback" not in executor.said
