"""PCZFL: clients alike in accuracy and energy share a ball; clients of the best balls are asked.

Paper: "Optimizing Federated Learning Client Selection via Multi-Objective Contextual Bandits",
    under review (PCZFL, Pareto contextual zooming). Algorithm 1, eq. (2)-(5). It adapts
    E. Turgay, D. Oner, C. Tekin, "Multi-objective Contextual Bandit Problem with Similarity
    Information", AISTATS 2018.

Paper symbol -> name here
    x_{t,i} -> context[i], (accuracy on the interview set, energy score)
    B, r(B) -> centre, radius    dom(B) -> the clients i with ball[i] == B
    mu-hat_B, N_B -> mean, count    u_B -> _uncertainty    A_B -> a_b    g_B -> significance
Departures
    - A client is in the domain of one ball, the smallest that contains its context, the latest made
      on ties; the paper leaves overlaps of equal balls open.
    - The first ball, centre (0.5, 0.5) and radius sqrt(0.5), contains everything.
    - A new ball's centre, "the contextual point" of its parent in the paper, is the context before
      training of the participant whose context is nearest the reward.
    - Each chosen ball makes at most one new ball in a round.
    - The energy score is 1 - energy / largest energy of all clients (`energy: trace`), or as in the
      paper's experiment uniform on [0.5, 1] and fixed (`energy: uniform`).
    - Everyone on the Pareto front is asked, as in the paper, unless `max_clients` limits that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedsuv_plugin.params import Params, param
from fedsuv_plugin.selectors.base import ClientTable, Probe, RoundOutcome, RoundView, Selector, best
from fedsuv_plugin.selectors.signals import INTERVIEW_ACCURACY


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
    energy: str = param(
        "trace",
        "energy scores: from the trace, or drawn uniformly from [0.5, 1] as in the paper",
        choices=("trace", "uniform"),
    )


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
    state = ("context", "started", "ball", "centre", "radius", "mean", "count")

    def __init__(self, params: PCZFLParams, clients: ClientTable, rng: np.random.Generator):
        super().__init__(params, clients, rng)
        n = len(clients)
        if params.energy == "uniform":
            score = uniform_scores(n, rng)
        else:
            score = trace_scores(clients.energy)
        self.context = np.column_stack([np.zeros(n), score])  # (n, 2)
        self.started = False  # the untrained model's accuracy is known
        self.ball = np.zeros(n, np.int64)  # (n,) the ball in whose domain each client is
        self.centre = np.array([[0.5, 0.5]])  # (b, 2)
        self.radius = np.array([np.sqrt(0.5)])  # (b,)
        self.mean = np.zeros((1, 2))  # (b, 2) mean reward
        self.count = np.zeros(1, np.int64)  # (b,) how many rewards that is the mean of
        self._begin()

    def _begin(self) -> None:
        # (b, 2), NaN where a ball is not relevant: none of its clients is online
        self._significance = np.full((len(self.count), 2), np.nan)
        self._parts = {"relevant": 0, "chosen": 0, "warm_up": False}

    # ---- choosing

    def probe(self, view: RoundView) -> Probe | None:
        """Ask one client how good the untrained model is on the interview set.

        One is enough: all clients have the same model and the same interview set."""
        if self.started or not len(view.online):
            return None
        return Probe(INTERVIEW_ACCURACY, view.online[:1])

    def select(self, view: RoundView, k: int) -> np.ndarray:
        self._begin()
        if not self.started and view.probe is not None and len(view.probe.values):
            self.context[:, 0] = float(np.clip(view.probe.values[0], 0, 1))
            self.started = True
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
        apart = np.linalg.norm(self.centre[balls, None] - self.centre[None], axis=2)  # (m, b)
        return self.radius[balls, None] + (bounds[None] + apart[:, :, None]).min(axis=1)

    # ---- learning

    def update(self, outcome: RoundOutcome) -> None:
        told = outcome.signals.get(INTERVIEW_ACCURACY)
        rows = outcome.rows[outcome.valid]
        if told is None or not len(rows):
            return
        before = self.context[rows]
        after = np.column_stack([np.clip(told[outcome.valid], 0, 1), before[:, 1]])
        owner = self.ball[rows]
        old_balls = len(self.count)
        for ball in np.unique(owner).tolist():
            own = owner == ball
            self._reward(ball, before[own], after[own])
        self.context[rows] = after
        self.ball[rows] = self._owners(after, old_balls)
        for new_ball in range(old_balls, len(self.count)):
            self._claim(new_ball)

    def _reward(self, ball: int, before: np.ndarray, after: np.ndarray) -> None:
        """Lines 10-18 for one chosen ball: add a new ball if it zooms, then take in the reward.

        `before` and `after` are the contexts (m, 2) of its participants."""
        reward = after.mean(axis=0)
        if self._uncertainty()[ball] <= self.radius[ball]:
            nearest = best(-np.linalg.norm(before - reward, axis=1), 1, self.rng)
            self._add_ball(before[int(nearest[0])], self.radius[ball] / 2)
        self.count[ball] += 1
        self.mean[ball] += (reward - self.mean[ball]) / self.count[ball]

    def _add_ball(self, centre: np.ndarray, radius: float) -> None:
        self.centre = np.vstack([self.centre, centre])
        self.radius = np.append(self.radius, radius)
        self.mean = np.vstack([self.mean, centre])
        self.count = np.append(self.count, 0)

    def _owners(self, contexts: np.ndarray, balls: int) -> np.ndarray:
        """The smallest of the first `balls` balls around each context (m, 2); newest wins ties."""
        # Sorted so that the first ball around a context is its owner; ball 0 comes last.
        order = np.lexsort((-np.arange(balls), self.radius[:balls]))
        distance = np.linalg.norm(contexts[:, None] - self.centre[None, order], axis=2)
        inside = distance <= self.radius[order]
        inside[:, -1] = True  # ball 0 contains everything by definition
        return order[inside.argmax(axis=1)]

    def _claim(self, ball: int) -> None:
        """A new ball takes over the clients in it from balls that are not smaller."""
        inside = np.linalg.norm(self.context - self.centre[ball], axis=1) <= self.radius[ball]
        self.ball[inside & (self.radius[self.ball] >= self.radius[ball])] = ball

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


def trace_scores(joules: np.ndarray) -> np.ndarray:
    """1 - energy / largest energy; 1 for all where nobody spends any."""
    most = joules.max(initial=0)
    return 1 - joules / most if most > 0 else np.ones(len(joules))


def uniform_scores(n: int, rng: np.random.Generator) -> np.ndarray:
    """The paper's energy scores: on [0.5, 1], fixed per client."""
    return rng.uniform(0.5, 1, n)
