"""The run directory, and going on after anything that can happen to a job."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Killed, records

from fedsuv_plugin.config.job import Job
from fedsuv_plugin.errors import UserError
from fedsuv_plugin.engine.launchers import run_job
from fedsuv_plugin.records import RunDirectory

MakeJob = Callable[..., Job]
FILES = ("rounds.jsonl", "metrics.jsonl")


def uninterrupted(job: Job) -> dict[str, list[dict[str, object]]]:
    directory = RunDirectory.create(job)
    assert run_job(directory)
    return {file: records(directory.path, file) for file in FILES}


def die_at(monkeypatch: pytest.MonkeyPatch, round_number: int, torn: bool) -> None:
    append = RunDirectory.append

    def dying(self: RunDirectory, file: str, record: dict[str, object]) -> None:
        if file == "rounds.jsonl" and record["round"] == round_number:
            if torn:  # half of the line is on disk
                with (self.path / file).open("a") as f:
                    f.write(json.dumps(record)[:25])
            raise Killed
        append(self, file, record)

    monkeypatch.setattr(RunDirectory, "append", dying)


@pytest.mark.parametrize("selector", ["random", "round_robin", "oort", "fedsuv"])
@pytest.mark.parametrize(
    ("round_number", "torn"), [(1, False), (2, True), (4, False), (7, True), (9, False)]
)
def test_a_killed_job_resumes_to_the_same_numbers(
    job: MakeJob, monkeypatch: pytest.MonkeyPatch, selector: str, round_number: int, torn: bool
) -> None:
    small = job(sample_mode=selector, rounds=9, checkpoint_every=3, gradient_policy="fed-yogi")
    expected = uninterrupted(small)
    directory = RunDirectory.create(small)
    with monkeypatch.context() as patch:
        die_at(patch, round_number, torn)
        with pytest.raises(Killed):
            run_job(directory)
    assert run_job(RunDirectory.open(directory.path))
    assert {file: records(directory.path, file) for file in FILES} == expected


def test_dying_while_a_checkpoint_is_written_leaves_the_old_one(
    job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = job(rounds=8, checkpoint_every=3)
    expected = uninterrupted(small)
    directory = RunDirectory.create(small)

    def replace(source: str | Path, target: str | Path) -> None:
        if Path(target).name == "state.pkl" and Path(target).exists():
            Path(source).write_bytes(Path(source).read_bytes()[:100])
            raise Killed
        os.rename(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", replace)
        with pytest.raises(Killed):
            run_job(directory)
    state = directory.load_checkpoint()
    assert state is not None
    assert state["round"] == 3
    assert run_job(RunDirectory.open(directory.path))
    assert {file: records(directory.path, file) for file in FILES} == expected


def start(job: Job, *words: str) -> subprocess.Popen[str]:
    """A job in a process of its own, from a job file."""
    file = Path(job.config.log_path).parent / "job.yml"
    file.write_text(json.dumps({"job_conf": [{k: v} for k, v in job.flat().items()]}))
    return subprocess.Popen(
        [sys.executable, "-m", "fedsuv_plugin.cli", "run", *(words or (str(file),))],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def wait_for_rounds(job: Job, n: int) -> Path:
    """The job's run directory, once n rounds stand in it."""
    parent, deadline = Path(job.config.log_path) / job.config.job_name, time.monotonic() + 300
    while time.monotonic() < deadline:
        for path in parent.glob("*/rounds.jsonl"):
            if path.read_text().count("\n") >= n:
                return path.parent
        time.sleep(0.01)
    raise AssertionError(f"no {n} rounds within five minutes")


@pytest.mark.parametrize("launcher", ["loopback", "processes"])
def test_kill_dash_nine_and_resume(job: MakeJob, launcher: str) -> None:
    small = job(rounds=400, checkpoint_every=20, eval_interval=100, sample_mode="oort")
    process = start(small)
    path = wait_for_rounds(small, 50)
    process.kill()
    process.communicate()
    kept = records_up_to_the_tear(path)
    assert 50 <= kept < 400
    resumed = start(small, "--resume", str(path), "--launcher", launcher)
    out, err = resumed.communicate(timeout=300)
    assert resumed.returncode == 0, err
    assert {file: records(path, file) for file in FILES} == uninterrupted(
        small.with_values(log_path=small.config.log_path + "2")
    )


def records_up_to_the_tear(path: Path) -> int:
    return (path / "rounds.jsonl").read_text().count("\n")


def test_ctrl_c_finishes_the_round_writes_a_checkpoint_and_says_how_to_go_on(job: MakeJob) -> None:
    small = job(rounds=2000, checkpoint_every=10**6)
    process = start(small)
    path = wait_for_rounds(small, 20)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 130
    assert f"resume with: fedsuv run --resume {path}" in err
    assert "Traceback" not in err
    state = RunDirectory.open(path).load_checkpoint()
    assert state is not None
    assert state["round"] == records(path)[-1]["round"] >= 20


def test_a_finished_run_resumed_stays_as_it_is_and_can_be_lengthened(job: MakeJob) -> None:
    small = job(rounds=4)
    directory = RunDirectory.create(small)
    assert run_job(directory)
    before = records(directory.path)
    assert run_job(RunDirectory.open(directory.path))
    assert records(directory.path) == before
    assert run_job(RunDirectory.open(directory.path, {"rounds": 6}))
    assert records(directory.path) == uninterrupted(job(rounds=6))["rounds.jsonl"]


def test_two_jobs_do_not_share_a_run_directory(job: MakeJob) -> None:
    directory = RunDirectory.create(job())
    with pytest.raises(UserError, match="another job is writing"):
        RunDirectory.open(directory.path)
    directory.close()
    RunDirectory.open(directory.path).close()


def test_runs_in_the_same_second_get_directories_of_their_own(job: MakeJob) -> None:
    assert len({RunDirectory.create(job()).path for _ in range(3)}) == 3


def test_what_is_no_run_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not a run directory"):
        RunDirectory.open(tmp_path)


def test_a_foreign_checkpoint_is_refused(job: MakeJob) -> None:
    directory = RunDirectory.create(job())
    directory.save_checkpoint({"format": 0})
    with pytest.raises(UserError, match="written by another version"):
        directory.load_checkpoint()


def test_the_environment_is_recorded(job: MakeJob) -> None:
    directory = RunDirectory.create(job())
    environment = json.loads((directory.path / "environment.json").read_text())
    assert environment["seed"] == 3
    assert environment["packages"]["fedscale"] == "1.0"
