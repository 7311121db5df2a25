"""FedSUV: by hand, against the pseudocode, invariants, coverage of the regions, and learning."""

from __future__ import annotations

import json
import logging
import math
from argparse import Namespace
from collections.abc import Callable
from dataclasses import asdict, replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from conftest import run
from gp_by_the_book import kernel_by_the_book, posterior_by_the_book
from hypothesis import given, settings
from hypothesis import strategies as st
from selector_worlds import five_sigma, look, outcome, table

from fedsuv_plugin import wire
from fedsuv_plugin.client_managers import FedSUVClientManager
from fedsuv_plugin.config.job import Job
from fedsuv_plugin.engine.feedback import Feedback
from fedsuv_plugin.errors import UserError
from fedsuv_plugin.selectors import fedsuv
from fedsuv_plugin.selectors.base import ClientTable, RoundOutcome, RoundView
from fedsuv_plugin.selectors.fedsuv import FedSUV, FedSUVParams, contexts
from fedsuv_plugin.selectors.maths.marginal_likelihood import Hyper
from fedsuv_plugin.selectors.signals import ACCURACY_GAIN


def clients_with(
    features: np.ndarray, names: tuple[str, ...] | None = None, samples: Any = 40
) -> ClientTable:
    names = names or tuple(f"f{i}" for i in range(features.shape[1]))
    plain = table(len(features), samples)
    return replace(plain, features=features.astype(float), feature_names=names)


def random_clients(n: int, d: int = 3, seed: int = 0) -> ClientTable:
    return clients_with(np.random.default_rng(seed).random((n, d)))


def make(clients: ClientTable, seed: int = 0, **params: Any) -> FedSUV:
    return FedSUV(FedSUVParams(**params), clients, np.random.default_rng(seed))


def known(clients: ClientTable, hyper: Hyper, seed: int = 0, **params: Any) -> FedSUV:
    """A selector that knows the hyper-parameters of utility and keeps them."""
    s = make(clients, seed, refit_every=0, **params)
    s.assume(hyper)
    return s


def play(
    s: FedSUV, rounds: range, k: int = 5, online_share: float = 1.0, seed: int = 0
) -> list[list[int]]:
    """Rounds in a world where the first feature makes clients fast and the second useful."""
    picks = []
    x = s.contexts.per_client(s.contexts.rows)
    for t in rounds:
        rng = np.random.default_rng([seed, t])
        online = np.flatnonzero(rng.random(len(x)) < online_share)
        rows = s.select(look(s.clients, t, online), k)
        picks.append(rows.tolist())
        utility = 10 + 20 * x[rows, -1] + rng.normal(size=len(rows))
        valid = rng.random(len(rows)) < 0.2 + 0.7 * x[rows, 0]
        s.update(outcome(t, rows, utility, valid))
    return picks


# Contexts


def test_contexts_by_hand() -> None:
    # Column a: 0 5 10. b: constant, dropped. c: largest 999 > 10 * median 9, so log1p: ln 1, ln 10,
    # ln 1000, that is 0, 1/3, 1. Samples 10 20 30. Norms: 0, sqrt(1/4 + 1/9 + 1/4), sqrt(3).
    features = np.array([[0, 7, 0], [5, 7, 9], [10, 7, 999]])
    made = contexts(clients_with(features, samples=[10, 20, 30]))
    assert made == pytest.approx(np.array([[0, 0, 0], [0.5, 1 / 3, 0.5], [1, 1, 1]]) / 3**0.5)


def test_contexts_are_of_hardware_where_the_trace_has_it() -> None:
    features = np.random.default_rng(0).random((20, 4))
    both = ("ms_per_sample", "kbps_down", "cores", "memory_gb")
    hardware_only = clients_with(features[:, 2:], both[2:])
    assert np.array_equal(contexts(clients_with(features, both)), contexts(hardware_only))
    # Without hardware the measured columns are used; the samples are equal and drop out.
    assert contexts(clients_with(features[:, :2], both[:2])).shape == (20, 2)


def test_equal_clients_have_one_context() -> None:
    s = make(clients_with(np.ones((6, 2))))
    assert s.contexts.rows.tolist() == [[0.0]]
    assert s.contexts.of.tolist() == [0] * 6


@settings(max_examples=50, deadline=None, derandomize=True)
@given(rows=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=12))
def test_distinct_contexts_are_found(rows: list[tuple[int, int]]) -> None:
    s = make(clients_with(np.array(rows)))
    assert np.array_equal(s.contexts.per_client(s.contexts.rows), contexts(s.clients))
    assert len(np.unique(s.contexts.rows, axis=0)) == len(s.contexts.rows)


def test_features_that_are_not_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="finite"):
        make(clients_with(np.array([[1.0], [np.nan]])))


# By hand


def test_bounds_by_hand() -> None:
    # One feature, contexts 0 and 1, delta 0.5, ridge 2. Linear model with the constant: x = (0, 1)
    # and (1, 1), H = 2 I. Half-widths alpha sqrt(1/2) and alpha sqrt(2/2),
    # alpha = 1 + sqrt(ln(8)/2) = 2.0197. Utility: mean 3, deviation 2;
    # beta_1 = 2 ln(2 pi^2/1.5) = 5.154.
    hyper = Hyper(3.0, 4.0, 1.0, np.array([0.5]))
    s = known(clients_with(np.array([[0], [5]])), hyper, delta=0.5, ridge=2.0)
    s.select(look(s.clients), 1)
    told = s.explain()
    alpha = 1 + math.sqrt(math.log(8) / 2)
    reach = math.sqrt(2 * math.log(2 * math.pi**2 / 1.5))
    assert told["validity_high"] == pytest.approx([alpha * 0.5**0.5, alpha])
    assert told["validity_low"] == pytest.approx([-alpha * 0.5**0.5, -alpha])
    assert told["utility_high"] == pytest.approx([3 + 2 * reach] * 2)
    assert told["utility_low"] == pytest.approx([3 - 2 * reach] * 2)
    # Diagonal: utility's side 4 reach over its largest upper bound.
    side = 4 * reach / (3 + 2 * reach)
    widths = [math.hypot(2 * alpha * 0.5**0.5, side), math.hypot(2 * alpha, side)]
    assert told["width"] == pytest.approx(widths)
    assert told["score"] == pytest.approx(told["utility_high"])
    assert told["candidate"].tolist() == [True, True]

    # Client 1 came in with utility 6 = L D, in time. H = 2 I + (1,1)(1,1)', b = (1,1), so
    # theta = (1,1)/4.
    # H^-1 = [[3,-1],[-1,3]]/8: ||(0,1)||^2 = 3/8, ||(1,1)||^2 = 4/8.
    s.update(replace(outcome(1, [1], 12.0), signals={ACCURACY_GAIN: np.array([0.5])}))
    s.positive = np.full(3, 6.0)  # as if two more had been seen, so that nothing waits
    s.update(outcome(2, []))
    s.select(look(s.clients, 2), 1)
    told = s.explain()
    first = min(1 / 4 + alpha * (3 / 8) ** 0.5, alpha * 0.5**0.5)
    second = min(1 / 2 + alpha * 0.5**0.5, alpha)
    assert told["validity_high"] == pytest.approx([first, second])
    reach_1 = reach
    reach_2 = math.sqrt(2 * math.log(2 * math.pi**2 * 4 / 1.5))
    mean = 3 + 3 * 4 / 5
    deviation = math.sqrt(4 - 16 / 5)
    high = min(mean + reach_2 * deviation, 3 + 2 * reach_1)
    low = max(mean - reach_2 * deviation, 3 - 2 * reach_1)
    assert told["utility_high"][1] == pytest.approx(high)
    assert told["utility_low"][1] == pytest.approx(low)


def test_validity_capped_at_one_in_the_product() -> None:
    s = known(random_clients(10), Hyper(3.0, 4.0, 1.0, np.ones(3)), rank="product")
    play(s, range(1, 5))
    told = s.explain()
    product = told["utility_high"] * np.minimum(told["validity_high"], 1)
    assert told["score"] == pytest.approx(product)


@pytest.mark.parametrize(
    ("how", "booked"),
    [("mean", [4.0, 8.0, 6.0]), ("zero", [4.0, 8.0, 0.0]), ("unseen", [4.0, 8.0])],
)
def test_what_an_invalid_client_is_booked_with(how: str, booked: list[float]) -> None:
    s = make(random_clients(5), invalid_utility=how)
    s.positive = np.full(5, 5.0)
    s.update(outcome(1, [3, 1, 4], [4, 8, 0], valid=[True, True, False]))
    assert len(s.utility_model.data().mean) == len(booked)
    observed = s.utility_model.observed
    by_place = dict(zip(observed.place.tolist(), observed.mean.tolist(), strict=True))
    assert by_place == dict(zip([3, 1, 4], booked, strict=False))
    # A round that everybody missed: nothing to take a mean of.
    s.update(outcome(2, [0, 2], valid=False))
    assert len(s.utility_model.data().mean) == len(booked) + (2 if how == "zero" else 0)
    assert s.validity_model.b[-1] == 2  # two of five made it
    assert s.validity_model.H[-1, -1] == 1 + 5


def test_utility_is_clipped_on_arrival() -> None:
    # Positive so far, this round's included: 1 2 3 4 100, median 3, so at most 30; negative ones
    # count as 0.
    s = make(random_clients(6), invalid_utility="unseen")
    gains = np.array([1.0, 1.0, 1.0, 1.0, 10.0, -1.0])
    s.update(replace(outcome(1, range(6), [1, 2, 3, 4, 10, 5]), signals={ACCURACY_GAIN: gains}))
    assert sorted(s.utility_model.data().mean) == [0, 1, 2, 3, 4, 30]
    # Only once: many small ones later do not change what was booked.
    s.update(outcome(2, [0] * 6, [0.1] * 6))
    assert s.utility_model.data().mean.max() == 30


def test_the_first_utilities_wait_for_a_median() -> None:
    # A lie alone in its round looks like the truth; with two honest ones it is clipped at 10 times
    # the median of the three.
    s = make(random_clients(5), invalid_utility="mean")
    s.update(outcome(1, [0, 1], [1e60, 0], valid=[True, False]))
    assert len(s.utility_model.data().mean) == 0
    s.select(look(s.clients, 2), 2)
    s.update(outcome(2, [2, 3], [4, 6]))
    assert s.utility_model.data().mean.tolist() == [60, 60, 4, 6]
    # Zeros are no lie: they need not wait.
    s = make(random_clients(5))
    s.update(outcome(1, [0, 1], [0, 0]))
    assert s.utility_model.data().mean.tolist() == [0, 0]


# Against the pseudocode


class ByTheBook:
    """Algorithm 1 with loops, explicit inverses and every observation on its own.

    The hyper-parameters are known."""

    def __init__(
        self, x: np.ndarray, hyper: Hyper, delta: float, rho: float, ridge: float, missed: str
    ):
        self.x = x
        self.missed = missed  # what a missed deadline is booked as: zero or mean
        self.hyper = hyper
        self.delta = delta
        self.rho = rho
        self.H = ridge * np.eye(x.shape[1] + 1)
        self.b = np.zeros(x.shape[1] + 1)
        self.places: list[int] = []
        self.values: list[float] = []
        self.pool = list(range(len(x)))
        self.region = np.empty((len(x), 2, 2))  # client, axis, low or high
        self.region[:, :] = [-np.inf, np.inf]

    def intervals(self, t: int) -> np.ndarray:
        n = len(self.x)
        alpha = 1 + math.sqrt(math.log(4 / self.delta) / 2)
        beta = 2 * math.log(n * math.pi**2 * t**2 / (3 * self.delta))
        if self.places:
            mean, deviation = posterior_by_the_book(
                self.x, np.array(self.places), np.array(self.values), self.hyper
            )
        else:
            mean = np.full(n, self.hyper.mean)
            deviation = np.full(n, self.hyper.signal**0.5)
        inverse = np.linalg.inv(self.H)
        q = np.empty((n, 2, 2))
        for i in range(n):
            z = np.append(self.x[i], 1.0)
            v = z @ inverse @ self.b
            v_reach = alpha * math.sqrt(z @ inverse @ z)
            u = mean[i]
            u_reach = math.sqrt(beta) * deviation[i]
            q[i] = [[v - v_reach, v + v_reach], [u - u_reach, u + u_reach]]
        return q

    def select(self, t: int, online: set[int], k: int) -> list[int]:
        n = len(self.x)
        q = self.intervals(t)
        best_low = max(q[i, 0, 0] for i in self.pool)
        floor = max(n - math.floor(Fraction(str(self.rho)) * n), k)
        for i in sorted(self.pool, key=lambda i: q[i, 0, 1]):
            if q[i, 0, 1] <= best_low and len(self.pool) > floor:
                self.pool.remove(i)
        for i in range(n):
            for axis in range(2):
                low = max(self.region[i, axis, 0], q[i, axis, 0])
                high = min(self.region[i, axis, 1], q[i, axis, 1])
                self.region[i, axis] = (low, high) if low <= high else q[i, axis]
        for i in sorted(self.pool, key=lambda i: self.region[i, 1, 1]):
            if len(self.pool) > k and any(
                j != i and (self.region[i, :, 1] <= self.region[j, :, 0]).all() for j in self.pool
            ):
                self.pool.remove(i)
        top = max(self.region[i, 1, 1] for i in self.pool)
        sides = self.region[:, :, 1] - self.region[:, :, 0]
        self.width = np.hypot(sides[:, 0], sides[:, 1] / top)
        candidates = [i for i in self.pool if i in online]
        picked = sorted(candidates, key=lambda i: -self.width[i])[:1]
        rest = sorted(set(candidates) - set(picked), key=lambda i: -self.region[i, 1, 1])
        picked += rest[: k - len(picked)]
        others = sorted(online - set(self.pool), key=lambda i: -self.region[i, 1, 1])
        return (picked + others)[: min(k, len(online))]

    def update(self, rows: np.ndarray, valid: np.ndarray, utility: np.ndarray) -> None:
        for i, made_it in zip(rows, valid, strict=True):
            z = np.append(self.x[i], 1.0)
            self.H = self.H + np.outer(z, z)
            self.b = self.b + made_it * z
        self.places += rows.tolist()
        stand_in = utility[valid].mean() if self.missed == "mean" and valid.any() else 0
        self.values += np.where(valid, utility, stand_in).tolist()


@pytest.mark.parametrize("missed", ["zero", "mean"])
@pytest.mark.parametrize("seed", range(4))
def test_agrees_with_the_pseudocode(seed: int, missed: str) -> None:
    # 40 clients in four clusters (in time or not, useful or not), narrow bounds (delta 1, little
    # ridge, small noise), and ten others who are heard of every round as well, so that all stages
    # have work to do.
    rng = np.random.default_rng(seed)
    n = 40
    k = 6
    clients = clients_with(np.round(rng.random((n, 2))) + 0.1 * rng.random((n, 2)))
    hyper = Hyper(20.0, 4.0, 0.25, np.array([0.3, 0.5]))
    s = known(clients, hyper, seed, delta=1.0, rho=0.1, ridge=0.05, invalid_utility=missed)
    x = contexts(clients)
    book = ByTheBook(x, hyper, delta=1.0, rho=0.1, ridge=0.05, missed=missed)
    gone = {"eliminated": 0, "classified_out": 0, "filled_up": 0}
    for t in range(1, 41):
        online = np.flatnonzero(rng.random(n) < (0.2 if t % 7 == 0 else 0.7))
        rows = s.select(look(clients, t, online), k)
        expected = book.select(t, set(online.tolist()), k)
        told = s.explain()
        assert np.flatnonzero(told["candidate"]).tolist() == sorted(book.pool)
        for axis, name in enumerate(("validity", "utility")):
            low, high = book.region[:, axis].T
            np.testing.assert_allclose(told[f"{name}_low"], low, rtol=1e-7, atol=1e-7)
            np.testing.assert_allclose(told[f"{name}_high"], high, rtol=1e-7, atol=1e-7)
        np.testing.assert_allclose(told["width"], book.width, rtol=1e-6)
        # Clients that nothing is known of have equal upper utilities, and either may be chosen, so
        # scores are compared.
        assert rows[0] == expected[0]
        assert told["candidate"][rows].tolist() == told["candidate"][expected].tolist()
        np.testing.assert_allclose(told["score"][rows], told["score"][expected], rtol=1e-9)
        gone = {name: count + s.diagnostics()[name] for name, count in gone.items()}
        heard = np.union1d(rows, rng.choice(n, 10, replace=False))
        always_valid = np.arange(len(heard)) < (3 if t == 1 else 1)
        valid = (rng.random(len(heard)) < 1.4 * x[heard, 0]) | always_valid
        utility = 20 + 8 * x[heard, 1] + rng.normal(0, 0.5, len(heard))
        s.update(outcome(t, heard, utility, valid))
        book.update(heard, valid, utility)
    assert min(gone.values()) > 0


# Regions, pool


def test_regions_only_shrink_or_restart() -> None:
    s = make(random_clients(30), refit_every=3)
    restarts = 0
    before: dict[str, np.ndarray] = {}
    for t in range(1, 40):
        play(s, range(t, t + 1), k=4)
        if t == 20:  # the model has learned: all utilities fall
            s.update(outcome(t, np.arange(30), 0.5))
            s.update(outcome(t, np.arange(30), 0.5))
        now = s.explain()
        for axis in ("validity", "utility"):
            low, high = now[f"{axis}_low"], now[f"{axis}_high"]
            assert (low <= high).all()
            if t > 3:  # by then utility has its unit
                shrunk = (low >= before[f"{axis}_low"]) & (high <= before[f"{axis}_high"])
                apart = (low > before[f"{axis}_high"]) | (high < before[f"{axis}_low"])
                assert (shrunk | apart).all()
                restarts += int(apart.sum())
        before = now
    assert restarts > 0


def test_utility_restarts_when_it_gets_its_unit() -> None:
    s = make(random_clients(10))
    s.select(look(s.clients), 3)
    assert s.explain()["utility_high"].max() < 10  # no utility is known, so there is no scale
    s.update(outcome(1, [0, 1, 2], [900, 1000, 1100]))
    s.select(look(s.clients, 2), 3)
    assert s.explain()["utility_high"].min() > 1000
    assert s.diagnostics()["gp_mean"] == pytest.approx(1000)


@pytest.mark.parametrize(("rho", "left"), [(0.4, 12), (0.0, 20), (0.99, 5)])
def test_elimination_stops_at_its_cap(rho: float, left: int) -> None:
    # 20 clients, 10 of them never in time. rho 0.4: at most floor(0.4 * 20) = 8 may go, so 12 stay.
    # rho 0: all stay. rho 0.99: down to a cohort of 5, but only the 10 late ones are surely worse.
    # All utilities are 0, so nobody is classified out.
    features = np.repeat([0.0, 1.0], 10)[:, None] + np.linspace(0, 0.01, 20)[:, None]
    s = make(clients_with(features), rho=rho, invalid_utility="unseen", ridge=0.01)
    for t in range(1, 60):
        s.select(look(s.clients, t), 5)
        s.update(outcome(t, np.arange(20), 0.0, valid=features[:, 0] > 0.5))
    pool = s.explain()["candidate"]
    assert pool.sum() == max(left, 10)
    assert pool[10:].all()


@pytest.mark.parametrize(
    ("rho", "n", "left"), [(0.29, 100, 71), (0.57, 100, 43), (1 / 3, 90, 60), (0.299, 100, 71)]
)
def test_the_cap_is_a_share_in_decimals(rho: float, n: int, left: int) -> None:
    # 0.29 * 100 is 28.999999999999996 in floats; all clients but the first ten are never in time.
    features = (np.arange(n) < 10)[:, None] + np.linspace(0, 0.01, n)[:, None]
    s = make(clients_with(features), rho=rho, invalid_utility="unseen", ridge=0.01)
    for t in range(1, 60):
        s.select(look(s.clients, t), 5)
        s.update(outcome(t, np.arange(n), 0.0, valid=np.arange(n) < 10))
    assert s.explain()["candidate"].sum() == left


def test_the_pool_keeps_the_jobs_cohort_even_if_never_so_many_were_online() -> None:
    # The job has 8 seats, yet never more than 2 clients are online. With rho 1 all 17 that are
    # never in time may be eliminated, but 8 candidates must be left.
    features = (np.arange(20) < 3)[:, None] + np.linspace(0, 0.01, 20)[:, None]
    s = make(clients_with(features), rho=1.0, invalid_utility="unseen", ridge=0.01)
    for t in range(1, 60):
        view = replace(look(s.clients, t, [t % 20, (t + 1) % 20]), seats=2, cohort_size=8)
        s.select(view, 2)
        s.update(outcome(t, np.arange(20), 0.0, valid=np.arange(20) < 3))
        assert s.explain()["candidate"].sum() >= 8
    assert s.explain()["candidate"].sum() == 8


@pytest.mark.parametrize(
    ("keys", "cohort"),
    [
        ({"overcommitment": 1.5}, 9),
        ({"round_deadline": 1e9}, 6),
        ({"round_deadline": 1e9, "warmup_rounds": 2}, 6),
    ],
)
def test_a_job_tells_its_cohort_however_many_are_online(
    job: Callable[..., Job],
    monkeypatch: pytest.MonkeyPatch,
    keys: dict[str, object],
    cohort: int,
) -> None:
    views: list[tuple[int | None, int | None]] = []
    original = FedSUV.select

    def watched(s: FedSUV, view: RoundView, k: int) -> np.ndarray:
        views.append((view.seats, view.cohort_size))
        rows = original(s, view, k)
        assert s.cohort == cohort
        return rows

    monkeypatch.setattr(FedSUV, "select", watched)
    run(job(sample_mode="fedsuv", num_participants=6, available_clients=4, rounds=3, **keys))
    assert views == [(4, cohort)] * 3


def test_offline_candidates_keep_their_place() -> None:
    s = make(random_clients(20), invalid_utility="unseen")
    for t in range(1, 10):
        play(s, range(t, t + 1), k=3)
        pool = s.explain()["candidate"]
        s.select(look(s.clients, t, [int(np.flatnonzero(pool)[0])]), 3)  # nearly everybody is away
        assert s.explain()["candidate"][~pool].sum() == 0
        # The floor is the cohort asked for, not the one client there was.
        assert s.explain()["candidate"].sum() >= 3


def test_few_candidates_online_are_filled_up_best_first() -> None:
    s = known(random_clients(12), Hyper(15.0, 20.0, 1.0, np.full(3, 0.3)))
    play(s, range(1, 20), k=4)
    s.candidate[:] = False
    s.candidate[[2, 5, 7, 9]] = True
    rows = s.select(look(s.clients, 20, [0, 1, 2, 3, 4, 5, 6]), 4)
    assert set(rows[:2].tolist()) == {2, 5}
    score = s.explain()["score"]
    others = [0, 1, 3, 4, 6]
    assert rows[2:].tolist() == sorted(others, key=lambda i: -score[i])[:2]
    assert s.diagnostics()["filled_up"] == 2


# Fairness


def test_ties_at_the_start_are_fair() -> None:
    # 10 equal clients, 4 picked, 2000 selectors: each client is Binomial(2000, 0.4); first, 1/10.
    clients = table(10)
    counts = np.zeros(10)
    first = np.zeros(10)
    for seed in range(2000):
        rows = make(clients, seed).select(look(clients), 4)
        counts[rows] += 1
        first[rows[0]] += 1
    assert np.abs(counts - 800).max() < five_sigma(2000, 0.4)
    assert np.abs(first - 200).max() < five_sigma(2000, 0.1)


def test_utility_ties_at_the_start_are_fair_between_different_clients() -> None:
    # The first seat is that of the widest region, the largest context, row 9. The other 3 go to 9
    # clients alike.
    clients = clients_with(np.arange(1, 11)[:, None])
    counts = np.zeros(10)
    for seed in range(1500):
        counts[make(clients, seed).select(look(clients), 4)] += 1
    assert counts[9] == 1500
    assert np.abs(counts[:9] - 500).max() < five_sigma(1500, 1 / 3)


# Resuming


@pytest.mark.parametrize(
    "params",
    [{}, {"max_points": 20, "refit_every": 4}, {"invalid_utility": "zero", "rank": "product"}],
)
def test_a_resumed_selector_continues_exactly(params: dict[str, Any]) -> None:
    clients = random_clients(60)
    whole = make(clients, 1, **params)
    resumed = make(clients, 2, **params)
    play(whole, range(1, 15), online_share=0.7)
    resumed.load_state_dict(wire.decode(wire.encode(whole.state_dict())))
    assert without_seconds(whole) == without_seconds(resumed)
    picks = play(whole, range(15, 40), online_share=0.7)
    assert picks == play(resumed, range(15, 40), online_share=0.7)
    assert without_seconds(whole) == without_seconds(resumed)
    for name, values in whole.explain().items():
        assert np.array_equal(values, resumed.explain()[name]), name


def without_seconds(s: FedSUV) -> dict[str, Any]:
    return {name: value for name, value in s.diagnostics().items() if not name.endswith("_seconds")}


def test_a_state_from_before_the_first_round() -> None:
    first = make(random_clients(8), 1)
    second = make(random_clients(8), 2)
    second.load_state_dict(wire.decode(wire.encode(first.state_dict())))
    assert play(first, range(1, 6), k=3) == play(second, range(1, 6), k=3)


# Invariants

odd_numbers = st.sampled_from([0.0, 1.0, 5.0, 1e-300, 1e300, -3.0, math.nan, math.inf])
numbers = odd_numbers | st.floats(0, 100)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    data=st.data(),
    n=st.integers(1, 14),
    k=st.integers(1, 9),
    seed=st.integers(0, 99),
    levels=st.integers(1, 5),
    params=st.fixed_dictionaries(
        {
            "invalid_utility": st.sampled_from(["mean", "zero", "unseen"]),
            "rank": st.sampled_from(["utility", "product"]),
            "refit_every": st.sampled_from([0, 1, 3]),
            "max_points": st.sampled_from([1, 4, 1024]),
        }
    ),
)
def test_always_a_full_cohort_of_distinct_online_clients(
    data: st.DataObject, n: int, k: int, seed: int, levels: int, params: dict[str, Any]
) -> None:
    rng = np.random.default_rng(seed)
    s = make(clients_with(rng.integers(0, levels, (n, 2))), seed, rho=1.0, **params)
    for t in range(1, 7):
        online = np.flatnonzero(data.draw(st.lists(st.booleans(), min_size=n, max_size=n)))
        rows = s.select(look(s.clients, t, online), k)
        assert len(rows) == len(set(rows.tolist())) == min(k, len(online))
        assert set(rows.tolist()) <= set(online.tolist())
        for values in s.explain().values():
            assert len(values) == n
            assert np.isfinite(values).all()
        json.dumps(s.diagnostics(), allow_nan=False)
        size = len(rows)
        valid = np.array(data.draw(st.lists(st.booleans(), min_size=size, max_size=size)), bool)
        reported = np.array(data.draw(st.lists(numbers, min_size=size, max_size=size)), float)
        gain = np.array(data.draw(st.lists(numbers, min_size=size, max_size=size)), float)
        result = replace(
            outcome(t, rows, 1.0, valid),
            utility=np.where(valid, reported, 0),
            signals={ACCURACY_GAIN: np.where(valid, gain, 0)},
        )
        s.update(result)


def test_nobody_online() -> None:
    s = make(random_clients(4))
    assert s.select(look(s.clients, 1, []), 3).tolist() == []
    assert len(s.select(look(s.clients, 2), 3)) == 3


def test_rubbish_counts_as_missed_and_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    s = make(random_clients(6))
    bad = replace(
        outcome(1, [0, 1, 2, 3], 1.0),
        utility=np.array([np.nan, 4.0, 5.0, 6.0]),
        signals={ACCURACY_GAIN: np.array([1.0, np.inf, 1.0, 1.0])},
    )
    with caplog.at_level(logging.WARNING):
        s.update(bad)
        s.update(replace(bad, round=2))
    assert len(caplog.records) == 1
    assert s.validity_model.b[-1] == 4  # two of four, twice
    assert s.utility_model.data().mean.tolist() == [0, 0, 5, 6]  # a missed round is booked as 0


def test_an_absurd_utility_flattens_nobody() -> None:
    # The liar, row 7, counts as 10 medians, so the scale of the others' regions stays sensible.
    s = make(random_clients(40), 3)
    for t in range(1, 21):
        s.select(look(s.clients, t), 5)
        rows = np.random.default_rng(t).choice(40, 8, replace=False)
        s.update(outcome(t, rows, np.where((rows == 7) & (t > 1), 1e90, 20.0 + rows / 4)))
    s.select(look(s.clients, 21), 5)
    assert s.utility_model.data().mean.max() < 10 * 31
    told = s.explain()
    assert told["utility_high"].max() < 2000
    assert len(set(np.round(told["utility_high"][told["candidate"]], 3))) > 5


def test_feedback_for_a_client_never_seen_fails() -> None:
    with pytest.raises(IndexError):
        make(random_clients(3)).update(outcome(1, [3], 1.0))


# Fitting


def test_hyper_parameters_are_fitted_when_due() -> None:
    s = make(random_clients(30), refit_every=5)
    signals = []
    for t in range(1, 18):
        play(s, range(t, t + 1))
        signals.append(s.diagnostics()["gp_signal"])
    # Counted from 0: the prior is scaled before round 2, then fits follow rounds 5, 10 and 15.
    changes = [t for t in range(1, 17) if signals[t] != signals[t - 1]]
    assert changes == [1, 5, 10, 15]
    assert s.diagnostics()["fit_converged"] in (True, False)


def test_a_failing_fit_keeps_the_old_hyper_parameters_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    s = make(random_clients(30), refit_every=4)
    play(s, range(1, 8))
    before = s.utility_model.hyper

    def fail(*_: object) -> None:
        raise RuntimeError("not positive definite")

    monkeypatch.setattr(fedsuv, "fit", fail)
    with caplog.at_level(logging.WARNING):
        play(s, range(8, 12))
    assert s.utility_model.hyper is before
    assert s.diagnostics()["fit_failed"] is True
    assert "not positive definite" in caplog.text
    monkeypatch.undo()
    play(s, range(12, 18))
    assert s.diagnostics()["fit_failed"] is False


def test_equal_utilities_are_nothing_to_fit() -> None:
    s = make(random_clients(30), refit_every=2)
    for t in range(1, 9):
        s.update(outcome(t, s.select(look(s.clients, t), 5), 7.0))
    assert s.diagnostics()["fit_converged"] is None
    assert s.diagnostics()["gp_mean"] == pytest.approx(7.0)


def test_nothing_global_is_touched() -> None:
    torch_state = torch.get_rng_state().clone()
    numpy_state = np.random.get_state(legacy=False)["state"]["key"].copy()
    threads = torch.get_num_threads()
    dtype = torch.get_default_dtype()
    play(make(random_clients(40), refit_every=3), range(1, 12))
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert np.array_equal(np.random.get_state(legacy=False)["state"]["key"], numpy_state)
    assert torch.get_num_threads() == threads
    assert torch.get_default_dtype() == dtype


def test_diagnostics_name_what_happened() -> None:
    s = make(random_clients(30))
    play(s, range(1, 12))
    told = json.loads(json.dumps(s.diagnostics(), allow_nan=False))
    stages = ("learning", "bounding", "eliminating", "classifying", "selecting")
    assert set(told) == {
        "pool",
        "eliminated",
        "classified_out",
        "filled_up",
        "widest",
        "gp_mean",
        "gp_signal",
        "gp_noise",
        "gp_lengths",
        "gp_points",
        "gp_inducing",
        "fit_converged",
        "fit_failed",
        *(f"{stage}_seconds" for stage in stages),
    }
    assert told["pool"] == s.explain()["candidate"].sum()
    assert told["widest"] == pytest.approx(s.explain()["width"][s.explain()["candidate"]].max())


# Coverage


def covered(seed: int, rounds: int = 40) -> bool:
    """Whether the true point is in R_t for all t and all clients, removed ones too.

    The world is as the theorems want it: validity is Bernoulli and linear in (x, 1) with
    ||theta|| <= 1; utility is drawn from the very GP, with mean 10 and deviation 1, so that nothing
    is clipped at 0 or at ten medians."""
    rng = np.random.default_rng([99, seed])
    n = 60
    clients = random_clients(n, 3, seed)
    hyper = Hyper(10.0, 1.0, 0.09, np.array([0.2, 0.4, 0.8]))
    x = contexts(clients)
    slope = rng.dirichlet(np.ones(3)) * 0.7
    validity = 0.15 + x @ slope  # ||(slope, 0.15)|| <= 0.72, values in [0.15, 0.85]
    chol = np.linalg.cholesky(kernel_by_the_book(x, x, hyper.lengths) + 1e-9 * np.eye(n))
    utility = hyper.mean + chol @ rng.normal(size=n)
    s = known(clients, hyper, seed, invalid_utility="unseen")
    for t in range(1, rounds + 1):
        rows = s.select(look(clients, t), 5)
        told = s.explain()
        for truth, axis in ((validity, "validity"), (utility, "utility")):
            if (truth < told[f"{axis}_low"]).any() or (truth > told[f"{axis}_high"]).any():
                return False
        reported = utility[rows] + rng.normal(0, 0.3, 5)
        s.update(outcome(t, rows, reported, valid=rng.random(5) < validity[rows]))
    return True


def test_regions_cover_the_truth() -> None:
    # delta = 0.1: at least 90 % of the worlds.
    assert sum(covered(seed) for seed in range(30)) >= 27


@pytest.mark.slow
def test_regions_cover_the_truth_in_200_worlds() -> None:
    assert sum(covered(seed) for seed in range(200)) >= 180


# Learning


@pytest.mark.parametrize("seed", range(3))
def test_clients_in_time_and_useful_are_found(seed: int) -> None:
    # 200 clients, 10 a round. Validity 0.1..0.9 by one feature, utility 2..12 by another, noise 1,
    # and one feature that says nothing. v u is on average 0.5 * 7 = 3.5 for a random choice, and
    # about 0.8 * 11 = 9 for the ten best. Wide regions (5 deviations) keep many candidates alive
    # for long, so the bar is halfway between, in rounds 41 to 60.
    rng = np.random.default_rng(seed)
    clients = random_clients(200, 3, seed)
    validity = 0.1 + 0.8 * clients.features[:, 0]
    utility = 2 + 10 * clients.features[:, 1]
    s = make(clients, seed)
    gained = []
    for t in range(1, 61):
        rows = s.select(look(clients, t), 10)
        reported = utility[rows] + rng.normal(size=10)
        s.update(outcome(t, rows, reported, valid=rng.random(10) < validity[rows]))
        gained.append((validity * utility)[rows].mean())
    best = np.sort(validity * utility)[-10:].mean()
    everybody = (validity * utility).mean()
    assert np.mean(gained[40:]) > (best + everybody) / 2


# The manager


def test_a_fedscale_manager_hands_it_loss_and_gain() -> None:
    from fedsuv_plugin.engine.fedscale_env import parser_module

    defaults = vars(parser_module().parser.parse_args([]))
    params = {"fedsuv": FedSUVParams(rho=0.2)}
    args = Namespace(**{**defaults, "filter_less": 1, "selector_params": params})
    made = FedSUVClientManager("fedsuv", args=args)
    for i in range(1, 9):
        made.register_client(1, i, size=10 * i, speed={"computation": 1.0, "communication": 1.0})
    gain = {ACCURACY_GAIN: np.array(0.1)}
    for t in range(1, 5):
        feedback = [
            Feedback(client, 1.0, 50.0 + client, None if client == 5 else 1.0, gain)
            for client in made.select_participants(3)
        ]
        made.finish_round(feedback, t, None, None)
    s = made.selector
    assert isinstance(s, FedSUV)
    assert s.params.rho == 0.2
    data = s.utility_model.data()
    assert data.count.sum() == 12
    asked = data.mean[data.mean > 0]  # client 5 misses every round it is asked in
    assert len(asked) >= len(data.mean) - 1
    assert 5 < asked.min() <= asked.max() < 6
    assert s.required(s.params) == {ACCURACY_GAIN}


# Parameters


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("delta", 0),
        ("delta", 1.1),
        ("rho", -0.1),
        ("rho", 1.1),
        ("ridge", 0),
        ("refit_every", -1),
        ("max_points", 0),
        ("invalid_utility", "median"),
        ("rank", "validity"),
    ],
)
def test_bad_parameters_are_refused(name: str, value: object) -> None:
    with pytest.raises(UserError, match=name):
        FedSUVParams.from_mapping({name: value})


def test_defaults_are_those_of_the_paper_and_of_algorithms() -> None:
    assert asdict(FedSUVParams()) == {
        "delta": 0.1,
        "rho": 0.4,
        "ridge": 1.0,
        "refit_every": 10,
        "max_points": 1024,
        "invalid_utility": "zero",
        "rank": "utility",
    }


def test_outcomes_without_gains_count_the_loss_alone() -> None:
    s = make(random_clients(5))
    result: RoundOutcome = outcome(1, [0, 1, 2], [3, 4, 5])
    s.update(result)
    assert s.utility_model.data().mean.tolist() == [3, 4, 5]
