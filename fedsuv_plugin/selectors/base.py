"""The contract of a selector: arrays in, rows out.

A row indexes the client table. A selector knows nothing of FedScale, files or clocks; it gets a view of the round,
returns rows, and learns from the outcome. Everything random comes from the generator it is given.
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

# What a selector may ask of the clients beyond loss statistics; clients compute only what is asked for.
ACCURACY_GAIN = "accuracy_gain"  # accuracy on the samples trained on, after minus before
DIRECTION = "direction"  # (received weights - own weights) / learning rate, flat
WEIGHTS = "weights"  # own weights after training, flat
INTERVIEW_ACCURACY = "interview_accuracy"  # accuracy of the own model on the server's interview set
OPINIONS = "opinions"  # accuracy of the received model on the client's own held-out data
LOSS = "loss"  # mean loss of the received model on the client's own training data
NEEDS = (ACCURACY_GAIN, DIRECTION, WEIGHTS, INTERVIEW_ACCURACY, OPINIONS, LOSS)
PROBES = (
    LOSS,
    OPINIONS,
    DIRECTION,
    WEIGHTS,
    INTERVIEW_ACCURACY,
)  # what a probe may ask for, of the received model
# What it may ask of the server.
GLOBAL_ACCURACY = (
    "global_accuracy"  # accuracy and loss of the global model on test data, every round
)
PUBLIC_LOSS = "public_loss"  # the loss of any parameters on the server's public set


@dataclass(frozen=True)
class ClientTable:
    """What the server knows of the n clients before any feedback; row i is client ids[i]."""

    ids: np.ndarray  # (n,) int64, FedScale's ids, 1-based
    samples: np.ndarray  # (n,) int64, training samples
    round_samples: np.ndarray  # (n,) int64, distinct samples one participation trains on
    features: np.ndarray  # (n, d) float64, the trace's columns
    feature_names: tuple[str, ...]  # d names
    expected_duration: np.ndarray  # (n,) float64, seconds of one participation without fluctuation
    energy: (
        np.ndarray
    )  # (n,) float64, joules of one participation without fluctuation; 0 if unknown
    position: np.ndarray  # (n, 2) float64, metres in a square of 1 km

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class Probe:
    """A question to clients that trains nobody's model into the global one."""

    kind: str  # one of PROBES
    rows: np.ndarray  # whom to ask
    stream: bool = (
        False  # answers go to `receive` one by one, in the order of rows, instead of being kept
    )
    more: bool = (
        False  # `probe` wants to be called again, with this one's answer, before the selection
    )

    def __post_init__(self) -> None:
        if self.kind not in PROBES:
            raise ValueError(f"probe: expected one of {', '.join(PROBES)}, got {self.kind!r}")


@dataclass(frozen=True)
class ProbeAnswer:
    kind: str
    rows: np.ndarray  # (m,) those that answered with finite numbers
    values: (
        np.ndarray
    )  # (m, p) for direction and weights, (m, 0) where they were streamed, else (m,)


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
    accuracy: float | None = None  # of the current global model, where it was evaluated
    test_loss: float | None = None
    weights: np.ndarray | None = (
        None  # (p,) float32, global parameters; if DIRECTION, WEIGHTS or PUBLIC_LOSS is needed
    )
    public_loss: Callable[[np.ndarray], float] | None = (
        None  # parameters (p,) -> mean loss; if PUBLIC_LOSS is needed
    )


@dataclass(frozen=True)
class RoundOutcome:
    """What became of the cohort. Arrays are aligned with `rows`; no entry is NaN or infinite.

    Where `valid` is False the client missed the round (too late, gone offline, or it sent rubbish) and what it would
    have reported is 0."""

    round: int
    rows: np.ndarray  # (m,) asked
    valid: np.ndarray  # (m,) bool
    duration: np.ndarray  # (m,) seconds, also of those who missed the round
    loss: np.ndarray  # (m,) mean training loss
    utility: (
        np.ndarray
    )  # (m,) |B| sqrt(mean squared sample loss), FedScale's and Oort's statistical utility
    samples: np.ndarray  # (m,) distinct samples trained on
    signals: dict[str, np.ndarray] = field(
        default_factory=dict
    )  # what was asked for in `needs`, (m,) or (m, p)
    accuracy: float | None = None  # of the global model after the round, where it was evaluated
    test_loss: float | None = None


class Selector(ABC):
    """Chooses the cohort of each round. Subclasses write `select`, usually `update`, and list their state."""

    name: ClassVar[str]
    paper: ClassVar[str]  # one line: authors, title, venue
    needs: ClassVar[frozenset[str]] = frozenset()
    Params: ClassVar[type[AnyParams]] = NoParams
    time_slots: ClassVar[bool] = (
        False  # keeps one cohort for several rounds, less those who are offline
    )
    free_cohort: bool = False  # its cohort may be smaller or larger than k; all of it is aggregated
    state: ClassVar[
        tuple[str, ...]
    ] = ()  # attributes that are learned; `state_dict` carries them and the generator

    def __init__(self, params: AnyParams, clients: ClientTable, rng: np.random.Generator):
        self.params: Any = params
        self.clients = clients
        self.rng = rng

    @classmethod
    def required(cls, params: AnyParams) -> frozenset[str]:
        """What clients and server must compute for this selector with these parameters."""
        return cls.needs

    @classmethod
    def wraps(cls, params: AnyParams) -> str | None:
        """The name of the selector this one is put around. It is made first, with its own parameters of the job, and
        handed over as the last argument of the constructor; what it needs is computed as well."""
        return None

    def probe(self, view: RoundView) -> Probe | None:
        """A question to put to clients before this round's selection, or None."""
        return None

    def receive(self, row: int, value: np.ndarray) -> None:
        """One client's finite answer to a probe with stream=True."""
        raise NotImplementedError(f"{self.name} asks for a stream and does not take it")

    def restart_model(self, view: RoundView) -> bool:
        """Whether this round is to begin at the initial model; asked after the probe, before the selection."""
        return False

    @abstractmethod
    def select(self, view: RoundView, k: int) -> np.ndarray:
        """min(k, online) distinct rows of view.online."""

    def update(self, outcome: RoundOutcome) -> None:  # noqa: B027  one that learns nothing need not say so
        """Learn from a finished round."""

    def explain(self) -> dict[str, np.ndarray]:
        """Named arrays over all clients: what the last selection was based on."""
        return {}

    def diagnostics(self) -> dict[str, Any]:
        """A few numbers about the last selection for `rounds.jsonl`; must be JSON."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        return {
            "rng": self.rng.bit_generator.state,
            **{name: getattr(self, name) for name in self.state},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rng.bit_generator.state = state["rng"]
        for name in self.state:
            setattr(self, name, copy.deepcopy(state[name]))  # the state stays the giver's


def best(scores: np.ndarray, k: int, rng: np.random.Generator) -> np.ndarray:
    """Positions of the k highest scores, best first, ties broken at random. Expected time O(n + k log k)."""
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


def draw(weights: np.ndarray, size: int, rng: np.random.Generator) -> np.ndarray:
    """Positions of a draw without replacement, each next one with probability proportional to its weight.

    Exponential clocks of rate w ring in exactly that order, and weight / Exp(1) is one over the time of the first
    ring. A weight of 0 never rings: those come last, in random order."""
    return best(weights / rng.standard_exponential(len(weights)), size, rng)
