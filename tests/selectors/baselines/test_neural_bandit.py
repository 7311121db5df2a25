"""The neural bandit: bounds and training by hand, and by autograd on contexts written twice."""

from __future__ import annotations

import math

import numpy as np
import pytest
from neural_ucb_by_the_book import BanditByTheBook, twice

from fedsuv_plugin import wire
from fedsuv_plugin.selectors.baselines.lsh import context
from fedsuv_plugin.selectors.baselines.neural_bandit import GOOD_ENOUGH, NeuralBandit

ONE = np.zeros(1, np.int64)  # the order of a single pair


def by_hand() -> NeuralBandit:
    """Two units, contexts written once, Z = I."""
    bandit = NeuralBandit(features=2, width=2, lam=1.0, rng=np.random.default_rng(0))
    bandit.copies = 1
    bandit.first = np.array([[1.0, 0.0], [0.5, -0.5]])
    bandit.last = np.array([0.5, -0.25])
    return bandit


def test_bounds_by_hand() -> None:
    # x = (1, 0): hidden 1 and 0.5; f = sqrt(2) (0.5 - 0.125) = 0.530330. Squares of the gradient
    # over the width: (1^2, 0.5^2) and 0.5^2 + 0.25^2, together 1.5625, so U = f + 1.25.
    # (0, 1): hidden 0 and -0.5, and the slope of relu is 0 at 0: f = U = 0.
    # (1, 1): hidden 1 and 0; f = sqrt(2) 0.5; 1 + 0.25 (1 + 1) = 1.5.
    predicted, upper = by_hand().bounds(np.array([[1.0, 0], [0, 1], [1, 1]]), gamma=1.0)
    assert predicted == pytest.approx([0.530330, 0, 0.707107], abs=1e-6)
    assert upper == pytest.approx([1.780330, 0, 1.931852], abs=1e-6)
    _, wide = by_hand().bounds(np.array([[1.0, 0]]), gamma=3.0)
    assert wide == pytest.approx([0.530330 + 3.75], abs=1e-6)


def test_widths_shrink_where_something_was_chosen_by_hand() -> None:
    # (1, 1) adds 1 to Z of the first entry of `last` and 0.25 to those of the first row.
    # For (1, 1): 1 / 2 + 0.25 2 / 1.25 = 0.9, U = 0.707107 + sqrt(0.9).
    # For (1, 0): 1 / 2 + 0.25 + 0.25 / 1.25 + 0.0625 = 1.0125, U = 0.530330 + 1.006231.
    bandit = by_hand()
    bandit.observe(np.array([[1.0, 1.0]]))
    _, upper = bandit.bounds(np.array([[1.0, 1], [1, 0]]), gamma=1.0)
    assert upper == pytest.approx([1.655790, 1.536561], abs=1e-6)


@pytest.mark.parametrize("lam", [1e-3, 1.0, 50.0])
def test_the_first_widths_do_not_depend_on_lambda(lam: float) -> None:
    contexts = context(np.random.default_rng(1).integers(0, 2, (5, 64)))
    bandits = [NeuralBandit(64, 100, each, np.random.default_rng(0)) for each in (lam, 1.0)]
    widths = [bandit.bounds(contexts, gamma=1.0)[1] for bandit in bandits]
    assert widths[0] == pytest.approx(widths[1].tolist())


@pytest.mark.parametrize("width", [2, 8, 100])
def test_it_begins_with_nothing_predicted_and_the_variances_of_the_paper(width: int) -> None:
    # Variances 4 / w and 2 / w. That of m normal numbers is off by a factor of 1 +- sqrt(2 / m).
    bits = np.random.default_rng(0).integers(0, 2, (30, 64))
    firsts = []
    lasts = []
    for seed in range(200):
        bandit = NeuralBandit(64, width, 0.1, np.random.default_rng(seed))
        assert bandit.bounds(context(bits), gamma=1.0)[0] == pytest.approx(np.zeros(30), abs=1e-12)
        firsts.append(bandit.first[: width // 2])
        lasts.append(bandit.last[: width // 2])
    for found, variance in ((firsts, 4 / width), (lasts, 2 / width)):
        assert np.var(found) == pytest.approx(variance, rel=5 * math.sqrt(2 / np.size(found)))


def test_a_step_by_hand() -> None:
    # x = (1, 0), r = 0: error e = 0.530330, root = sqrt(2). g is sqrt(2) (1, 0.5) for `last` and
    # sqrt(2) (0.5, -0.25) for the first column: |g|^2 = 3.125. With the pull w lam / pairs = 2 / 4
    # the step is no longer than 1 / 3.625, the rate of 0.1 is less. Weights that have not moved
    # yet are not pulled.
    bandit = by_hand()
    bandit.start_first = bandit.first.copy()
    bandit.start_last = bandit.last.copy()
    met = bandit.fit(np.array([[1.0, 0]]), np.zeros(1), ONE, pairs=4, steps=1, rate=0.1)
    e = 0.5303300859
    root = math.sqrt(2)
    assert met == pytest.approx(e**2)
    assert bandit.last == pytest.approx([0.5 - 0.1 * e * root, -0.25 - 0.1 * e * root / 2])
    down = 0.1 * e * root
    first = [[1 - down * 0.5, 0], [0.5 + down * 0.25, -0.5]]
    assert bandit.first == pytest.approx(np.array(first))


def test_no_step_overshoots_however_large_the_rate() -> None:
    # At 1 / |g|^2 a step brings the error of a linear function to 0. This one is quadratic in its
    # weights, so that a few steps do it. Ten times as far, the error would grow ninefold each time.
    for width in (10, 100, 1000):
        bandit = NeuralBandit(64, width, 1e-6, np.random.default_rng(3))
        contexts = context(np.ones((1, 64)))
        met = bandit.fit(contexts, np.ones(1), ONE, pairs=1, steps=50, rate=1e9)
        assert met <= GOOD_ENOUGH


@pytest.mark.parametrize("lam", [0.1, 1.0, 10.0])
def test_the_pull_holds_weights_to_their_start(lam: float) -> None:
    # Of a linear function with one pair (x, 1), (f - 1)^2 / 2 + w lam |theta - theta_0|^2 / 2 is
    # least where f = |g|^2 / (|g|^2 + w lam), and the first width is |g| / sqrt(w). A network of
    # 1000 units is linear to some percent.
    bandit = NeuralBandit(64, 1000, lam, np.random.default_rng(0))
    contexts = context(np.ones((1, 64)))
    _, width = bandit.bounds(contexts, gamma=1.0)
    bandit.fit(contexts, np.ones(1), ONE, pairs=1, steps=100, rate=1.0)
    found, _ = bandit.bounds(contexts, gamma=1.0)
    assert found == pytest.approx(width**2 / (width**2 + lam), rel=0.05)


def test_training_ends_once_an_epoch_was_good_enough() -> None:
    rng = np.random.default_rng(0)
    contexts = context(rng.integers(0, 2, (6, 64)))
    rewards = rng.random(6)
    bandit = NeuralBandit(64, 100, 1e-3, rng)
    order = rng.permutation(np.repeat(np.arange(6), 3))
    met = bandit.fit(contexts, rewards, order, pairs=18, steps=10_000, rate=0.01)
    assert met <= GOOD_ENOUGH
    before = bandit.first.copy()
    # One epoch more is seen through, as its errors are not known before.
    again = bandit.fit(contexts, rewards, order, pairs=18, steps=10_000, rate=0.01)
    assert again <= met
    assert 0 < np.abs(bandit.first - before).max() < 0.01
    assert bandit.fit(contexts, rewards, order, pairs=18, steps=0, rate=0.01) == math.inf


@pytest.mark.parametrize("seed", range(100))
def test_agrees_with_autograd_on_contexts_written_twice(seed: int) -> None:
    rng = np.random.default_rng(seed)
    d = int(rng.integers(1, 7))
    width = 2 * int(rng.integers(1, 5))
    lam = float(rng.choice([1e-3, 0.1, 2.0]))
    gamma = float(rng.choice([0.0, 1.0, 3.0]))
    rate = float(rng.choice([1e-3, 0.01, 5.0]))
    bandit = NeuralBandit(d, width, lam, rng)
    book = BanditByTheBook(bandit.start_first, bandit.start_last, lam)
    bits = rng.integers(0, 2, (8, d))
    for _ in range(3):
        predicted, upper = bandit.bounds(context(bits), gamma)
        expected = [book.bounds(twice(row.tolist()), gamma) for row in bits]
        # The root of a spread of 0 is as inexact as the root of a rounding error.
        assert predicted == pytest.approx([f for f, _ in expected], abs=1e-9)
        assert upper == pytest.approx([u for _, u in expected], abs=1e-7)
        chosen = rng.integers(0, 8, 3)
        bandit.observe(context(bits[chosen]))
        book.observe([twice(bits[i].tolist()) for i in chosen])
        order = rng.integers(0, 3, 5)
        rewards = rng.random(3)
        steps = int(rng.integers(1, 13))
        met = bandit.fit(context(bits[chosen]), rewards, order, 9, steps, rate)
        pairs = [(twice(bits[chosen[i]].tolist()), float(rewards[i])) for i in order]
        assert met == pytest.approx(book.fit(pairs, 9, steps, rate), abs=1e-9)


def test_what_is_saved_goes_on_alike_and_is_not_shared() -> None:
    rng = np.random.default_rng(0)
    contexts = context(rng.integers(0, 2, (5, 64)))
    first = NeuralBandit(64, 10, 0.1, rng)
    first.observe(contexts)
    first.fit(contexts, rng.random(5), np.arange(5), 5, 20, 0.01)
    second = NeuralBandit(64, 10, 0.1, rng)
    state = first.state_dict()
    kept = wire.encode(state)
    second.load_state_dict(state)
    for bandit in (first, second):
        bandit.observe(contexts[:2])
        bandit.fit(contexts, np.ones(5), np.arange(5), 5, 20, 0.01)
    np.testing.assert_equal(second.state_dict(), first.state_dict())
    third = NeuralBandit(64, 10, 0.1, rng)
    third.load_state_dict(wire.decode(kept))
    second.load_state_dict(third.state_dict())
    second.observe(contexts)
    np.testing.assert_equal(third.state_dict(), wire.decode(kept))
