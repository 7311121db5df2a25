"""DivFL: choose the cohort whose updates best represent the updates of all online clients.

Paper: R. Balakrishnan, T. Li, T. Zhou, N. Himayat, V. Smith, J. Bilmes. "Diverse Client Selection
    for Federated Learning via Submodular Maximization." ICLR 2022. Section 3: facility location,
    maximised by (stochastic) greedy.

Paper symbol -> name here
    gradient of F_k -> direction of client k, (received - own weights) / learning rate
    G(S) = sum over k of the distance to the nearest member of S -> objective
    Gbar(S) = const - G(S), submodular -> what `facility_location` maximises
    gamma_i -> cluster_size    K -> k
Departures
    With `directions: last` (the paper's variant without overhead) a client is asked for its
        direction once, when first online; after that only the cohorts' directions are renewed.
    The constant in Gbar (open in the paper) is so large that the first pick is the medoid.
    Directions are compressed to `sketch_dim` numbers, which preserves distances: see `Sketch`.
    The clients are not weighted by gamma_i when the job averages them; `explain` reports gamma_i.
    A direction longer than 10 times the median length is shortened to that length.
    Clients whose direction is not known get seats only when no others are left.
    Ties are broken at random.
    With `utility: accuracy_energy`, as in PCZFL's paper, a client's point is that utility instead
        of its direction: see accuracy_energy.py. The cohort represents the clients' utilities, so
        that their distance |u_i - u_j| to the nearest of it is small. That paper leaves open what
        a number in place of a gradient means. The other reading, the k largest utilities, would
        be `pow_d` with everyone a candidate, and nothing of DivFL would be left.

G is a sum over the online clients whose direction is known, not over all clients. Most of the work
goes into their distances. These are kept, so that a selection costs O(changed clients sketch_dim)
for the clients whose direction has changed since the last one. It costs O(online^2 sketch_dim) if
the distances of all clients do not fit into `distances_budget_mb`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedsuv_plugin.params import Params as AnyParams
from fedsuv_plugin.params import param
from fedsuv_plugin.selectors.accuracy_energy import UtilityParams, mean_utility, signals_for
from fedsuv_plugin.selectors.base import ClientTable, Probe, RoundOutcome, RoundView, Selector, best
from fedsuv_plugin.selectors.baselines.facility_location import (
    BLOCK,
    DistanceTable,
    GainBounds,
    distances,
    facility_location,
    stochastic_facility_location,
)
from fedsuv_plugin.selectors.maths.directions import longest_believed, shortening
from fedsuv_plugin.selectors.signals import DIRECTION, INTERVIEW_ACCURACY

LARGEST = 1e30  # what arrives is clipped to this size, so that no square of it overflows


@dataclass(frozen=True, kw_only=True)
class DivflParams(UtilityParams):
    sketch_dim: int = param(
        1024,
        "numbers a direction is compressed to; squared distances are off by about sqrt(2 / this)",
        low=1,
    )
    greedy: str = param(
        "stochastic",
        "stochastic: each pick is the best of a random sample; lazy: the best of all",
        choices=("stochastic", "lazy"),
    )
    epsilon: float = param(
        0.1,
        "stochastic greedy draws (clients / seats) ln(1 / epsilon) for each pick; small: all "
        "of them, 1: one, at random",
        above=0,
        high=1,
    )
    directions: str = param(
        "last",
        "last: of a client's latest participation; fresh: all are asked every round",
        choices=("last", "fresh"),
    )
    distances_budget_mb: int = param(
        512,
        "memory for a table of all clients' distances (10,000 clients: 382), kept from round to "
        "round; a larger table is not kept, and selections take longer",
        low=0,
    )


class Divfl(Selector):
    """Facility location over sketches of the clients' latest update directions."""

    name = "divfl"
    paper = (
        "Balakrishnan et al., Diverse Client Selection for FL via Submodular Maximization, "
        "ICLR 2022"
    )
    needs = frozenset({DIRECTION, INTERVIEW_ACCURACY})
    probes = frozenset({DIRECTION, INTERVIEW_ACCURACY})
    Params = DivflParams
    state = ("utility", "sketch_seed", "sketches", "known", "approached")

    def __init__(self, params: DivflParams, clients: ClientTable, rng: np.random.Generator):
        super().__init__(params, clients, rng)
        n = len(clients)
        self.utility = mean_utility(params, clients, rng)  # none: directions are compared
        self.sketch_seed = int(rng.integers(2**63 - 1))
        # (n, width): the width depends on the model, so it is 0 until the first direction arrives.
        self.sketches = np.zeros((n, 0), np.float32)
        self.known = np.zeros(n, bool)  # (n,) whether the client's direction has arrived
        self.approached = np.zeros(n, bool)  # (n,) was asked for its direction, answered or not
        self.cluster_size = np.zeros(n, np.int64)  # (n,) clients it represents; 0: not chosen
        self.distance = np.full(n, np.nan)  # (n,) to the nearest of the chosen
        self._sketch: Sketch | None = None
        # Made when it is first needed. It follows from the sketches, so it is not in the state.
        self._table: DistanceTable | None = None

    @classmethod
    def required(cls, params: AnyParams) -> frozenset[str]:
        return signals_for(params, DIRECTION)

    @classmethod
    def may_ask(cls, params: AnyParams) -> frozenset[str]:
        return signals_for(params, DIRECTION)

    def probe(self, view: RoundView) -> Probe | None:
        if self.utility is not None:
            return self.utility.question(view)
        rows = view.online
        if self.params.directions == "last":
            rows = rows[~self.approached[rows]]
        self.approached[rows] = True
        return Probe(DIRECTION, rows, one_by_one=True) if len(rows) else None

    def receive(self, row: int, value: np.ndarray) -> None:
        if self._sketch is None:
            self._sketch = Sketch(len(value), self.params.sketch_dim, self.sketch_seed)
        if not self.sketches.size:
            self.sketches = np.zeros((len(self.clients), self._sketch.width), np.float32)
        self.sketches[row] = np.clip(self._sketch(value), -LARGEST, LARGEST)
        self.known[row] = True
        if self._table is not None:
            self._table.forget(row)

    def update(self, outcome: RoundOutcome) -> None:
        if self.utility is not None:
            self.utility.learn(outcome)
            return
        if DIRECTION in outcome.signals:
            for i in np.flatnonzero(outcome.valid):
                self.receive(int(outcome.rows[i]), outcome.signals[DIRECTION][i])
        self.approached[outcome.rows[outcome.valid]] = True

    def select(self, view: RoundView, k: int) -> np.ndarray:
        if self.utility is not None:
            self.utility.hear(view)
            self._place(self.utility.values)
        known = self.known[view.online]
        rows = view.online[known]
        others = view.online[~known]
        lengths = self._lengths(rows)
        factors = np.ones(len(rows))  # utilities are within [0, 1], and none is too long
        if self.utility is None:
            factors = shortening(lengths, longest_believed(lengths))
        points = self.sketches[rows].astype(np.float64)
        points *= factors[:, None]

        def bounds() -> GainBounds:
            if self._table is None:
                self._table = DistanceTable(len(self.clients))
            return self._table.renew(self.sketches, rows, factors, lengths * factors)

        fits = DistanceTable.megabytes(len(self.clients)) <= self.params.distances_budget_mb
        make_bounds = bounds if fits else None
        if self.params.greedy == "lazy":
            chosen = facility_location(points, k, self.rng, make_bounds)
        else:
            epsilon = self.params.epsilon
            chosen = stochastic_facility_location(points, k, epsilon, self.rng, make_bounds)
        self._book_clusters(rows, points, chosen)
        more = others[best(np.zeros(len(others)), k - len(chosen), self.rng)]
        return np.concatenate([rows[chosen], more])

    def _place(self, values: np.ndarray) -> None:
        """Put every client at its value (n,) on a line; distances of those who stay are kept."""
        if not self.sketches.size:
            self.sketches = np.full((len(values), 1), np.nan, np.float32)
        line = values.astype(np.float32)
        moved = np.flatnonzero(self.sketches[:, 0] != line)
        self.sketches[moved, 0] = line[moved]
        self.known[:] = True
        if self._table is not None:
            self._table.forget(moved)

    def _lengths(self, rows: np.ndarray) -> np.ndarray:
        """The lengths of the clients' sketches in float64, (m,)."""
        lengths = np.empty(len(rows))
        for start in range(0, len(rows), BLOCK):
            part = slice(start, start + BLOCK)
            sketches = self.sketches[rows[part]].astype(np.float64)
            lengths[part] = np.linalg.norm(sketches, axis=1)
        return lengths

    def _book_clusters(self, rows: np.ndarray, points: np.ndarray, chosen: np.ndarray) -> None:
        """Count the clients that each of the chosen represents: those it is the nearest to."""
        self.cluster_size = np.zeros(len(self.clients), np.int64)
        self.distance = np.full(len(self.clients), np.nan)
        if len(chosen):
            apart = distances(points, points[chosen])
            self.distance[rows] = apart.min(axis=1)
            nearest = apart.argmin(axis=1)
            self.cluster_size[rows[chosen]] = np.bincount(nearest, minlength=len(chosen))

    def explain(self) -> dict[str, np.ndarray]:
        """What the last selection knew of each client and whom it represents.

        `distance` (to the nearest of the chosen) is NaN where a client was offline or its
        direction is not known."""
        return {"cluster_size": self.cluster_size, "distance": self.distance, "known": self.known}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._table = None

    def diagnostics(self) -> dict[str, Any]:
        covered = self.distance[np.isfinite(self.distance)]
        return {
            "known": int(np.count_nonzero(self.known)),
            "objective": float(covered.sum()),
            "largest_cluster": int(self.cluster_size.max(initial=0)),
        }


class Sketch:
    """Count sketch (M. Charikar, K. Chen, M. Farach-Colton, ICALP 2002): (p,) -> (width,).

    Each coordinate is added, with a random sign, to one of `dim` numbers; place and sign depend
    on the seed alone. A vector of at most `dim` numbers stays as it is. The squared length of a
    sketch has the right mean, and variance (2 / width) (|x|_2^4 - |x|_4^4): squared distances have
    a relative standard deviation of at most sqrt(2 / width), 4.4 % at 1024."""

    def __init__(self, p: int, dim: int, seed: int):
        self.width = min(p, dim)
        rng = np.random.default_rng([seed, p])
        self._exact = p <= dim
        self._place = np.empty(0, np.int64) if self._exact else rng.integers(dim, size=p)
        self._sign = np.empty(0) if self._exact else rng.choice([-1.0, 1.0], size=p)

    def __call__(self, vector: np.ndarray) -> np.ndarray:
        if self._exact:
            return np.asarray(vector, np.float64)
        return np.bincount(self._place, weights=self._sign * vector, minlength=self.width)
