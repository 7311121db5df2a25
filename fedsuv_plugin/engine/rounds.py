"""One round, as data: what each stage makes, and the next one gets.

begin -> probe -> select -> settle -> train -> merge -> judge -> feedback -> record
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Judgement:
    """How good the global model is, as far as anybody asked."""

    accuracy: float | None = None  # as the selector hears it
    loss: float | None = None
    metrics: Mapping[str, Any] | None = None  # the line of metrics.jsonl, where one was due


@dataclass(frozen=True)
class Round:
    """A round that begins."""

    number: int  # 1, 2, ...
    clock: float  # virtual seconds since the job began
    seats: int  # how many clients are asked
    cohort_size: int  # how many that is outside a warm-up
    wanted: int | None  # how many of them are aggregated; none: all who make it
    learning_rate: float
    judgement: Judgement  # of the model it begins with


@dataclass(frozen=True)
class Bill:
    """What clients did beside the training that goes into the model."""

    clients: int = 0  # answers that were asked for; a client asked twice counts twice
    client_time: float = 0.0  # virtual seconds
    energy_joules: float = 0.0
    megabytes: float = 0.0

    def __add__(self, other: Bill) -> Bill:
        return Bill(
            self.clients + other.clients,
            self.client_time + other.client_time,
            self.energy_joules + other.energy_joules,
            self.megabytes + other.megabytes,
        )


@dataclass(frozen=True, eq=False)
class Cohort:
    """Those who are asked to train."""

    clients: np.ndarray  # (m,) FedScale's ids, ascending
    select_seconds: float  # of wall time, to choose them


@dataclass(frozen=True, eq=False)
class Settled:
    """Who of the cohort makes it, and what it costs."""

    times: np.ndarray  # (m,) virtual seconds of each client of the cohort
    energy: np.ndarray  # (m,) joules that each spends, also if it comes too late
    due: np.ndarray  # ids whose updates reach the server, in the order of completion
    seconds: float  # how long the round lasts
    megabytes: float = 0.0  # to and from all of them

    @property
    def joules(self) -> float:
        return float(self.energy.sum())


@dataclass(frozen=True, eq=False)
class Trained:
    """What the clients reported, without their weights; those who sent rubbish are left out."""

    reports: Mapping[int, dict[str, Any]]  # client -> FedScale's result, in the order of merging

    @property
    def mean_loss(self) -> float | None:
        losses = [report["moving_loss"] for report in self.reports.values()]
        return float(np.mean(losses)) if losses else None

    @property
    def mean_utility(self) -> float:
        utilities = [report["utility"] for report in self.reports.values()]
        return float(np.mean(utilities)) if utilities else 0.0


@dataclass(frozen=True, eq=False)
class Played:
    """A round that is over."""

    round: Round
    cohort: Cohort
    settled: Settled
    trained: Trained
    judgement: Judgement  # of the model it ends with
    probing: Bill = Bill()  # questions before it, and what was measured along with updates

    @property
    def wasted(self) -> np.ndarray:
        """Of those who were asked, whose work went into no model, (m,) bool."""
        return ~np.isin(self.cohort.clients, list(self.trained.reports))

    @property
    def valid_share(self) -> float:
        """Of those who were asked, how many had their update merged; 0 if nobody was asked."""
        asked = len(self.cohort.clients)
        return len(self.trained.reports) / asked if asked else 0.0
