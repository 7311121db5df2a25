"""Executors as processes of their own: the numbers of one process, and what if one dies."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from conftest import MakeJob, records, run, same_records
from engine_worlds import MANY_KEYS

from fedsuv_plugin.engine import signals, training
from fedsuv_plugin.engine.aggregator import OnRound
from fedsuv_plugin.engine.executor_pool import JobFailed
from fedsuv_plugin.engine.launchers import processes, run_job
from fedsuv_plugin.engine.secret import make_token
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


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[bytes]]:
    """The executor processes that launchers start, as they start them."""
    found: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen

    def noted(*args: Any, **options: Any) -> Any:
        process = popen(*args, **options)
        if "fedsuv_plugin.engine.executor_process" in args[0]:
            found.append(process)
        return process

    monkeypatch.setattr(subprocess, "Popen", noted)
    return found


def in_round(number: int, act: Callable[[], None]) -> OnRound:
    def on_round(record: Mapping[str, Any], metrics: object) -> None:
        if record["round"] == number:
            act()

    return on_round


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_the_work_of_an_executor_that_dies_or_falls_silent_is_done_by_the_other(
    job: MakeJob, started: list[subprocess.Popen[bytes]], number: int
) -> None:
    """In stock FedScale the round waits for ever."""
    small = job(rounds=30, executor_timeout=1.0)
    directory = RunDirectory.create(small)
    lose_one = in_round(12, lambda: started[0].send_signal(number))
    assert run_job(directory, "processes", 2, lose_one)
    same_records(directory.path, run(small))
    assert [process.returncode for process in started] == [-signal.SIGKILL, 0]


def test_when_all_have_died_the_job_ends_at_once_and_can_be_resumed(
    job: MakeJob, started: list[subprocess.Popen[bytes]]
) -> None:
    """Nobody else has the secret, so nobody can come."""
    small = job(rounds=30, checkpoint_every=5, connection_timeout=600)
    directory = RunDirectory.create(small)

    def kill_all() -> None:
        for process in started:
            process.kill()

    with pytest.raises(JobFailed, match="executor [12] ended with exit code -9; see .*/executors"):
        run_job(directory, "processes", 2, in_round(12, kill_all))
    assert run_job(RunDirectory.open(directory.path))
    assert records(directory.path) == records(run(small))


def test_an_executor_that_dies_before_the_job_begins_ends_it_at_once(
    job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example for want of memory or of data: nobody waits until the others have come."""
    popen = subprocess.Popen

    def broken(words: list[str], **options: Any) -> Any:
        second = "--this_rank=2" in words
        return popen([*words, "--seed=no"] if second else words, **options)

    monkeypatch.setattr(subprocess, "Popen", broken)
    directory = RunDirectory.create(job(connection_timeout=600))
    with pytest.raises(JobFailed, match="executor 2 ended with exit code 2; see .*/executors.log"):
        run_job(directory, "processes", 2)
    log = (directory.path / "executors.log").read_text()
    assert "executor: seed: expected an integer >= 0, got 'no'" in log


def test_the_secret_is_on_no_command_line_in_no_environment_and_in_no_file(
    job: MakeJob, started: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    token = make_token()
    monkeypatch.setattr(processes, "make_token", lambda: token)
    seen: list[bytes] = []

    def look() -> None:
        for process in started:
            for file in ("cmdline", "environ"):
                seen.append(Path(f"/proc/{process.pid}/{file}").read_bytes())

    directory = RunDirectory.create(job())
    assert run_job(directory, "processes", 2, in_round(2, look))
    assert len(seen) == 4
    assert all(seen)
    files = [path.read_bytes() for path in directory.path.rglob("*") if path.is_file()]
    assert not any(token.encode() in content for content in (*seen, *files))


def test_a_job_for_several_hosts_runs_here_without_its_certificates(job: MakeJob) -> None:
    """They name other machines, and between processes of one there is nothing to hide."""
    hosts = job(
        ps_ip="10.9.8.7", tls_cert="/no/cert.pem", tls_key="/no/key.pem", tls_ca="/no/ca.pem"
    )
    same_records(run(hosts, launcher="processes", executors=1), run(job()))
