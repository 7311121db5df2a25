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

import numpy as np
import torch

from fedsuv_plugin import registry
from fedsuv_plugin.config import Job, Place
from fedsuv_plugin.engine import fedscale_env
from fedsuv_plugin.errors import UserError
from fedsuv_plugin.records import RunDirectory
from fedsuv_plugin.selectors.base import INTERVIEW_ACCURACY, OPINIONS, PUBLIC_LOSS
from fedsuv_plugin.tasks import FederatedData

if TYPE_CHECKING:
    from fedsuv_plugin.engine.aggregator import PluginAggregator

OnRound = Callable[[dict[str, Any], "dict[str, Any] | None"], None]
KEPT_WHEN_NEEDED = {  # job key -> (what a selector may need it for, the share then kept where the job is silent)
    "holdout_fraction": (OPINIONS, 0.2),
    "interview_fraction": (INTERVIEW_ACCURACY, 0.2),
    "public_fraction": (PUBLIC_LOSS, 0.05),
}


def fedscale_args(job: Job, place: Place, events: Path | None = None) -> Namespace:
    """The namespace FedScale's classes read: every key of the job, who this process is, and what clients compute."""
    config = job.config
    if (
        config.use_cuda and place.this_rank > 0 and not torch.cuda.is_available()
    ):  # rank 0, the aggregator, needs none
        raise UserError("use_cuda: expected false on a machine without a usable GPU, got True")
    return fedscale_env.set_args(
        {
            **job.extra,
            **asdict(config),
            **asdict(place),
            **kept_shares(job),
            "ps_port": str(config.ps_port),
            "needs": registry.required(config.sample_mode, job.params_of),
            "event_dir": str(events) if events else "",
            **{
                f"{name}.{key}": value
                for name, params in job.selector_params.items()
                for key, value in params.items()
            },
        }
    )


def kept_shares(job: Job) -> dict[str, float]:
    """The shares of the data that are kept from training, as the job says or the selector needs them."""
    needs = registry.required(job.config.sample_mode, job.params_of)
    kept = {
        key: share * (need in needs)
        if getattr(job.config, key) is None
        else getattr(job.config, key)
        for key, (need, share) in KEPT_WHEN_NEEDED.items()
    }
    if job.config.public_data_set is not None:
        kept["public_fraction"] = 0.0  # the clients keep what is theirs
    return kept


def training_sizes(job: Job) -> np.ndarray:
    """How many samples each client of a job trains on; loads its data."""
    kept = kept_shares(job)
    data = FederatedData(
        job.config,
        torch.device("cpu"),
        kept["holdout_fraction"],
        kept["interview_fraction"],
        kept["public_fraction"],
    )
    return data.getSize()["size"]


def run_job(
    run: RunDirectory,
    launcher: str = "loopback",
    executors: int = 1,
    on_round: OnRound = lambda record, metrics: None,
) -> bool:
    """Run the job of a run directory to its end, or on from its last checkpoint. False: stopped early on request."""
    from fedsuv_plugin.engine import loopback, processes

    launch = {"loopback": loopback.launch, "processes": processes.launch}[launcher]
    with closing(run), _log_to(run.path / "log"):
        return launch(run, executors, on_round)


def run_aggregator(job: Job, place: Place) -> None:
    """The aggregator of a job whose executors somebody else starts."""
    from fedsuv_plugin.engine.aggregator import PluginAggregator

    run = RunDirectory.create(job, place.time_stamp)
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
