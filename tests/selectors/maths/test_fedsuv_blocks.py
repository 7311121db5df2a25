"""The blocks of FedSUV: linear bandit, Gaussian process, its marginal likelihood, Pareto steps."""

from __future__ import annotations

import copy
from typing import Any

import gpytorch
import numpy as np
import pytest
import torch
from gp_by_the_book import kernel_by_the_book, posterior_by_the_book
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import multivariate_normal
from selector_worlds import five_sigma

from fedsuv_plugin import wire
from fedsuv_plugin.selectors.maths import gaussian_process
from fedsuv_plugin.selectors.maths.gaussian_process import (
    ExactFactor,
    GaussianProcess,
    InducingFactor,
    matern,
    pivots,
)
from fedsuv_plugin.selectors.maths.linear_bandit import LinearBandit
from fedsuv_plugin.selectors.maths.marginal_likelihood import Hyper, Merged, MergedModel, fit
from fedsuv_plugin.selectors.maths.pareto import (
    diagonals,
    dominated,
    surely_worse,
    take_out_dominated,
)

# Linear bandit


def test_theta_and_norms_by_hand() -> None:
    # d = 1, ridge 2, reward 1 at x = 2, then 0 at x = 1: H = 2 + 4 + 1 = 7, b = 2, theta = 2/7;
    # ||3|| = 3/sqrt(7).
    bandit = LinearBandit(1, ridge=2.0)
    bandit.update(np.array([[2.0]]), np.array([1.0]))
    bandit.update(np.array([[1.0]]), np.array([0.0]))
    assert bandit.theta == pytest.approx([2 / 7])
    assert bandit.norms(np.array([[3.0], [0.0]])) == pytest.approx([3 / 7**0.5, 0.0])


def test_norms_before_any_feedback() -> None:
    # H = 4 I, so the norm is half the length: that of (3, 4) is 2.5.
    assert LinearBandit(2, ridge=4.0).norms(np.array([[3.0, 4.0]])) == pytest.approx([2.5])
    assert LinearBandit(2, ridge=4.0).theta.tolist() == [0, 0]


@pytest.mark.parametrize("seed", range(5))
def test_linear_bandit_agrees_with_the_formula(seed: int) -> None:
    rng = np.random.default_rng(seed)
    bandit = LinearBandit(4, ridge=0.3)
    h = 0.3 * np.eye(4)
    b = np.zeros(4)
    for _ in range(6):
        contexts = rng.normal(size=(5, 4))
        rewards = rng.random(5)
        bandit.update(contexts, rewards)
        for x, r in zip(contexts, rewards, strict=True):
            h = h + np.outer(x, x)
            b = b + r * x
    np.testing.assert_allclose(bandit.theta, np.linalg.inv(h) @ b, rtol=1e-9)
    fresh = rng.normal(size=(7, 4))
    norms = [np.sqrt(x @ np.linalg.inv(h) @ x) for x in fresh]
    np.testing.assert_allclose(bandit.norms(fresh), norms, rtol=1e-9)


# Kernel

LENGTHS = np.array([0.3, 0.6, 1.5])
HYPER = Hyper(mean=4.0, signal=2.5, noise=0.2, lengths=LENGTHS)


def test_matern_by_hand_and_as_gpytorch_has_it() -> None:
    # At distance 1/sqrt(5) length-scales r = 1: (1 + 1 + 1/3)/e.
    correlation = matern(np.array([[0.0]]), np.array([[0.4]]), np.array([0.4 * 5**0.5]))
    assert correlation == pytest.approx(7 / 3 / np.e)
    rng = np.random.default_rng(0)
    a = rng.random((6, 3))
    b = rng.random((9, 3))
    kernel = gpytorch.kernels.MaternKernel(nu=2.5, ard_num_dims=3).double()
    kernel.lengthscale = torch.from_numpy(LENGTHS)
    theirs = kernel(torch.from_numpy(a), torch.from_numpy(b)).to_dense().detach().numpy()
    np.testing.assert_allclose(matern(a, b, LENGTHS), theirs, rtol=1e-10)
    np.testing.assert_allclose(matern(a, b, LENGTHS), kernel_by_the_book(a, b, LENGTHS), rtol=1e-10)


# Posterior


def feed(
    gp: GaussianProcess, rng: np.random.Generator, batches: list[int], among: int
) -> tuple[np.ndarray, np.ndarray]:
    """Feed batches of observations at the first `among` inputs, so that some repeat.

    The posterior is read after each, so that it is brought up to date."""
    places = np.empty(0, int)
    values = np.empty(0)
    for size in batches:
        new = rng.integers(0, among, size)
        seen = rng.normal(4, 2, size)
        gp.observe(new, seen)
        assert np.isfinite(gp.mean).all()
        places = np.r_[places, new]
        values = np.r_[values, seen]
    return places, values


@pytest.mark.parametrize(
    "batches", [[1], [30], [20, 1, 1, 1], [20] * 12, [150, 40, 5, 60, 3], [1] * 40]
)
def test_posterior_equals_the_closed_form_with_repeated_observations(batches: list[int]) -> None:
    rng = np.random.default_rng(len(batches))
    inputs = rng.random((300, 3))
    gp = GaussianProcess(inputs, HYPER, max_points=1000)
    places, values = feed(gp, rng, batches, among=200)
    mean, deviation = posterior_by_the_book(inputs, places, values, HYPER)
    np.testing.assert_allclose(gp.mean, mean, rtol=1e-8)
    np.testing.assert_allclose(gp.deviation, deviation, rtol=1e-7)
    assert len(gp.observed) == len(set(places.tolist()))
    assert gp.inducing == 0


def test_correcting_and_starting_over_are_both_at_work() -> None:
    rng = np.random.default_rng(0)
    gp = GaussianProcess(rng.random((300, 3)), HYPER, max_points=1000)
    feed(gp, rng, [20] * 12, among=100)
    assert isinstance(gp._factor, ExactFactor)
    # It started with some rounds merged and was then extended ...
    assert len(gp.observed) < len(gp._factor.basis) < 240
    for _ in range(30):
        feed(gp, rng, [20], among=100)
        # ... and it is merged again before it grows without end.
        assert len(gp._factor.basis) <= 100 + gaussian_process.SLACK


def test_prior_before_any_observation() -> None:
    gp = GaussianProcess(np.random.default_rng(0).random((5, 3)), HYPER, max_points=10)
    assert gp.mean.tolist() == [4.0] * 5
    assert gp.deviation == pytest.approx([2.5**0.5] * 5)


def test_one_observation_by_hand() -> None:
    # Signal 2.5, noise 0.2, value 7 at the input itself: mean 4 + 3 * 2.5/2.7, variance 2.5 -
    # 2.5^2/2.7.
    gp = GaussianProcess(np.zeros((1, 3)), HYPER, max_points=10)
    gp.observe(np.array([0]), np.array([7.0]))
    assert gp.mean == pytest.approx([4 + 3 * 2.5 / 2.7])
    assert gp.deviation == pytest.approx([(2.5 - 2.5**2 / 2.7) ** 0.5])


def test_merged_and_unmerged_observations_give_the_same_posterior() -> None:
    # All at once is merged; one by one, they are rows of their own.
    rng = np.random.default_rng(3)
    inputs = rng.random((50, 3))
    places = rng.integers(0, 12, 60)
    values = rng.normal(4, 2, 60)
    together, alone = (GaussianProcess(inputs, HYPER, max_points=1000) for _ in range(2))
    together.observe(places, values)
    for place, value in zip(places, values, strict=True):
        alone.observe(np.array([place]), np.array([value]))
        assert np.isfinite(alone.mean).all()
    np.testing.assert_allclose(together.mean, alone.mean, rtol=1e-9)
    np.testing.assert_allclose(together.deviation, alone.deviation, rtol=1e-9)
    assert isinstance(together._factor, ExactFactor)
    assert isinstance(alone._factor, ExactFactor)
    assert len(together._factor.basis) == 12 < len(alone._factor.basis)


def test_new_hyper_parameters_reach_everything() -> None:
    rng = np.random.default_rng(4)
    inputs = rng.random((40, 3))
    other = Hyper(1.0, 0.7, 0.05, np.array([2.0, 0.1, 0.4]))
    gp = GaussianProcess(inputs, HYPER, max_points=1000)
    first = feed(gp, rng, [30, 10], among=40)
    gp.set_hyper(other)
    more = feed(gp, rng, [10], among=40)
    places = np.r_[first[0], more[0]]
    values = np.r_[first[1], more[1]]
    mean, deviation = posterior_by_the_book(inputs, places, values, other)
    np.testing.assert_allclose(gp.mean, mean, rtol=1e-7)
    np.testing.assert_allclose(gp.deviation, deviation, rtol=1e-7)


def test_blocks_and_panels_leave_no_seam(monkeypatch: pytest.MonkeyPatch) -> None:
    # 64 rows at a time; 300 points are three panels.
    monkeypatch.setattr(gaussian_process, "BLOCK", 1000)
    rng = np.random.default_rng(5)
    inputs = rng.random((401, 3))
    gp = GaussianProcess(inputs, HYPER, max_points=1000)
    places, values = feed(gp, rng, [700], among=300)
    mean, deviation = posterior_by_the_book(inputs, places, values, HYPER)
    np.testing.assert_allclose(gp.mean, mean, rtol=1e-8)
    np.testing.assert_allclose(gp.deviation, deviation, rtol=1e-7)


@pytest.mark.parametrize("max_points", [1000, 60])
def test_single_precision_is_good_to_a_thousandth(
    monkeypatch: pytest.MonkeyPatch, max_points: int
) -> None:
    # A thousandth of the function's deviation. Rounding is 6e-8; 1/noise = 100 and some 200
    # summands make that about 1e-4 at most.
    rng = np.random.default_rng(6)
    inputs = rng.random((300, 3))
    hyper = Hyper(0.0, 1.0, 0.01, LENGTHS)
    gps = []
    for single_from in (1, 1000):
        monkeypatch.setattr(gaussian_process, "SINGLE_FROM", single_from)
        gp = GaussianProcess(inputs, hyper, max_points)
        feed(gp, np.random.default_rng(7), [200] + [20] * 9, among=250)
        gps.append((gp.mean, gp.deviation))
    assert np.abs(gps[0][0] - gps[1][0]).max() < 1e-3
    assert np.abs(gps[0][1] - gps[1][1]).max() < 1e-3
    assert not np.array_equal(gps[0][0], gps[1][0])


# Inducing points


def inducing_by_the_book(
    gp: GaussianProcess,
    inputs: np.ndarray,
    basis: np.ndarray,
    places: np.ndarray,
    values: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Titsias (2009), eq. (6) and (10): the mean of q(f) is k_xz S k_zo y / noise.

    S = (k_zz + k_zo k_oz / noise)^-1."""
    h = gp.hyper
    zz = h.signal * kernel_by_the_book(basis, basis, h.lengths)
    zz += 1e-10 * h.signal * np.eye(len(basis))
    zo = h.signal * kernel_by_the_book(basis, inputs[places], h.lengths)
    xz = h.signal * kernel_by_the_book(inputs, basis, h.lengths)
    s = np.linalg.inv(zz + zo @ zo.T / h.noise)
    mean = h.mean + xz @ s @ zo @ (values - h.mean) / h.noise
    variance = h.signal - np.einsum("nz,zy,ny->n", xz, np.linalg.inv(zz) - s, xz)
    return mean, np.sqrt(variance)


@pytest.mark.parametrize("batches", [[200], [200, 10, 10, 3], [30, 20, 20, 20, 20]])
def test_inducing_posterior_equals_the_closed_form(batches: list[int]) -> None:
    rng = np.random.default_rng(8)
    inputs = rng.random((150, 3))
    gp = GaussianProcess(inputs, HYPER, max_points=40)
    places, values = feed(gp, rng, batches, among=120)
    factor = gp._factor
    assert isinstance(factor, InducingFactor)
    assert gp.inducing == len(factor.basis) == 40
    centred = inputs - inputs.mean(axis=0)
    mean, deviation = inducing_by_the_book(gp, centred, factor.basis, places, values)
    np.testing.assert_allclose(gp.mean, mean, rtol=1e-6)
    np.testing.assert_allclose(gp.deviation, deviation, rtol=1e-5)


def test_inducing_posterior_is_near_the_exact_one_where_the_function_is_smooth() -> None:
    # Length-scales of the size of the domain: at every observed input the points chosen leave at
    # most LEFT_OVER of the variance, a deviation of 0.003. Three of those is the most a mean should
    # be off.
    rng = np.random.default_rng(9)
    inputs = rng.random((400, 2))
    hyper = Hyper(0.0, 1.0, 0.1, np.array([1.0, 1.5]))
    exact = GaussianProcess(inputs, hyper, 1000)
    sparse = GaussianProcess(inputs, hyper, 100)
    places = rng.integers(0, 300, 600)
    values = rng.normal(size=600)
    for gp in (exact, sparse):
        gp.observe(places, values)
    assert np.abs(exact.mean - sparse.mean).max() < 3 * gaussian_process.LEFT_OVER**0.5
    np.testing.assert_allclose(sparse.deviation, exact.deviation, rtol=0.01)
    assert 0 < sparse.inducing < 100


def test_where_nothing_was_seen_the_sparse_posterior_knows_nothing() -> None:
    rng = np.random.default_rng(10)
    inputs = np.vstack([rng.random((100, 3)), np.full((1, 3), 40.0)])
    gp = GaussianProcess(inputs, HYPER, max_points=20)
    gp.observe(np.arange(100), rng.normal(4, 1, 100))
    assert gp.mean[100] == pytest.approx(4.0)
    assert gp.deviation[100] == pytest.approx(2.5**0.5)
    assert gp.inducing == 20


def test_inducing_points_are_chosen_anew_when_the_observed_ones_have_doubled() -> None:
    rng = np.random.default_rng(11)
    inputs = np.vstack([rng.random((60, 3)), 5 + rng.random((200, 3))])
    gp = GaussianProcess(inputs, HYPER, max_points=50)
    gp.observe(np.arange(60), rng.normal(4, 1, 60))
    before = gp.deviation[60:].min()
    for i in range(60, 260, 10):  # somewhere else altogether
        gp.observe(np.arange(i, i + 10), rng.normal(4, 1, 10))
        assert np.isfinite(gp.mean).all()
    assert before == pytest.approx(2.5**0.5, rel=1e-3)
    assert gp.deviation[60:].max() < before


def test_pivots_by_the_book() -> None:
    inputs = np.random.default_rng(12).random((60, 3))
    chosen = pivots(inputs, LENGTHS, 25)
    for m in range(25):  # each has the largest variance given those before
        before = inputs[chosen[:m]]
        cross = kernel_by_the_book(inputs, before, LENGTHS)
        inverse = np.linalg.inv(kernel_by_the_book(before, before, LENGTHS))
        left = 1 - np.einsum("nm,mk,nk->n", cross, inverse, cross)
        assert left[chosen[m]] == pytest.approx(left.max(), abs=1e-9)
    assert len(pivots(np.zeros((9, 3)), LENGTHS, 5)) == 1  # nothing is left after the first


# Resuming


@pytest.mark.parametrize("max_points", [1000, 40])
def test_a_resumed_gp_goes_on_bit_by_bit(max_points: int) -> None:
    inputs = np.random.default_rng(0).random((150, 3))
    whole, resumed = (GaussianProcess(inputs, HYPER, max_points) for _ in range(2))
    feed(whole, np.random.default_rng(1), [60, 10, 10], among=100)
    whole.observe(np.array([3, 140]), np.array([1.0, 2.0]))  # still in the queue
    resumed.load_state_dict(wire.decode(wire.encode(whole.state_dict())))
    for gp in (whole, resumed):
        feed(gp, np.random.default_rng(2), [10, 10, 80, 5], among=150)
    assert np.array_equal(whole.mean, resumed.mean)
    assert np.array_equal(whole.deviation, resumed.deviation)


def test_a_loaded_state_still_belongs_to_the_caller() -> None:
    inputs = np.random.default_rng(0).random((30, 3))
    gp, other = (GaussianProcess(inputs, HYPER, 100) for _ in range(2))
    feed(gp, np.random.default_rng(1), [30], among=30)
    state = gp.state_dict()
    kept = copy.deepcopy(state)
    other.load_state_dict(state)
    feed(other, np.random.default_rng(1), [30, 2], among=30)
    np.testing.assert_array_equal(state["posterior"], kept["posterior"])
    np.testing.assert_array_equal(state["observed"]["count"], kept["observed"]["count"])


# Marginal likelihood


def merged_by_the_book(inputs: np.ndarray, places: np.ndarray, values: np.ndarray) -> Merged:
    which = np.unique(places)
    groups = [values[places == p] for p in which]
    return Merged(
        inputs[which],
        np.array([len(g) for g in groups]),
        np.array([g.mean() for g in groups]),
        np.array([((g - g.mean()) ** 2).sum() for g in groups]),
    )


def likelihood_by_the_book(
    inputs: np.ndarray, places: np.ndarray, values: np.ndarray, hyper: Hyper
) -> float:
    """ln p of every single observation."""
    seen = inputs[places]
    covariance = hyper.signal * kernel_by_the_book(seen, seen, hyper.lengths)
    covariance += hyper.noise * np.eye(len(places))
    return float(multivariate_normal.logpdf(values, np.full(len(places), hyper.mean), covariance))


@pytest.mark.parametrize("seed", range(3))
def test_with_the_scatter_term_merging_leaves_the_likelihood(seed: int) -> None:
    rng = np.random.default_rng(seed)
    inputs = rng.random((20, 3))
    places = rng.integers(0, 20, 50)
    values = rng.normal(0.5, 1, 50)
    hyper = Hyper(0.2, 1.3, 0.4, LENGTHS)
    model = MergedModel(merged_by_the_book(inputs, places, values), hyper)
    with gpytorch.settings.fast_computations(log_prob=False):
        ours = float(model.log_likelihood().detach())
    assert ours == pytest.approx(likelihood_by_the_book(inputs, places, values, hyper), rel=1e-9)


def test_observed_merges_as_the_book_does() -> None:
    rng = np.random.default_rng(0)
    inputs = rng.random((20, 3))
    places = rng.integers(0, 20, 90)
    values = rng.normal(1e6, 1, 90)
    gp = GaussianProcess(inputs, HYPER, 100)
    for part in np.array_split(np.arange(90), 7):
        gp.observe(places[part], values[part])
    data = gp.data()
    book = merged_by_the_book(inputs - inputs.mean(axis=0), places, values)
    order = np.argsort(gp.observed.place)
    for name in ("inputs", "count", "mean"):
        np.testing.assert_allclose(getattr(data, name)[order], getattr(book, name))
    np.testing.assert_allclose(data.scatter[order], book.scatter, rtol=1e-6, atol=1e-9)
    assert data.centre == pytest.approx(values.mean())
    assert data.deviation == pytest.approx(values.std())


def gp_world(
    seed: int, points: int, repeats: int, hyper: Hyper
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Inputs, places and values: noisy observations of a function drawn from the process."""
    rng = np.random.default_rng(seed)
    inputs = rng.random((points, len(hyper.lengths)))
    correlation = kernel_by_the_book(inputs, inputs, hyper.lengths) + 1e-9 * np.eye(points)
    root = np.linalg.cholesky(hyper.signal * correlation)
    function = hyper.mean + root @ rng.normal(size=points)
    places = np.repeat(np.arange(points), repeats)
    return inputs, places, function[places] + rng.normal(0, hyper.noise**0.5, len(places))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e9])
def test_fit_climbs_above_the_truth(seed: int, scale: float) -> None:
    # The maximum of the likelihood is at least as likely as the parameters the data come from,
    # whatever the unit. Noise is known from 120 repeats: chi^2 with 60 degrees of freedom, relative
    # deviation sqrt(2/60) = 0.18, four of them.
    truth = Hyper(3 * scale, 2 * scale**2, 0.3 * scale**2, np.array([0.3, 0.8, 20.0]))
    inputs, places, values = gp_world(seed, 60, 2, truth)
    start = Hyper(values.mean(), values.var(), 0.25 * values.var(), np.full(3, 0.5))
    found = fit(merged_by_the_book(inputs, places, values), start)
    assert found.log_likelihood >= likelihood_by_the_book(inputs, places, values, truth)
    assert found.log_likelihood == pytest.approx(
        likelihood_by_the_book(inputs, places, values, found.hyper), rel=1e-6
    )
    assert found.hyper.noise == pytest.approx(truth.noise, rel=4 * 0.18)
    assert found.hyper.lengths[2] > found.hyper.lengths[0]  # the third feature says nothing


def test_fit_is_deterministic_warm_starts_and_leaves_torch_alone() -> None:
    inputs, places, values = gp_world(5, 80, 1, HYPER)
    data = merged_by_the_book(inputs, places, values)
    random = torch.get_rng_state()
    threads = torch.get_num_threads()
    kind = torch.get_default_dtype()
    numpy_state = np.random.get_state(legacy=False)["state"]["key"].copy()
    first = fit(data, HYPER)
    again = fit(data, HYPER)
    assert first.converged
    for name in ("mean", "signal", "noise", "lengths"):
        assert np.array_equal(getattr(first.hyper, name), getattr(again.hyper, name))
    warm = fit(data, first.hyper)  # already there
    assert warm.log_likelihood == pytest.approx(first.log_likelihood, abs=0.05)
    assert torch.equal(torch.get_rng_state(), random)
    assert (torch.get_num_threads(), torch.get_default_dtype()) == (threads, kind)
    assert np.array_equal(np.random.get_state(legacy=False)["state"]["key"], numpy_state)


# Pareto steps

small = st.integers(0, 4).map(float)
corners = st.lists(st.tuples(small, small, small, small), min_size=1, max_size=14)


def rectangles_between(rows: list[tuple[float, float, float, float]]) -> tuple[Any, Any]:
    """low, high (2, n) of the rectangles with opposite corners (a, c) and (b, d)."""
    a, b, c, d = np.array(rows).T
    low = np.array([np.minimum(a, b), np.minimum(c, d)])
    high = np.array([np.maximum(a, b), np.maximum(c, d)])
    return low, high


rectangles = corners.map(rectangles_between)


def classify_by_the_book(low: np.ndarray, high: np.ndarray, keep: int) -> list[int]:
    """Who is left after Algorithm 1, lines 10-18: lowest upper utility first, one at a time."""
    pool = list(range(low.shape[1]))
    for x in sorted(pool, key=lambda i: high[1, i]):
        if len(pool) <= keep:
            break
        if any(y != x and (high[:, x] <= low[:, y]).all() for y in pool):
            pool.remove(x)
    return pool


@settings(max_examples=500, deadline=None, derandomize=True)
@given(shapes=rectangles, seed=st.integers(0, 9))
def test_dominance_agrees_with_the_definition(
    shapes: tuple[np.ndarray, np.ndarray], seed: int
) -> None:
    low, high = shapes
    left = np.flatnonzero(~dominated(low, high, np.random.default_rng(seed)))
    book = classify_by_the_book(low, high, keep=0)
    # Which of several equal points is left is random, so that the rectangles are compared.
    both = np.vstack([low, high]).T
    assert sorted(map(tuple, both[left])) == sorted(map(tuple, both[book]))


@settings(max_examples=300, deadline=None, derandomize=True)
@given(shapes=rectangles, keep=st.integers(0, 15), seed=st.integers(0, 9))
def test_classifying_stops_at_a_full_cohort(
    shapes: tuple[np.ndarray, np.ndarray], keep: int, seed: int
) -> None:
    low, high = shapes
    out = take_out_dominated(low, high, keep, np.random.default_rng(seed))
    book = np.setdiff1d(np.arange(low.shape[1]), classify_by_the_book(low, high, keep))
    assert len(set(out.tolist())) == len(out) == len(book)
    assert sorted(high[1, out]) == sorted(high[1, book])  # with equal upper utilities either may go


@pytest.mark.parametrize("seed", range(5))
def test_dominance_at_size(seed: int) -> None:
    rng = np.random.default_rng(seed)
    low = rng.random((2, 400))
    high = low + rng.exponential(0.1, (2, 400))
    others = [np.delete(low, i, axis=1) for i in range(400)]
    book = [i for i in range(400) if (high[:, [i]] <= others[i]).all(axis=0).any()]
    assert np.flatnonzero(dominated(low, high, rng)).tolist() == book
    assert len(book) > 100


def test_equal_points_do_not_delete_each_other_and_the_one_that_stays_is_fair() -> None:
    # Four clients known for certain and equal: one stays, each with probability 1/4.
    point = np.full((2, 4), 0.5)
    rng = np.random.default_rng(0)
    stays = np.zeros(4)
    for _ in range(2000):
        out = dominated(point, point, rng)
        assert out.sum() == 3
        stays += ~out
    assert np.abs(stays - 500).max() < five_sigma(2000, 0.25)


def test_elimination_by_hand() -> None:
    # The largest lower bound is 0.5: rows 0, 1 and 3 are not above it. With room for two, the
    # lowest upper ones go.
    low = np.array([0.0, 0.1, 0.5, 0.2])
    high = np.array([0.3, 0.5, 0.9, 0.4])
    rng = np.random.default_rng(0)
    assert surely_worse(low, high, 9, rng).tolist() == [0, 1, 3]
    assert sorted(surely_worse(low, high, 2, rng).tolist()) == [0, 3]
    assert surely_worse(low, high, 0, rng).tolist() == []
    assert surely_worse(low, high, -3, rng).tolist() == []


def test_diagonals_by_hand() -> None:
    # Sides 3 and 80/20 = 4.
    low = np.array([[1.0], [10.0]])
    high = np.array([[4.0], [90.0]])
    assert diagonals(low, high, np.array([1.0, 20.0])).tolist() == [5.0]


def test_nobody_to_compare_with() -> None:
    empty: Any = np.empty((2, 0))
    assert len(dominated(empty, empty, np.random.default_rng(0))) == 0
