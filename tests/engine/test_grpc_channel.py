"""An executor's end of the wire: signs of life, coming back, and an aggregator that is gone."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from time import monotonic

import numpy as np
import pytest
from conftest import MakeJob
from engine_worlds import SIZES, TOKEN, register, served_pool

from fedsuv_plugin.config.fingerprint import fingerprint
from fedsuv_plugin.config.resolved import resolve
from fedsuv_plugin.engine import grpc_channel
from fedsuv_plugin.engine.executor_pool import ExecutorPool, Lease
from fedsuv_plugin.engine.grpc_channel import AggregatorGone, GrpcChannel, OutOfTouch
from fedsuv_plugin.engine.grpc_service import GrpcService
from fedsuv_plugin.engine.launchers.processes import free_port
from fedsuv_plugin.engine.stock import commons
from fedsuv_plugin.engine.task import TRAIN, Result, Task
from fedsuv_plugin.errors import UserError


def within(pool: ExecutorPool, done: Callable[[], bool], seconds: float = 30) -> bool:
    """Whether something about the pool comes true in this time; silent executors are given up."""
    end = monotonic() + seconds
    with pool._lock:
        return pool._wait_until(done, lambda: end)


def test_an_executor_lives_on_while_it_works(job: MakeJob) -> None:
    """It calls for nothing in four times the time that silence may last."""
    with served_pool(job(executor_timeout=1.0)) as served:
        register(served)
        assert not within(served.pool, lambda: not len(served.pool), seconds=4)


def test_one_whose_process_ends_is_given_up_at_once(
    job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not when its lease runs out: its connection ends."""
    with served_pool(job(executor_timeout=600.0)) as served:
        held = threading.Event()
        renew = served.pool.renew

        def noted(executor: str) -> Lease:
            held.set()
            return renew(executor)

        monkeypatch.setattr(served.pool, "renew", noted)
        register(served)
        assert held.wait(30)
        served.channel.close_sever_connection()
        assert within(served.pool, lambda: not len(served.pool))
        assert "its connection ended" in served.pool._last_loss


def test_one_that_sends_no_signs_of_life_is_given_up(job: MakeJob) -> None:
    with served_pool(job(executor_timeout=0.5)) as served:
        served.pool.admit("mute", SIZES)
        assert within(served.pool, lambda: not len(served.pool))
        assert "silent for 0.5 s" in served.pool._last_loss


def test_one_that_was_given_up_hears_it_and_comes_back(job: MakeJob) -> None:
    """Its result is not taken, and it gets the model again."""
    with served_pool(job()) as served:
        pool, channel, _ = served
        pool.publish(0, [np.zeros(1)])
        register(served)
        channel.ping("1")
        pool._waiting.append(pool.task(TRAIN, [3]))
        task = Task.from_event(channel.ping("1"))
        (lease,) = pool._leases.values()
        pool.give_up(lease, "a test")
        with pytest.raises(OutOfTouch, match="FAILED_PRECONDITION"):
            channel.complete("1", Result(task.number, TRAIN, {}))
        with pytest.raises(OutOfTouch, match="FAILED_PRECONDITION"):
            channel.ping("1")
        register(served)
        assert channel.ping("1").name == commons.UPDATE_MODEL
        assert Task.from_event(channel.ping("1")).number == task.number


def test_an_aggregator_that_is_gone_is_noticed_while_working(job: MakeJob) -> None:
    resolved = resolve(job(ps_port=free_port()))
    gone = threading.Event()
    channel = GrpcChannel(resolved.config, TOKEN, on_gone=gone.set)
    info = {"size": SIZES, "job": fingerprint(resolved)}
    with GrpcService(ExecutorPool(), resolved, TOKEN):
        channel.connect_to_server()
        channel.register("1", info, timeout=60)
        assert not gone.is_set()
    assert gone.wait(30)
    with pytest.raises(OutOfTouch):
        channel.ping("1")
    with pytest.raises(AggregatorGone, match="the aggregator at 127.0.0.1:[0-9]+ is gone"):
        channel.register("1", info, timeout=60)
    channel.close_sever_connection()


def test_leaving_is_no_loss(job: MakeJob) -> None:
    """An executor that closes its connection does not take the aggregator for gone."""
    gone = threading.Event()
    with served_pool(job()) as served:
        channel = GrpcChannel(served.job.config, TOKEN, on_gone=gone.set)
        channel.connect_to_server()
        channel.register("1", {"size": SIZES, "job": fingerprint(served.job)}, timeout=60)
        channel.close_sever_connection()
    assert not gone.wait(0.2)


def test_an_executor_waits_for_its_aggregator(job: MakeJob) -> None:
    resolved = resolve(job(ps_port=free_port()))
    channel = GrpcChannel(resolved.config, TOKEN)
    channel.connect_to_server()
    info = {"size": SIZES, "job": fingerprint(resolved)}
    early = threading.Thread(target=channel.register, args=("1", info, 60))
    early.start()
    early.join(1)
    assert early.is_alive()
    pool = ExecutorPool()
    with GrpcService(pool, resolved, TOKEN):
        early.join(30)
        assert len(pool) == 1
        channel.close_sever_connection()


def test_an_executor_without_an_aggregator_gives_up_in_one_line(job: MakeJob) -> None:
    lonely = job(ps_port=free_port(), connection_timeout=1)
    done = subprocess.run(
        [sys.executable, "-m", "fedsuv_plugin.engine.executor", *lonely.to_argv()],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("executor: no aggregator at 127.0.0.1:")
    assert len(done.stderr.splitlines()) == 1


def test_two_processes_have_two_names_even_if_their_ids_are_one() -> None:
    code = "from fedsuv_plugin.engine.grpc_channel import _full_name; print(_full_name('1'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() != grpc_channel._full_name("1")
    assert done.stdout.startswith("1@")


def test_a_refusal_is_shown_escaped(job: MakeJob) -> None:
    """An aggregator is somebody else, too."""
    with served_pool(job()) as served:
        other = {**fingerprint(served.job), "job_name": "\x1b[2J"}
        with pytest.raises(UserError) as error:
            register(served, job=other)
        assert str(error.value).isprintable()
