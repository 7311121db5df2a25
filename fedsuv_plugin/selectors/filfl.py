"""FilFL: before any selector chooses, leave out the clients whose models do not fit in.

Paper: F. Fourati, S. Kharrat, V. Aggarwal, M.-S. Alouini, M. Canini. "FilFL: Client Filtering for
    Optimized Client Participation in Federated Learning." ECAI 2024, arXiv:2302.06599.
    Algorithms 1 and 2, eq. (2)-(3).

Paper symbol -> name here
    S_t -> view.online    S_t^f -> filtered    h -> period    chi -> variant
    w_t^k -> global weights + update    R(S), eq. (2) -> reward    P -> the server's public set
    a_i, b_i, eq. (3) -> gain_add, gain_drop
Departures
    - C in eq. (2) is 0, because it cancels.
    - R of the empty set, which has no average model, is that of a model with all parameters 0: its
      scores are all equal, so with cross-entropy R is -ln(classes), that of a uniform guess.
    - A loss that is not finite counts as 1e6.
    - Nobody is filtered in round one: no client has been seen, so everyone passes.
    - Clients are visited in the order of their rows.
    - R is taken with the buffers (BatchNorm's statistics) of the current global model, because
      they are no part of an update.
    - `weights: last` adds each client's last uploaded update to the current global model; a client
      never seen passes.
    - `weights: fresh` has every available client train first, as the analysis assumes; one that
      does not answer passes.
    - An update longer than 10 times the median of those at hand that are not 0 is shortened to
      that: it still spoils the average, but the running sums keep the digits of the others.
    - Updates are kept in single precision, with each entry clipped to at most 1e30 in size.
    - The client's own training (FedAvg, FedProx) is the job's business and changes nothing here.
    - If nobody is filtered in, everybody is.
    - Without a public set (FedScale's own aggregator) everybody passes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedsuv_plugin.params import Params as AnyParams
from fedsuv_plugin.params import param
from fedsuv_plugin.selectors.base import (
    ClientTable,
    LateUpdates,
    Probe,
    RoundOutcome,
    RoundView,
    Selector,
)
from fedsuv_plugin.selectors.maths.directions import length, longest_believed, shortening
from fedsuv_plugin.selectors.maths.vector_store import VectorStore
from fedsuv_plugin.selectors.signals import PUBLIC_LOSS, WEIGHTS

HOPELESS = 1e6  # what a loss that is not finite counts as
LARGEST = 1e30  # updates are clipped here on arrival, so that no square of them overflows
QUANTILES = (0.0, 0.25, 0.5, 0.75, 1.0)


@dataclass(frozen=True, kw_only=True)
class FilflParams(AnyParams):
    variant: str = param(
        "dgf",
        "dgf: keep a client if adding it gains more than dropping it; rgf: with a probability "
        "in proportion to the gains",
        choices=("dgf", "rgf"),
    )
    period: int = param(
        5, "rounds between filterings while the same clients are available; 1: every round", low=1
    )
    inner: str = param(
        "random",
        "the selector that chooses among those filtered in, by name; its own parameters are "
        "<name>.<parameter>, as ever",
    )
    weights: str = param(
        "last",
        "last: filter by each client's last upload; fresh: have all available clients train first",
        choices=("last", "fresh"),
    )
    weights_budget_mb: int = param(
        2048,
        "memory for clients' updates; those past it are in a temporary file; 0: all of them",
        low=0,
    )


class Filfl(Selector):
    """Used as `sample_mode: filfl`, with the selector to put it around in `filfl.inner`."""

    name = "filfl"
    paper = "Fourati et al., FilFL: Client Filtering for Optimized Client Participation, ECAI 2024"
    needs = frozenset({PUBLIC_LOSS, WEIGHTS})
    probes = frozenset({WEIGHTS})
    Params = FilflParams
    state = ("available", "filtered", "visited", "gains")

    def __init__(
        self, params: FilflParams, clients: ClientTable, rng: np.random.Generator, inner: Selector
    ):
        super().__init__(params, clients, rng)
        self.inner = inner
        # Where more than k pass, the inner selector decides how many are chosen.
        self.free_cohort = inner.free_cohort
        self.protocol = inner.protocol
        self.accept: Accept = dgf if params.variant == "dgf" else rgf(rng)
        self.updates = Updates(len(clients), params.weights_budget_mb)
        self.available: np.ndarray | None = None  # rows online in the previous round
        self.filtered = np.zeros(0, np.int64)  # the rows of `available` that passed
        self.visited = np.zeros(0, np.int64)  # (m,) rows the last filtering decided on
        self.gains = np.zeros((2, 0))  # (2, m) their a and b
        self._report: dict[str, Any] = {}  # of this round's filtering, if there was one
        self._received: np.ndarray | None = None  # the weights this round's clients train from
        self._begin(0)

    @classmethod
    def required(cls, params: AnyParams) -> frozenset[str]:
        """Uploaded weights are not needed where fresh ones are asked for by a probe."""
        assert isinstance(params, FilflParams)
        return cls.needs - {WEIGHTS} if params.weights == "fresh" else cls.needs

    @classmethod
    def wraps(cls, params: AnyParams) -> str | None:
        assert isinstance(params, FilflParams)
        return params.inner

    # ---- a round: ask for fresh weights if wanted, filter, let the inner selector ask and choose

    def _begin(self, number: int) -> None:
        self._round = number
        self._training = False  # fresh weights are being asked for
        self._settled = False  # it has been decided who passes
        self._inner_asks = False  # the last probe was the inner selector's
        self._report = {}

    def probe(self, view: RoundView) -> Probe | None:
        if self._round != view.round:
            self._begin(view.round)
        undecided = not self._training and not self._settled
        if self.params.weights == "fresh" and undecided and self._due(view):
            self._training = True
            self._received = view.weights
            self.updates.clear()
            return Probe(WEIGHTS, view.online, one_by_one=True, more=True)
        self._settle(view)
        question = None
        if view.seats is None or len(self.filtered) > view.seats:
            # Otherwise all of them are the cohort, and the inner selector has nothing to choose.
            question = self.inner.probe(self._inner_view(view))
        self._inner_asks = question is not None
        return question

    def receive(self, row: int, value: np.ndarray) -> None:
        if self._training:
            self._keep(row, value)
        else:
            self.inner.receive(row, value)

    def select(self, view: RoundView, k: int) -> np.ndarray:
        if self._round != view.round:
            self._begin(view.round)
        self._settle(view)
        self._received = view.weights
        if len(self.filtered) <= k:
            return self.filtered.copy()
        return self.inner.select(self._inner_view(view), k)

    def _inner_view(self, view: RoundView) -> RoundView:
        """The view for the inner selector: only filtered clients, only answers to its own probe."""
        return replace(view, online=self.filtered, probe=view.probe if self._inner_asks else None)

    def update(self, outcome: RoundOutcome) -> None:
        if self.params.weights == "last" and WEIGHTS in outcome.signals:
            for i in np.flatnonzero(outcome.valid):
                self._keep(int(outcome.rows[i]), outcome.signals[WEIGHTS][i])
        self.inner.update(outcome)

    def _keep(self, row: int, weights: np.ndarray) -> None:
        if self._received is not None:
            update = weights - self._received.astype(np.float64)
            self.updates.put(row, np.clip(update, -LARGEST, LARGEST))

    def late_weights(self, late: LateUpdates) -> np.ndarray:
        return self.inner.late_weights(late)

    # ---- filtering, algorithm 2, lines 3-7

    def _due(self, view: RoundView) -> bool:
        """Whether this round filters: not the first, then each `period` or if clients changed."""
        if self.available is None or view.public_loss is None:
            return False
        return view.round % self.params.period == 0 or self._changed(view)

    def _changed(self, view: RoundView) -> bool:
        """Whether other clients are online than in the previous round."""
        return self.available is None or not np.array_equal(view.online, self.available)

    def _settle(self, view: RoundView) -> None:
        """Decide who passes, once a round."""
        if self._settled:
            return
        if self._due(view):
            self._filter(view)
        elif self._changed(view):
            self.filtered = view.online.copy()
        self.available = view.online.copy()
        self._settled = True
        self._training = False

    def _filter(self, view: RoundView) -> None:
        started = time.perf_counter()
        seen = self.updates.known[view.online]
        unseen = view.online[~seen]
        self.visited = view.online[seen]
        result = greedy_filter(self.updates.of(self.visited), self._reward(view), self.accept)
        self.gains = np.stack([result.gain_add, result.gain_drop])
        passed = np.sort(np.concatenate([unseen, self.visited[result.kept]]))
        self.filtered = passed if len(passed) else view.online.copy()
        self._report = {
            "visited": len(self.visited),
            "dropped": self.clients.ids[self.visited[~result.kept]].tolist(),
            "value_before": result.before,
            "value_after": result.after,
            "gain_add_quantiles": _quantiles(result.gain_add),
            "gain_drop_quantiles": _quantiles(result.gain_drop),
            "filter_seconds": time.perf_counter() - started,
        }

    def _reward(self, view: RoundView) -> Reward:
        """R(S) of eq. (2), from the sum of the updates of S and the size of S."""
        weights = view.weights
        loss_of = view.public_loss
        assert weights is not None
        assert loss_of is not None

        def reward(total: np.ndarray, count: int) -> float:
            average_model = weights + total / count if count else np.zeros_like(weights)
            loss = loss_of(average_model)
            return -loss if math.isfinite(loss) else -HOPELESS

        return reward

    # ---- what is told and kept

    def explain(self) -> dict[str, np.ndarray]:
        """The last filtering's gains, NaN for clients not visited, and what the inner explains."""
        gains = np.full((2, len(self.clients)), np.nan)
        gains[:, self.visited] = self.gains
        passed = np.zeros(len(self.clients), bool)
        passed[self.filtered] = True
        return {
            "filtered_in": passed,
            "gain_add": gains[0],
            "gain_drop": gains[1],
            **{f"{self.inner.name}.{key}": values for key, values in self.inner.explain().items()},
        }

    def diagnostics(self) -> dict[str, Any]:
        return {
            "filtered_in": len(self.filtered),
            "filtering": self._report or None,
            self.inner.name: self.inner.diagnostics(),
        }

    def state_dict(self) -> dict[str, Any]:
        # Filtering depends on all last updates, so a checkpoint holds them; fresh ones are asked
        # for again.
        kept = self.updates.state() if self.params.weights == "last" else None
        return {**super().state_dict(), "updates": kept, "inner": self.inner.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.inner.load_state_dict(state["inner"])
        self.updates.clear()
        if state["updates"] is not None:
            for row, update in zip(*state["updates"], strict=True):
                self.updates.put(int(row), update)


def _quantiles(gains: np.ndarray) -> list[float] | None:
    return np.quantile(gains, QUANTILES).tolist() if len(gains) else None


# ---- algorithm 1

Reward = Callable[[np.ndarray, int], float]  # (sum of the members' vectors, number of members) -> R
Accept = Callable[[float, float], bool]  # (a, b) -> whether the client stays


def dgf(gain_add: float, gain_drop: float) -> bool:
    """Line 8, deterministic: a client stays if adding it gains more than dropping it."""
    return gain_add > gain_drop


def rgf(rng: np.random.Generator) -> Accept:
    """Lines 6 and 10, randomized: a client stays with probability a / (a + b)."""

    def accept(gain_add: float, gain_drop: float) -> bool:
        a = max(gain_add, 0.0)
        b = max(gain_drop, 0.0)
        return a == b == 0 or bool(rng.random() < a / (a + b))

    return accept


@dataclass(frozen=True)
class Filtering:
    """What algorithm 1 decided on m clients, and why."""

    kept: np.ndarray  # (m,) bool
    gain_add: np.ndarray  # (m,) a
    gain_drop: np.ndarray  # (m,) b
    before: float  # R of everyone
    after: float  # R of those kept


def greedy_filter(vectors: Sequence[np.ndarray], reward: Reward, accept: Accept) -> Filtering:
    """Algorithm 1, for rewards that depend on the sum of the members' vectors and their number.

    The sums of X (those kept) and Y (those not dropped) and their rewards are carried along, so a
    filtering of m clients computes 2 m + 2 rewards."""
    m = len(vectors)
    kept = np.zeros(m, bool)
    gain_add = np.zeros(m)
    gain_drop = np.zeros(m)
    if not m:
        return Filtering(kept, gain_add, gain_drop, 0.0, 0.0)
    sum_y = np.zeros(len(vectors[0]))
    for i in range(m):
        sum_y += vectors[i]
    size_y = m
    sum_x = np.zeros_like(sum_y)
    size_x = 0
    reward_x = reward(sum_x, size_x)
    reward_y = reward(sum_y, size_y)
    before = reward_y
    for i in range(m):
        vector = vectors[i]
        with_i = sum_x + vector
        without_i = sum_y - vector
        reward_with = reward(with_i, size_x + 1)
        reward_without = reward(without_i, size_y - 1)
        gain_add[i] = reward_with - reward_x
        gain_drop[i] = reward_without - reward_y
        kept[i] = accept(gain_add[i], gain_drop[i])
        if kept[i]:
            sum_x = with_i
            size_x += 1
            reward_x = reward_with
        else:
            sum_y = without_i
            size_y -= 1
            reward_y = reward_without
    return Filtering(kept, gain_add, gain_drop, before, after=reward_x)


class Updates:
    """The last update of each client, in float32, in memory or past the budget in a file."""

    def __init__(self, clients: int, budget_mb: int):
        self._store = VectorStore(budget_mb)
        self._length = np.zeros(clients)  # (n,)
        self.known = np.zeros(clients, bool)  # (n,) of whom there is an update

    def clear(self) -> None:
        self._store.clear()
        self.known[:] = False

    def put(self, row: int, update: np.ndarray) -> None:
        self._store[row] = update
        self._length[row] = length(self._store[row])
        self.known[row] = True

    def of(self, rows: np.ndarray) -> Sequence[np.ndarray]:
        """The updates of these rows, none absurdly long; each is read only when it is looked at.

        Updates of length 0 say nothing about how long one should be."""
        lengths = self._length[rows]
        factors = shortening(lengths, longest_believed(lengths[lengths > 0]))
        return _Lazy(lambda i: self._store[int(rows[i])] * np.float32(factors[i]), len(rows))

    def state(self) -> tuple[np.ndarray, list[np.ndarray]]:
        """(rows, their updates), in the order they came."""
        return np.array(list(self._store), np.int64), list(self._store.values())


class _Lazy(Sequence[np.ndarray]):
    """A sequence whose elements are made each time they are looked at."""

    def __init__(self, get: Callable[[int], np.ndarray], size: int):
        self._get = get
        self._size = size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, i: Any) -> Any:
        return self._get(i)
