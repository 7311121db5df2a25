"""Aggregator here, executors as processes of their own, over gRPC on this machine."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from fedsuv_plugin.config.argv import Place
from fedsuv_plugin.config.job import Job
from fedsuv_plugin.engine.aggregator import JobFailed, PluginAggregator
from fedsuv_plugin.job import fedscale_args, stop_on_interrupt
from fedsuv_plugin.records import RunDirectory

if TYPE_CHECKING:
    from fedsuv_plugin.job import OnRound

END_GRACE = 10.0  # seconds an executor has to end by itself once the job is over


def launch(run: RunDirectory, executors: int, on_round: OnRound) -> bool:
    job = run.job.with_values(ps_ip="127.0.0.1", ps_port=free_port())
    place = Place(this_rank=0, num_executors=executors, executor_configs=f"127.0.0.1:[{executors}]")
    aggregator = PluginAggregator(job, fedscale_args(job, place, run.events), run, on_round)
    with stop_on_interrupt(aggregator), _executors(job, executors, run, aggregator):
        aggregator.run()
    return aggregator.round == job.config.rounds


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def _executors(
    job: Job, count: int, run: RunDirectory, aggregator: PluginAggregator
) -> Iterator[None]:
    """The executor processes; if one ends before its time the aggregator is told, so that it does not wait for ever."""
    over = threading.Event()

    def watch(rank: int, process: subprocess.Popen[bytes]) -> None:
        if process.wait() and not over.is_set():
            aggregator.fail(
                JobFailed(f"executor {rank} ended with exit code {process.returncode}; see {log}")
            )

    log = run.path / "executors.log"
    with log.open("ab") as output:
        # A session of their own: Ctrl-C is for the aggregator, which tells them when to end.
        started = [
            subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "fedsuv_plugin.engine.executor",
                    *job.to_argv(),
                    f"--this_rank={rank}",
                    f"--num_executors={count}",
                ],
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
            for rank in range(1, count + 1)
        ]
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
