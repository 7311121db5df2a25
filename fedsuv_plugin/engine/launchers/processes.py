"""Aggregator here, executors as processes of their own, over gRPC on this machine."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic

from fedsuv_plugin.config.argv import Place
from fedsuv_plugin.config.resolved import ResolvedJob
from fedsuv_plugin.engine.aggregator import OnRound, PluginAggregator
from fedsuv_plugin.engine.executor_pool import ExecutorPool, JobFailed
from fedsuv_plugin.engine.grpc_service import GrpcService
from fedsuv_plugin.engine.interrupts import stop_on_interrupt
from fedsuv_plugin.engine.secret import make_token
from fedsuv_plugin.run_directory import RunDirectory

HERE = "127.0.0.1"
END_GRACE = 10.0  # seconds an executor has to end by itself once the job is over


def launch(run: RunDirectory, executors: int, on_round: OnRound) -> bool:
    """Run the job with so many executor processes. False: it was stopped on request."""
    job = run.job.with_values(
        ps_ip=HERE, ps_port=free_port(), tls_cert=None, tls_key=None, tls_ca=None
    )
    config = job.config
    place = Place(this_rank=0, num_executors=executors, executor_configs=f"{HERE}:[{executors}]")
    pool = ExecutorPool(config.executor_timeout, config.connection_timeout)
    token = make_token()
    aggregator = PluginAggregator(job, place, pool, run, on_round)
    with (
        GrpcService(pool, job, token),
        stop_on_interrupt(aggregator),
        _executors(job, executors, run.path / "executors.log", pool, token),
    ):
        aggregator.run()
    return aggregator.finished


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HERE, 0))
        return int(probe.getsockname()[1])


@contextmanager
def _executors(
    job: ResolvedJob, count: int, log: Path, pool: ExecutorPool, token: str
) -> Iterator[None]:
    """The executor processes, with the secret of the job.

    One that ends is only missed if the job waits for it to begin, or if it was the last."""
    over = threading.Event()
    started: list[subprocess.Popen[bytes]] = []

    def watch(rank: int, process: subprocess.Popen[bytes]) -> None:
        code = process.wait()
        needed = not pool.begun or all(each.poll() is not None for each in started)
        if needed and not over.is_set():
            pool.fail(JobFailed(f"executor {rank} ended with exit code {code}; see {log}"))

    grace = END_GRACE
    try:
        _start(job, count, log, token, started)
        for rank, process in enumerate(started, start=1):
            threading.Thread(target=watch, args=(rank, process), daemon=True).start()
        yield
    except BaseException:
        grace = 0.0  # they are in the middle of something that nobody wants any more
        raise
    finally:
        over.set()
        _end(started, grace)


def _start(
    job: ResolvedJob, count: int, log: Path, token: str, started: list[subprocess.Popen[bytes]]
) -> None:
    command = [sys.executable, "-m", "fedsuv_plugin.engine.executor_process", *job.to_argv()]
    with log.open("ab") as output:
        for rank in range(1, count + 1):
            # A session of their own: Ctrl-C is for the aggregator, which tells them when to end.
            process = subprocess.Popen(
                [*command, f"--this_rank={rank}", f"--num_executors={count}"],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
            started.append(process)
            assert process.stdin is not None
            # The pipe stays open: by its end they learn that we are gone.
            process.stdin.write(f"{token}\n".encode())
            process.stdin.flush()


def _end(processes: list[subprocess.Popen[bytes]], grace: float) -> None:
    """Wait until they have ended by themselves, which takes no longer than this."""
    deadline = monotonic() + grace
    for process in processes:
        try:
            process.wait(max(0.0, deadline - monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
    for process in processes:
        process.wait()
        assert process.stdin is not None
        process.stdin.close()
