"""safa as a selector: worked numbers, a slow reference, invariants, and whom its order starves."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from selector_worlds import five_sigma, look, outcome, table

from fedsuv_plugin.selectors.base import SAFA, SYNCHRONOUS, RoundView
from fedsuv_plugin.selectors.baselines.safa import Safa, SafaParams

DURATIONS = [20.0, 35.0, 40.0, 55.0, 60.0, 90.0, 130.0]


def make(durations: list[float] | np.ndarray, seed: int = 0, mode: str = "selection") -> Safa:
    clients = table(len(durations), duration=durations)
    return Safa(SafaParams(mode=mode), clients, np.random.default_rng(seed))


def view(selector: Safa, deadline: float | None, online: list[int] | None = None) -> RoundView:
    return replace(look(selector.clients, online=online), deadline=deadline)


# ---- worked numbers


@pytest.mark.parametrize(
    ("k", "expected"), [(3, [2, 4, 5]), (5, [2, 4, 5, 0, 1]), (7, [2, 4, 5, 0, 1, 3, 6])]
)
def test_s4_in_time_then_not_picked_then_fastest(k: int, expected: list[int]) -> None:
    selector = make(DURATIONS)
    selector.update(outcome(1, [0, 1, 3]))
    assert selector.select(view(selector, 100.0), k).tolist() == expected
    assert selector.explain()["picked"].tolist() == [True, True, False, True] + [False] * 3
    assert selector.explain()["in_time"].tolist() == [True] * 6 + [False]
    # The six in time would take turns in two cohorts of k; with k = 3 nobody is left out.
    assert selector.diagnostics() == {"in_time": 6, "starved": max(0, 6 - 2 * k)}


def test_the_deadline_itself_is_in_time() -> None:
    selector = make([60.0, 40.0, 50.0])
    selector.update(outcome(1, [1, 2]))
    assert selector.select(view(selector, 50.0), 3).tolist() == [1, 2, 0]
    assert selector.select(view(selector, 49.9), 3).tolist() == [1, 0, 2]


def test_picked_is_who_was_valid_last_round() -> None:
    selector = make([1.0, 2.0, 3.0])
    selector.update(outcome(1, [0, 1], valid=[True, False]))
    assert selector.select(view(selector, None), 2).tolist() == [1, 2]
    selector.update(outcome(2, [1, 2]))
    assert selector.select(view(selector, None), 3).tolist() == [0, 1, 2]


def test_without_a_deadline_everyone_is_in_time() -> None:
    selector = make([500.0, 2.0])
    selector.update(outcome(1, [1]))
    assert selector.select(view(selector, None), 1).tolist() == [0]


def test_the_mode_decides_who_is_asked_and_how_rounds_go() -> None:
    selection, protocol = make(DURATIONS), make(DURATIONS, mode="protocol")
    assert (selection.free_cohort, selection.protocol) == (False, SYNCHRONOUS)
    assert (protocol.free_cohort, protocol.protocol) == (True, SAFA)
    assert protocol.select(view(protocol, 100.0, [1, 3, 6]), 2).tolist() == [1, 3, 6]


# ---- a slow reference


def by_the_page(
    durations: np.ndarray, online: list[int], picked: set[int], deadline: float | None, k: int
) -> list[int]:
    """Four queues, one behind the other, each in the order of speed."""
    in_time = [i for i in online if deadline is None or durations[i] <= deadline]
    late = [i for i in online if i not in in_time]
    queue: list[int] = []
    for group in (in_time, late):
        for again in (False, True):
            queue += sorted(
                (i for i in group if (i in picked) == again), key=lambda i: durations[i]
            )
    return queue[:k]


@pytest.mark.parametrize("seed", range(100))
def test_it_is_the_page(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 30))
    durations = rng.exponential(50.0, n)  # no ties
    deadline = None if seed % 4 == 0 else float(rng.exponential(60.0))
    selector = make(durations, seed)
    picked: set[int] = set()
    for number in range(1, 13):
        online = np.flatnonzero(rng.random(n) < 0.7).tolist()
        k = int(rng.integers(1, n + 1))
        chosen = selector.select(view(selector, deadline, online), k).tolist()
        assert chosen == by_the_page(durations, online, picked, deadline, k)
        valid = rng.random(len(chosen)) < 0.8
        selector.update(outcome(number, chosen, valid=valid))
        picked = set(np.array(chosen)[valid].tolist())


# ---- invariants


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 40), st.integers(1, 45), st.integers(0, 10**6), st.booleans())
def test_min_of_k_and_online_distinct_online_rows(n: int, k: int, seed: int, tied: bool) -> None:
    rng = np.random.default_rng(seed)
    durations = np.ones(n) if tied else rng.exponential(5.0, n)
    selector = make(durations, seed)
    for number in range(1, 4):
        online = np.flatnonzero(rng.random(n) < 0.6)
        chosen = selector.select(view(selector, 3.0, online.tolist()), k)
        assert len(set(chosen.tolist())) == len(chosen) == min(k, len(online))
        assert set(chosen.tolist()) <= set(online.tolist())
        selector.update(outcome(number, chosen))
    again = make(durations, seed + 1)
    again.load_state_dict(selector.state_dict())
    look_now = view(selector, 3.0)
    assert again.select(look_now, k).tolist() == selector.select(look_now, k).tolist()


def test_ties_are_broken_at_random() -> None:
    # 8 equal clients, 3 chosen, nobody picked before: each is Binomial(2000, 3/8).
    selector = make(np.ones(8))
    counts = np.zeros(8)
    for _ in range(2000):
        counts[selector.select(view(selector, 5.0), 3)] += 1
    assert np.abs(counts - 750).max() < five_sigma(2000, 3 / 8)


# ---- behaviour


def test_the_order_by_speed_starves_the_slow_and_says_so() -> None:
    """20 clients in time, 5 a round: two cohorts of the 10 fastest take turns, 10 never come."""
    selector = make(np.linspace(10.0, 90.0, 20))
    asked: set[int] = set()
    for number in range(1, 31):
        chosen = selector.select(view(selector, 100.0), 5)
        asked |= set(chosen.tolist())
        selector.update(outcome(number, chosen))
    assert asked == set(range(10))
    assert selector.diagnostics()["starved"] == 10


def test_it_is_in_time_where_random_is_not() -> None:
    """Half of 40 clients meet the deadline, 5 are asked: safa's are always in time.

    Of the 5 it asks, 20 - 5 in time were not picked last round, so none has to be late."""
    durations = np.concatenate([np.full(20, 10.0), np.full(20, 200.0)])
    selector = make(durations)
    late = 0
    for number in range(1, 51):
        chosen = selector.select(view(selector, 100.0), 5)
        valid = durations[chosen] <= 100
        late += int((~valid).sum())
        selector.update(outcome(number, chosen, valid=valid))
    assert late == 0
