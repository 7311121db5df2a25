"""One round, as data: what each stage makes, and the next one gets.

begin -> probe -> select -> settle -> train -> merge -> judge -> feedback -> record
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedsuv_plugin.engine.merging import Weights


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
class Effort:
    """What the devices of a cohort do in a round; arrays are aligned with its clients, (m,)."""

    times: np.ndarray  # virtual seconds until each is done
    expected: np.ndarray  # the same without this round's fluctuation
    energy: np.ndarray  # joules that each spends, also if it comes too late
    stays: np.ndarray  # bool, whether it is online when it is done
    uploads: np.ndarray  # bool, whether its update then reaches the server: see `upload_success`
    megabytes: float = 0.0  # to and from all of them


def _nobody() -> np.ndarray:
    return np.zeros(0, np.int64)


@dataclass(frozen=True, eq=False)
class OnTheWay:
    """Clients whose updates of earlier rounds have not arrived; arrays are aligned, (p,)."""

    clients: np.ndarray = field(default_factory=_nobody)  # ids, ascending
    seconds: np.ndarray = field(default_factory=lambda: np.zeros(0))  # until each arrives


NOBODY = OnTheWay()


@dataclass(frozen=True, eq=False)
class Settled:
    """Who of the cohort makes it, and what it costs."""

    times: np.ndarray  # (m,) virtual seconds of each client of the cohort
    energy: np.ndarray  # (m,) joules that each spends, also if it comes too late
    due: np.ndarray  # ids whose updates reach the server, in the order of completion
    seconds: float  # how long the round lasts
    megabytes: float = 0.0  # to and from all of them
    # Where updates may come late, the ids of those of the cohort ...
    undrafted: np.ndarray = field(default_factory=_nobody)  # whose updates count a round later
    late: np.ndarray = field(default_factory=_nobody)  # whose updates come in a later round
    lost: np.ndarray = field(default_factory=_nobody)  # who train, and keep what they have trained
    # ... and of those asked before whose updates come now: to be merged, or to count a round later.
    arrived: np.ndarray = field(default_factory=_nobody)
    arrived_undrafted: np.ndarray = field(default_factory=_nobody)

    @property
    def joules(self) -> float:
        return float(self.energy.sum())

    @property
    def working(self) -> np.ndarray:
        """The ids of all who train in this round, whenever their updates count."""
        return np.concatenate([self.due, self.undrafted, self.late, self.lost])


@dataclass(frozen=True)
class LateUpdate:
    """An update of an earlier round that was merged in this one."""

    client: int
    asked_in: int  # the round
    staleness: int  # rounds since then
    weight: float  # its say beside that of a fresh update


@dataclass(frozen=True)
class Spent:
    """What some updates have cost their clients."""

    client_time: float = 0.0  # virtual seconds
    energy_joules: float = 0.0

    def __add__(self, other: Spent) -> Spent:
        return Spent(self.client_time + other.client_time, self.energy_joules + other.energy_joules)


@dataclass(frozen=True)
class Late:
    """What became of updates that missed their round."""

    merged: tuple[LateUpdate, ...]
    waiting: frozenset[int]  # clients whose work is not lost: it is merged in a later round
    on_the_way: tuple[int, ...]  # of these, those whose updates have not arrived
    under_way: Spent  # what these have cost
    dropped: Spent = Spent()  # what updates had cost that were given up in this round


NO_LATE = Late((), frozenset(), (), Spent())


@dataclass(frozen=True, eq=False)
class Trained:
    """What the clients reported, without their weights; those who sent rubbish are left out."""

    reports: Mapping[int, dict[str, Any]]  # client -> FedScale's result, in the order of merging
    model: Weights | None = None  # what came of it, before the gradient_policy; none: nothing did
    late: Late | None = None  # of a protocol in which updates may come late

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
    def wasted(self) -> Spent:
        """What went into work that no model is made of, as far as it is known after this round.

        It is that of those who were late, lost or sent rubbish; where updates may come late also
        that of updates that were given up in this round, whenever they were asked for."""
        late = self.trained.late or NO_LATE
        useful = [*self.trained.reports, *late.waiting]
        lost = ~np.isin(self.cohort.clients, useful)
        times = self.settled.times[lost].sum()
        return late.dropped + Spent(float(times), float(self.settled.energy[lost].sum()))

    @property
    def valid_share(self) -> float:
        """Of those who were asked, how many had their update merged; 0 if nobody was asked."""
        asked = len(self.cohort.clients)
        return len(self.trained.reports) / asked if asked else 0.0
