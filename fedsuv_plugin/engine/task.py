"""What passes between the aggregator and its executors: tasks, what came of them, and events."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from fedsuv_plugin.engine.stock import commons

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


@dataclass(frozen=True, eq=False)
class Result:
    """What an executor made of a task; or why it failed, and then the job ends with that reason."""

    task: int
    kind: str
    value: Any = None  # client -> its answer, or for TEST chunk -> counts
    error: str | None = None
