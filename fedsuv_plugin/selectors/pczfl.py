"""PCZFL: clients alike in accuracy and energy share a ball; clients of the best balls are asked.

Paper: "Optimizing Federated Learning Client Selection via Multi-Objective Contextual Bandits",
    under review (PCZFL, Pareto contextual zooming). Algorithm 1, eq. (2)-(5). It adapts
    E. Turgay, D. Oner, C. Tekin, "Multi-objective Contextual Bandit Problem with Similarity
    Information", AISTATS 2018.

Paper symbol -> name here
    x_{t,i} -> context[i], (accuracy on the interview set, energy score): see accuracy_energy.py
    B, r(B) -> centre, radius    dom(B) -> the clients i with ball[i] == B
    mu-hat_B, N_B -> mean, count    u_B -> _uncertainty    A_B -> a_b    g_B -> significance
Departures
    - A client is in the domain of one ball, the smallest that contains its context, the latest made
      on ties; the paper leaves overlaps of equal balls open.
    - The first ball, centre (0.5, 0.5) and radius sqrt(0.5), contains everything.
    - A new ball's centre, "the contextual point" of its parent in the paper, is the context before
      training of the participant whose context is nearest the reward.
    - Each chosen ball makes at most one new ball in a round.
    - The reward of a ball is the mean context of its participants after training.
    - In the warm-up everyone online takes part, and every relevant ball counts as chosen: it is
      updated and may zoom.
    - A chosen ball of which nobody answered is left as it is.
    - Contexts are those of accuracy_energy.py, with its departures.
    - Everyone on the Pareto front is asked, as in the paper, unless `max_clients` limits that.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedsuv_plugin.params import Params, param
from fedsuv_plugin.selectors.accuracy_energy import AccuracyEnergy, energy_param
from fedsuv_plugin.selectors.base import ClientTable, Probe, RoundOutcome, RoundView, Selector, best
from fedsuv_plugin.selectors.signals import INTERVIEW_ACCURACY

# Distances between clients and balls come in pieces of this size, which a cache can hold.
PIECE_BYTES = 4 * 2**20


@dataclass(frozen=True, kw_only=True)
class PCZFLParams(Params):
    a_b: float = param(
        1.0, "uncertainty coefficient; small: few rewards are enough to trust and to zoom", above=0
    )
    warmup_rounds: int = param(
        20,
        "rounds at the start in which everyone online takes part; 0: none",
        low=0,
        scales_with="rounds",
    )
    max_clients: int | None = param(
        None, "most clients of a round after the warm-up; none: all of the front", low=1
    )
    energy: str = energy_param()


class PCZFL(Selector):
    """Used as `sample_mode: pczfl`; it decides itself how many clients a round has."""

    name = "pczfl"
    paper = (
        "PCZFL: Optimizing Federated Learning Client Selection via Multi-Objective Contextual "
        "Bandits, under review"
    )
    needs = frozenset({INTERVIEW_ACCURACY})
    probes = frozenset({INTERVIEW_ACCURACY})
    Params = PCZFLParams
    free_cohort = True
    state = ("known", "ball", "centre", "radius", "mean", "count")

    def __init__(self, params: PCZFLParams, clients: ClientTable, rng: np.random.Generator):
        super().__init__(params, clients, rng)
        n = len(clients)
        self.known = AccuracyEnergy(params.energy, clients, rng)
        self.ball = np.zeros(n, np.int64)  # (n,) the ball in whose domain each client is
        self.centre = np.array([[0.5, 0.5]])  # (b, 2)
        self.radius = np.array([np.sqrt(0.5)])  # (b,)
        self.mean = np.zeros((1, 2))  # (b, 2) mean reward
        self.count = np.zeros(1, np.int64)  # (b,) how many rewards that is the mean of
        self._begin()

    @property
    def context(self) -> np.ndarray:
        """(n, 2)"""
        return self.known.context

    def _begin(self) -> None:
        # (b, 2), NaN where a ball is not relevant: none of its clients is online
        self._significance = np.full((len(self.count), 2), np.nan)
        self._parts = {"relevant": 0, "chosen": 0, "warm_up": False}

    # ---- choosing

    def probe(self, view: RoundView) -> Probe | None:
        return self.known.question(view)

    def select(self, view: RoundView, k: int) -> np.ndarray:
        self._begin()
        moved = self.known.hear(view)
        self.ball[moved] = self._owners(self.context[moved], len(self.count))
        relevant = np.unique(self.ball[view.online])  # Alg. 1, line 6
        self._significance[relevant] = self._significances(relevant)
        warm_up = view.round <= self.params.warmup_rounds
        chosen = relevant
        if not warm_up:
            chosen = relevant[undominated(self._significance[relevant])]  # line 7
        rows = view.online[np.isin(self.ball[view.online], chosen)]  # line 8
        self._parts = {"relevant": len(relevant), "chosen": len(chosen), "warm_up": warm_up}
        limit = self.params.max_clients
        if warm_up or limit is None or len(rows) <= limit:
            return rows
        return rows[best(self.context[rows].sum(axis=1), limit, self.rng)]

    def _uncertainty(self) -> np.ndarray:
        """u_B = sqrt(2 A_B / N_B), (b,); infinite where there is no reward yet."""
        with np.errstate(divide="ignore"):
            return np.sqrt(2 * self.params.a_b / self.count)

    def _significances(self, balls: np.ndarray) -> np.ndarray:
        """Eq. (5) for balls (m,): r + min over all balls B' of (UCB of B' + distance), (m, 2)."""
        bounds = self.mean + (self._uncertainty() + self.radius)[:, None]  # eq. (4), (b, 2)
        found = np.empty((len(balls), 2))
        for piece in _pieces(len(balls), len(bounds)):
            apart = distances(self.centre[balls[piece]], self.centre)  # (p, b)
            for objective in (0, 1):
                nearest = (bounds[:, objective] + apart).min(axis=1)
                found[piece, objective] = self.radius[balls[piece]] + nearest
        return found

    # ---- learning

    def update(self, outcome: RoundOutcome) -> None:
        before = self.context[outcome.rows[outcome.valid]]
        rows = self.known.learn(outcome)
        if not len(rows):
            return
        after = self.context[rows]
        old_balls = len(self.count)
        self._reward(self.ball[rows], before, after)
        self.ball[rows] = self._owners(after, old_balls)
        self._claim(np.arange(old_balls, len(self.count)))

    def _reward(self, owner: np.ndarray, before: np.ndarray, after: np.ndarray) -> None:
        """Lines 10-18: chosen balls that zoom add a new ball, then each takes in its reward.

        The participants are in the balls `owner` (m,), with contexts `before` and `after` (m, 2).
        """
        balls = len(self.count)
        size = np.bincount(owner, minlength=balls)
        total = np.column_stack([np.bincount(owner, after[:, j], balls) for j in (0, 1)])
        reward = total / np.maximum(size, 1)[:, None]  # (b, 2)
        chosen = np.flatnonzero(size)
        zooms = (size > 0) & (self._uncertainty() <= self.radius)
        self.count[chosen] += 1
        self.mean[chosen] += (reward[chosen] - self.mean[chosen]) / self.count[chosen, None]
        self._add_balls(self._nearest(zooms, reward, owner, before), self.radius[zooms] / 2)

    def _nearest(
        self, zooms: np.ndarray, reward: np.ndarray, owner: np.ndarray, before: np.ndarray
    ) -> np.ndarray:
        """Per ball that zooms, the context of the participant nearest to its reward, (z, 2)."""
        members = np.flatnonzero(zooms[owner])
        members = members[np.argsort(owner[members], kind="stable")]  # ball by ball
        away = np.linalg.norm(before[members] - reward[owner[members]], axis=1)
        ends = np.cumsum(np.bincount(owner, minlength=len(zooms))[zooms]).tolist()
        # The generator breaks ties, so the balls are taken one after the other.
        nearest = []
        start = 0
        for end in ends:
            nearest.append(start + int(best(-away[start:end], 1, self.rng)[0]))
            start = end
        return before[members[nearest]]

    def _add_balls(self, centre: np.ndarray, radius: np.ndarray) -> None:
        self.centre = np.concatenate([self.centre, centre])
        self.radius = np.concatenate([self.radius, radius])
        self.mean = np.concatenate([self.mean, centre])
        self.count = np.concatenate([self.count, np.zeros(len(radius), np.int64)])

    def _owners(self, contexts: np.ndarray, balls: int) -> np.ndarray:
        """The smallest of the first `balls` balls around each context (m, 2); newest wins ties."""
        order = self._smallest_first(np.arange(balls))
        # Ball 0, the largest and so the last, contains everything by definition.
        rest = order[:-1]
        return order[first_around(contexts, self.centre[rest], self.radius[rest])]

    def _claim(self, new: np.ndarray) -> None:
        """New balls take over the clients in them from balls that are not smaller."""
        order = self._smallest_first(new)
        place = first_around(self.context, self.centre[order], self.radius[order])
        inside = np.flatnonzero(place < len(order))
        owner = order[place[inside]]
        taken = self.radius[self.ball[inside]] >= self.radius[owner]
        self.ball[inside[taken]] = owner[taken]

    def _smallest_first(self, balls: np.ndarray) -> np.ndarray:
        """Sorted so that the first ball around a context is its owner: newest first on ties."""
        return balls[np.lexsort((-balls, self.radius[balls]))]

    # ---- what it tells

    def explain(self) -> dict[str, np.ndarray]:
        """Significances are the last selection's, NaN where no client of the ball was online."""
        known = np.full((len(self.count), 2), np.nan)
        known[: len(self._significance)] = self._significance
        return {
            "accuracy": self.context[:, 0],
            "energy_score": self.context[:, 1],
            "ball": self.ball,
            "significance_accuracy": known[self.ball, 0],
            "significance_energy": known[self.ball, 1],
        }

    def diagnostics(self) -> dict[str, Any]:
        return {"balls": len(self.count), **self._parts}


def first_around(points: np.ndarray, centre: np.ndarray, radius: np.ndarray) -> np.ndarray:
    """For each point (m, 2) the place of the first of b balls that contains it, or b."""
    first = np.empty(len(points), np.int64)
    for piece in _pieces(len(points), len(centre)):
        apart = distances(points[piece], centre)
        inside = np.ones((len(apart), len(centre) + 1), bool)
        np.less_equal(apart, radius, out=inside[:, :-1])
        first[piece] = inside.argmax(axis=1)
    return first


def distances(points: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Between points (m, 2) and others (b, 2), (m, b)."""
    across = points[:, None, 0] - others[:, 0]
    up = points[:, None, 1] - others[:, 1]
    across *= across
    up *= up
    across += up
    return np.sqrt(across, out=across)


def _pieces(m: int, b: int) -> Iterator[slice]:
    """Slices of m points such that three arrays over one of them and b others are not too large."""
    step = max(1, PIECE_BYTES // (3 * 8 * max(b, 1)))
    for start in range(0, m, step):
        yield slice(start, start + step)


def undominated(points: np.ndarray) -> np.ndarray:
    """Mask (m,) of the points (m, 2) that no other dominates, more being better.

    Equal points do not dominate each other. Infinite coordinates are fine."""
    order = np.lexsort((-points[:, 1], -points[:, 0]))
    first, second = points[order].T
    # A point is dominated by one that is strictly larger in the first coordinate and not smaller in
    # the second, or equal in the first and larger in the second.
    start = np.searchsorted(-first, -first, side="left")  # where points of equal first begin
    largest_before = np.concatenate([[-np.inf], np.maximum.accumulate(second)])[start]
    dominated = ((start > 0) & (largest_before >= second)) | (second[start] > second)
    kept = np.empty(len(points), bool)
    kept[order] = ~dominated
    return kept
