"""What passes between the aggregator and its executors: tasks, what came of them, and events."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from fedsuv_plugin.engine.stock import commons
from fedsuv_plugin.errors import shown
from fedsuv_plugin.selectors.signals import OPINIONS

TRAIN = commons.CLIENT_TRAIN
TEST = commons.MODEL_TEST
PROBE = "client_probe"  # our one addition to FedScale's events


class Event(NamedTuple):
    """One of FedScale's messages to an executor: what to do, and with what."""

    name: str  # one of FedScale's event names, or PROBE
    meta: Any
    data: Any


NOTHING = Event(commons.DUMMY_EVENT, None, None)


@dataclass(frozen=True, eq=False)
class Task:
    """Work for one client or for a group of them, done with the model that was published last.

    >>> task = Task(7, TRAIN, np.array([3]), {"round": 1})
    >>> Task.from_event(task.to_event()).number
    7
    """

    number: int  # executors answer it
    kind: str  # TRAIN, TEST or PROBE
    clients: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))  # FedScale's ids
    settings: Mapping[str, Any] = field(default_factory=dict)  # e.g. the round, the learning rate
    # What some clients carry with them, by name; a "model" is where the client starts.
    states: Mapping[int, Any] = field(default_factory=dict)

    def to_event(self) -> Event:
        meta = {"task": self.number, "clients": self.clients, "settings": dict(self.settings)}
        return Event(self.kind, meta, dict(self.states))

    @classmethod
    def from_event(cls, event: Event) -> Task:
        meta = event.meta
        return cls(meta["task"], event.name, meta["clients"], meta["settings"], event.data)

    def misfit(self, value: object) -> str:
        """Why a value cannot be what came of this task; empty if it is of the shape asked for.

        Whether the numbers in it are finite and fit the model is for whoever uses them."""
        if not isinstance(value, Mapping) or not all(type(key) is int for key in value):
            return "expected an answer by client or by chunk"
        if self.kind == TEST:
            return self._misfit_of_chunks(value)
        asked = set(self.clients.tolist())
        some_may_be_missing = self.settings.get("probe") == OPINIONS
        if not (value.keys() <= asked and (some_may_be_missing or value.keys() == asked)):
            return f"expected the clients {shown(sorted(asked), 60)}, got {shown(list(value), 60)}"
        is_answer = _is_report if self.kind == TRAIN else _is_numeric
        wrong = next((client for client, answer in value.items() if not is_answer(answer)), None)
        return "" if wrong is None else f"client {wrong}: expected {is_answer.__doc__}"

    def _misfit_of_chunks(self, chunks: Mapping[int, object]) -> str:
        first = self.settings["first"]
        every = self.settings["every"]
        if sorted(chunks) != list(range(first, first + every * len(chunks), every)):
            return (
                f"expected the chunks {first}, {first + every}, ..., got {shown(list(chunks), 60)}"
            )
        wrong = next((chunk for chunk, counts in chunks.items() if not _is_counts(counts)), None)
        return "" if wrong is None else f"chunk {wrong}: expected {_is_counts.__doc__}"


@dataclass(frozen=True, eq=False)
class Result:
    """What an executor made of a task; or why it failed, and then the job ends with that reason."""

    task: int
    kind: str
    value: Any = None  # client -> its answer, or for TEST chunk -> counts
    error: str | None = None


def _is_numeric(value: object) -> bool:
    """a number or an array of numbers"""
    if isinstance(value, np.ndarray | np.generic):
        return value.dtype.kind in "fiub"
    return isinstance(value, int | float)


def _is_report(value: object) -> bool:
    """moving_loss and utility as numbers, update_weight and signals as arrays by name"""
    if not isinstance(value, Mapping):
        return False
    numbers = (value.get("moving_loss"), value.get("utility"))
    tables = (value.get("update_weight"), value.get("signals"))
    return all(isinstance(number, int | float) for number in numbers) and all(
        isinstance(table, Mapping) and all(map(_is_numeric, table.values())) for table in tables
    )


def _is_counts(value: object) -> bool:
    """test_len >= top_5 >= top_1 >= 0 as integers, and test_loss as a number"""
    if not isinstance(value, Mapping) or not isinstance(value.get("test_loss"), int | float):
        return False
    counts = [value.get(name) for name in ("test_len", "top_5", "top_1")]
    if not all(type(count) is int for count in counts):
        return False
    return counts[0] >= counts[1] >= counts[2] >= 0  # type: ignore[operator]
