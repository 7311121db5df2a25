"""How jobs end that are stopped or killed, by launcher: `fedsuv run` as a user gives it."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from conftest import MakeJob, records, same_records, start_command, wait_for_rounds
from conftest import run as run_here
from process_worlds import until

from fedsuv_plugin.config.job import Job
from fedsuv_plugin.engine.launchers import LAUNCHERS, run_job
from fedsuv_plugin.run_directory import RunDirectory

KEYS: dict[str, Any] = {"rounds": 20, "checkpoint_every": 4}
LONGER: dict[str, Any] = {**KEYS, "rounds": 5000}


def children(pid: int) -> list[int]:
    """The processes that a process has started, and that have not ended."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = path.read_text().rpartition(")")[2].split()[:2]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(parent) == pid and state != "Z":
            found.append(int(path.parent.name))
    return found


def running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def command(job: Job, launcher: str) -> subprocess.Popen[str]:
    """`fedsuv run` with this launcher, on the job's file."""
    file = Path(job.config.log_path).parent / "job.yml"
    return start_command(job, str(file), "--launcher", launcher, "--executors", "2")


def ends_as_if_undisturbed(job: MakeJob, path: Path) -> None:
    """Gone on with, the run has the records of one that was never stopped."""
    last = max(records(path)[-1]["round"], 20)
    assert run_job(RunDirectory.open(path, {"rounds": last + 5}))
    same_records(path, run_here(job(**{**KEYS, "rounds": last + 5}, log_path=f"{path}-alone")))


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_ctrl_c_once_finishes_the_round(job: MakeJob, launcher: str) -> None:
    long = job(**LONGER)
    process = command(long, launcher)
    path = wait_for_rounds(long, 6)
    executors = children(process.pid)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 130
    assert "press Ctrl-C again to stop at once" in err
    assert f"stopped; resume with: fedsuv run --resume {path}" in err
    assert "Traceback" not in err
    assert not any(map(running, executors))
    ends_as_if_undisturbed(job, path)


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_ctrl_c_twice_stops_at_once(job: MakeJob, launcher: str) -> None:
    """In the middle of a task that would take for ever."""
    endless = job(**{**LONGER, "local_steps": 10**8})
    process = command(endless, launcher)
    assert process.stderr is not None
    parent = Path(endless.config.log_path) / endless.config.job_name
    until(lambda: list(parent.glob("*/metrics.jsonl")), "an evaluation", 300)
    executors = children(process.pid)
    process.send_signal(signal.SIGINT)
    while "press Ctrl-C again" not in process.stderr.readline():
        pass
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "stopped; resume with: fedsuv run --resume" in err
    assert "Traceback" not in err
    assert not any(map(running, executors))


@pytest.mark.parametrize("begun", [True, False], ids=["in a long task", "while they are set up"])
def test_nothing_is_left_five_seconds_after_the_aggregator_was_killed(
    job: MakeJob, begun: bool
) -> None:
    endless = job(**{**LONGER, "local_steps": 10**8})
    process = command(endless, "processes")
    parent = Path(endless.config.log_path) / endless.config.job_name
    if begun:
        until(lambda: list(parent.glob("*/metrics.jsonl")), "an evaluation", 300)
    else:
        until(lambda: list(parent.glob("*/executors.log")), "executors", 300)
        until(lambda: len(children(process.pid)) == 2, "both of them")
    executors = children(process.pid)
    assert len(executors) == 2
    process.kill()
    process.communicate()
    until(lambda: not any(map(running, executors)), "the end of all executors", seconds=5)


def test_a_killed_run_over_processes_goes_on_with_the_same_numbers(job: MakeJob) -> None:
    long = job(**LONGER)
    process = command(long, "processes")
    path = wait_for_rounds(long, 10)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    ends_as_if_undisturbed(job, path)
