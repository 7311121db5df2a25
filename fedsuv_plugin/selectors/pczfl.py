"""PCZFL: Pareto contextual zooming. Clients alike in accuracy and energy share a ball; the best balls are asked.

Paper: "Optimizing Federated Learning Client Selection via Multi-Objective Contextual Bandits", under review (PCZFL).
    Algorithm 1, eq. (2)-(5). It adapts E. Turgay, D. Oner, C. Tekin, "Multi-objective Contextual Bandit Problem with
    Similarity Information", AISTATS 2018.

Paper symbol -> name here
    x_{t,i} -> context[i], (accuracy on the interview set, energy score)    B, r(B) -> centre, radius
    mu-hat_B, N_B -> mean, count    u_B -> _uncertainty    A_B -> a_b    g_B -> significance    dom(B) -> ball[i] == B
Departures
    A client is in the domain of one ball, the smallest that contains its context, the latest made on ties; the paper
    leaves overlaps of equal balls open. The first ball, centre (0.5, 0.5) and radius sqrt(0.5), contains everything.
    A new ball's centre, "the contextual point" of its parent in the paper, is the context before training of the
    participant whose context is nearest the reward. At most one new ball per chosen ball and round.
    Energy score = 1 - energy / largest energy of all clients (`energy: trace`), or as in the paper's experiment
    uniform on [0.5, 1] and fixed (`energy: uniform`). The number of clients is what the Pareto front has; `max_clients`
    is ours.
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
    name = "pczfl"
    paper = "PCZFL: Optimizing Federated Learning Client Selection via Multi-Objective Contextual Bandits, under review"
    needs = frozenset({INTERVIEW_ACCURACY})
    probes = frozenset({INTERVIEW_ACCURACY})
    Params = PCZFLParams
    free_cohort = True
    state = ("context", "started", "ball", "centre", "radius", "mean", "count")

    def __init__(self, params: PCZFLParams, clients: ClientTable, rng: np.random.Generator):
        super().__init__(params, clients, rng)
        n = len(clients)
        score = (
            uniform_scores(n, rng) if params.energy == "uniform" else trace_scores(clients.energy)
        )
        self.context = np.column_stack([np.zeros(n), score])  # (n, 2)
        self.started = False  # the untrained model's accuracy is known
        self.ball = np.zeros(n, np.int64)  # (n,) the ball in whose domain each client is
        self.centre = np.array([[0.5, 0.5]])  # (b, 2)
        self.radius = np.array([np.sqrt(0.5)])  # (b,)
        self.mean = np.zeros((1, 2))  # (b, 2) mean reward
        self.count = np.zeros(1, np.int64)  # (b,) rewards
        self._begin()

    def _begin(self) -> None:
        self._significance = np.full(
            (len(self.count), 2), np.nan
        )  # (b, 2), NaN where a ball was not relevant
        self._parts = {"relevant": 0, "chosen": 0, "warm_up": False}

    # ---- choosing

    def probe(self, view: RoundView) -> Probe | None:
        """One client tells how good the untrained model is on the interview set; to all it is the same."""
        return (
            None
            if self.started or not len(view.online)
            else Probe(INTERVIEW_ACCURACY, view.online[:1])
        )

    def select(self, view: RoundView, k: int) -> np.ndarray:
        self._begin()
        if not self.started and view.probe is not None and len(view.probe.values):
            self.context[:, 0], self.started = float(np.clip(view.probe.values[0], 0, 1)), True
        relevant = np.unique(self.ball[view.online])  # Alg. 1, line 6
        self._significance[relevant] = self._significances(relevant)
        warm_up = view.round <= self.params.warmup_rounds
        chosen = (
            relevant if warm_up else relevant[undominated(self._significance[relevant])]
        )  # line 7
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
        """Eq. (5) for the given balls, against all: r + min over B' of (UCB of B' + distance), (len(balls), 2)."""
        bounds = self.mean + (self._uncertainty() + self.radius)[:, None]  # eq. (4), (b, 2)
        apart = np.linalg.norm(
            self.centre[balls, None] - self.centre[None], axis=2
        )  # (len(balls), b)
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
        made = [
            b
            for b in (
                self._reward(ball, before[owner == ball], after[owner == ball])
                for ball in np.unique(owner).tolist()
            )
            if b is not None
        ]
        self.context[rows] = after
        self.ball[rows] = self._owners(after, len(self.count) - len(made))
        for ball in made:
            self._claim(ball)

    def _reward(self, ball: int, before: np.ndarray, after: np.ndarray) -> int | None:
        """Lines 10-18 for one chosen ball: contexts (m, 2) of its participants; the new ball, if it zooms."""
        reward, new = after.mean(axis=0), None
        if self._uncertainty()[ball] <= self.radius[ball]:
            near = best(-np.linalg.norm(before - reward, axis=1), 1, self.rng)
            new = self._add_ball(before[int(near[0])], self.radius[ball] / 2)
        self.count[ball] += 1
        self.mean[ball] += (reward - self.mean[ball]) / self.count[ball]
        return new

    def _add_ball(self, centre: np.ndarray, radius: float) -> int:
        self.centre, self.mean = np.vstack([self.centre, centre]), np.vstack([self.mean, centre])
        self.radius, self.count = np.append(self.radius, radius), np.append(self.count, 0)
        return len(self.count) - 1

    def _owners(self, contexts: np.ndarray, balls: int) -> np.ndarray:
        """The smallest of the first `balls` balls that contains each context (m, 2), the latest made on ties."""
        order = np.lexsort(
            (-np.arange(balls), self.radius[:balls])
        )  # best claim first; ball 0 is last
        inside = (
            np.linalg.norm(contexts[:, None] - self.centre[None, order], axis=2)
            <= self.radius[order]
        )
        inside[:, -1] = True  # ball 0 contains everything by definition
        return order[inside.argmax(axis=1)]

    def _claim(self, ball: int) -> None:
        """A new ball takes over the clients in it from balls that are not smaller."""
        inside = np.linalg.norm(self.context - self.centre[ball], axis=1) <= self.radius[ball]
        self.ball[inside & (self.radius[self.ball] >= self.radius[ball])] = ball

    # ---- what it tells

    def explain(self) -> dict[str, np.ndarray]:
        """The significances are those of the last selection, NaN where no client of the ball was online."""
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
    """Which of the points (m, 2) no other dominates, more being better: a mask (m,). Equal points do not dominate each
    other. Infinite coordinates are fine."""
    order = np.lexsort((-points[:, 1], -points[:, 0]))
    first, second = points[order].T
    # Sorted by the first coordinate, a point is dominated by one that is strictly ahead in it and not behind in the
    # second, or equal in it and ahead in the second.
    ahead = np.concatenate([[-np.inf], np.maximum.accumulate(second)])
    start = np.searchsorted(
        -first, -first, side="left"
    )  # where the points of equal first coordinate begin
    dominated = ((start > 0) & (ahead[start] >= second)) | (second[start] > second)
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
