"""Hyper-parameters of a Gaussian process by maximum marginal likelihood, with gpytorch.

Matern-5/2 with one length-scale per feature, constant mean, Gaussian noise. Observations of the same input come merged:
their mean, how many they are (n_i), and the sum of their squared deviations from it (S_i). The mean has noise s^2/n_i;
what merging takes out of the likelihood is put back:

    ln p(all) = ln p(means) - 1/2 sum_i [ (n_i - 1) ln(2 pi s^2) + ln n_i + S_i / s^2 ]

The search is L-BFGS from the given start, so it is warm-started and draws nothing at random.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import gpytorch  # type: ignore[import-untyped]
import numpy as np
import torch
from gpytorch.constraints import Interval  # type: ignore[import-untyped]
from scipy.optimize import minimize

MAX_STEPS = 40  # of the search; started from the last optimum it rarely needs them
ENOUGH = 1e-5  # gain in log-likelihood per point below which it ends: 0.003 over 256 points decides nothing
# Where the search stays, in units of the values' own mean and deviation; lengths are in units of the inputs, which lie
# in the unit ball. The least noise keeps the covariance invertible. The least signal is there because the likelihood of
# a few noisy values is often highest for no function at all, and what would follow are regions of no width.
LENGTHS, SIGNAL, NOISE = (0.03, 30.0), (0.1, 1e2), (1e-4, 1e1)


@dataclass(frozen=True)
class Hyper:
    """In the units of the observed values."""

    mean: float
    signal: float  # variance of the function
    noise: float  # variance of one observation of it
    lengths: np.ndarray  # (d,) length-scales

    @property
    def finite(self) -> bool:
        values = np.r_[self.mean, self.signal, self.noise, self.lengths]
        return bool(np.isfinite(values).all() and (values[1:] > 0).all())


@dataclass(frozen=True)
class Merged:
    """Observations by input."""

    inputs: np.ndarray  # (p, d)
    count: np.ndarray  # (p,)
    mean: np.ndarray  # (p,)
    scatter: np.ndarray  # (p,) sum of squared deviations from the mean

    @property
    def centre(self) -> float:
        """Mean of all observations."""
        return float(np.average(self.mean, weights=self.count))

    @property
    def deviation(self) -> float:
        """Standard deviation of all observations."""
        squares = self.scatter + self.count * (self.mean - self.centre) ** 2
        return math.sqrt(float(squares.sum()) / float(self.count.sum()))


@dataclass(frozen=True)
class Fit:
    hyper: Hyper
    converged: bool
    log_likelihood: float


class MergedModel(gpytorch.Module):  # type: ignore[misc]  # gpytorch's module is untyped
    """The model of the merged observations, double precision."""

    def __init__(self, data: Merged, start: Hyper):
        super().__init__()
        self._x, self._n, self._y, self._scatter = (
            torch.as_tensor(values, dtype=torch.float64)
            for values in (data.inputs, data.count, data.mean, data.scatter)
        )
        matern = gpytorch.kernels.MaternKernel(
            nu=2.5, ard_num_dims=data.inputs.shape[1], lengthscale_constraint=Interval(*LENGTHS)
        )
        self.covariance = gpytorch.kernels.ScaleKernel(
            matern, outputscale_constraint=Interval(*SIGNAL)
        )
        self.level = gpytorch.means.ConstantMean()
        self.likelihood = gpytorch.likelihoods.GaussianLikelihood(noise_constraint=Interval(*NOISE))
        self.double()
        self.level.initialize(constant=start.mean)
        self.likelihood.initialize(noise=_inside(start.noise, NOISE))
        self.covariance.initialize(outputscale=_inside(start.signal, SIGNAL))
        matern.initialize(lengthscale=torch.as_tensor(_inside(start.lengths, LENGTHS))[None])

    def log_likelihood(self) -> torch.Tensor:
        """ln p of every single observation, see the top of this file."""
        noise = self.likelihood.noise.squeeze()
        covariance = self.covariance(self._x).add_diagonal(noise / self._n)
        means = gpytorch.distributions.MultivariateNormal(self.level(self._x), covariance)
        lost = (
            (self._n - 1) * torch.log(2 * math.pi * noise)
            + torch.log(self._n)
            + self._scatter / noise
        )
        return means.log_prob(self._y) - 0.5 * lost.sum()

    @property
    def hyper(self) -> Hyper:
        return Hyper(
            float(self.level.constant.detach()),
            float(self.covariance.outputscale.detach()),
            float(self.likelihood.noise.detach().squeeze()),
            self.covariance.base_kernel.lengthscale.detach().reshape(-1).numpy().copy(),
        )


def _inside(value: float | np.ndarray, bounds: tuple[float, float]) -> np.ndarray:
    """Strictly between the bounds, where the constraint's inverse is finite and its gradient is not 0."""
    low, high = bounds
    return np.clip(value, low * 1.05, high * 0.95)


def fit(data: Merged, start: Hyper) -> Fit:
    """The hyper-parameters of a (local) maximum of the likelihood uphill from `start`.

    Raises if the likelihood cannot be computed there; the caller keeps what it has."""
    centre, unit = data.centre, data.deviation or 1.0
    scaled = Merged(data.inputs, data.count, (data.mean - centre) / unit, data.scatter / unit**2)
    model = MergedModel(
        scaled,
        Hyper(
            (start.mean - centre) / unit,
            start.signal / unit**2,
            start.noise / unit**2,
            start.lengths,
        ),
    )
    parameters = list(model.parameters())

    def cost(vector: np.ndarray) -> tuple[float, np.ndarray]:
        torch.nn.utils.vector_to_parameters(torch.from_numpy(vector.copy()), parameters)
        model.zero_grad()
        value = -model.log_likelihood() / len(data.count)
        value.backward()
        gradient = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        return float(value.detach()), torch.nn.utils.parameters_to_vector(gradient).numpy().copy()

    # Cholesky for everything: gpytorch's iterative solvers would draw random probes.
    with gpytorch.settings.fast_computations(
        covar_root_decomposition=False, log_prob=False, solves=False
    ):
        begin = torch.nn.utils.parameters_to_vector(parameters).detach().numpy().copy()
        result = minimize(
            cost,
            begin,
            jac=True,
            method="L-BFGS-B",
            options={
                "maxiter": MAX_STEPS,
                "maxfun": MAX_STEPS + 10,
                "ftol": ENOUGH,
                "gtol": ENOUGH,
            },
        )
        value, _ = cost(np.asarray(result.x))
    found = model.hyper
    hyper = Hyper(
        centre + unit * found.mean, found.signal * unit**2, found.noise * unit**2, found.lengths
    )
    if not (math.isfinite(value) and hyper.finite):
        raise ArithmeticError(f"the marginal likelihood led to {hyper}")
    total = -value * len(data.count) - math.log(unit) * float(
        data.count.sum()
    )  # density of the unscaled values
    return Fit(hyper, bool(result.success), total)
