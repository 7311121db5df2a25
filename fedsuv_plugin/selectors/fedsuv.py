"""FedSUV: estimate who is in time and who is useful apart, drop the surely worse, try the rest.

Paper: "FedSUV: Validity and Utility-guided Client Selection for Federated Learning."
    Algorithm 1 (appendix A), eq. (2)-(11).

Paper symbol -> name here
    x_i -> Contexts    v -> valid    u = L Delta -> utility    X_t -> candidate    w_t -> width
    theta_t, H_t -> validity_model (a linear bandit)    alpha -> alpha
    mu, sigma -> utility_model (a Gaussian process)    beta_t -> beta
    Q_t -> Bounds of the round    R_t -> validity_low .. utility_high    E_t -> _eliminating
    T_d -> the job's round_deadline    rho, delta -> params
Departures
    - Contexts are scaled to the unit ball, skewed columns in logarithms: see `contexts`.
    - The linear model of validity has a constant column besides the context.
    - A client that missed the deadline has no utility of its own, yet theorem 5.4 needs an
      observation of every pick; it is booked as 0, what (OPT) counts it for: `invalid_utility`.
    - A negative utility, of a client that got worse by training, counts as 0.
    - Utilities are clipped on arrival at 10 times the median of the positive ones, so that one
      absurd value does not stretch the scale.
    - While only one or two positive utilities are known, their median is no guide: rounds wait
      and are booked once there are three.
    - Where the clients send no accuracy gain (FedScale's own aggregator), Delta counts as 1.
    - |X| in beta_t is the number of clients, whether or not some have the same context.
    - Clients with the same context are one input: their observations are merged, and they always
      have the same region.
    - rho is a cap on how many are eliminated, not a condition on when: as printed, one round could
      eliminate all but one.
    - An axis whose region would be empty restarts at Q_t, because utility drifts as the model
      learns.
    - Regions are intersected across fits of the hyper-parameters, each of which moves Q_t. With a
      fit every 10 rounds 8 % of the client-rounds have the truth outside R_t, with the true
      hyper-parameters none; restarting the axis at a fit does not improve the picks.
    - The utility axis also restarts when the first positive utilities are booked, because before
      them the scale of utility is unknown.
    - Classifying goes by ascending upper utility and stops at K, the job's cohort, so that a round
      with few clients online does not empty the pool.
    - The diagonal (eq. 10) is measured with utility divided by its largest upper bound over the
      pool.
    - With fewer candidates online than K, the other online clients fill up, best first.
    - Hyper-parameters are fitted to at most 256 contexts, drawn at random where there are more,
      because a fit to all would be slow; the posterior uses all.
    - Past `max_points` contexts the posterior is Titsias' with at most 256 inducing points.
    - From 50,000 contexts on, the covariances with all clients are in single precision.
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

# The paper's contexts are made of hardware; where the trace has none, what was measured stands in.
HARDWARE = ("cpu_gflops", "cores", "memory_gb", "gpu_gflops", "gpus")
MEASURED = ("ms_per_sample", "kbps_up", "kbps_down")
# A column whose largest value is over this many times its median is taken in logarithms.
SKEWED = 10.0

ABSURD = 10.0  # times the median positive utility: where utilities are clipped
ENOUGH = 3  # positive utilities needed for a median that a single one cannot move far
# Utilities are 0 or between these two, so that no square of them underflows or overflows.
SMALLEST = 1e-100
LARGEST = 1e100

FIT_POINTS = 256  # contexts the hyper-parameters are fitted to, at most
# With fewer contexts, or a smaller relative deviation of the utilities, there is nothing to fit.
FEWEST = 3
ALIKE = 1e-9

# The prior of utility before the first fit.
PRIOR_LENGTH = 0.5  # length-scale; contexts are in the unit ball
PRIOR_NOISE = 0.25  # noise variance, as a share of the variance of the first utilities
PRIOR_SPREAD = 0.1  # least standard deviation, as a share of the mean of the first utilities


@dataclass(frozen=True, kw_only=True)
class FedSUVParams(Params):
    delta: float = param(
        0.1,
        "chance that some region misses the truth; near 0: wide regions, nobody is dropped for "
        "long, 1: narrow",
        above=0,
        high=1,
    )
    rho: float = param(
        0.4,
        "largest share of all clients eliminated for low validity; 0: nobody, 1: down to one "
        "cohort",
        low=0,
        high=1,
    )
    ridge: float = param(
        1.0,
        "strength of the pull of the validity weights to 0; near 0: none, large: validity counts "
        "as 0 for long",
        above=0,
    )
    refit_every: int = param(
        10,
        "rounds between fits of the GP's hyper-parameters; 1: every round, 0: never, the first "
        "guess stays",
        low=0,
    )
    max_points: int = param(
        1024,
        "distinct client contexts up to which the GP is exact; beyond: at most 256 inducing "
        "points, and no more than this",
        low=1,
    )
    invalid_utility: str = param(
        "zero",
        "utility booked for a client that missed the deadline; zero: 0, because such a pick is "
        "worth nothing, mean: that of its round's valid ones, as FedScale books stragglers, "
        "unseen: none, so it may be tried for ever",
        choices=("zero", "mean", "unseen"),
    )
    rank: str = param(
        "utility",
        "what the cohort is ranked by; utility: its upper bound, product: times the upper bound "
        "of validity",
        choices=("utility", "product"),
    )


class Contexts:
    """The g distinct contexts of the n clients, in the unit ball, and which client has which."""

    def __init__(self, clients: ClientTable):
        rows = contexts(clients)
        first, of = _distinct(rows)
        self.rows = rows[first]  # (g, d)
        # (g, d + 1), the input of the linear model
        self.with_constant = np.column_stack([self.rows, np.ones(len(first))])
        self.of = of  # (n,) client -> context
        self._all_distinct = len(first) == len(of)  # then `of` is 0, 1, 2, ...

    def per_client(self, values: np.ndarray) -> np.ndarray:
        """Values of the contexts (g, ...) handed out to the clients that have them (n, ...)."""
        return values if self._all_distinct else values[self.of]


def contexts(clients: ClientTable) -> np.ndarray:
    """The context x_i of every client, (n, d), with norms of at most 1.

    Skewed columns are in logarithms, each column goes from 0 to 1, and constant ones are left out.
    If all columns are constant there is one of zeros."""
    names = clients.feature_names
    has_hardware = any(name in HARDWARE for name in names)
    used = [i for i, name in enumerate(names) if not (has_hardware and name in MEASURED)]
    table = np.column_stack([clients.features[:, used], clients.samples]).astype(np.float64)
    if not np.isfinite(table).all():
        raise ValueError("client features: expected finite numbers")
    if not len(table):
        return np.zeros((0, 1))
    skewed = (table.max(axis=0) > SKEWED * np.median(table, axis=0)) & (table.min(axis=0) >= 0)
    table[:, skewed] = np.log1p(table[:, skewed])
    low = table.min(axis=0)
    span = np.ptp(table, axis=0)
    varies = span > 0
    if not varies.any():
        return np.zeros((len(table), 1))
    table = (table - low)[:, varies] / span[varies]
    longest = np.sqrt(np.einsum("nd,nd->n", table, table).max())
    return table / longest


def _distinct(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The distinct rows in order of appearance: the first place of each (g,), and each row's (n,).

    Rows are compared by a 64-bit hash, which is much faster than sorting them. They are sorted
    only if two different rows have the same hash."""
    bits = np.ascontiguousarray(rows + 0.0).view(np.uint64)  # + 0.0 turns -0.0 into 0.0
    code = np.zeros(len(rows), np.uint64)
    for column in bits.T:
        code = (code ^ column) * np.uint64(0x9E3779B97F4A7C15)
        code ^= code >> np.uint64(29)
    _, first, of = np.unique(code, return_index=True, return_inverse=True)
    if not np.array_equal(rows[first[of]], rows):
        _, first, of = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    # `unique` sorts by hash; renumber in order of appearance.
    order = np.argsort(first)
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    return first[order], place[of.reshape(-1)]


@dataclass(frozen=True)
class Bounds:
    """Q_t, the confidence intervals of one round: per axis and context, each (g,)."""

    validity_low: np.ndarray
    validity_high: np.ndarray
    utility_low: np.ndarray
    utility_high: np.ndarray


class FedSUV(Selector):
    """Used as `sample_mode: fedsuv`, in jobs with a `round_deadline` that some clients miss.

    Cost of a round at n clients with d features, p observed contexts (or inducing points) and m
    observations: O(n (p m + d^2)) and a sort, O(n log n); O(n p^2) in a round with new
    hyper-parameters."""

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
        self.cohort = 0  # K: the job's, or where that is not known the largest k asked for
        self.rounds = 0  # rounds with feedback so far
        self.fitted_at = 0  # the value of `rounds` at the latest fit
        self.has_unit = False  # positive utilities are known, so the utility axis has a scale
        self.positive = np.empty(0)  # all positive utilities so far, as they were reported
        # (contexts, valid, utility) of rounds that wait for a median
        self.waiting: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
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
        """Half-width of a validity interval, in norms of the linear bandit."""
        return 1.0 + math.sqrt(math.log(4.0 / self.params.delta) / 2.0)

    def beta(self, t: int) -> float:
        """The square of a utility interval's half-width in round t, in posterior deviations."""
        n = max(1, len(self.clients))
        return 2.0 * math.log(n * math.pi**2 * max(1, t) ** 2 / (3.0 * self.params.delta))

    def assume(self, hyper: Hyper) -> None:
        """Take hyper-parameters of utility as known; with `refit_every: 0` they stay."""
        self.utility_model.set_hyper(hyper)
        self.has_unit = True

    # ---- Algorithm 1

    def select(self, view: RoundView, k: int) -> np.ndarray:
        self.cohort = max(self.cohort, k) if view.cohort_size is None else view.cohort_size
        k = min(k, len(view.online))
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
        x = self.contexts.with_constant
        validity = x @ self.validity_model.theta
        validity_reach = self.alpha * self.validity_model.norms(x)
        utility = self.utility_model.mean
        utility_reach = math.sqrt(self.beta(t)) * self.utility_model.deviation
        return Bounds(
            validity_low=validity - validity_reach,
            validity_high=validity + validity_reach,
            utility_low=utility - utility_reach,
            utility_high=utility + utility_reach,
        )

    def _eliminating(self, bounds: Bounds) -> int:
        """Lines 5-8, eq. (7): remove those whose validity is surely below the best one's.

        Returns how many were removed."""
        pool = np.flatnonzero(self.candidate)
        n = len(self.clients)
        fewest_left = max(n - _share_of(self.params.rho, n), self.cohort)
        low = self.contexts.per_client(bounds.validity_low)[pool]
        high = self.contexts.per_client(bounds.validity_high)[pool]
        gone = pool[surely_worse(low, high, len(pool) - fewest_left, self.rng)]
        self.candidate[gone] = False
        return len(gone)

    def _classifying(self, bounds: Bounds) -> int:
        """Lines 9-18, eq. (8)-(9): shrink the regions, then remove the dominated candidates.

        A client is dominated if another's worst case is at least as good as its best case.
        Returns how many were removed."""
        self.validity_low, self.validity_high = _intersect(
            self.validity_low, self.validity_high, bounds.validity_low, bounds.validity_high
        )
        self.utility_low, self.utility_high = _intersect(
            self.utility_low, self.utility_high, bounds.utility_low, bounds.utility_high
        )
        pool = np.flatnonzero(self.candidate)
        low, high = self._regions()
        gone = pool[take_out_dominated(low[:, pool], high[:, pool], self.cohort, self.rng)]
        self.candidate[gone] = False
        return len(gone)

    def _selecting(self, online: np.ndarray, k: int, width: np.ndarray) -> tuple[np.ndarray, int]:
        """Lines 19-20, eq. (10)-(11): the least known candidate, then the most promising ones.

        Where there are too few candidates others fill up. Returns the cohort and their number."""
        is_candidate = self.candidate[online]
        candidates = online[is_candidate]
        others = online[~is_candidate]
        score = self._scores()
        widest = candidates[best(width[candidates], min(1, k), self.rng)]
        rest = candidates[candidates != widest[0]] if len(widest) else candidates
        promising = rest[best(score[rest], k - len(widest), self.rng)]
        more = others[best(score[others], k - len(widest) - len(promising), self.rng)]
        return np.concatenate([widest, promising, more]), len(more)

    def _regions(self) -> tuple[np.ndarray, np.ndarray]:
        """min R_t and max R_t, each (2, n): validity, utility."""
        per_client = self.contexts.per_client
        low = np.stack([per_client(self.validity_low), per_client(self.utility_low)])
        high = np.stack([per_client(self.validity_high), per_client(self.utility_high)])
        return low, high

    def _widths(self) -> np.ndarray:
        """w_t, eq. (10), (n,)."""
        low, high = self._regions()
        largest = high[1, self.candidate].max(initial=-np.inf)
        unit = largest if 0 < largest < np.inf else 1.0
        return diagonals(low, high, np.array([1.0, unit]))

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
        # Zeros alone need no median: nothing can be clipped.
        if len(self.positive) == 0 or len(self.positive) >= ENOUGH:
            for waited in self.waiting:
                self._book(*waited)
            self.waiting = []
        self.rounds += 1

    def _utilities(self, outcome: RoundOutcome) -> tuple[np.ndarray, np.ndarray]:
        """u = L Delta (eq. 3), cut off at 0, and who counts as valid.

        Whoever reports a number that is not finite counts as having missed the round."""
        with np.errstate(over="ignore", invalid="ignore"):
            gain = outcome.signals.get(ACCURACY_GAIN, 1.0)
            utility = np.where(outcome.valid, outcome.utility * gain, 0.0)
        finite_gain = np.isfinite(np.broadcast_to(gain, utility.shape))
        rubbish = outcome.valid & ~(np.isfinite(outcome.utility) & finite_gain)
        if rubbish.any() and not self.warned:
            logging.warning(
                "fedsuv: a client reported a utility that is not finite in round %d; it counts as "
                "having missed the round",
                outcome.round,
            )
            self.warned = True
        utility = np.nan_to_num(utility, nan=0.0, posinf=LARGEST)
        utility = np.where(utility < SMALLEST, 0.0, np.minimum(utility, LARGEST))
        return utility, outcome.valid & ~rubbish

    def _book(self, places: np.ndarray, valid: np.ndarray, utility: np.ndarray) -> None:
        """Hand a round to the Gaussian process: contexts (m,), who was valid (m,), utilities (m,).

        `invalid_utility` says what the clients that missed the round are booked with."""
        limit = ABSURD * float(np.median(self.positive)) if len(self.positive) else 0.0
        booked = np.minimum(utility, limit)
        seen = valid
        if self.params.invalid_utility != "unseen" and valid.any():
            stand_in = booked[valid].mean() if self.params.invalid_utility == "mean" else 0.0
            booked = np.where(valid, booked, stand_in)
            seen = np.ones_like(valid)
        elif self.params.invalid_utility == "zero":
            booked = np.zeros_like(booked)
            seen = np.ones_like(valid)
        if seen.any():
            self.utility_model.observe(places[seen], booked[seen])

    def _learning(self) -> None:
        """Scale the prior when the first utilities are known; refit it when a fit is due."""
        if not self.has_unit and len(self.positive) and not self.waiting:
            self._take_unit()
        every = self.params.refit_every
        if self.has_unit and every and self.rounds - self.fitted_at >= every:
            self.fitted_at = self.rounds
            self._fit()

    def _take_unit(self) -> None:
        """The prior gets the scale of the first utilities.

        The utility regions restart, because those from before were made without a scale."""
        data = self.utility_model.data()
        lengths = self.utility_model.hyper.lengths
        spread = max(data.deviation, PRIOR_SPREAD * data.centre)
        self.utility_model.set_hyper(
            Hyper(data.centre, spread**2, PRIOR_NOISE * spread**2, lengths)
        )
        self.utility_low, self.utility_high = _everything(len(self.utility_low))
        self.has_unit = True

    def _fit(self) -> None:
        """Hyper-parameters by marginal likelihood; if the fit fails, the old ones stay."""
        data = self.utility_model.data()
        if len(data.count) > FIT_POINTS:
            sample = self.rng.choice(len(data.count), FIT_POINTS, replace=False)
            data = self.utility_model.data(sample)
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
        per_client = self.contexts.per_client
        with np.errstate(invalid="ignore"):
            return {
                "candidate": self.candidate.copy(),
                "validity_low": per_client(self.validity_low),
                "validity_high": per_client(self.validity_high),
                "utility_low": per_client(self.utility_low),
                "utility_high": per_client(self.utility_high),
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


def _share_of(share: float, n: int) -> int:
    """floor(share * n) of the share as it is written: in floats 0.29 of 100 would be 28.

    >>> _share_of(0.29, 100)
    29
    """
    return math.floor(round(share * n, 6))


def _everything(g: int) -> tuple[np.ndarray, np.ndarray]:
    """R_0 on one axis: the interval of all numbers, for each of g contexts."""
    return np.full(g, -np.inf), np.full(g, np.inf)


def _intersect(
    low: np.ndarray, high: np.ndarray, new_low: np.ndarray, new_high: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Eq. (8) on one axis: the common part, or the new interval where there is none."""
    both_low = np.maximum(low, new_low)
    both_high = np.minimum(high, new_high)
    empty = both_low > both_high
    return np.where(empty, new_low, both_low), np.where(empty, new_high, both_high)
