"""A Gaussian process over n fixed inputs whose posterior follows the observations as they arrive.

The posterior is exact while at most `max_points` distinct inputs have been observed. Past that it
uses inducing points: the optimal q(u) of M. Titsias, "Variational Learning of Inducing Variables in
Sparse Gaussian Processes", AISTATS 2009. They are at most INDUCING of the observed inputs, each the
one with the largest variance given those chosen before (pivoted Cholesky).

Cost: with p basis points (observed or inducing), computing the posterior at n inputs takes n p^2
steps, too many to repeat every round with a million inputs. The mean and the variance at all inputs
are therefore kept, and m new observations y correct them:

    h(x) = L_c^-1 cov(x, new)
    mean(x) += h(x)' L_c^-1 (y - mean(new))
    variance(x) -= |h(x)|^2

where cov is the posterior covariance before them and L_c L_c' = cov(new, new) + noise. This is
Bayes' rule, not an approximation. It takes n p m steps in one pass over k(x, basis), which is
computed in blocks and thrown away, so that memory is O(n + p^2). New hyper-parameters or another
basis make the posterior start over: the same pass, from the prior, with all observations at once.

Inside this module values are in units of the function's standard deviation, around its mean. From
SINGLE_FROM inputs on the pass runs in single precision, which takes half the time, unless the noise
is below SINGLE_NOISE, where rounding errors would show. Sums are kept in double precision always.

torch is imported by the functions that use it, so that listing the selectors or running another one
does not wait for it.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.linalg import cho_solve, cholesky, rq, solve_triangular

from fedsuv_plugin.selectors.maths.marginal_likelihood import Hyper, Merged

if TYPE_CHECKING:
    import torch

INDUCING = 256  # inducing points at most; also never more than max_points
LEFT_OVER = 1e-5  # share of the prior variance below which no further inducing point is added
SINGLE_FROM = 50_000  # inputs from which the pass over all of them runs in single precision ...
SINGLE_NOISE = 0.01  # ... if the noise is at least this share of the function's variance
# Least noise of a merged observation, so that inputs which nearly coincide do not make the
# covariance singular.
LEAST_NOISE = 1e-9
BLOCK = 1 << 18  # numbers of k(x, basis) computed at a time, few enough to stay in the cache
PANEL = 128  # columns of a triangular matrix multiplied at a time, to skip the zeros below them
SLACK = 256  # repeated observations that an exact posterior carries before it merges them


def matern(a: np.ndarray, b: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Matern-5/2 correlation (len(a), len(b))."""
    import torch

    left = torch.from_numpy(_left(a, lengths))
    right = torch.from_numpy(_right(b, lengths))
    return _correlate(left, right).numpy()


def _left(a: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Inputs (n, d) -> (n, d + 2), such that _left(a) @ _right(b) is 5 times the squared distance.

    One matrix product then gives all distances."""
    scaled = a * (np.sqrt(5.0) / lengths)
    return np.column_stack([scaled, np.einsum("nd,nd->n", scaled, scaled), np.ones(len(a))])


def _right(b: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Inputs (p, d) -> (d + 2, p): see `_left`."""
    scaled = b * (np.sqrt(5.0) / lengths)
    return np.vstack([-2.0 * scaled.T, np.ones(len(b)), np.einsum("nd,nd->n", scaled, scaled)])


def _correlate(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """(1 + r + r^2/3) exp(-r) where r = sqrt(5) distance; in place as far as possible."""
    square = (left @ right).clamp_(min=0.0)
    r = square.sqrt()
    square.mul_(1.0 / 3.0).add_(r).add_(1.0)
    return square.mul_(r.neg_().exp_())


@dataclass
class Correction:
    """How observations change the posterior at every input x.

    With K = k(x, basis), the mean changes by K weights and the variance by -|K spread|^2."""

    basis: np.ndarray  # (p, d)
    spread: np.ndarray  # (p, m)
    weights: np.ndarray  # (p,)
    triangular: bool = False  # whether spread is upper triangular, which saves half of the work


class Observed:
    """Observations merged by input: count, mean and scatter of each place (a row of the inputs)."""

    def __init__(self) -> None:
        self.place = np.empty(0, np.int64)  # (p,) in order of first observation
        self.count = np.empty(0, np.int64)  # (p,)
        self.mean = np.empty(0)  # (p,)
        self.scatter = np.empty(0)  # (p,) sum of squared deviations from the mean

    def __len__(self) -> int:
        return len(self.place)

    def add(self, places: np.ndarray, values: np.ndarray) -> None:
        """Merge values (m,) seen at places (m,), which may repeat."""
        fresh = np.setdiff1d(places, self.place)
        self.place = np.r_[self.place, fresh]
        self.count = np.r_[self.count, np.zeros(len(fresh), np.int64)]
        self.mean = np.r_[self.mean, np.zeros(len(fresh))]
        self.scatter = np.r_[self.scatter, np.zeros(len(fresh))]
        order = np.argsort(self.place)
        which = order[np.searchsorted(self.place, places, sorter=order)]
        for i, value in zip(which, values, strict=True):
            # Welford's update, because a difference of large sums would lose precision.
            self.count[i] += 1
            off = value - self.mean[i]
            self.mean[i] += off / self.count[i]
            self.scatter[i] += off * (value - self.mean[i])

    def merged(self, inputs: np.ndarray, rows: np.ndarray | None = None) -> Merged:
        """All of them, or some rows of them, with the inputs they belong to."""
        which = np.arange(len(self)) if rows is None else rows
        return Merged(
            inputs[self.place[which]], self.count[which], self.mean[which], self.scatter[which]
        )


class ExactFactor:
    """What an exact posterior is corrected from: L with L L' = k(basis, basis) + noise.

    The basis is the merged observations at the start, followed by every observation since."""

    def __init__(self, basis: np.ndarray, factor: np.ndarray):
        self.basis = basis  # (p, d)
        self.factor = factor  # (p, p) lower triangular, L

    @classmethod
    def start(
        cls, data: Merged, values: np.ndarray, noise: float, lengths: np.ndarray
    ) -> tuple[ExactFactor, Correction]:
        """Condition the prior on merged observations, `values` (p,) in units of the function."""
        covariance = matern(data.inputs, data.inputs, lengths)
        own_noise = np.maximum(noise / data.count, LEAST_NOISE)
        covariance[np.diag_indices_from(covariance)] = 1.0 + own_noise
        factor = cholesky(covariance, lower=True)
        spread = solve_triangular(factor, np.eye(len(factor)), lower=True).T
        weights = spread @ solve_triangular(factor, values, lower=True)
        return cls(data.inputs, factor), Correction(data.inputs, spread, weights, triangular=True)

    def extend(
        self, new: np.ndarray, surprise: np.ndarray, noise: float, lengths: np.ndarray
    ) -> Correction:
        """Condition on observations at `new` (m, d), `surprise` (m,) above the posterior mean."""
        old = len(self.basis)
        m = len(new)
        cross = matern(self.basis, new, lengths)
        whitened = solve_triangular(self.factor, cross, lower=True)  # (p, m)
        covariance = matern(new, new, lengths) - whitened.T @ whitened + noise * np.eye(m)
        c = cholesky(covariance, lower=True)
        through_old = -solve_triangular(self.factor, whitened, lower=True, trans="T")
        to_new = np.vstack([through_old, np.eye(m)])
        spread = solve_triangular(c, to_new.T, lower=True).T
        self.factor = np.block([[self.factor, np.zeros((old, m))], [whitened.T, c]])
        self.basis = np.vstack([self.basis, new])
        return Correction(self.basis, spread, spread @ solve_triangular(c, surprise, lower=True))

    def state_dict(self) -> dict[str, Any]:
        return {"basis": self.basis, "factor": self.factor}


class InducingFactor:
    """What a posterior with inducing points z is corrected from: L and B.

    L L' = k(z, z), and B = I + sum of phi phi' / noise over the observations, with
    phi(x) = L^-1 k(z, x)."""

    def __init__(
        self, basis: np.ndarray, information: np.ndarray, chosen_from: int, lengths: np.ndarray
    ):
        self.basis = basis  # (p, d), z
        self.information = information  # (p, p), B
        self.chosen_from = chosen_from  # distinct inputs observed when z was chosen
        # (p, p), L; the small number keeps rounding errors from making it singular
        covariance = matern(basis, basis, lengths) + 1e-10 * np.eye(len(basis))
        self.factor = cholesky(covariance, lower=True)

    @classmethod
    def start(
        cls, data: Merged, values: np.ndarray, noise: float, lengths: np.ndarray, most: int
    ) -> tuple[InducingFactor, Correction]:
        """As for the exact one, with at most `most` inducing points."""
        basis = data.inputs[pivots(data.inputs, lengths, most)]
        made = cls(basis, np.eye(len(basis)), len(data.inputs), lengths)
        phi = made._phi(data.inputs, lengths)
        weight = data.count / noise
        made.information += (phi * weight) @ phi.T
        # variance(x) = 1 - |phi|^2 + phi' B^-1 phi = 1 - phi' (I - B^-1) phi, so that a root of
        # I - B^-1 is needed. It comes from the eigenvalues of B, which are all >= 1. `rq` makes it
        # upper triangular; L^-T times it is then upper triangular, too.
        eigenvalues, vectors = np.linalg.eigh(made.information)
        root = rq(vectors * np.sqrt(np.maximum(1.0 - 1.0 / eigenvalues, 0.0)), mode="r")
        weights = made._back(vectors @ ((vectors.T @ (phi @ (weight * values))) / eigenvalues))
        return made, Correction(basis, made._back(root), weights, triangular=True)

    def _phi(self, inputs: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """L^-1 k(z, inputs), (p, m)."""
        return solve_triangular(self.factor, matern(self.basis, inputs, lengths), lower=True)

    def _back(self, whitened: np.ndarray) -> np.ndarray:
        """L^-T whitened."""
        return solve_triangular(self.factor, whitened, lower=True, trans="T")

    def extend(
        self, new: np.ndarray, surprise: np.ndarray, noise: float, lengths: np.ndarray
    ) -> Correction:
        """As for the exact one; new inputs inform about x through the inducing points only."""
        phi = self._phi(new, lengths)  # (p, m)
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
    """Rows of the inputs (n, d), each the one with the largest variance given those before.

    At most `most` rows m, fewer if less variance than LEFT_OVER is left. Takes O(n m^2) steps."""
    left = np.ones(len(inputs))  # (n,) variance given the chosen
    chosen: list[int] = []
    columns = np.empty((most, len(inputs)))  # of the Cholesky factor
    while len(chosen) < min(most, len(inputs)):
        pivot = int(np.argmax(left))
        if left[pivot] < LEFT_OVER:
            break
        done = columns[: len(chosen)]
        covariance = matern(inputs[pivot : pivot + 1], inputs, lengths)[0] - done[:, pivot] @ done
        columns[len(chosen)] = covariance / np.sqrt(left[pivot])
        left = left - columns[len(chosen)] ** 2
        chosen.append(pivot)
    return np.array(chosen, np.int64)


class GaussianProcess:
    """A function with Matern-5/2 covariance and constant mean, observed with Gaussian noise.

    It is known at fixed inputs (n, d); an input is named by its row, which is called its place.

    >>> inputs = np.array([[0.0], [0.1], [1.0]])
    >>> gp = GaussianProcess(inputs, Hyper(0.0, 1.0, 0.01, lengths=np.array([0.3])), max_points=100)
    >>> gp.observe(np.array([0]), np.array([2.0]))
    >>> gp.mean.round(2).tolist()  # near the observation the mean follows it, far away it stays
    [1.98, 1.81, 0.03]
    """

    def __init__(self, inputs: np.ndarray, hyper: Hyper, max_points: int):
        # Centred, because a small norm keeps distances accurate in single precision.
        self._inputs = inputs - inputs.mean(axis=0)
        self._max_points = max_points
        self.hyper = hyper
        self.observed = Observed()
        self._empty_queue()
        self._unit_mean = np.zeros(len(inputs))
        self._unit_variance = np.ones(len(inputs))
        self._factor: ExactFactor | InducingFactor | None = None  # None: begin with the prior
        self._prepared: torch.Tensor | None = None  # `_left` of all inputs

    def _empty_queue(self) -> None:
        """Observations wait in the queue until somebody asks for the posterior."""
        self._places = np.empty(0, np.int64)
        self._values = np.empty(0)

    # ---- what it says

    @property
    def mean(self) -> np.ndarray:
        """Posterior mean at every input, (n,)."""
        self._refresh()
        return self.hyper.mean + np.sqrt(self.hyper.signal) * self._unit_mean

    @property
    def deviation(self) -> np.ndarray:
        """Posterior standard deviation of the function, without the noise of observations, (n,)."""
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
        self._places = np.r_[self._places, places]
        self._values = np.r_[self._values, values]

    def set_hyper(self, hyper: Hyper) -> None:
        """Change the hyper-parameters, so that the posterior starts over."""
        self.hyper = hyper
        self._merge()
        self._factor = self._prepared = None

    # ---- how it keeps up

    def _merge(self) -> None:
        """Empty the queue without correcting the posterior, which therefore has to start over."""
        if len(self._places):
            self.observed.add(self._places, self._values)
            self._empty_queue()
            self._factor = None

    def _refresh(self) -> None:
        """Bring the posterior up to date with the queue, by a correction or by starting over."""
        if len(self._places) and self._can_extend():
            self._extend()
        self._merge()
        if self._factor is None and len(self.observed):
            self._start_over()

    def _can_extend(self) -> bool:
        """Whether correcting the posterior is possible, and cheaper than starting over."""
        if self._factor is None or 2 * len(self._places) > len(self._factor.basis):
            return False
        points = len(np.union1d(self.observed.place, self._places))
        if isinstance(self._factor, ExactFactor):
            basis = len(self._factor.basis) + len(self._places)
            return points <= self._max_points and basis <= points + SLACK
        # With twice as many points there are better inducing points by now.
        return points <= 2 * self._factor.chosen_from

    def _extend(self) -> None:
        assert self._factor is not None
        places = self._places
        surprise = self._in_units(self._values) - self._unit_mean[places]
        self.observed.add(places, self._values)
        self._empty_queue()
        new = self._inputs[places]
        self._apply(self._factor.extend(new, surprise, self._noise, self.hyper.lengths))

    def _start_over(self) -> None:
        data = self.observed.merged(self._inputs)
        values = self._in_units(data.mean)
        lengths = self.hyper.lengths
        if len(data.mean) <= self._max_points:
            self._factor, correction = ExactFactor.start(data, values, self._noise, lengths)
        else:
            self._factor, correction = InducingFactor.start(
                data, values, self._noise, lengths, min(INDUCING, self._max_points)
            )
        self._unit_mean[:] = 0.0
        self._unit_variance[:] = 1.0
        self._apply(correction)

    @property
    def _noise(self) -> float:
        """Noise variance in units of the function's variance."""
        return self.hyper.noise / self.hyper.signal

    def _in_units(self, values: np.ndarray) -> np.ndarray:
        """Values in units of the function's standard deviation, around its mean."""
        return (values - self.hyper.mean) / np.sqrt(self.hyper.signal)

    def _apply(self, correction: Correction) -> None:
        """Carry a correction to all inputs, a block at a time."""
        import torch

        with torch.no_grad():
            self._apply_without_gradients(correction)

    def _apply_without_gradients(self, correction: Correction) -> None:
        import torch

        n = len(self._inputs)
        dtype = torch.float32 if n >= SINGLE_FROM and self._noise >= SINGLE_NOISE else torch.float64
        if self._prepared is None:
            self._prepared = torch.from_numpy(_left(self._inputs, self.hyper.lengths)).to(dtype)
        right = torch.from_numpy(_right(correction.basis, self.hyper.lengths)).to(dtype)
        spread = torch.from_numpy(np.ascontiguousarray(correction.spread)).to(dtype)
        weights = torch.from_numpy(correction.weights).to(dtype)
        mean = torch.from_numpy(self._unit_mean)  # shares its memory with the array
        variance = torch.from_numpy(self._unit_variance)
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
            "hyper": dict(vars(self.hyper)),
            "observed": dict(vars(self.observed)),
            "queue": (self._places, self._values),
            "posterior": (self._unit_mean, self._unit_variance),
            "factor": None if self._factor is None else self._factor.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        state = copy.deepcopy(state)  # it still belongs to the caller
        self.hyper = Hyper(**state["hyper"])
        vars(self.observed).update(state["observed"])
        self._places, self._values = state["queue"]
        self._unit_mean, self._unit_variance = state["posterior"]
        factor = state["factor"]
        if factor is None:
            self._factor = None
        elif "factor" in factor:
            self._factor = ExactFactor(**factor)
        else:
            self._factor = InducingFactor(**factor, lengths=self.hyper.lengths)
        self._prepared = None


def _panels(width: int, depth: int, triangular: bool) -> list[tuple[slice, int]]:
    """Column ranges of a matrix and how many of its rows are not zero there."""
    if not triangular:
        return [(slice(0, width), depth)]
    edges = [*range(0, width, PANEL), width]
    return [(slice(a, b), b) for a, b in zip(edges[:-1], edges[1:], strict=True)]
