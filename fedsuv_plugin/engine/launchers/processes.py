"""Aggregator here, executors as processes of their own, over gRPC on this machine."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedsuv_plugin.config.argv import Place
from fedsuv_plugin.config.resolved import ResolvedJob
from fedsuv_plugin.engine.aggregator import OnRound, PluginAggregator
from fedsuv_plugin.engine.executor_pool import ExecutorPool, JobFailed
from fedsuv_plugin.engine.grpc_service import GrpcService
from fedsuv_plugin.engine.interrupts import stop_on_interrupt
from fedsuv_plugin.run_directory import RunDirectory

HERE = "127.0.0.1"
END_GRACE = 10.0  # seconds an executor has to end by itself once the job is over


def launch(run: RunDirectory, executors: int, on_round: OnRound) -> bool:
    """Run the job with so many executor processes. False: it was stopped on request."""
    job = run.job.with_values(ps_ip=HERE, ps_port=free_port())
    place = Place(this_rank=0, num_executors=executors, executor_configs=f"{HERE}:[{executors}]")
    pool = ExecutorPool()
    aggregator = PluginAggregator(job, place, pool, run, on_round)
    with (
        GrpcService(pool, HERE, job.config.ps_port, executors),
        stop_on_interrupt(aggregator),
        _executors(job, executors, run.path / "executors.log", pool),
    ):
        aggregator.run()
    return aggregator.finished


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HERE, 0))
        return int(probe.getsockname()[1])


@contextmanager
def _executors(job: ResolvedJob, count: int, log: Path, pool: ExecutorPool) -> Iterator[None]:
    """The executor processes. If one ends before its time the pool is told, so nobody waits."""
    over = threading.Event()

    def watch(rank: int, process: subprocess.Popen[bytes]) -> None:
        if process.wait() and not over.is_set():
            code = process.returncode
            pool.fail(JobFailed(f"executor {rank} ended with exit code {code}; see {log}"))

    started = _start(job, count, log)
    watchers = [
        threading.Thread(target=watch, args=pair, daemon=True)
        for pair in enumerate(started, start=1)
    ]
    for watcher in watchers:
        watcher.start()
    try:
        yield
    finally:
        over.set()
        for process in started:
            try:
                process.wait(END_GRACE)
            except subprocess.TimeoutExpired:
                process.kill()
        for watcher in watchers:
            watcher.join()


def _start(job: ResolvedJob, count: int, log: Path) -> list[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "fedsuv_plugin.engine.executor", *job.to_argv()]
    with log.open("ab") as output:
        # A session of their own: Ctrl-C is for the aggregator, which tells them when to end.
        return [
            subprocess.Popen(
                [*command, f"--this_rank={rank}", f"--num_executors={count}"],
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
            for rank in range(1, count + 1)
        ]
