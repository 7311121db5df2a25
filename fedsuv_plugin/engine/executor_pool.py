"""Who works: the executors of a job, the tasks that wait, are out or have come back.

The aggregator's thread hands in tasks and waits for results. Executors ask for their next event
and deliver results, each from a thread of the gRPC server or, in one process, by plain calls.
"""

from __future__ import annotations

import itertools
import queue
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fedsuv_plugin.engine.stock import commons
from fedsuv_plugin.engine.task import NOTHING, Event, Result, Task

GOODBYE_SECONDS = 5.0  # executors have so long to hear that the job is over


class JobFailed(RuntimeError):
    """An executor failed or went away; the run directory is intact and the job can be resumed."""


class ExecutorPool:
    """Executors, the model they are to have, and the tasks they share."""

    def __init__(self) -> None:
        self.sizes = np.zeros(0, np.int64)  # training samples of each client, as executors report
        self._changed = threading.Condition()  # guards everything below
        self._has_model: dict[str, int] = {}  # executor -> number of the model it was sent last
        self._model: tuple[int, list[np.ndarray]] | None = None  # round it is for, and weights
        self._model_number = 0
        self._numbers = itertools.count(1)  # of tasks
        self._waiting: deque[Task] = deque()
        self._results: queue.SimpleQueue[Result | Exception] = queue.SimpleQueue()
        self._over = False
        self._told: set[str] = set()  # executors that heard that the job is over

    def __len__(self) -> int:
        return len(self._has_model)

    # ---- called by executors, from any thread

    def admit(self, executor: str, sizes: np.ndarray) -> None:
        """An executor is there. One that comes a second time is the same one again."""
        with self._changed:
            self._has_model.setdefault(executor, 0)
            self.sizes = np.asarray(sizes, np.int64)
            self._changed.notify_all()

    def next_event(self, executor: str, wait: float) -> Event:
        """What an executor does next; NOTHING if there is nothing to do for `wait` seconds.

        The current model always comes before a task, so no task is done with an older one."""
        with self._changed:
            if executor not in self._has_model:
                raise KeyError(f"executor {executor} has not registered")
            if not self._changed.wait_for(lambda: self._has_event(executor), timeout=wait):
                return NOTHING
            if self._over:
                self._told.add(executor)
                self._changed.notify_all()
                return Event(commons.SHUT_DOWN, None, None)
            if self._has_model[executor] != self._model_number:
                assert self._model is not None
                round_number, weights = self._model
                self._has_model[executor] = self._model_number
                return Event(commons.UPDATE_MODEL, {"round": round_number}, weights)
            return self._waiting.popleft().to_event()

    def _has_event(self, executor: str) -> bool:
        behind = self._has_model[executor] != self._model_number
        return self._over or behind or bool(self._waiting)

    def deliver(self, executor: str, result: Result) -> None:
        if result.error is not None:
            self.fail(JobFailed(f"executor {executor} failed: {result.error}"))
        else:
            self._results.put(result)

    def fail(self, error: Exception) -> None:
        """The job ends with this error."""
        self._results.put(error)
        with self._changed:
            self._changed.notify_all()

    # ---- called by the aggregator

    def wait_for_executors(self, expected: int, timeout: float) -> None:
        """Return when so many executors are there; fail if they do not come."""
        with self._changed:
            self._changed.wait_for(
                lambda: len(self) == expected or not self._results.empty(), timeout
            )
        if not self._results.empty():
            self._next_result()
        if len(self) != expected:
            raise JobFailed(
                f"expected {expected} executors within {timeout} s, {len(self)} came; "
                "see connection_timeout"
            )

    def publish(self, round_number: int, weights: list[np.ndarray]) -> None:
        """Every executor gets this model once, not with every task."""
        with self._changed:
            self._model = (round_number, weights)
            self._model_number += 1
            self._changed.notify_all()

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
        with self._changed:
            self._waiting.extend(tasks)
            self._changed.notify_all()
        early: dict[int, Any] = {}
        for task in tasks:
            while task.number not in early:
                result = self._next_result()
                early[result.task] = result.value
            consume(early.pop(task.number))

    def _next_result(self) -> Result:
        result = self._await_result()
        if isinstance(result, Exception):
            raise result
        return result

    def _await_result(self) -> Result | Exception:
        return self._results.get()

    def shut_down(self) -> None:
        """Tell every executor that the job is over."""
        with self._changed:
            self._over = True
            self._changed.notify_all()
        self._say_goodbye()

    def _say_goodbye(self) -> None:
        """Wait until all have heard it."""
        with self._changed:
            self._changed.wait_for(lambda: self._told == self._has_model.keys(), GOODBYE_SECONDS)
