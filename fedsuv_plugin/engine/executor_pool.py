"""Who works: the executors of a job, the tasks that wait, are out or have come back.

The aggregator's thread hands in tasks and waits for results. Executors ask for their next event
and deliver results, each from a thread of the gRPC server or, in one process, by plain calls.

An executor holds a lease and renews it all the time, also while it works. When its lease ends, by
silence or with its connection, it is given up: the task that was out to it goes to another, and it
may register again. A task is out to one executor at a time, so nothing counts twice.
"""

from __future__ import annotations

import itertools
import logging
import math
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any

import numpy as np

from fedsuv_plugin.engine.stock import commons
from fedsuv_plugin.engine.task import NOTHING, Event, Result, Task

GOODBYE_SECONDS = 5.0  # executors have so long to hear that the job is over


class JobFailed(RuntimeError):
    """The job cannot go on; the run directory is intact and the job can be resumed."""


class NotRegistered(Exception):
    """An executor that calls has no lease, or has none any more; it may register again."""


class Refused(Exception):
    """An executor must not take part, for this reason."""


@dataclass(eq=False)
class Lease:
    """An executor that is there: until when, what it has, and what it does."""

    executor: str
    expires: float  # monotonic seconds
    model: int = 0  # the number of the model that it was sent last
    task: Task | None = None  # what is out to it
    told: bool = False  # that the job is over


class ExecutorPool:
    """Executors, the model they are to have, and the tasks they share.

    An executor that is silent for `executor_timeout` seconds is given up. A job without any waits
    for one for `connection_timeout` seconds."""

    def __init__(self, executor_timeout: float = math.inf, connection_timeout: float = math.inf):
        self.sizes = np.zeros(0, np.int64)  # training samples of each client, as executors report
        self.begun = False  # the executors that were expected have come
        self._executor_timeout = executor_timeout
        self._connection_timeout = connection_timeout
        self._lock = threading.RLock()  # guards everything below
        self._to_do = threading.Condition(self._lock)  # executors wait for it
        self._news = threading.Condition(self._lock)  # the aggregator waits for it
        self._leases: dict[str, Lease] = {}
        self._empty_since = monotonic()
        self._last_loss = "none has come yet"  # why an executor was given up or refused
        self._model: tuple[int, list[np.ndarray]] | None = None  # round it is for, and weights
        self._model_number = 0
        self._numbers = itertools.count(1)  # of tasks
        self._waiting: deque[Task] = deque()
        self._results: dict[int, Any] = {}  # number of the task -> what came of it
        self._failure: Exception | None = None
        self._over = False

    def __len__(self) -> int:
        return len(self._leases)

    @property
    def shares(self) -> int:
        """Into how many tasks to divide work: one for every executor that is there now."""
        return max(1, len(self))

    # ---- called by executors, from any thread

    def admit(self, executor: str, sizes: np.ndarray) -> None:
        """An executor is there, or there again: it gets the model, and has no task.

        The clients' sizes are those that the first one reported."""
        with self._lock:
            if not len(self.sizes):
                self.sizes = np.asarray(sizes, np.int64)
            elif not np.array_equal(self.sizes, sizes):
                reason = _apart(self.sizes, sizes)
                self.note_refusal(executor, reason)
                raise Refused(reason)
            if executor in self._leases:
                self._end(self._leases[executor], "registered again")
            self._leases[executor] = Lease(executor, monotonic() + self._executor_timeout)
            self._news.notify_all()

    def note_refusal(self, executor: str, reason: str) -> None:
        """Somebody could not be admitted. If nobody else comes, the job says why."""
        logging.warning("refused executor %s: %s", executor, reason)
        with self._lock:
            self._last_loss = f"executor {executor} was refused: {reason}"

    def renew(self, executor: str) -> Lease:
        """An executor is alive."""
        with self._lock:
            lease = self._lease_of(executor)
            lease.expires = monotonic() + self._executor_timeout
            return lease

    def give_up(self, lease: Lease, reason: str) -> None:
        """End a lease, unless it has ended: somebody else gets the task."""
        with self._lock:
            if self._leases.get(lease.executor) is lease:
                self._end(lease, reason)
                self._news.notify_all()

    def next_event(self, executor: str, wait: float) -> Event:
        """What an executor does next; NOTHING if there is nothing to do for `wait` seconds.

        The current model always comes before a task, so no task is done with an older one."""
        with self._lock:
            lease = self._lease_of(executor)
            self._take_back(lease)  # it asks, so it never got that task, or lost what came of it
            if not self._to_do.wait_for(lambda: self._has_event(lease), timeout=wait):
                return NOTHING
            if self._leases.get(executor) is not lease:
                raise NotRegistered(f"executor {executor} was given up")
            if self._over:
                lease.told = True
                self._news.notify_all()
                return Event(commons.SHUT_DOWN, None, None)
            if lease.model != self._model_number:
                assert self._model is not None
                round_number, weights = self._model
                lease.model = self._model_number
                return Event(commons.UPDATE_MODEL, {"round": round_number}, weights)
            lease.task = self._waiting.popleft()
            return lease.task.to_event()

    def _has_event(self, lease: Lease) -> bool:
        gone = self._leases.get(lease.executor) is not lease
        behind = lease.model != self._model_number
        return gone or self._over or behind or bool(self._waiting)

    def task_of(self, executor: str) -> Task | None:
        """The task that is out to an executor."""
        with self._lock:
            return self._lease_of(executor).task

    def deliver(self, executor: str, result: Result) -> None:
        """What came of a task. It counts if that task is out to this executor."""
        with self._lock:
            lease = self._lease_of(executor)
            if lease.task is None or lease.task.number != result.task:
                logging.info("executor %s: nobody waits for its result", executor)
                return
            lease.task = None
            if result.error is None:
                self._results[result.task] = result.value
                self._news.notify_all()
            else:
                self.fail(JobFailed(f"executor {executor} failed: {result.error}"))

    def fail(self, error: Exception) -> None:
        """The job ends with this error."""
        with self._lock:
            self._failure = self._failure or error
            self._news.notify_all()

    def _lease_of(self, executor: str) -> Lease:
        if executor not in self._leases:
            raise NotRegistered(f"executor {executor} has not registered, or was given up")
        return self._leases[executor]

    def _end(self, lease: Lease, reason: str) -> None:
        del self._leases[lease.executor]
        if lease.told:
            return
        logging.warning("executor %s is given up: %s", lease.executor, reason)
        self._last_loss = f"executor {lease.executor}: {reason}"
        self._empty_since = monotonic()
        self._take_back(lease)
        self._to_do.notify_all()  # a call of its own may be waiting

    def _take_back(self, lease: Lease) -> None:
        """The task that is out to an executor is the next to be given to anyone."""
        if lease.task is not None:
            self._waiting.appendleft(lease.task)
            lease.task = None
            self._to_do.notify_all()

    # ---- called by the aggregator

    def wait_for_executors(self, expected: int, timeout: float) -> None:
        """Return when so many executors are there; fail if they do not come."""
        end = monotonic() + timeout
        with self._lock:
            if not self._wait_until(lambda: len(self) >= expected, lambda: end):
                raise JobFailed(
                    f"expected {expected} executors within {timeout:g} s, {len(self)} came "
                    f"({self._last_loss}); see connection_timeout"
                )
            self.begun = True

    def publish(self, round_number: int, weights: list[np.ndarray]) -> None:
        """Every executor gets this model once, not with every task."""
        with self._lock:
            self._model = (round_number, weights)
            self._model_number += 1
            self._to_do.notify_all()

    def task(
        self,
        kind: str,
        clients: Sequence[int] | np.ndarray = (),
        states: Mapping[int, Any] | None = None,
        **settings: Any,
    ) -> Task:
        """A new task, to be handed to `run`."""
        ids = np.asarray(clients, np.int64)
        return Task(next(self._numbers), kind, ids, settings, states or {})

    def run(self, tasks: Sequence[Task], consume: Callable[[Any], None]) -> None:
        """Have every task done, and consume what came of them in the order of `tasks`.

        Executors finish in any order. Results that are early wait, so that sums come out the
        same whoever was faster."""
        with self._lock:
            self._waiting.extend(tasks)
            self._to_do.notify_all()
        for task in tasks:
            consume(self._result_of(task))

    def _result_of(self, task: Task) -> Any:
        with self._lock:
            if not self._wait_until(lambda: task.number in self._results, self._end_of_patience):
                raise JobFailed(
                    f"no executor is left ({self._last_loss}), and none came within "
                    f"{self._connection_timeout:g} s; see connection_timeout"
                )
            return self._results.pop(task.number)

    def _end_of_patience(self) -> float:
        return math.inf if self._leases else self._empty_since + self._connection_timeout

    def _wait_until(self, done: Callable[[], bool], end: Callable[[], float]) -> bool:
        """Wait for it, and give up executors whose leases run out; False: it is too late."""
        while True:
            if self._failure is not None:
                raise self._failure
            if done():
                return True
            now = monotonic()
            silent = [lease for lease in self._leases.values() if lease.expires <= now]
            for lease in silent:
                self._end(lease, f"silent for {self._executor_timeout:g} s")
            if silent:
                continue
            if now >= end():
                return False
            self._wait(min([end(), *(lease.expires for lease in self._leases.values())]) - now)

    def _wait(self, seconds: float) -> None:
        self._news.wait(None if math.isinf(seconds) else seconds)

    def shut_down(self) -> None:
        """Tell every executor that the job is over."""
        with self._lock:
            self._over = True
            self._to_do.notify_all()
        self._say_goodbye()

    def _say_goodbye(self) -> None:
        """Wait until all have heard it, except those in the middle of something."""
        with self._lock:
            self._news.wait_for(
                lambda: all(lease.told or lease.task for lease in self._leases.values()),
                GOODBYE_SECONDS,
            )


def _apart(here: np.ndarray, there: np.ndarray) -> str:
    """How an executor's data differ from those of the first."""
    if len(here) != len(there):
        return f"other data: {len(here)} clients here, {len(there)} there"
    client = int(np.flatnonzero(here != there)[0])
    return f"other data: client {client + 1} has {here[client]} samples here, {there[client]} there"
