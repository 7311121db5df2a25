"""The posterior of a Gaussian process at every one of n fixed inputs, kept up as observations of some of them arrive.

Exact up to `max_points` distinct inputs observed. Past that, inducing points: M. Titsias, "Variational Learning of
Inducing Variables in Sparse Gaussian Processes", AISTATS 2009, the optimal q(u); at most INDUCING of the observed
inputs, chosen greedily by the variance that those chosen before leave (pivoted Cholesky).

What it costs. With p basis points (observed or inducing) the posterior at n inputs is n p^2, which a million inputs
cannot have every round. So the mean and the variance at all inputs are kept, and m new observations only correct them:

    h(x) = L_c^-1 cov(x, new)      mean(x) += h(x)' L_c^-1 (y - mean(new))      variance(x) -= |h(x)|^2

with cov the posterior covariance before them, C = cov(new, new) + noise = L_c L_c'. This is Bayes' rule, not an
approximation; cov(x, new) = k(x, basis) T needs n p m, and one pass over k(x, basis), computed in blocks and thrown
away: memory is O(n + p^2). Starting over (new hyper-parameters, another basis) is the same pass from the prior, with
all observations at once.

Everything is in units of the function's standard deviation, around its mean. The pass runs in single precision from
SINGLE_FROM inputs on, in half the time of double, unless the noise is below SINGLE_NOISE, where rounding would show: at
that noise the mean was seen to be off by up to 0.07 posterior standard deviations, at ten times the noise by 0.005.
What is added up is double always.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.linalg import cho_solve, cholesky, rq, solve_triangular

from fedsuv_plugin.selectors.maths.marginal_likelihood import Hyper, Merged

INDUCING = 256  # at most, and never more than max_points
LEFT_OVER = 1e-5  # of the prior variance: no inducing point is added for less
SINGLE_FROM = 50_000  # inputs from which the pass over all of them runs in single precision ...
SINGLE_NOISE = 0.01  # ... if the noise is at least this share of the function's variance
LEAST_NOISE = 1e-9  # of a merged observation: inputs that nearly coincide must not make the covariance singular
BLOCK = 1 << 18  # numbers of k(x, basis) at a time: they stay in the cache
PANEL = 128  # columns of a triangular matrix at a time: what is zero above them is not multiplied
SLACK = 256  # rows of repeated observations that an exact posterior carries before it merges them


def matern(a: np.ndarray, b: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Matern-5/2 correlation (len(a), len(b))."""
    return _correlate(
        torch.from_numpy(_left(a, lengths)), torch.from_numpy(_right(b, lengths))
    ).numpy()


def _left(a: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """(n, d + 2): such that left(a) @ right(b) is the squared distance times 5, all in one matrix product."""
    scaled = a * (np.sqrt(5.0) / lengths)
    return np.column_stack([scaled, np.einsum("nd,nd->n", scaled, scaled), np.ones(len(a))])


def _right(b: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """(d + 2, p)"""
    scaled = b * (np.sqrt(5.0) / lengths)
    return np.vstack([-2.0 * scaled.T, np.ones(len(b)), np.einsum("nd,nd->n", scaled, scaled)])


def _correlate(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """(1 + r + r^2/3) exp(-r), r = sqrt(5) distance; in place as far as possible."""
    square = (left @ right).clamp_(min=0.0)
    r = square.sqrt()
    square.mul_(1.0 / 3.0).add_(r).add_(1.0)
    return square.mul_(r.neg_().exp_())


@dataclass
class Correction:
    """What changes at every input x: with K = k(x, basis), the mean by K weights, the variance by -|K spread|^2."""

    basis: np.ndarray  # (p, d)
    spread: np.ndarray  # (p, m)
    weights: np.ndarray  # (p,)
    triangular: bool = False  # spread is upper triangular, which saves half of the work


class Observed:
    """Observations merged by input: count, mean and scatter of each place (row of the inputs)."""

    def __init__(self) -> None:
        self.place = np.empty(0, np.int64)  # (p,) in order of first observation
        self.count = np.empty(0, np.int64)
        self.mean = np.empty(0)
        self.scatter = np.empty(0)

    def __len__(self) -> int:
        return len(self.place)

    def add(self, places: np.ndarray, values: np.ndarray) -> None:
        fresh = np.setdiff1d(places, self.place)
        self.place = np.r_[self.place, fresh]
        self.count = np.r_[self.count, np.zeros(len(fresh), np.int64)]
        self.mean = np.r_[self.mean, np.zeros(len(fresh))]
        self.scatter = np.r_[self.scatter, np.zeros(len(fresh))]
        order = np.argsort(self.place)
        for i, value in zip(
            order[np.searchsorted(self.place, places, sorter=order)], values, strict=True
        ):
            self.count[i] += 1
            off = value - self.mean[i]
            self.mean[i] += off / self.count[i]
            self.scatter[i] += off * (value - self.mean[i])  # Welford: no difference of large sums

    def merged(self, inputs: np.ndarray, rows: np.ndarray | None = None) -> Merged:
        """All of them, or some rows of them, with the inputs they belong to."""
        which = np.arange(len(self)) if rows is None else rows
        return Merged(
            inputs[self.place[which]], self.count[which], self.mean[which], self.scatter[which]
        )


class ExactFactor:
    """L with L L' = k(basis, basis) + noise; the basis is the merged points, then every observation since."""

    def __init__(self, basis: np.ndarray, factor: np.ndarray):
        self.basis, self.factor = basis, factor

    @classmethod
    def start(
        cls, data: Merged, values: np.ndarray, noise: float, lengths: np.ndarray
    ) -> tuple[ExactFactor, Correction]:
        covariance = matern(data.inputs, data.inputs, lengths)
        covariance[np.diag_indices_from(covariance)] = 1.0 + np.maximum(
            noise / data.count, LEAST_NOISE
        )
        factor = cholesky(covariance, lower=True)
        spread = solve_triangular(factor, np.eye(len(factor)), lower=True).T
        weights = spread @ solve_triangular(factor, values, lower=True)
        return cls(data.inputs, factor), Correction(data.inputs, spread, weights, triangular=True)

    def extend(
        self, new: np.ndarray, surprise: np.ndarray, noise: float, lengths: np.ndarray
    ) -> Correction:
        """Condition on observations at `new` (m, d) that came out `surprise` (m,) above the posterior mean."""
        old, m = len(self.basis), len(new)
        whitened = solve_triangular(
            self.factor, matern(self.basis, new, lengths), lower=True
        )  # (p, m)
        c = cholesky(
            matern(new, new, lengths) - whitened.T @ whitened + noise * np.eye(m), lower=True
        )
        to_new = np.vstack(
            [-solve_triangular(self.factor, whitened, lower=True, trans="T"), np.eye(m)]
        )
        spread = solve_triangular(c, to_new.T, lower=True).T
        self.factor = np.block([[self.factor, np.zeros((old, m))], [whitened.T, c]])
        self.basis = np.vstack([self.basis, new])
        return Correction(self.basis, spread, spread @ solve_triangular(c, surprise, lower=True))

    def state_dict(self) -> dict[str, Any]:
        return {"basis": self.basis, "factor": self.factor}


class InducingFactor:
    """The inducing points z, L with L L' = k(z, z), and B = I + sum phi phi' / noise, phi(x) = L^-1 k(z, x)."""

    def __init__(
        self, basis: np.ndarray, information: np.ndarray, chosen_from: int, lengths: np.ndarray
    ):
        self.basis, self.information, self.chosen_from = basis, information, chosen_from
        self.factor = cholesky(
            matern(basis, basis, lengths) + 1e-10 * np.eye(len(basis)), lower=True
        )

    @classmethod
    def start(
        cls, data: Merged, values: np.ndarray, noise: float, lengths: np.ndarray, most: int
    ) -> tuple[InducingFactor, Correction]:
        basis = data.inputs[pivots(data.inputs, lengths, most)]
        made = cls(basis, np.eye(len(basis)), len(data.inputs), lengths)
        phi, weight = made._phi(data.inputs, lengths), data.count / noise
        made.information += (phi * weight) @ phi.T
        # variance(x) = 1 - |phi|^2 + phi' B^-1 phi = 1 - phi' (I - B^-1) phi; a root of I - B^-1 from the eigenvalues
        # of B, all >= 1, turned into an upper triangular one, so that L^-T times it is so, too.
        eigenvalues, vectors = np.linalg.eigh(made.information)
        root = rq(vectors * np.sqrt(np.maximum(1.0 - 1.0 / eigenvalues, 0.0)), mode="r")
        weights = made._back(vectors @ ((vectors.T @ (phi @ (weight * values))) / eigenvalues))
        return made, Correction(basis, made._back(root), weights, triangular=True)

    def _phi(self, inputs: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        return solve_triangular(self.factor, matern(self.basis, inputs, lengths), lower=True)

    def _back(self, whitened: np.ndarray) -> np.ndarray:
        return solve_triangular(self.factor, whitened, lower=True, trans="T")

    def extend(
        self, new: np.ndarray, surprise: np.ndarray, noise: float, lengths: np.ndarray
    ) -> Correction:
        """As for the exact one; what new inputs tell of x passes through the inducing points."""
        phi = self._phi(new, lengths)
        carried = cho_solve((cholesky(self.information, lower=True), True), phi)  # B^-1 phi
        c = cholesky(phi.T @ carried + noise * np.eye(len(new)), lower=True)
        spread = self._back(solve_triangular(c, carried.T, lower=True).T)
        self.information = self.information + phi @ phi.T / noise
        return Correction(self.basis, spread, spread @ solve_triangular(c, surprise, lower=True))

    def state_dict(self) -> dict[str, Any]:
        return {
            "basis": self.basis,
            "information": self.information,
            "chosen_from": self.chosen_from,
        }


def pivots(inputs: np.ndarray, lengths: np.ndarray, most: int) -> np.ndarray:
    """Rows of the inputs, each the one with the largest variance given those before, until little is left. O(n m^2)."""
    left, chosen = np.ones(len(inputs)), list[int]()
    columns = np.empty((most, len(inputs)))
    while len(chosen) < min(most, len(inputs)):
        pivot = int(np.argmax(left))
        if left[pivot] < LEFT_OVER:
            break
        row = (
            matern(inputs[pivot : pivot + 1], inputs, lengths)[0]
            - columns[: len(chosen), pivot] @ columns[: len(chosen)]
        )
        columns[len(chosen)] = row / np.sqrt(left[pivot])
        left = left - columns[len(chosen)] ** 2
        chosen.append(pivot)
    return np.array(chosen, np.int64)


class GaussianProcess:
    """Matern-5/2, constant mean, Gaussian noise, at fixed inputs (n, d); an input is named by its row, its place."""

    def __init__(self, inputs: np.ndarray, hyper: Hyper, max_points: int):
        self._inputs = inputs - inputs.mean(
            axis=0
        )  # a small norm keeps distances accurate in single precision
        self._max_points = max_points
        self.hyper = hyper
        self.observed = Observed()
        self._places, self._values = (
            np.empty(0, np.int64),
            np.empty(0),
        )  # observed, but not yet in the posterior
        self._unit_mean, self._unit_variance = np.zeros(len(inputs)), np.ones(len(inputs))
        self._factor: ExactFactor | InducingFactor | None = None  # None: begin with the prior
        self._prepared: torch.Tensor | None = None

    # ---- what it says

    @property
    def mean(self) -> np.ndarray:
        """(n,) posterior mean at every input."""
        self._refresh()
        return self.hyper.mean + np.sqrt(self.hyper.signal) * self._unit_mean

    @property
    def deviation(self) -> np.ndarray:
        """(n,) posterior standard deviation of the function, without the noise of an observation."""
        self._refresh()
        return np.sqrt(self.hyper.signal * np.maximum(self._unit_variance, 0.0))

    @property
    def inducing(self) -> int:
        """The number of inducing points; 0 while the posterior is exact."""
        return len(self._factor.basis) if isinstance(self._factor, InducingFactor) else 0

    def data(self, rows: np.ndarray | None = None) -> Merged:
        """All observations, or those of some of the distinct inputs."""
        self._merge()
        return self.observed.merged(self._inputs, rows)

    # ---- what it is told

    def observe(self, places: np.ndarray, values: np.ndarray) -> None:
        """Values (m,) seen at places (m,), which may repeat."""
        self._places, self._values = np.r_[self._places, places], np.r_[self._values, values]

    def set_hyper(self, hyper: Hyper) -> None:
        self.hyper = hyper
        self._merge()
        self._factor = self._prepared = None

    # ---- how it keeps up

    def _merge(self) -> None:
        """Out of the queue without the posterior having seen it, so that must begin anew."""
        if len(self._places):
            self.observed.add(self._places, self._values)
            self._places, self._values = np.empty(0, np.int64), np.empty(0)
            self._factor = None

    def _refresh(self) -> None:
        if len(self._places) and self._can_extend():
            places, surprise = (
                self._places,
                self._in_units(self._values) - self._unit_mean[self._places],
            )
            self.observed.add(places, self._values)
            self._places, self._values = np.empty(0, np.int64), np.empty(0)
            assert self._factor is not None
            self._apply(
                self._factor.extend(self._inputs[places], surprise, self._noise, self.hyper.lengths)
            )
        self._merge()
        if self._factor is None and len(self.observed):
            self._start_over()

    def _can_extend(self) -> bool:
        """Whether correcting the posterior is possible, and cheaper than to start over."""
        if self._factor is None or 2 * len(self._places) > len(self._factor.basis):
            return False
        points = len(np.union1d(self.observed.place, self._places))
        if isinstance(self._factor, ExactFactor):
            return (
                points <= self._max_points
                and len(self._factor.basis) + len(self._places) <= points + SLACK
            )
        return (
            points <= 2 * self._factor.chosen_from
        )  # else there are better inducing points by now

    def _start_over(self) -> None:
        data = self.observed.merged(self._inputs)
        values, lengths = self._in_units(data.mean), self.hyper.lengths
        if len(data.mean) <= self._max_points:
            self._factor, correction = ExactFactor.start(data, values, self._noise, lengths)
        else:
            self._factor, correction = InducingFactor.start(
                data, values, self._noise, lengths, min(INDUCING, self._max_points)
            )
        self._unit_mean[:], self._unit_variance[:] = 0.0, 1.0
        self._apply(correction)

    @property
    def _noise(self) -> float:
        return self.hyper.noise / self.hyper.signal

    def _in_units(self, values: np.ndarray) -> np.ndarray:
        return (values - self.hyper.mean) / np.sqrt(self.hyper.signal)

    @torch.no_grad()
    def _apply(self, correction: Correction) -> None:
        """Carry a correction to all inputs, a block at a time."""
        n = len(self._inputs)
        dtype = torch.float32 if n >= SINGLE_FROM and self._noise >= SINGLE_NOISE else torch.float64
        if self._prepared is None:
            self._prepared = torch.from_numpy(_left(self._inputs, self.hyper.lengths)).to(dtype)
        right = torch.from_numpy(_right(correction.basis, self.hyper.lengths)).to(dtype)
        spread = torch.from_numpy(np.ascontiguousarray(correction.spread)).to(dtype)
        weights = torch.from_numpy(correction.weights).to(dtype)
        mean, variance = torch.from_numpy(self._unit_mean), torch.from_numpy(self._unit_variance)
        rows = max(64, BLOCK // max(1, right.shape[1]))
        for begin in range(0, n, rows):
            part = slice(begin, min(begin + rows, n))
            k = _correlate(self._prepared[part], right)
            mean[part] += k @ weights
            for columns, depth in _panels(spread.shape[1], right.shape[1], correction.triangular):
                h = k[:, :depth] @ spread[:depth, columns]
                variance[part] -= h.mul_(h).sum(dim=1)

    # ---- resuming

    def state_dict(self) -> dict[str, Any]:
        return {
            "hyper": _plain(self.hyper),
            "observed": dict(vars(self.observed)),
            "queue": (self._places, self._values),
            "posterior": (self._unit_mean, self._unit_variance),
            "factor": None if self._factor is None else self._factor.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        state = copy.deepcopy(state)
        self.hyper = Hyper(**state["hyper"])
        vars(self.observed).update(state["observed"])
        self._places, self._values = state["queue"]
        self._unit_mean, self._unit_variance = state["posterior"]
        factor = state["factor"]
        self._factor = (
            None
            if factor is None
            else ExactFactor(**factor)
            if "factor" in factor
            else InducingFactor(**factor, lengths=self.hyper.lengths)
        )
        self._prepared = None


def _plain(hyper: Hyper) -> dict[str, Any]:
    return dict(vars(hyper))


def _panels(width: int, depth: int, triangular: bool) -> list[tuple[slice, int]]:
    """Column ranges of a matrix and how many of its rows are not zero there."""
    if not triangular:
        return [(slice(0, width), depth)]
    edges = [*range(0, width, PANEL), width]
    return [(slice(a, b), b) for a, b in zip(edges[:-1], edges[1:], strict=True)]
