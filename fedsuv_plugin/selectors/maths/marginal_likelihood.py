"""Hyper-parameters of a Gaussian process by maximum marginal likelihood, with gpytorch.

The model is Matern-5/2 with one length-scale per feature, a constant mean and Gaussian noise s^2.
Observations of the same input come merged: their mean, how many they are (n_i), and the sum of
their squared deviations from the mean (S_i). The mean has noise s^2 / n_i. The likelihood of the
means alone would leave out what the single observations say about the noise; it is added back:

    ln p(all) = ln p(means) - 1/2 sum_i [ (n_i - 1) ln(2 pi s^2) + ln n_i + S_i / s^2 ]

The search is L-BFGS from a given start, usually the last optimum. It draws nothing at random.

torch and gpytorch are imported by the functions that use them, so that listing the selectors or
running another one does not wait for them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch

MAX_STEPS = 40  # of the search; started from the last optimum it rarely needs them
# Gain in log-likelihood per point below which the search ends; over 256 points that is 0.003,
# too little to tell hyper-parameters apart.
ENOUGH = 1e-5

# The bounds of the search. The observed values are shifted and scaled to mean 0 and deviation 1
# first; lengths are in units of the inputs, which lie in the unit ball.
LENGTHS = (0.03, 30.0)
# The likelihood of a few noisy values is often highest for a function that is constant, whose
# posterior would have no width anywhere. The lower bound prevents that.
SIGNAL = (0.1, 1e2)
NOISE = (1e-4, 1e1)  # the lower bound keeps the covariance invertible


@dataclass(frozen=True)
class Hyper:
    """The hyper-parameters, in the units of the observed values."""

    mean: float
    signal: float  # variance of the function
    noise: float  # variance of one observation of it
    lengths: np.ndarray  # (d,) length-scales

    @property
    def finite(self) -> bool:
        """Whether all are finite and all but the mean are positive."""
        values = np.r_[self.mean, self.signal, self.noise, self.lengths]
        return bool(np.isfinite(values).all() and (values[1:] > 0).all())


@dataclass(frozen=True)
class Merged:
    """Observations of p distinct inputs, those of the same input merged."""

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
    """What a search found."""

    hyper: Hyper
    converged: bool
    log_likelihood: float


class MergedModel:
    """gpytorch's model of the merged observations, in double precision."""

    def __init__(self, data: Merged, start: Hyper):
        import gpytorch
        import torch
        from gpytorch.constraints import Interval

        self._x = torch.as_tensor(data.inputs, dtype=torch.float64)
        self._n = torch.as_tensor(data.count, dtype=torch.float64)
        self._y = torch.as_tensor(data.mean, dtype=torch.float64)
        self._scatter = torch.as_tensor(data.scatter, dtype=torch.float64)
        matern = gpytorch.kernels.MaternKernel(
            nu=2.5, ard_num_dims=data.inputs.shape[1], lengthscale_constraint=Interval(*LENGTHS)
        )
        self.covariance = gpytorch.kernels.ScaleKernel(
            matern, outputscale_constraint=Interval(*SIGNAL)
        )
        self.level = gpytorch.means.ConstantMean()
        self.likelihood = gpytorch.likelihoods.GaussianLikelihood(noise_constraint=Interval(*NOISE))
        self._parts = (self.covariance, self.level, self.likelihood)
        for part in self._parts:
            part.double()
        self.level.initialize(constant=start.mean)
        self.likelihood.initialize(noise=_inside(start.noise, NOISE))
        self.covariance.initialize(outputscale=_inside(start.signal, SIGNAL))
        matern.initialize(lengthscale=torch.as_tensor(_inside(start.lengths, LENGTHS))[None])

    def parameters(self) -> list[torch.nn.Parameter]:
        return [parameter for part in self._parts for parameter in part.parameters()]

    def zero_grad(self) -> None:
        for part in self._parts:
            part.zero_grad()

    def log_likelihood(self) -> torch.Tensor:
        """ln p(all), the likelihood of every single observation: see the top of this file."""
        import gpytorch
        import torch

        noise = self.likelihood.noise.squeeze()
        covariance = self.covariance(self._x).add_diagonal(noise / self._n)
        means = gpytorch.distributions.MultivariateNormal(self.level(self._x), covariance)
        left_out = (
            (self._n - 1) * torch.log(2 * math.pi * noise)
            + torch.log(self._n)
            + self._scatter / noise
        )
        return means.log_prob(self._y) - 0.5 * left_out.sum()

    @property
    def hyper(self) -> Hyper:
        """The hyper-parameters as they are at this point of the search."""
        return Hyper(
            float(self.level.constant.detach()),
            float(self.covariance.outputscale.detach()),
            float(self.likelihood.noise.detach().squeeze()),
            self.covariance.base_kernel.lengthscale.detach().reshape(-1).numpy().copy(),
        )


def _inside(value: float | np.ndarray, bounds: tuple[float, float]) -> np.ndarray:
    """The value, moved strictly between the bounds.

    At a bound itself the transformation by which gpytorch enforces it is infinite."""
    low, high = bounds
    return np.clip(value, low * 1.05, high * 0.95)


def fit(data: Merged, start: Hyper) -> Fit:
    """The hyper-parameters of a (local) maximum of the likelihood uphill from `start`.

    Raises an error if the likelihood cannot be computed there."""
    import gpytorch
    import torch
    from scipy.optimize import minimize

    centre = data.centre
    unit = data.deviation or 1.0
    model = MergedModel(_scaled_data(data, centre, unit), _scaled_hyper(start, centre, unit))
    parameters = model.parameters()

    def cost(vector: np.ndarray) -> tuple[float, np.ndarray]:
        """The negative log-likelihood per point and its gradient, for the optimiser."""
        torch.nn.utils.vector_to_parameters(torch.from_numpy(vector.copy()), parameters)
        model.zero_grad()
        value = -model.log_likelihood() / len(data.count)
        value.backward()
        gradient = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        return float(value.detach()), torch.nn.utils.parameters_to_vector(gradient).numpy().copy()

    # Everything by Cholesky, because gpytorch's iterative solvers would draw random numbers.
    with gpytorch.settings.fast_computations(
        covar_root_decomposition=False, log_prob=False, solves=False
    ):
        begin = torch.nn.utils.parameters_to_vector(parameters).detach().numpy().copy()
        result = minimize(
            cost,
            begin,
            jac=True,
            method="L-BFGS-B",
            options=dict(maxiter=MAX_STEPS, maxfun=MAX_STEPS + 10, ftol=ENOUGH, gtol=ENOUGH),
        )
        value, _ = cost(np.asarray(result.x))
    found = model.hyper
    hyper = Hyper(
        centre + unit * found.mean, found.signal * unit**2, found.noise * unit**2, found.lengths
    )
    if not (math.isfinite(value) and hyper.finite):
        raise ArithmeticError(f"the marginal likelihood led to {hyper}")
    # The density of the values as they were, before they were divided by the unit.
    total = -value * len(data.count) - math.log(unit) * float(data.count.sum())
    return Fit(hyper, bool(result.success), total)


def _scaled_data(data: Merged, centre: float, unit: float) -> Merged:
    return Merged(data.inputs, data.count, (data.mean - centre) / unit, data.scatter / unit**2)


def _scaled_hyper(hyper: Hyper, centre: float, unit: float) -> Hyper:
    return Hyper(
        (hyper.mean - centre) / unit, hyper.signal / unit**2, hyper.noise / unit**2, hyper.lengths
    )
