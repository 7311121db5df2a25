"""FedSUV: keep validity and utility apart, drop the clients that are surely worse, and try the promising ones.

Paper: "FedSUV: Validity and Utility-guided Client Selection for Federated Learning." Algorithm 1 (appendix A),
    eq. (2)-(11). Validity is a linear bandit (`maths.linear_bandit`), utility a Gaussian process
    (`maths.gaussian_process`, its hyper-parameters `maths.marginal_likelihood`), the Pareto steps are `maths.pareto`.

Paper symbol -> name here
    x_i -> Contexts    v -> valid    u = L Delta -> utility    theta_t, H_t -> validity_model    alpha -> alpha
    mu, sigma -> utility_model    beta_t -> beta    Q_t -> Bounds of the round    R_t -> validity_low .. utility_high
    X_t -> candidate    E_t -> _eliminating    w_t -> width    T_d -> the job's round_deadline    rho, delta -> params

Where the paper is silent
    The linear model has a constant column. A client that missed the deadline has no utility of its own: see
    `invalid_utility`. Utilities are clipped at 10 times the median of the positive ones, on arrival, so that one absurd
    value does not stretch the scale; while fewer than three positive ones are known there is no median to go by, and
    such rounds wait. Where the clients send no accuracy gain (FedScale's own aggregator), Delta counts as 1. Clients
    with the same context are one input: all observations of it are merged, and they always have the same region.
Departures
    rho is a cap on how many are eliminated, not a condition on when: as printed, one round could eliminate all but one.
    An axis whose region would be empty restarts at Q_t: utility drifts as the model learns. And before any positive
    utility is known the utility axis has no unit (the prior is 0 +- 1 of nothing): it restarts once, when it gets one.
    Classifying goes by ascending upper utility and stops at K, the largest cohort asked for so far: a round with few
    clients online shall not empty the pool.
    The diagonal (eq. 10) is measured with utility divided by its largest upper bound over the pool.
    With fewer candidates online than K, the other online clients fill up, best first.
    Hyper-parameters are fitted to at most 256 contexts (drawn at random where there are more), because a fit with all
    of them would take seconds; the posterior uses all. Past `max_points` contexts it is Titsias' with at most 256
    inducing points. From 50,000 contexts on the covariances with all clients are in single precision.

Cost of a round at n clients, p observed contexts (or inducing points), m observations: O(n (p m + d^2)) and an
O(n log n) sort; O(n p^2) in a round with new hyper-parameters.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedsuv_plugin.params import Params, param
from fedsuv_plugin.selectors.base import ClientTable, RoundOutcome, RoundView, Selector, best
from fedsuv_plugin.selectors.maths.gaussian_process import GaussianProcess
from fedsuv_plugin.selectors.maths.linear_bandit import LinearBandit
from fedsuv_plugin.selectors.maths.marginal_likelihood import Hyper, fit
from fedsuv_plugin.selectors.maths.pareto import diagonals, surely_worse, take_out_dominated
from fedsuv_plugin.selectors.signals import ACCURACY_GAIN

HARDWARE = (
    "cpu_gflops",
    "cores",
    "memory_gb",
    "gpu_gflops",
    "gpus",
)  # what the paper's contexts are made of ...
MEASURED = ("ms_per_sample", "kbps_up", "kbps_down")  # ... and what stands in where there is none
SKEWED = (
    10.0  # a column whose largest value is over this many times its median is taken in logarithms
)
ABSURD = 10.0  # times the median positive utility: where utilities are clipped
ENOUGH = 3  # positive utilities needed for a median that a single one cannot move far
SMALLEST, LARGEST = (
    1e-100,
    1e100,
)  # utilities are 0 or within, so that no square of them under- or overflows
FIT_POINTS = 256  # contexts the hyper-parameters are fitted to
FEWEST, ALIKE = (
    3,
    1e-9,
)  # fewer contexts, or a smaller relative deviation of the utilities: nothing to fit
PRIOR_LENGTH, PRIOR_NOISE = (
    0.5,
    0.25,
)  # before the first fit: of the unit ball; of the variance of the first utilities
PRIOR_SPREAD = 0.1  # and the least deviation of the function, as a share of their mean


@dataclass(frozen=True, kw_only=True)
class FedSUVParams(Params):
    delta: float = param(
        0.1,
        "chance that some region misses the truth; near 0: wide regions, nobody is dropped for long, 1: narrow",
        above=0,
        high=1,
    )
    rho: float = param(
        0.4,
        "largest share of all clients eliminated for low validity; 0: nobody, 1: down to one cohort",
        low=0,
        high=1,
    )
    ridge: float = param(
        1.0,
        "strength of the pull of the validity weights to 0; near 0: none, large: validity counts as 0 for long",
        above=0,
    )
    refit_every: int = param(
        10,
        "rounds between fits of the GP's hyper-parameters; 1: every round, 0: never, the first guess stays",
        low=0,
    )
    max_points: int = param(
        1024,
        "distinct client contexts up to which the GP is exact; beyond: at most 256 inducing points, and no more "
        "than this",
        low=1,
    )
    invalid_utility: str = param(
        "mean",
        "utility booked for a client that missed the deadline; mean: that of its round's valid ones, zero: 0, "
        "unseen: none, so it may be tried for ever",
        choices=("mean", "zero", "unseen"),
    )
    rank: str = param(
        "utility",
        "what the cohort is ranked by; utility: its upper bound, product: times the upper bound of validity",
        choices=("utility", "product"),
    )


class Contexts:
    """The distinct contexts of all clients: (g, d) in the unit ball, and whose they are."""

    def __init__(self, clients: ClientTable):
        rows = contexts(clients)
        first, of = _distinct(rows)
        self.rows = rows[first]  # (g, d)
        self.with_constant = np.column_stack(
            [self.rows, np.ones(len(first))]
        )  # (g, d + 1), for the linear model
        self.of = of  # (n,) client -> context
        self._same = len(first) == len(of)  # then `of` is 0, 1, 2, ...

    def per_client(self, values: np.ndarray) -> np.ndarray:
        """(g,) -> (n,)"""
        return values if self._same else values[self.of]


def contexts(clients: ClientTable) -> np.ndarray:
    """x_i, (n, d): skewed columns in logarithms, each column from 0 to 1, constant ones left out, norms at most 1.

    If all columns are constant there is one of zeros."""
    hardware = any(name in HARDWARE for name in clients.feature_names)
    used = [
        i for i, name in enumerate(clients.feature_names) if not (hardware and name in MEASURED)
    ]
    table = np.column_stack([clients.features[:, used], clients.samples]).astype(np.float64)
    if not np.isfinite(table).all():
        raise ValueError("client features: expected finite numbers")
    if not len(table):
        return np.zeros((0, 1))
    skewed = (table.max(axis=0) > SKEWED * np.median(table, axis=0)) & (table.min(axis=0) >= 0)
    table[:, skewed] = np.log1p(table[:, skewed])
    low, span = table.min(axis=0), np.ptp(table, axis=0)
    if not (span > 0).any():
        return np.zeros((len(table), 1))
    table = (table - low)[:, span > 0] / span[span > 0]
    return table / np.sqrt(np.einsum("nd,nd->n", table, table).max())


def _distinct(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Row of the first client of each distinct context (g,), and every client's context (n,), in row order.

    Rows are compared by a 64-bit hash, much faster than sorting them; in the case of a collision they are sorted."""
    bits = np.ascontiguousarray(rows + 0.0).view(np.uint64)  # + 0.0: no negative zeros
    code = np.zeros(len(rows), np.uint64)
    for column in bits.T:
        code = (code ^ column) * np.uint64(0x9E3779B97F4A7C15)
        code ^= code >> np.uint64(29)
    _, first, of = np.unique(code, return_index=True, return_inverse=True)
    if not np.array_equal(rows[first[of]], rows):
        _, first, of = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    order = np.argsort(first)
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    return first[order], place[of.reshape(-1)]


@dataclass(frozen=True)
class Bounds:
    """Q_t: an interval per axis and context, each (g,)."""

    validity_low: np.ndarray
    validity_high: np.ndarray
    utility_low: np.ndarray
    utility_high: np.ndarray


class FedSUV(Selector):
    name = "fedsuv"
    paper = "FedSUV: Validity and Utility-guided Client Selection for Federated Learning"
    needs = frozenset({ACCURACY_GAIN})
    Params = FedSUVParams
    state = (
        "candidate",
        "validity_low",
        "validity_high",
        "utility_low",
        "utility_high",
        "cohort",
        "rounds",
        "fitted_at",
        "has_unit",
        "positive",
        "waiting",
        "fit_report",
        "warned",
        "_counts",
    )

    def __init__(self, params: FedSUVParams, clients: ClientTable, rng: np.random.Generator):
        super().__init__(params, clients, rng)
        self.contexts = Contexts(clients)
        g, d = self.contexts.rows.shape
        self.validity_model = LinearBandit(d + 1, params.ridge)
        self.utility_model = GaussianProcess(
            self.contexts.rows,
            Hyper(0.0, 1.0, PRIOR_NOISE, np.full(d, PRIOR_LENGTH)),
            params.max_points,
        )
        self.candidate = np.ones(len(clients), bool)  # (n,) X_t
        self.validity_low, self.validity_high = _everything(g)  # (g,) R_t
        self.utility_low, self.utility_high = _everything(g)  # (g,) R_t
        self.cohort = 0  # the largest k asked for
        self.rounds = 0  # with feedback
        self.fitted_at = 0  # the one before the latest fit
        self.has_unit = False  # a positive utility is known, so the utility axis means something
        self.positive = np.empty(0)  # all positive utilities so far, as they were reported
        self.waiting: list[
            tuple[np.ndarray, np.ndarray, np.ndarray]
        ] = []  # rounds that wait for a median
        self.fit_report: dict[str, Any] = {"fit_converged": None, "fit_failed": False}
        self.warned = False
        self._counts: dict[str, Any] = {
            "pool": len(clients),
            "eliminated": 0,
            "classified_out": 0,
            "filled_up": 0,
            "widest": None,
        }
        self._seconds: dict[str, float] = {}

    @property
    def alpha(self) -> float:
        return 1.0 + math.sqrt(math.log(4.0 / self.params.delta) / 2.0)

    def beta(self, t: int) -> float:
        return 2.0 * math.log(
            max(1, len(self.clients)) * math.pi**2 * max(1, t) ** 2 / (3.0 * self.params.delta)
        )

    def assume(self, hyper: Hyper) -> None:
        """Where the hyper-parameters of utility are known; with `refit_every` 0 they stay."""
        self.utility_model.set_hyper(hyper)
        self.has_unit = True

    # ---- Algorithm 1

    def select(self, view: RoundView, k: int) -> np.ndarray:
        k = min(k, len(view.online))
        self.cohort = max(self.cohort, k)
        if not len(self.clients):
            return view.online[:0].copy()
        with self._timed("learning"):
            self._learning()
        with self._timed("bounding"):
            bounds = self._bounding(view.round)
        with self._timed("eliminating"):
            eliminated = self._eliminating(bounds)
        with self._timed("classifying"):
            classified_out = self._classifying(bounds)
        with self._timed("selecting"):
            width = self._widths()
            rows, filled_up = self._selecting(view.online, k, width)
        self._counts = {
            "pool": int(self.candidate.sum()),
            "eliminated": eliminated,
            "classified_out": classified_out,
            "filled_up": filled_up,
            "widest": float(width[self.candidate].max()),
        }
        return rows

    def _bounding(self, t: int) -> Bounds:
        """Q_t, eq. (4)-(6)."""
        x, reach = self.contexts.with_constant, math.sqrt(self.beta(t))
        validity, width = x @ self.validity_model.theta, self.alpha * self.validity_model.norms(x)
        utility, deviation = self.utility_model.mean, reach * self.utility_model.deviation
        return Bounds(validity - width, validity + width, utility - deviation, utility + deviation)

    def _eliminating(self, bounds: Bounds) -> int:
        """Lines 5-8, eq. (7): out with those whose validity is surely below the best one's."""
        pool = np.flatnonzero(self.candidate)
        n = len(self.clients)
        floor = max(n - math.floor(self.params.rho * n), self.cohort)
        low, high = (
            self.contexts.per_client(b)[pool] for b in (bounds.validity_low, bounds.validity_high)
        )
        gone = pool[surely_worse(low, high, len(pool) - floor, self.rng)]
        self.candidate[gone] = False
        return len(gone)

    def _classifying(self, bounds: Bounds) -> int:
        """Lines 9-18, eq. (8)-(9): shrink the regions, then out with whom another's worst case beats at its best."""
        self.validity_low, self.validity_high = _intersect(
            self.validity_low, self.validity_high, bounds.validity_low, bounds.validity_high
        )
        self.utility_low, self.utility_high = _intersect(
            self.utility_low, self.utility_high, bounds.utility_low, bounds.utility_high
        )
        pool = np.flatnonzero(self.candidate)
        low, high = (region[:, pool] for region in self._regions())
        gone = pool[take_out_dominated(low, high, self.cohort, self.rng)]
        self.candidate[gone] = False
        return len(gone)

    def _selecting(self, online: np.ndarray, k: int, width: np.ndarray) -> tuple[np.ndarray, int]:
        """Lines 19-20, eq. (10)-(11): the least known candidate, then the most promising ones, then whoever is left."""
        candidates, others = online[self.candidate[online]], online[~self.candidate[online]]
        score = self._scores()
        widest = candidates[best(width[candidates], min(1, k), self.rng)]
        rest = candidates[candidates != widest[0]] if len(widest) else candidates
        promising = rest[best(score[rest], k - len(widest), self.rng)]
        more = others[best(score[others], k - len(widest) - len(promising), self.rng)]
        return np.concatenate([widest, promising, more]), len(more)

    def _regions(self) -> tuple[np.ndarray, np.ndarray]:
        """min R_t and max R_t, each (2, n): validity, utility."""
        spread = self.contexts.per_client
        return (
            np.stack([spread(self.validity_low), spread(self.utility_low)]),
            np.stack([spread(self.validity_high), spread(self.utility_high)]),
        )

    def _widths(self) -> np.ndarray:
        """w_t, eq. (10), (n,)."""
        low, high = self._regions()
        largest = high[1, self.candidate].max(initial=-np.inf)
        return diagonals(low, high, np.array([1.0, largest if 0 < largest < np.inf else 1.0]))

    def _scores(self) -> np.ndarray:
        """What the cohort is ranked by, (n,)."""
        score = self.utility_high
        if self.params.rank == "product":
            score = score * np.clip(self.validity_high, 0.0, 1.0)
        return self.contexts.per_client(score)

    # ---- line 21: what it learns

    def update(self, outcome: RoundOutcome) -> None:
        if (outcome.rows < 0).any() or (outcome.rows >= len(self.clients)).any():
            raise IndexError(f"rows {outcome.rows}: expected rows of {len(self.clients)} clients")
        places = self.contexts.of[outcome.rows]
        utility, valid = self._utilities(outcome)
        self.validity_model.update(self.contexts.with_constant[places], valid.astype(np.float64))
        self.positive = np.r_[self.positive, utility[valid & (utility > 0)]]
        self.waiting.append((places, valid, utility))
        if len(self.positive) == 0 or len(self.positive) >= ENOUGH:
            for waited in self.waiting:
                self._book(*waited)
            self.waiting = []
        self.rounds += 1

    def _utilities(self, outcome: RoundOutcome) -> tuple[np.ndarray, np.ndarray]:
        """u = L Delta (eq. 3), not negative, and who is valid: whoever sends rubbish is not."""
        with np.errstate(over="ignore", invalid="ignore"):
            gain = outcome.signals.get(ACCURACY_GAIN, 1.0)
            utility = np.where(outcome.valid, outcome.utility * gain, 0.0)
        rubbish = outcome.valid & ~(
            np.isfinite(outcome.utility) & np.isfinite(np.broadcast_to(gain, utility.shape))
        )
        if rubbish.any() and not self.warned:
            logging.warning(
                "fedsuv: a client reported a utility that is not finite in round %d; it counts as having "
                "missed the round",
                outcome.round,
            )
            self.warned = True
        utility = np.nan_to_num(utility, nan=0.0, posinf=LARGEST)
        return np.where(
            utility < SMALLEST, 0.0, np.minimum(utility, LARGEST)
        ), outcome.valid & ~rubbish

    def _book(self, places: np.ndarray, valid: np.ndarray, utility: np.ndarray) -> None:
        """Observations for the Gaussian process: those of the valid clients, and what the others are taken for."""
        limit = ABSURD * float(np.median(self.positive)) if len(self.positive) else 0.0
        clipped = np.minimum(utility, limit)
        seen = valid
        if self.params.invalid_utility != "unseen" and valid.any():
            stand_in = clipped[valid].mean() if self.params.invalid_utility == "mean" else 0.0
            clipped, seen = np.where(valid, clipped, stand_in), np.ones_like(valid)
        elif self.params.invalid_utility == "zero":
            clipped, seen = np.zeros_like(clipped), np.ones_like(valid)
        if seen.any():
            self.utility_model.observe(places[seen], clipped[seen])

    def _learning(self) -> None:
        """The prior's unit when there is one, and new hyper-parameters when they are due."""
        if not self.has_unit and len(self.positive) and not self.waiting:
            self._take_unit()
        every = self.params.refit_every
        if self.has_unit and every and self.rounds - self.fitted_at >= every:
            self.fitted_at = self.rounds
            self._fit()

    def _take_unit(self) -> None:
        """The scale of utility is that of the first ones; regions from before had none."""
        data, old = self.utility_model.data(), self.utility_model.hyper
        spread = max(data.deviation, PRIOR_SPREAD * data.centre)
        self.utility_model.set_hyper(
            Hyper(data.centre, spread**2, PRIOR_NOISE * spread**2, old.lengths)
        )
        self.utility_low, self.utility_high = _everything(len(self.utility_low))
        self.has_unit = True

    def _fit(self) -> None:
        """Hyper-parameters by marginal likelihood. Whatever goes wrong, the old ones are still good."""
        data = self.utility_model.data()
        if len(data.count) > FIT_POINTS:
            data = self.utility_model.data(
                self.rng.choice(len(data.count), FIT_POINTS, replace=False)
            )
        if len(data.count) < FEWEST or data.deviation <= ALIKE * data.centre:
            return
        try:
            found = fit(data, self.utility_model.hyper)
        except Exception as error:  # linear algebra can fail in many ways, and none may end the job
            logging.warning(
                "fedsuv: fitting the Gaussian process failed, its hyper-parameters stay: %s", error
            )
            self.fit_report = {"fit_converged": False, "fit_failed": True}
            return
        self.utility_model.set_hyper(found.hyper)
        self.fit_report = {"fit_converged": found.converged, "fit_failed": False}

    # ---- what it tells

    def explain(self) -> dict[str, np.ndarray]:
        """Bounds are those of R_t; infinite before the first selection."""
        spread = self.contexts.per_client
        with np.errstate(invalid="ignore"):
            return {
                "candidate": self.candidate.copy(),
                "validity_low": spread(self.validity_low),
                "validity_high": spread(self.validity_high),
                "utility_low": spread(self.utility_low),
                "utility_high": spread(self.utility_high),
                "width": self._widths(),
                "score": self._scores(),
            }

    def diagnostics(self) -> dict[str, Any]:
        hyper = self.utility_model.hyper
        return {
            **self._counts,
            "gp_mean": hyper.mean,
            "gp_signal": hyper.signal,
            "gp_noise": hyper.noise,
            "gp_lengths": hyper.lengths.tolist(),
            "gp_points": len(self.utility_model.observed),
            "gp_inducing": self.utility_model.inducing,
            **self.fit_report,
            **self._seconds,
        }

    @contextmanager
    def _timed(self, stage: str) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        self._seconds[f"{stage}_seconds"] = time.perf_counter() - begin

    def state_dict(self) -> dict[str, Any]:
        return {
            **super().state_dict(),
            "validity_model": self.validity_model.state_dict(),
            "utility_model": self.utility_model.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.validity_model.load_state_dict(state["validity_model"])
        self.utility_model.load_state_dict(state["utility_model"])


def _everything(g: int) -> tuple[np.ndarray, np.ndarray]:
    """R_0 on one axis: all numbers, g times."""
    return np.full(g, -np.inf), np.full(g, np.inf)


def _intersect(
    low: np.ndarray, high: np.ndarray, new_low: np.ndarray, new_high: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Eq. (8) on one axis: the common part, or the new interval where there is none."""
    both_low, both_high = np.maximum(low, new_low), np.minimum(high, new_high)
    empty = both_low > both_high
    return np.where(empty, new_low, both_low), np.where(empty, new_high, both_high)
