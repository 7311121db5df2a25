"""A job, from its config to a finished run directory, on one of the launchers."""

from __future__ import annotations

import logging
import signal
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from fedsuv_plugin.config.argv import Place
from fedsuv_plugin.config.job import Job
from fedsuv_plugin.config.resolved import ResolvedJob
from fedsuv_plugin.engine import fedscale_env
from fedsuv_plugin.errors import UserError
from fedsuv_plugin.records import RunDirectory

if TYPE_CHECKING:
    from fedsuv_plugin.engine.aggregator import PluginAggregator

OnRound = Callable[[dict[str, Any], "dict[str, Any] | None"], None]


def fedscale_args(job: ResolvedJob, place: Place, events: Path | None = None) -> Namespace:
    """The namespace FedScale's classes read."""
    config = job.config
    if config.use_cuda and place.this_rank > 0 and not torch.cuda.is_available():
        raise UserError("use_cuda: expected false on a machine without a usable GPU, got True")
    return fedscale_env.set_args(
        {
            **job.extra,
            **asdict(config),
            **asdict(place),
            "ps_port": str(config.ps_port),
            "needs": job.needs,
            "selector_params": job.selector_params,
            "event_dir": str(events) if events else "",
        }
    )


def run_job(
    run: RunDirectory,
    launcher: str = "loopback",
    executors: int = 1,
    on_round: OnRound = lambda record, metrics: None,
) -> bool:
    """Run the job of a run directory to its end, or on from its last checkpoint. False: stopped early on request."""
    from fedsuv_plugin.engine.launchers import loopback, processes

    launch = {"loopback": loopback.launch, "processes": processes.launch}[launcher]
    with closing(run), _log_to(run.path / "log"):
        return launch(run, executors, on_round)


def run_aggregator(job: Job, place: Place) -> None:
    """The aggregator of a job whose executors somebody else starts."""
    from fedsuv_plugin.engine.aggregator import PluginAggregator

    run = RunDirectory.create(job, place.time_stamp)
    job = run.job
    with closing(run), _log_to(run.path / "log"):
        aggregator = PluginAggregator(job, fedscale_args(job, place, run.events), run)
        with stop_on_interrupt(aggregator):
            aggregator.run()


@contextmanager
def stop_on_interrupt(aggregator: PluginAggregator) -> Iterator[None]:
    """The first Ctrl-C lets the round finish and writes a checkpoint; the second stops at once."""

    def handler(number: int, frame: object) -> None:
        if aggregator.stop_after_round.is_set():
            raise KeyboardInterrupt
        aggregator.stop_after_round.set()
        print(
            f"\nstopping after round {aggregator.round}; press Ctrl-C again to stop at once",
            file=sys.stderr,
        )

    try:
        previous = signal.signal(signal.SIGINT, handler)
    except ValueError:  # not the main thread: whoever runs us has the say
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


@contextmanager
def _log_to(path: Path) -> Iterator[None]:
    """FedScale logs to the root logger; while the job runs that goes to its run directory."""
    handler = logging.FileHandler(path)
    handler.setFormatter(
        logging.Formatter("%(asctime)s %(levelname)-8s [%(filename)s:%(lineno)d] %(message)s")
    )
    root, level = logging.getLogger(), logging.getLogger().level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    try:
        yield
    finally:
        root.removeHandler(handler)
        root.setLevel(level)
        handler.close()
