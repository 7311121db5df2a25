"""`random`, `round_robin`, and `best`, which breaks everybody's ties."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from selector_worlds import five_sigma, look, table

from fedsuv_plugin import wire
from fedsuv_plugin.params import NoParams
from fedsuv_plugin.selectors.base import Selector, best
from fedsuv_plugin.selectors.baselines.random import Random
from fedsuv_plugin.selectors.baselines.round_robin import RoundRobin

BOTH = pytest.mark.parametrize("cls", [Random, RoundRobin])


def make(cls: type[Selector], n: int, seed: int = 0) -> Selector:
    return cls(NoParams(), table(n), np.random.default_rng(seed))


# both


@BOTH
@pytest.mark.parametrize(
    ("k", "online"), [(1, [4]), (3, [0, 2, 5, 7, 9]), (5, [1, 2, 3, 4, 5]), (9, [0, 8, 9])]
)
def test_min_of_k_and_online_distinct_online_rows(
    cls: type[Selector], k: int, online: list[int]
) -> None:
    s = make(cls, 10)
    for t in range(1, 20):
        rows = s.select(look(s.clients, t, online), k)
        assert len(rows) == len(set(rows.tolist())) == min(k, len(online))
        assert set(rows.tolist()) <= set(online)


@BOTH
def test_first_pick_is_fair(cls: type[Selector]) -> None:
    # 10 clients, 4 picked, 2000 selectors: each client is Binomial(2000, 0.4), the first and the
    # last one too.
    counts = np.zeros(10)
    for seed in range(2000):
        s = make(cls, 10, seed)
        counts[s.select(look(s.clients), 4)] += 1
    assert np.abs(counts - 800).max() < five_sigma(2000, 0.4)


@BOTH
def test_seats_within_the_cohort_are_fair(cls: type[Selector]) -> None:
    # Whoever is first in the cohort may run first: the seat must not follow the id. Seat 0 of
    # client 0 of 5, k = 5.
    first = sum(int(make_and_pick(cls, seed)[0]) == 0 for seed in range(2000))
    assert abs(first - 400) < five_sigma(2000, 0.2)


def make_and_pick(cls: type[Selector], seed: int) -> np.ndarray:
    s = make(cls, 6, seed)
    return s.select(look(s.clients, 1, [0, 1, 2, 3, 4]), 5)


@BOTH
def test_a_resumed_selector_continues_exactly(cls: type[Selector]) -> None:
    def play(s: Selector, rounds: range) -> list[list[int]]:
        picks = []
        for t in rounds:
            online = np.flatnonzero(np.random.default_rng(t).random(30) < 0.7)
            picks.append(s.select(look(s.clients, t, online), 5).tolist())
        return picks

    first = make(cls, 30, seed=1)
    second = make(cls, 30, seed=2)
    play(first, range(1, 8))
    second.load_state_dict(wire.decode(wire.encode(first.state_dict())))
    assert play(first, range(8, 16)) == play(second, range(8, 16))


# random


def test_random_stays_uniform_round_after_round() -> None:
    # One selector, 3000 rounds, 3 of 8 online: Binomial(3000, 3/8) each; pairs too, 3*2/(8*7) =
    # 3/28.
    s = make(Random, 12)
    counts = np.zeros(12)
    pair = 0
    online = [1, 2, 3, 5, 6, 8, 10, 11]
    for t in range(3000):
        rows = s.select(look(s.clients, t + 1, online), 3)
        counts[rows] += 1
        pair += {1, 11} <= set(rows.tolist())
    assert np.abs(counts[online] - 1125).max() < five_sigma(3000, 3 / 8)
    assert abs(pair - 3000 * 3 / 28) < five_sigma(3000, 3 / 28)


def test_random_leaves_the_online_rows_alone() -> None:
    view = look(table(9))
    Random(NoParams(), view.clients, np.random.default_rng(0)).select(view, 9)
    assert view.online.tolist() == list(range(9))


# round_robin


@pytest.mark.parametrize("seed", range(5))
def test_turns_are_equal_when_all_stay_online(seed: int) -> None:
    # 11 clients, 4 a round: they queue, so at any time nobody is two turns ahead of anybody, and 33
    # rounds are 12 turns each.
    s = make(RoundRobin, 11, seed)
    counts = np.zeros(11, int)
    for t in range(1, 34):
        counts[s.select(look(s.clients, t), 4)] += 1
        assert counts.max() - counts.min() <= 1
    assert counts.tolist() == [12] * 11


@pytest.mark.parametrize("seed", range(5))
def test_nobody_waits_longer_than_a_pass(seed: int) -> None:
    # 11 clients, 4 a round: the 10 others that can be ahead of a client are through after 3 rounds
    # at the latest.
    s = make(RoundRobin, 11, seed)
    last = np.zeros(11, int)
    for t in range(1, 100):
        last[s.select(look(s.clients, t), 4)] = t
        assert t - last.min() < 3


@pytest.mark.parametrize("seed", range(5))
def test_nobody_online_who_waited_longer_is_passed_over(seed: int) -> None:
    s = make(RoundRobin, 25, seed)
    rng = np.random.default_rng(seed)
    last = np.zeros(25, int)
    for t in range(1, 80):
        online = np.flatnonzero(rng.random(25) < rng.random())
        rows = s.select(look(s.clients, t, online), 4)
        passed = np.setdiff1d(online, rows)
        if len(passed):  # then all seats are taken, by those with the oldest turns
            assert last[rows].max() <= last[passed].min()
        last[rows] = t


def test_turns_even_out_though_clients_come_and_go() -> None:
    # 20 clients, each online half of the time, 2 a round, 600 rounds: 60 turns each on average.
    # About 10 are online and a client waits for about 10 rounds, so turns come at nearly regular
    # gaps: far less spread than the binomial sqrt(60) = 7.7 of a random choice. Being off by 10 is
    # a gross error here, and common under a random choice.
    s = make(RoundRobin, 20)
    rng = np.random.default_rng(3)
    counts = np.zeros(20)
    for t in range(1, 601):
        online = np.flatnonzero(rng.random(20) < 0.5)
        counts[s.select(look(s.clients, t, online), 2)] += 1
    assert np.abs(counts - counts.mean()).max() < 10


def test_round_robin_explains_itself() -> None:
    s = make(RoundRobin, 4)
    rows = s.select(look(s.clients, 1), 2)
    assert s.explain()["ticket"][rows].tolist() == [1, 2]
    assert np.count_nonzero(s.explain()["ticket"]) == 2


# best

scores_lists = st.lists(
    st.sampled_from([-np.inf, -1.0, 0.0, 0.5, 2.0, np.inf]) | st.floats(-10, 10), max_size=30
)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(scores=scores_lists, k=st.integers(0, 35), seed=st.integers(0, 99))
def test_best_agrees_with_a_full_sort(scores: list[float], k: int, seed: int) -> None:
    picked = best(np.array(scores, float), k, np.random.default_rng(seed))
    assert len(set(picked.tolist())) == min(k, len(scores))
    assert [scores[i] for i in picked] == sorted(scores, reverse=True)[:k]


def test_best_takes_integers_and_keeps_its_input() -> None:
    scores = np.array([3, 9, -4, 7])
    assert best(scores, 2, np.random.default_rng(0)).tolist() == [1, 3]
    assert scores.tolist() == [3, 9, -4, 7]


@pytest.mark.parametrize("k", [1, 2, 4])
def test_ties_at_the_threshold_are_fair(k: int) -> None:
    # The 9 is always in; k - 1 seats for five equal ones (k = 1: none). Each gets one with
    # probability (k-1)/5.
    scores = np.array([1.0, 5, 5, 9, 5, 5, 5, 0])
    rng = np.random.default_rng(0)
    counts = np.zeros(8)
    for _ in range(2000):
        counts[best(scores, k, rng)] += 1
    share = (k - 1) / 5
    assert counts[3] == 2000
    assert counts[0] == counts[7] == 0
    assert np.abs(counts[[1, 2, 4, 5, 6]] - 2000 * share).max() <= five_sigma(2000, share)


def test_order_among_ties_is_fair() -> None:
    # Four equal scores and k = 4: each is first with probability 1/4.
    rng = np.random.default_rng(0)
    counts = np.zeros(4)
    for _ in range(2000):
        counts[best(np.ones(4), 4, rng)[0]] += 1
    assert np.abs(counts - 500).max() < five_sigma(2000, 0.25)
