"""GPFL: prefer clients whose updates point where the global model goes, and those rarely asked.

Paper: S. Na, Y. Liang, S.-M. Yiu. "GPFL: A Gradient Projection-Based Client Selection Framework
    for Efficient Federated Learning." arXiv:2403.17833. Algorithm 1 and eq. (1)-(8).

Paper symbol -> name here
    d_i, eq. (1)-(2) -> direction of client i, (received - own weights) / learning rate
    grad F(w^{t-1}) -> g    c_i, eq. (3) -> projection    softmax(c), eq. (5) -> mu
    mean of mu, eq. (6) -> reward_mean    u_i -> score    alpha, eq. (7) -> alpha
    n_i -> 1 + asked    n -> clients + all times asked    A^t, F(w^t) -> accuracy, test_loss
Departures
    - g is the unweighted mean direction of the previous round's valid clients, or at the start of
      all clients probed, even where the job's own step is another (weights by samples, a server
      optimizer).
    - The initial probe counts as asking each client once, and is no round.
    - The first cohort has the largest projections.
    - Later cohorts have the largest u, as the text says; algorithm 1 prints that C is sorted.
    - mu and u are computed for all clients in every round, not only for those who took part.
    - C is not passed to FedAvg: how updates are weighted is the job's business.
    - Eq. (8) has its sign as printed: where the accuracy did not change, a rising loss raises the
      reward, although the prose says the opposite.
    - The exponents of eq. (8) are clipped.
    - A round without an evaluation leaves the reward as it is.
    - A client that was asked and missed the round counts as asked; its projection stays and its
      reward is not adjusted.
    - A direction longer than 10 times the median of the clients' latest lengths is shortened to
      that, or one huge update would take the whole softmax and turn g.
    - Where the first directions do not all fit into `directions_budget_mb`, all clients are asked a
      second time for their projections, and only the longest that fit can be shortened in the
      first g.
    - A client that joins later, or whose probe failed, starts with the median projection, and the
      mean of its rewards runs over the rounds since; before there is one it is its softmax(C).
    - Ties are broken at random.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import softmax

from fedsuv_plugin.params import Params, param
from fedsuv_plugin.selectors.base import ClientTable, Probe, RoundOutcome, RoundView, Selector, best
from fedsuv_plugin.selectors.maths.directions import length, longest_believed, shortening
from fedsuv_plugin.selectors.signals import DIRECTION, GLOBAL_ACCURACY

QUANTILES = (0.0, 0.25, 0.5, 0.75, 1.0)
MB = 2**20


@dataclass(frozen=True, kw_only=True)
class GpflParams(Params):
    rho: float = param(
        1.0, "weight of exploration at the last round; 0: none, large: everyone in turn", low=0
    )
    exponent_clip: float = param(
        10.0,
        "largest size of the exponents of eq. (8); 0: the reward is doubled when the accuracy "
        "changed, no more",
        low=0,
    )
    directions_budget_mb: int = param(
        1024,
        "memory for all clients' first directions; past it every client is asked for its "
        "direction twice",
        low=1,
    )


class Gpfl(Selector):
    """Used as `sample_mode: gpfl`; before the first round every client trains once for a probe."""

    name = "gpfl"
    paper = (
        "Na et al., GPFL: A Gradient Projection-Based Client Selection Framework, arXiv:2403.17833"
    )
    needs = frozenset({DIRECTION, GLOBAL_ACCURACY})
    probes = frozenset({DIRECTION})
    Params = GpflParams
    state = (
        "projection",
        "placed",
        "joined",
        "reward_sum",
        "rounds",
        "asked",
        "lengths",
        "g",
        "accuracy",
        "test_loss",
        "probed",
    )

    def __init__(self, params: GpflParams, clients: ClientTable, rng: np.random.Generator):
        super().__init__(params, clients, rng)
        n = len(clients)
        self.projection = np.zeros(n)  # (n,) C, each client's last c
        self.placed = np.zeros(n, bool)  # (n,) the projection is the client's own, not the median
        self.joined = np.zeros(n, bool)  # (n,) has been online
        self.reward_sum = np.zeros(n)  # (n,) sum of mu over the rounds since the client joined
        self.rounds = np.zeros(n, np.int64)  # (n,) how many rounds those are
        self.asked = np.zeros(n, np.int64)  # (n,) times asked, without the probe
        self.lengths = np.zeros(n)  # (n,) length of the latest direction, 0 if there is none
        self.g = np.zeros(0)  # (p,) global direction; empty until there is one
        self.accuracy: float | None = None  # A^{t-1}
        self.test_loss: float | None = None  # F(w^{t-1})
        self.probed = False  # everyone who was online at the start has been asked
        self.score = np.zeros(n)
        self.alpha = 0.0
        self._start: FirstDirections | None = None  # while the initial probe is under way
        self._first_limit = 0.0  # longest direction believed at the start

    # ---- the start: everyone's direction, once

    def probe(self, view: RoundView) -> Probe | None:
        if self._start is not None:
            # The second pass: g is known now, so each answer is projected and forgotten.
            self._find_first_direction(self._start)
            self._start = None
            return Probe(DIRECTION, view.online, one_by_one=True)
        if self.probed or not len(view.online):
            return None
        room = len(view.online)
        if view.weights is not None:
            bytes_each = 4 * max(1, len(view.weights))
            room = self.params.directions_budget_mb * MB // bytes_each
        self.probed = True
        self._start = FirstDirections(max(1, room))
        return Probe(DIRECTION, view.online, one_by_one=True, more=len(view.online) > room)

    def receive(self, row: int, value: np.ndarray) -> None:
        if self._start is not None:
            self.lengths[row] = length(value)
            self._start.add(row, self.lengths[row], value)
        else:
            self._project(np.array([row]), value[None], self._first_limit)

    def _find_first_direction(self, start: FirstDirections) -> None:
        """The first g, now that all first lengths are known."""
        self._first_limit = self._limit()
        self.g = start.mean(self._first_limit)

    def _finish_start(self) -> None:
        """After a probe of a single pass everyone's direction is at hand: find g, then project."""
        if self._start is not None:
            self._find_first_direction(self._start)
            for row, direction in self._start.kept():
                self._project(np.array([row]), direction[None], self._first_limit)
            self._start = None

    def _limit(self) -> float:
        """The length at which directions are cut off now."""
        return longest_believed(self.lengths[self.lengths > 0])

    def _project(self, rows: np.ndarray, directions: np.ndarray, limit: float) -> None:
        """Eq. (3): c = d . g / ||g||, directions (m, p), none longer than the limit."""
        if len(rows) and len(self.g) == directions.shape[1]:
            norm = length(self.g)
            along = directions @ (self.g / norm) if norm > 0 else np.zeros(len(rows))
            self.projection[rows] = along * shortening(self.lengths[rows], limit)
            self.placed[rows] = True

    # ---- a round

    def select(self, view: RoundView, k: int) -> np.ndarray:
        self._finish_start()
        self._welcome(view.online)
        if self.accuracy is None:
            self.accuracy = view.accuracy  # A^0
            self.test_loss = view.test_loss  # F(w^0)
        self.alpha = self.params.rho * view.round / max(view.total_rounds, view.round)
        self.score = self._index() if self.rounds.any() else self.projection.copy()
        return view.online[best(self.score[view.online], k, self.rng)]

    def _welcome(self, online: np.ndarray) -> None:
        """Give the median projection to clients that had not joined and have none of their own.

        Those that join now keep it until they send a direction."""
        unheard = ~self.placed & ~self.joined
        if unheard.any() and self.placed.any():
            self.projection[unheard] = np.median(self.projection[self.placed])
        self.joined[online] = True

    def _index(self) -> np.ndarray:
        """Eq. (6): mean reward + alpha sqrt(2 ln n / n_i), shape (n,)."""
        n = len(self.clients) + self.asked.sum()
        return self._reward_mean() + self.alpha * np.sqrt(2 * math.log(n) / (1 + self.asked))

    def _reward_mean(self) -> np.ndarray:
        """The mean of mu over the rounds since a client joined; without any, its current mu."""
        mean = self.reward_sum / np.maximum(self.rounds, 1)
        new = self.rounds == 0
        if new.any():
            mean[new] = softmax(self.projection)[new]
        return mean

    def update(self, outcome: RoundOutcome) -> None:
        self._finish_start()
        self.asked[outcome.rows] += 1
        came = outcome.rows[outcome.valid]
        if DIRECTION in outcome.signals:
            self._take_directions(came, outcome.signals[DIRECTION][outcome.valid])
        mu = softmax(self.projection)  # eq. (5), over all clients
        mu[came] *= self._adjustment(outcome)
        self.joined[outcome.rows] = True
        self.reward_sum[self.joined] += mu[self.joined]
        self.rounds[self.joined] += 1
        if outcome.accuracy is not None:
            self.accuracy = outcome.accuracy
            self.test_loss = outcome.test_loss

    def _take_directions(self, rows: np.ndarray, directions: np.ndarray) -> None:
        """Project directions (m, p) on the previous round's g, then make them this round's g."""
        if not len(rows):
            return
        self.lengths[rows] = np.linalg.norm(directions, axis=1)
        limit = self._limit()
        self._project(rows, directions, limit)
        self.g = shortening(self.lengths[rows], limit) @ directions / len(rows)

    def _adjustment(self, outcome: RoundOutcome) -> float:
        """Eq. (8): the factor on the rewards of those who took part."""
        if outcome.accuracy is None or self.accuracy is None:
            return 1.0
        if outcome.accuracy != self.accuracy:
            return 2 * self._exp(outcome.accuracy - self.accuracy)
        if outcome.test_loss is None or self.test_loss is None:  # the loss was not finite
            return 1.0
        return self._exp(outcome.test_loss - self.test_loss)

    def _exp(self, exponent: float) -> float:
        clip = self.params.exponent_clip
        return math.exp(min(max(exponent, -clip), clip))

    def explain(self) -> dict[str, np.ndarray]:
        return {
            "projection": self.projection,
            "reward_mean": self._reward_mean(),
            "count": 1 + self.asked,
            "score": self.score,
        }

    def diagnostics(self) -> dict[str, Any]:
        return {
            "alpha": self.alpha,
            "coverage": int(np.count_nonzero(self.asked)),
            "projection_quantiles": np.quantile(self.projection, QUANTILES).tolist(),
            "index_quantiles": np.quantile(self.score, QUANTILES).tolist(),
        }


class FirstDirections:
    """The mean of directions of which the longest are shortened, once the median length is known.

    Only long directions can need shortening, so as many of the longest as there is room for are
    kept; the others are added up as they arrive."""

    def __init__(self, room: int):
        self._room = room
        # (length, row, direction): a heap, the shortest of the kept ones first
        self._longest: list[tuple[float, int, np.ndarray]] = []
        self._sum: np.ndarray | float = 0.0  # of the others
        self._count = 0

    def add(self, row: int, norm: float, direction: np.ndarray) -> None:
        self._count += 1
        heapq.heappush(self._longest, (norm, row, np.array(direction, np.float32)))
        if len(self._longest) > self._room:
            _, _, shortest = heapq.heappop(self._longest)
            self._sum = self._sum + shortest.astype(np.float64)

    def kept(self) -> list[tuple[int, np.ndarray]]:
        """(row, direction), by row."""
        return [(row, direction) for _, row, direction in self._by_row()]

    def mean(self, limit: float) -> np.ndarray:
        """Shape (p,), with no kept direction longer than the limit; empty without directions."""
        if not self._count:
            return np.zeros(0)
        total = self._sum
        for norm, _, direction in self._by_row():
            factor = float(shortening(np.array([norm]), limit)[0])
            total = total + direction.astype(np.float64) * factor
        return np.asarray(total) / self._count

    def _by_row(self) -> list[tuple[float, int, np.ndarray]]:
        return sorted(self._longest, key=lambda entry: entry[1])
