"""Ctrl-C once ends the job with its round, twice at once."""

from __future__ import annotations

import os
import signal
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import MakeJob, records, start_command, wait_for_rounds

from fedsuv_plugin.engine.interrupts import stop_on_interrupt
from fedsuv_plugin.run_directory import RunDirectory


def test_ctrl_c_finishes_the_round_writes_a_checkpoint_and_says_how_to_go_on(job: MakeJob) -> None:
    small = job(rounds=2000, checkpoint_every=10**6)
    process = start_command(small)
    path = wait_for_rounds(small, 20)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 130
    assert f"resume with: fedsuv run --resume {path}" in err
    assert "Traceback" not in err
    state = RunDirectory.open(path).load_checkpoint()
    assert state is not None
    assert state["round"] == records(path)[-1]["round"] >= 20


def aggregator() -> Any:
    return SimpleNamespace(stop_after_round=threading.Event(), round=3)


def test_twice_stops_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    job = aggregator()
    with pytest.raises(KeyboardInterrupt), stop_on_interrupt(job):
        os.kill(os.getpid(), signal.SIGINT)
        assert job.stop_after_round.is_set()
        os.kill(os.getpid(), signal.SIGINT)
    assert "stopping after round 3; press Ctrl-C again" in capsys.readouterr().err


def test_afterwards_ctrl_c_means_what_it_meant_before() -> None:
    before = signal.getsignal(signal.SIGINT)
    with stop_on_interrupt(aggregator()):
        assert signal.getsignal(signal.SIGINT) is not before
    assert signal.getsignal(signal.SIGINT) is before


def test_in_another_thread_whoever_runs_us_has_the_say() -> None:
    handlers: list[Any] = []

    def run() -> None:
        with stop_on_interrupt(aggregator()):
            handlers.append(signal.getsignal(signal.SIGINT))

    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert handlers == [before]
