"""Work over processes that stay: each starts up once and does one piece of work after the other.

    for item, event in over_processes(work, items, workers=2):
        if isinstance(event, Done):
            print(item, event.result)

A worker that dies takes only its own piece of work with it. When the process that started them
ends, however it ends, they end too.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Generic, TypeVar

from fedsuv_plugin.lifeline import end_with

T = TypeVar("T")
R = TypeVar("R")
Tell = Callable[[Any], None]  # says how far a piece of work is
Work = Callable[[T, Tell], R]

END_GRACE = 60.0  # seconds that a worker has to break its work off cleanly
# torch does not survive a fork once it has threads, so processes are spawned.
SPAWN = multiprocessing.get_context("spawn")


@dataclass(frozen=True)
class Begun:
    """The work on an item begins."""


@dataclass(frozen=True)
class Told:
    """How far it is, as the work tells."""

    what: Any


@dataclass(frozen=True)
class Done(Generic[R]):
    """The work is done."""

    result: R


@dataclass(frozen=True)
class Failed:
    """The work ended with an error."""

    error: Exception


class WorkerDied(RuntimeError):
    """A worker process ended in the middle of its work."""


Event = Begun | Told | Done[R] | Failed


def over_processes(
    work: Work[T, R], items: Sequence[T], workers: int | None = None, log: Path | None = None
) -> Iterator[tuple[T, Event[R]]]:
    """What happens to each item, as it happens; begun in the order of the items.

    What the workers print goes to `log`, if one is named. Whoever stops iterating, or presses
    Ctrl-C, has the workers break off what they do: a job ends with its round and a checkpoint."""
    workers = min(workers or os.cpu_count() or 1, len(items))
    rest = iter(items)
    team = [_Worker(work, log) for _ in range(workers)]
    doing: dict[Connection, tuple[_Worker, T]] = {}
    try:
        while True:
            idle = [worker for worker in team if worker.connection not in doing]
            for worker, item in zip(idle, islice(rest, len(idle)), strict=False):
                worker.connection.send(item)
                doing[worker.connection] = (worker, item)
                yield item, Begun()
            if not doing:
                return
            for connection in wait(list(doing)):
                assert isinstance(connection, Connection)
                worker, item = doing[connection]
                event = worker.event()
                if isinstance(event, Done | Failed):
                    del doing[connection]
                if worker.dead:
                    team[team.index(worker)] = _Worker(work, log)
                yield item, event
    finally:
        _end(team, {worker for worker, _ in doing.values()})


def _end(team: Sequence[_Worker], busy: set[_Worker]) -> None:
    """End all workers; those in the middle of something may first bring it to a clean stop."""
    try:
        for worker in team:
            worker.let_go(interrupt=worker in busy)
        for worker in team:
            worker.process.join(END_GRACE)
    finally:  # their time is up, or Ctrl-C was pressed once more
        for worker in team:
            worker.process.kill()
            worker.process.join()


class _Worker:
    """A process, and this end of the pipe to it."""

    def __init__(self, work: Work[Any, Any], log: Path | None):
        self.connection, theirs = SPAWN.Pipe()
        self.dead = False
        self.process = SPAWN.Process(target=_serve, args=(theirs, work, log), daemon=True)
        self.process.start()
        theirs.close()  # or the end of the process would not end the pipe

    def event(self) -> Event[Any]:
        try:
            event: Event[Any] = self.connection.recv()
            return event
        except (EOFError, ConnectionError):
            self.dead = True
            self.process.join()
            code = self.process.exitcode
            return Failed(WorkerDied(f"its process ended with exit code {code}"))

    def let_go(self, interrupt: bool) -> None:
        if interrupt and self.process.is_alive() and self.process.pid is not None:
            os.kill(self.process.pid, signal.SIGINT)
        self.connection.close()


# ---- in the worker's process


def _serve(connection: Connection, work: Work[Any, Any], log: Path | None) -> None:
    # Ctrl-C is for the process that started us; it passes it on to those who are working.
    os.setpgrp()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None
    end_with(parent.sentinel)
    if log is not None:
        _print_to(log)
    _one_thread()
    while True:
        try:
            item = connection.recv()
        except (EOFError, ConnectionError):
            return
        try:
            connection.send(_attempt(work, item, lambda what: connection.send(Told(what))))
        except (KeyboardInterrupt, ConnectionError):
            return


def _attempt(work: Work[Any, Any], item: Any, tell: Tell) -> Done[Any] | Failed:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return Done(work(item, tell))
    except ConnectionError:
        raise  # nobody is listening any more
    except Exception as error:  # whatever it is, the others go on
        return Failed(_sendable(error))
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _sendable(error: Exception) -> Exception:
    """The error, or one that says the same where it cannot cross between processes."""
    from multiprocessing.reduction import ForkingPickler

    try:
        ForkingPickler.loads(ForkingPickler.dumps(error))
    except Exception:  # an exception class may fail in any way when it is made anew
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def _print_to(log: Path) -> None:
    """What this process prints, C libraries included, goes to the end of a file."""
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)


def _one_thread() -> None:
    """With more torch threads than cores, they would fight."""
    import torch

    torch.set_num_threads(1)
