"""Launchers: what starts the aggregator and the executors of a job, one file each.

Every launcher has `launch(run, executors, on_round) -> bool`; its file's name is what
`fedsuv run --launcher` takes. The numbers are the same on all of them.
"""

from __future__ import annotations

import importlib
import logging
import pkgutil
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from fedsuv_plugin.errors import UserError
from fedsuv_plugin.run_directory import RunDirectory

if TYPE_CHECKING:
    from fedsuv_plugin.config.argv import Place
    from fedsuv_plugin.engine.aggregator import OnRound

LAUNCHERS = sorted(module.name for module in pkgutil.iter_modules(__path__))


def run_job(
    run: RunDirectory,
    launcher: str = "loopback",
    executors: int = 1,
    on_round: OnRound = lambda record, metrics: None,
) -> bool:
    """Run the job of a run directory to its end, or on from its last checkpoint.

    False: it was stopped on request, and can be resumed. A new job that is refused leaves no
    directory behind."""
    module = importlib.import_module(f"{__name__}.{launcher}")
    with _refused_leaves_nothing(run), closing(run), _log_to(run.path / "log"):
        finished: bool = module.launch(run, executors, on_round)
        return finished


def run_aggregator(run: RunDirectory, place: Place) -> bool:
    """The aggregator of a job whose executors somebody else starts, e.g. FedScale's driver.

    False: it was stopped on request, and can be resumed."""
    from fedsuv_plugin.engine.aggregator import PluginAggregator
    from fedsuv_plugin.engine.executor_pool import ExecutorPool
    from fedsuv_plugin.engine.grpc_service import GrpcService
    from fedsuv_plugin.engine.interrupts import stop_on_interrupt
    from fedsuv_plugin.engine.secret import token_of_environment

    config = run.job.config
    pool = ExecutorPool(config.executor_timeout, config.connection_timeout)
    with _refused_leaves_nothing(run), closing(run), _log_to(run.path / "log"):
        aggregator = PluginAggregator(run.job, place, pool, run)
        with (
            GrpcService(pool, run.job, token_of_environment()),
            stop_on_interrupt(aggregator),
        ):
            aggregator.run()
    return aggregator.finished


def aggregator_main(argv: list[str]) -> int:
    """An aggregator process, as FedScale's driver starts it."""
    from fedsuv_plugin.config.argv import from_argv
    from fedsuv_plugin.engine.executor_pool import JobFailed

    try:
        job, place = from_argv(argv)
        run = RunDirectory.create(job, place.time_stamp)
    except UserError as error:
        print(f"aggregator: {error}", file=sys.stderr)
        return 2
    how_to_go_on = f"resume with: fedsuv run --resume {run.path}"
    try:
        finished = run_aggregator(run, place)
    except UserError as error:
        print(f"aggregator: {error}", file=sys.stderr)
        return 2
    except JobFailed as error:
        print(f"aggregator: {error}; {how_to_go_on}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        finished = False
    if not finished:
        print(f"aggregator: stopped; {how_to_go_on}", file=sys.stderr)
        return 130
    return 0


@contextmanager
def _refused_leaves_nothing(run: RunDirectory) -> Iterator[None]:
    """A job that cannot run, for what its user can mend, has nothing to go on from."""
    try:
        yield
    except UserError:
        run.discard()
        raise
    except (MemoryError, OverflowError) as error:
        run.discard()
        raise UserError(f"the job is too large for this machine ({error})") from error


@contextmanager
def _log_to(path: Path) -> Iterator[None]:
    """FedScale logs to the root logger; while the job runs that goes to its run directory."""
    handler = logging.FileHandler(path)
    layout = "%(asctime)s %(levelname)-8s [%(filename)s:%(lineno)d] %(message)s"
    handler.setFormatter(logging.Formatter(layout))
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    try:
        yield
    finally:
        root.removeHandler(handler)
        root.setLevel(level)
        handler.close()
