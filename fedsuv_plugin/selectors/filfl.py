"""FilFL: before any selector chooses, leave out the clients whose models do not fit in.

Paper: F. Fourati, S. Kharrat, V. Aggarwal, M.-S. Alouini, M. Canini. "FilFL: Client Filtering for Optimized Client
    Participation in Federated Learning." ECAI 2024, arXiv:2302.06599. Algorithms 1 and 2, eq. (2)-(3).

Paper symbol -> name here
    S_t -> view.online    S_t^f -> filtered    h -> period    chi -> variant    w_t^k -> global weights + update
    R(S), eq. (2) -> reward    a_i, b_i, eq. (3) -> gain_add, gain_drop    P -> the server's public set
What the paper leaves open, and how it is here
    C in eq. (2) is 0: it cancels. Averaging nobody gives no model: R of the empty set is that of a model with all
    parameters 0, whose scores are all equal, so that with cross-entropy it is -ln(classes), the uniform guess.
    A loss that is not finite counts as 1e6. Clients are visited in the order of their rows. With the running sums of
    the clients' updates and R(X), R(Y) remembered, a filtering costs two forward passes per client, and two more.
    Buffers (BatchNorm's statistics) are no part of an update: R is taken with those of the current global model.
    `weights: last` adds each client's last uploaded update to the current global model; a client never seen passes.
    `fresh` has every available client train first, as the analysis assumes; one that does not answer passes.
    The client's own training (FedAvg, FedProx) is the job's business and changes nothing here.
Departures
    An update longer than 10 times the median of the updates at hand is shortened to that: it is still bad company,
    but it does not wipe out the digits of everybody else in the running sums.
    If nobody is filtered in, everybody is. Without a public set (FedScale's own aggregator) everybody passes, too.
Checkpoints hold all last updates, in memory or not: they are what filtering depends on.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedsuv_plugin.params import Params as AnyParams
from fedsuv_plugin.params import param
from fedsuv_plugin.selectors.base import ClientTable, Probe, RoundOutcome, RoundView, Selector
from fedsuv_plugin.selectors.maths.directions import length, longest_believed, shortening
from fedsuv_plugin.selectors.signals import PUBLIC_LOSS, WEIGHTS

HOPELESS = 1e6  # a loss that is not finite
LARGEST = 1e30  # updates end here on arrival, so that no square of them overflows
QUANTILES = (0.0, 0.25, 0.5, 0.75, 1.0)
MB = 2**20


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
        self.free_cohort = (
            inner.free_cohort
        )  # where more than k pass, the inner selector has the say
        self.accept: Accept = dgf if params.variant == "dgf" else rgf(rng)
        self.updates = Updates(len(clients), params.weights_budget_mb)
        self.available: np.ndarray | None = None  # rows online in the previous round
        self.filtered = np.zeros(0, np.int64)  # rows that passed, of those
        self.visited = np.zeros(0, np.int64)  # rows the last filtering decided on, (m,) ...
        self.gains = np.zeros((2, 0))  # ... and their a and b
        self._report: dict[str, Any] = {}  # of this round's filtering, if there was one
        self._received: np.ndarray | None = None  # the weights this round's clients train from
        self._begin(0)

    @classmethod
    def required(cls, params: AnyParams) -> frozenset[str]:
        """Fresh weights come by probe, and uploads are then of no use."""
        assert isinstance(params, FilflParams)
        return cls.needs - {WEIGHTS} if params.weights == "fresh" else cls.needs

    @classmethod
    def wraps(cls, params: AnyParams) -> str | None:
        assert isinstance(params, FilflParams)
        return params.inner

    # ---- a round: (ask for fresh weights,) filter, let the inner selector ask, let it choose

    def _begin(self, number: int) -> None:
        self._round = number
        self._training = False  # fresh weights are being asked for
        self._settled = False  # it is clear who passes
        self._inner_asks = False  # the last probe was the inner selector's
        self._report = {}

    def probe(self, view: RoundView) -> Probe | None:
        if self._round != view.round:
            self._begin(view.round)
        if (
            self.params.weights == "fresh"
            and not self._training
            and not self._settled
            and self._due(view)
        ):
            self._training, self._received = True, view.weights
            self.updates.clear()
            return Probe(WEIGHTS, view.online, one_by_one=True, more=True)
        self._settle(view)
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
        """Those filtered in are all the inner selector sees of the clients, and only its own questions are answered."""
        return replace(view, online=self.filtered, probe=view.probe if self._inner_asks else None)

    def update(self, outcome: RoundOutcome) -> None:
        if self.params.weights == "last" and WEIGHTS in outcome.signals:
            for i in np.flatnonzero(outcome.valid):
                self._keep(int(outcome.rows[i]), outcome.signals[WEIGHTS][i])
        self.inner.update(outcome)

    def _keep(self, row: int, weights: np.ndarray) -> None:
        if self._received is not None:
            self.updates.put(
                row, np.clip(weights - self._received.astype(np.float64), -LARGEST, LARGEST)
            )

    # ---- filtering, algorithm 2, lines 3-7

    def _due(self, view: RoundView) -> bool:
        if self.available is None or view.public_loss is None:
            return False
        return view.round % self.params.period == 0 or not np.array_equal(
            view.online, self.available
        )

    def _settle(self, view: RoundView) -> None:
        if self._settled:
            return
        if self._due(view):
            self._filter(view)
        elif self.available is None or not np.array_equal(view.online, self.available):
            self.filtered = view.online.copy()
        self.available = view.online.copy()
        self._settled, self._training = True, False

    def _filter(self, view: RoundView) -> None:
        started = time.perf_counter()
        seen = self.updates.known[view.online]
        self.visited, unseen = view.online[seen], view.online[~seen]
        result = greedy_filter(self.updates.of(self.visited), self._reward(view), self.accept)
        self.gains = np.stack([result.gain_add, result.gain_drop])
        passed = np.sort(np.concatenate([unseen, self.visited[result.kept]]))
        self.filtered = passed if len(passed) else view.online.copy()
        self._report = {
            "visited": len(self.visited),
            "dropped": self.clients.ids[self.visited[~result.kept]].tolist(),
            "value_before": result.before,
            "value_after": result.after,
            **{
                f"{name}_quantiles": np.quantile(gains, QUANTILES).tolist() if len(gains) else None
                for name, gains in zip(("gain_add", "gain_drop"), self.gains, strict=True)
            },
            "filter_seconds": time.perf_counter() - started,
        }

    def _reward(self, view: RoundView) -> Reward:
        """R(S) of eq. (2), from the sum of the updates of S and the size of S."""
        weights, loss_of = view.weights, view.public_loss
        assert weights is not None
        assert loss_of is not None

        def reward(total: np.ndarray, count: int) -> float:
            loss = loss_of(weights + total / count if count else np.zeros_like(weights))
            return -loss if math.isfinite(loss) else -HOPELESS

        return reward

    # ---- what is told and kept

    def explain(self) -> dict[str, np.ndarray]:
        """The gains are the last filtering's, NaN where a client was not visited; then what the inner selector says."""
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
        kept = (
            self.updates.state() if self.params.weights == "last" else None
        )  # fresh ones are asked for again
        return {**super().state_dict(), "updates": kept, "inner": self.inner.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.inner.load_state_dict(state["inner"])
        self.updates.clear()
        if state["updates"] is not None:
            for row, update in zip(*state["updates"], strict=True):
                self.updates.put(int(row), update)


# ---- algorithm 1

Reward = Callable[[np.ndarray, int], float]  # (sum of the members' vectors, number of members) -> R
Accept = Callable[[float, float], bool]  # (a, b) -> whether the client stays


def dgf(gain_add: float, gain_drop: float) -> bool:
    """Line 8."""
    return gain_add > gain_drop


def rgf(rng: np.random.Generator) -> Accept:
    """Lines 6 and 10."""

    def accept(gain_add: float, gain_drop: float) -> bool:
        a, b = max(gain_add, 0.0), max(gain_drop, 0.0)
        return a == b == 0 or bool(rng.random() < a / (a + b))

    return accept


@dataclass(frozen=True)
class Filtering:
    kept: np.ndarray  # (m,) bool
    gain_add: np.ndarray  # (m,) a
    gain_drop: np.ndarray  # (m,) b
    before: float  # R of everyone
    after: float  # R of those kept


def greedy_filter(vectors: Sequence[np.ndarray], reward: Reward, accept: Accept) -> Filtering:
    """Algorithm 1, on a reward that depends on the sum of the members' vectors (p,) and their number."""
    m = len(vectors)
    kept, gain_add, gain_drop = np.zeros(m, bool), np.zeros(m), np.zeros(m)
    whole = np.zeros(len(vectors[0]) if m else 0)
    for i in range(m):
        whole += vectors[i]
    x, y = (np.zeros_like(whole), 0), (whole, m)  # X_0 and Y_0 as (sum, size)
    value_x, value_y = reward(*x) if m else 0.0, reward(*y) if m else 0.0
    before = value_y
    for i in range(m):
        more, less = (x[0] + vectors[i], x[1] + 1), (y[0] - vectors[i], y[1] - 1)
        value_more, value_less = reward(*more), reward(*less)
        gain_add[i], gain_drop[i] = value_more - value_x, value_less - value_y
        kept[i] = accept(gain_add[i], gain_drop[i])
        if kept[i]:
            x, value_x = more, value_more
        else:
            y, value_y = less, value_less
    return Filtering(kept, gain_add, gain_drop, before, value_x)


class Updates:
    """The last update of each client, in float32: the first in memory, those past the budget in a file that goes when
    the process does, however it ends."""

    def __init__(self, clients: int, budget_mb: int):
        self._budget = budget_mb * MB
        self._slot = np.full(clients, -1)  # (n,) where a client's update is, -1: there is none
        self._length = np.zeros(clients)  # (n,)
        self.clear()

    def clear(self) -> None:
        self._slot[:] = -1
        self._memory: list[np.ndarray] = []
        self._file: np.ndarray | None = None

    @property
    def known(self) -> np.ndarray:
        return self._slot >= 0

    def put(self, row: int, update: np.ndarray) -> None:
        own = np.array(update, np.float32)
        room = self._budget // max(1, own.nbytes)
        if self._slot[row] < 0:
            self._slot[row] = np.count_nonzero(self.known)
        slot = int(self._slot[row])
        self._length[row] = length(own)
        if slot >= room:
            self._on_disk(len(own))[slot - room] = own
        elif slot == len(self._memory):
            self._memory.append(own)
        else:
            self._memory[slot] = own

    def _on_disk(self, p: int) -> np.ndarray:
        if self._file is None:
            rows = len(self._slot) - len(self._memory)
            with tempfile.TemporaryFile(
                prefix="filfl-"
            ) as file:  # has no name; the mapping keeps it alive
                self._file = np.memmap(file, np.float32, "w+", shape=(rows, p))
        return self._file

    def _get(self, row: int) -> np.ndarray:
        slot = int(self._slot[row])
        if slot < len(self._memory):
            return self._memory[slot]
        assert self._file is not None
        return np.asarray(self._file[slot - len(self._memory)])

    def of(self, rows: np.ndarray) -> Sequence[np.ndarray]:
        """Their updates, none of them absurdly long; each is read when it is its turn."""
        factors = shortening(self._length[rows], longest_believed(self._length[rows]))
        return _Lazy(lambda i: self._get(int(rows[i])) * np.float32(factors[i]), len(rows))

    def state(self) -> tuple[np.ndarray, list[np.ndarray]]:
        """(rows, their updates), in the order they came."""
        rows = np.flatnonzero(self.known)
        rows = rows[np.argsort(self._slot[rows])]
        return rows, [self._get(int(row)) for row in rows]


class _Lazy(Sequence[np.ndarray]):
    def __init__(self, get: Callable[[int], np.ndarray], size: int):
        self._get, self._size = get, size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, i: Any) -> Any:
        return self._get(i)
