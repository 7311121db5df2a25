"""The contract of a selector: arrays in, rows out.

A row indexes the client table. A selector knows nothing of FedScale, files or clocks: it gets a
view of the round, returns rows, and learns from the outcome. Everything random comes from the
generator it is given.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from fedsuv_plugin.params import NoParams
from fedsuv_plugin.params import Params as AnyParams
from fedsuv_plugin.selectors.signals import PROBES, refuse_unknown_signals

# What becomes of the work of those who are asked: see engine/protocols.
SYNCHRONOUS = "synchronous"  # who misses the round is not merged
LATE_UPDATES = "late_updates"  # who misses it is merged in the round in which the update arrives
SAFA = "safa"  # everyone online trains, and the server keeps a model of every client
PROTOCOLS = (SYNCHRONOUS, LATE_UPDATES, SAFA)


def _nobody() -> np.ndarray:
    return np.zeros(0, np.int64)


@dataclass(frozen=True)
class ClientTable:
    """What the server knows of the n clients before any feedback; row i is client ids[i]."""

    ids: np.ndarray  # (n,) int64, FedScale's ids, 1-based
    samples: np.ndarray  # (n,) int64, training samples
    round_samples: np.ndarray  # (n,) int64, distinct samples one participation trains on
    features: np.ndarray  # (n, d) float64, the trace's columns
    feature_names: tuple[str, ...]  # d names
    # Seconds and joules of one participation without fluctuation; no joules are known: 0.
    expected_duration: np.ndarray  # (n,) float64
    energy: np.ndarray  # (n,) float64
    position: np.ndarray  # (n, 2) float64, metres in a square of 1 km
    # Seconds of expected_duration in which the model goes to, and from, each client; the rest is
    # computing. None where only the sum is known.
    download: np.ndarray | None = None  # (n,) float64
    upload: np.ndarray | None = None  # (n,) float64

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class Probe:
    """A question to clients whose answers go into no global model."""

    kind: str  # one of signals.PROBES
    rows: np.ndarray  # whom to ask
    # Answers go to `receive`, one client at a time in the order of rows, and are not kept.
    one_by_one: bool = False
    # `probe` is called again, with this question's answer, before the selection.
    more: bool = False

    def __post_init__(self) -> None:
        if self.kind not in PROBES:
            raise ValueError(f"probe: expected one of {', '.join(PROBES)}, got {self.kind!r}")


@dataclass(frozen=True)
class ProbeAnswer:
    """What the clients said to a probe."""

    kind: str
    rows: np.ndarray  # (m,) those that answered with finite numbers
    values: np.ndarray  # (m, p) for flat parameters, (m, 0) where handed on one by one, else (m,)


@dataclass(frozen=True)
class RoundView:
    """What a selector may look at when it chooses."""

    round: int  # 1, 2, ...
    total_rounds: int
    clock: float  # virtual seconds since the job began
    online: np.ndarray  # (m,) rows that can be chosen, ascending
    clients: ClientTable
    probe: ProbeAnswer | None = None
    seats: int | None = None  # the k of the coming `select`, where it is known
    # The clients that a round of this job asks, where that is known: unlike `seats` it is neither
    # cut to those online nor raised in a warm-up.
    cohort_size: int | None = None
    accuracy: float | None = None  # of the current global model, where it was evaluated
    test_loss: float | None = None
    # (p,) float32, the global parameters, if DIRECTION, WEIGHTS or PUBLIC_LOSS is needed.
    weights: np.ndarray | None = None
    # Parameters (p,) -> mean loss on the public set, if PUBLIC_LOSS is needed.
    public_loss: Callable[[np.ndarray], float] | None = None
    deadline: float | None = None  # seconds that a round may last, where the job says so
    # Clients whose update of an earlier round is on the way. They are not among `online`.
    pending: np.ndarray = field(default_factory=_nobody)  # (p,) rows, ascending
    pending_seconds: np.ndarray = field(
        default_factory=lambda: np.zeros(0)
    )  # (p,) until each is here
    # (start, end) on the virtual clock -> the share of that time in which each client is online,
    # (n,); None where no trace says who is online when.
    online_share: Callable[[float, float], np.ndarray] | None = None


@dataclass(frozen=True)
class LateUpdates:
    """Updates that missed their round and arrive in this one. Arrays are aligned with `rows`."""

    round: int
    rows: np.ndarray  # (m,) in the order of arrival
    staleness: np.ndarray  # (m,) int64 >= 1, rounds since the one in which the client was asked
    # (m,) squared distance of the update from the average of this round's fresh ones, divided by
    # that average's squared length; 0 where there is no fresh one, or it has no length.
    deviation: np.ndarray
    fresh: int  # updates of this round that are in time


@dataclass(frozen=True)
class RoundOutcome:
    """What became of the cohort. Arrays are aligned with `rows`; no entry is NaN or infinite.

    Where `valid` is False the client missed the round (too late, gone offline, or it sent
    rubbish) and what it would have reported is 0."""

    round: int
    rows: np.ndarray  # (m,) asked
    valid: np.ndarray  # (m,) bool
    duration: np.ndarray  # (m,) seconds, also of those who missed the round
    loss: np.ndarray  # (m,) mean training loss
    utility: np.ndarray  # (m,) |B| sqrt(mean squared sample loss): FedScale's and Oort's utility
    samples: np.ndarray  # (m,) distinct samples trained on
    signals: dict[str, np.ndarray] = field(default_factory=dict)  # as in `needs`, (m,) or (m, p)
    accuracy: float | None = None  # of the global model after the round, where it was evaluated
    test_loss: float | None = None


class Selector(ABC):
    """Chooses the cohort of each round.

    Subclasses write `select`, usually `update`, and list their state:

    >>> class Slowest(Selector):
    ...     name = "slowest"
    ...     paper = "nobody's"
    ...
    ...     def select(self, view, k):
    ...         seconds = view.clients.expected_duration[view.online]
    ...         return view.online[best(seconds, k, self.rng)]
    """

    name: ClassVar[str]
    paper: ClassVar[str]  # one line: authors, title, venue
    needs: ClassVar[frozenset[str]] = frozenset()  # signals of every update, or from the server
    probes: ClassVar[frozenset[str]] = frozenset()  # signals that `probe` may ask for
    Params: ClassVar[type[AnyParams]] = NoParams
    time_slots: ClassVar[bool] = False  # keeps a cohort for several rounds, less who is offline
    free_cohort: bool = False  # its cohort may have any size, and all of it is aggregated
    protocol: str = SYNCHRONOUS  # how rounds deal with those who are late
    # Attributes that are learned; one with a `state_dict` of its own is saved and loaded by it.
    state: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        refuse_unknown_signals(cls.__name__, cls.needs, cls.probes)

    def __init__(self, params: AnyParams, clients: ClientTable, rng: np.random.Generator):
        self.params: Any = params
        self.clients = clients
        self.rng = rng

    @classmethod
    def required(cls, params: AnyParams) -> frozenset[str]:
        """Those of `needs` that matter with these parameters."""
        return cls.needs

    @classmethod
    def may_ask(cls, params: AnyParams) -> frozenset[str]:
        """Those of `probes` that matter with these parameters."""
        return cls.probes

    @classmethod
    def wraps(cls, params: AnyParams) -> str | None:
        """The name of the selector this one is put around.

        That one is made first, with its own parameters of the job, and handed over as the last
        argument of the constructor; what it needs is computed as well."""
        return None

    def probe(self, view: RoundView) -> Probe | None:
        """A question to put to clients before this round's selection, or None."""
        return None

    def receive(self, row: int, value: np.ndarray) -> None:
        """One client's finite answer to a probe with one_by_one=True."""
        raise NotImplementedError(f"{self.name} wants answers one by one and does not take them")

    def restart_model(self, view: RoundView) -> bool:
        """Whether this round begins at the initial model; asked after the probe."""
        return False

    @abstractmethod
    def select(self, view: RoundView, k: int) -> np.ndarray:
        """min(k, online) distinct rows of view.online."""

    def update(self, outcome: RoundOutcome) -> None:  # noqa: B027  not every selector learns
        """Learn from a finished round."""

    def late_weights(self, late: LateUpdates) -> np.ndarray:
        """With LATE_UPDATES: what each late update weighs beside a fresh one of weight 1, (m,)."""
        return np.ones(len(late.rows))

    def explain(self) -> dict[str, np.ndarray]:
        """Named arrays over all clients: what the last selection was based on."""
        return {}

    def diagnostics(self) -> dict[str, Any]:
        """A few numbers about the last selection for `rounds.jsonl`; must be JSON."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Everything learned, and the generator: a job that is resumed continues exactly."""
        learned = {name: getattr(self, name) for name in self.state}
        for name, part in learned.items():
            if hasattr(part, "state_dict"):
                learned[name] = part.state_dict()
        return {"rng": self.rng.bit_generator.state, **learned}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rng.bit_generator.state = state["rng"]
        for name in self.state:
            part = getattr(self, name)
            value = copy.deepcopy(state[name])  # because the state still belongs to the caller
            if hasattr(part, "load_state_dict"):
                part.load_state_dict(value)
            else:
                setattr(self, name, value)


def bad_pick(rows: np.ndarray, view: RoundView) -> str | None:
    """What is wrong with what `select` returned, in words; None if nothing is."""
    if rows.ndim != 1 or not (np.issubdtype(rows.dtype, np.integer) or rows.size == 0):
        return f"an array of {rows.dtype} of shape {rows.shape}"
    if len(np.unique(rows)) != len(rows):
        return "a row twice"
    if not np.isin(rows, view.online).all():
        return "rows that are not online"
    return None


def best(scores: np.ndarray, k: int, rng: np.random.Generator) -> np.ndarray:
    """Positions of the k highest scores, best first, ties broken at random.

    Expected time O(n + k log k).

    >>> best(np.array([0.1, 0.9, 0.5]), 2, np.random.default_rng(0)).tolist()
    [1, 2]
    """
    n = len(scores)
    if k >= n:
        candidates = np.arange(n)
    elif k <= 0:
        candidates = np.arange(0)
    else:
        threshold = np.partition(scores, n - k)[n - k]
        above = np.flatnonzero(scores > threshold)
        level = np.flatnonzero(scores == threshold)
        candidates = np.concatenate([above, rng.choice(level, k - len(above), replace=False)])
    return candidates[np.lexsort((rng.random(len(candidates)), -scores[candidates]))]


def sample_by_weight(weights: np.ndarray, size: int, rng: np.random.Generator) -> np.ndarray:
    """Positions drawn without replacement, each next one in proportion to its weight.

    Exponential clocks of rate w ring in exactly that order, and weight / Exp(1) is one over the
    time of a clock's first ring. A weight of 0 never rings: those come last, in random order."""
    return best(weights / rng.standard_exponential(len(weights)), size, rng)
