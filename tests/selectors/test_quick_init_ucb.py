"""`quick_init_ucb`, `ucb`, `oracle` and the time slots they share."""

from __future__ import annotations

import copy
import math
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations, islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from selector_worlds import five_sigma, look, table

from fedsuv_plugin import wire
from fedsuv_plugin.errors import UserError
from fedsuv_plugin.selectors.base import ProbeAnswer, Selector
from fedsuv_plugin.selectors.baselines.oracle import Oracle
from fedsuv_plugin.selectors.baselines.ucb import UCB
from fedsuv_plugin.selectors.bp_ucb import BPUCB
from fedsuv_plugin.selectors.quick_init_ucb import QuickInitUCB, descending_subsets
from fedsuv_plugin.selectors.signals import OPINIONS
from fedsuv_plugin.selectors.time_slots import TimeSlotSelector

World = Callable[[list[int]], float]  # the cohort of a slot -> the mean opinion when it is over


def make(cls: type[Selector], n: int, seed: int = 0, **params: Any) -> Any:
    return cls(cls.Params.from_mapping(params), table(n), np.random.default_rng(seed))


def always(value: float) -> World:
    return lambda cohort: value


def one_round(
    s: TimeSlotSelector, t: int, k: int, world: World, online: np.ndarray | None = None
) -> np.ndarray:
    """A round as the engine plays it; everyone who is asked has the world's opinion."""
    view = look(s.clients, t, online)
    view = replace(view, seats=min(k, len(view.online)))
    asked = s.probe(view)
    if asked is not None:
        opinions = np.full(len(asked.rows), world(sorted(s.cohort.tolist())))
        view = replace(view, probe=ProbeAnswer(OPINIONS, asked.rows, opinions))
    return s.select(view, k)


def noisy(n: int, seed: int, spread: float = 0.05) -> World:
    """Each client adds to a set's opinion; every set has a fixed surprise of its own on top."""
    worth = np.random.default_rng(seed).random(n) / n

    def world(cohort: list[int]) -> float:
        surprise = np.random.default_rng([seed, *cohort]).normal() * spread
        return float(np.clip(0.3 + worth[cohort].sum() + surprise, 0, 1))

    return world


# ---- time slots


@pytest.mark.parametrize("cls", [QuickInitUCB, UCB])
def test_a_slot_is_one_cohort_and_ends_with_opinions(cls: type[TimeSlotSelector]) -> None:
    s = make(cls, 12, slot_rounds=4)
    cohorts = []
    asked_in = []
    for t in range(1, 25):
        if s.probe(look(s.clients, t)) is not None:
            asked_in.append(t)
        cohorts.append(sorted(one_round(s, t, 3, lambda cohort: 0.5).tolist()))
    assert asked_in == [5, 9, 13, 17, 21]
    assert all(cohorts[t] == cohorts[t - t % 4] for t in range(24))
    assert len({tuple(c) for c in cohorts}) > 1


def test_members_that_go_offline_are_skipped_not_replaced() -> None:
    s = make(QuickInitUCB, 12, slot_rounds=4)
    first = one_round(s, 1, 3, lambda cohort: 0.5)
    left = np.setdiff1d(np.arange(12), first[:1])
    assert set(one_round(s, 2, 3, lambda cohort: 0.5, left).tolist()) == set(first[1:].tolist())
    assert set(one_round(s, 3, 3, lambda cohort: 0.5).tolist()) == set(first.tolist())


@pytest.mark.parametrize("cls", [QuickInitUCB, UCB])
def test_with_no_more_than_k_online_all_play_and_nothing_is_learnt(
    cls: type[TimeSlotSelector],
) -> None:
    s = make(cls, 8, slot_rounds=2)
    for t in range(1, 8):
        rows = one_round(s, t, 3, lambda cohort: 0.9, np.array([1, 4, 6]))
        assert sorted(rows.tolist()) == [1, 4, 6]
    assert s.slot == 0
    assert not s.explain()["times_played"].any()


def test_without_opinions_it_goes_on() -> None:
    """FedScale's own aggregator puts no probes."""
    s = make(QuickInitUCB, 9, slot_rounds=1)
    for t in range(1, 20):
        assert len(s.select(look(s.clients, t), 4)) == 4
    assert len(s.table) == 0


# ---- quick_init_ucb


class BruteForce:
    """Algorithm 1 by the book: every arm listed, plain loops."""

    def __init__(self, g: np.ndarray, k: int, mu: float):
        self.mu = mu
        self.mean = {a: float(np.mean([g[i] for i in a])) for a in combinations(range(len(g)), k)}
        self.count = dict.fromkeys(self.mean, 1)

    def index(self, arm: tuple[int, ...], t: int) -> float:
        return self.mean[arm] + self.mu * math.sqrt(math.log(t) / self.count[arm])

    def best(self, t: int, online: set[int]) -> float:
        return max(self.index(arm, t) for arm in self.mean if set(arm) <= online)

    def play(self, arm: tuple[int, ...], reward: float) -> None:
        self.mean[arm] = (self.mean[arm] * self.count[arm] + reward) / (self.count[arm] + 1)
        self.count[arm] += 1


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    n=st.integers(3, 12),
    k=st.integers(1, 5),
    mu=st.sampled_from([0.0, 0.02, 0.03, 0.05, 1.0]),
    seed=st.integers(0, 10**6),
    spread=st.sampled_from([0.0, 0.02, 0.2]),
    all_online=st.booleans(),
)
def test_every_pick_is_among_the_best_of_all_arms(
    n: int, k: int, mu: float, seed: int, spread: float, all_online: bool
) -> None:
    k = min(k, n - 1)
    s = make(QuickInitUCB, n, seed, mu=mu, slot_rounds=1)
    world = noisy(n, seed, spread)
    rng = np.random.default_rng(seed)
    book: BruteForce | None = None
    for t in range(1, -(-n // k) + 40):
        online = np.arange(n) if all_online else np.flatnonzero(rng.random(n) < 0.9)
        before = s.slot
        played = tuple(sorted(s.cohort.tolist()))
        last = world(list(played))
        one_round(s, t, min(k, len(online)), world, online)
        if book is not None and played and len(online):
            book.play(played, last)
        if s.slot == before or s.slot <= s.groups:
            continue  # nobody to choose from, or the cold start
        book = book or BruteForce(s.value, k, mu)
        index = book.index(tuple(sorted(s.cohort.tolist())), s.slot)
        assert index == pytest.approx(book.best(s.slot, set(online.tolist())), abs=1e-9)
        assert s.diagnostics()["chosen_index"] == pytest.approx(index, abs=1e-9)


def test_sets_are_replayed_when_mu_is_small() -> None:
    """The comparison above means little unless played sets win too."""
    s = make(QuickInitUCB, 10, mu=0.03, slot_rounds=1)
    for t in range(1, 60):
        one_round(s, t, 3, noisy(10, 1, spread=0.1))
    assert len(s.table) < 40
    assert s.table.count.max() > 5


def test_the_cold_start_plays_everyone_once_and_fills_up_the_last_group() -> None:
    s = make(QuickInitUCB, 11, slot_rounds=1)
    cohorts: list[list[int]] = []
    for t in range(1, 4):
        cohorts.append(one_round(s, t, 4, lambda cohort: 0.1 * len(cohorts)).tolist())
    assert [len(set(c)) for c in cohorts] == [4, 4, 4]
    assert set().union(*cohorts) == set(range(11))
    one_round(s, 4, 4, lambda cohort: 0.9)
    # Each client has the reward of its own group, whoever filled up the last one.
    for group, reward in enumerate([0.1, 0.2, 0.9]):
        assert s.explain()["cold_start_value"][s.group == group] == pytest.approx(reward)
    assert s.times_played.sum() == 16


@pytest.mark.parametrize(("mode", "restarts"), [("restart", [3, 5]), ("carry", []), ("gain", [])])
def test_when_the_model_starts_again(mode: str, restarts: list[int]) -> None:
    # 9 clients, 3 a set, 2 rounds a slot: cold-start slots begin in rounds 1, 3 and 5; the first
    # has the initial model anyway.
    s = make(QuickInitUCB, 9, slot_rounds=2, cold_start=mode)
    wanted = []
    for t in range(1, 12):
        if s.restart_model(look(s.clients, t)):
            wanted.append(t)
        one_round(s, t, 3, lambda cohort: 0.5)
    assert wanted == restarts


@pytest.mark.parametrize("cls", [QuickInitUCB, UCB, BPUCB, Oracle])
@pytest.mark.parametrize(("start", "restarts"), [("carry", []), ("restart", [3, 5, 7, 9, 11])])
def test_slots_that_train_anew(cls: type[Selector], start: str, restarts: list[int]) -> None:
    s = make(cls, 9, slot_rounds=2, slot_start=start)
    wanted = []
    if cls is QuickInitUCB and start == "carry":
        restarts = [3, 5]  # its cold start
    for t in range(1, 12):
        if s.restart_model(look(s.clients, t)):
            wanted.append(t)
        if cls is Oracle:
            s.select(look(s.clients, t), 3)
        else:
            one_round(s, t, 3, lambda cohort: 0.5)
    assert wanted == restarts


def test_no_slot_no_restart() -> None:
    s = make(UCB, 9, slot_rounds=1, slot_start="restart")
    for t in range(1, 4):
        one_round(s, t, 3, lambda cohort: 0.5)
    few = np.arange(3)  # there is nothing to choose, so training goes on with the current model
    assert not s.restart_model(replace(look(s.clients, 4, few), seats=3))
    one_round(s, 4, 3, lambda cohort: 0.5, few)
    assert s.restart_model(replace(look(s.clients, 5), seats=3))


@pytest.mark.parametrize("mode", ["carry", "gain"])
def test_slots_that_train_anew_have_no_other_cold_start(mode: str) -> None:
    message = "cold_start: expected restart where slot_start is restart, got "
    with pytest.raises(UserError, match=message):
        make(QuickInitUCB, 9, slot_start="restart", cold_start=mode)


@pytest.mark.parametrize("few_online", [False, True])
@pytest.mark.parametrize(
    ("mode", "restarts"), [("restart", [4, 5, 7]), ("carry", []), ("gain", [])]
)
def test_slot_1_starts_again_after_rounds_for_everyone(
    mode: str, restarts: list[int], few_online: bool
) -> None:
    # 9 clients, 3 a set. Rounds 1 to 3 are for everyone, because it is a warm-up or because only 3
    # are online; the three cold-start slots begin in rounds 4, 5 and, after one more such round, 7.
    s = make(QuickInitUCB, 9, slot_rounds=1, cold_start=mode)
    wanted = []
    for t in range(1, 10):
        everyone = t <= 3 or t == 6
        online = np.arange(3) if everyone and few_online else None
        seats = 9 if everyone and not few_online else 3
        if s.restart_model(replace(look(s.clients, t, online), seats=seats)):
            wanted.append(t)
        one_round(s, t, seats, lambda cohort: 0.5, online)
    assert s.groups == 3
    assert wanted == restarts


def test_gain_does_not_credit_rounds_for_everyone_to_a_group() -> None:
    # Opinions of the model before each round: 0.1 of the untrained one; three rounds for everyone
    # bring it to 0.4, the first slot to 0.5 and another round for everyone to 0.7. Then the second
    # slot adds 0.05 and the third 0.01.
    levels = [0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 0.75, 0.76, 0.76]
    s = make(QuickInitUCB, 9, slot_rounds=1, cold_start="gain")
    for t, level in enumerate(levels, start=1):
        seats = 9 if t <= 3 or t == 5 else 3
        one_round(s, t, seats, always(level))
    assert [s.value[s.group == g][0] for g in range(3)] == pytest.approx([0.1, 0.05, 0.01])


def test_gain_is_unknown_where_nobody_judged_the_beginning() -> None:
    # The opinions at the end of slot 1 are lost, so the gains of slots 1 and 2 are unknown; slot 3
    # takes the model from 0.6 to 0.9.
    levels = [0.2, None, 0.6, 0.9]
    s = make(QuickInitUCB, 9, slot_rounds=1, cold_start="gain")
    for t, level in enumerate(levels, start=1):
        if level is None:
            s.select(replace(look(s.clients, t), seats=3), 3)
        else:
            one_round(s, t, 3, always(level))
    assert s.explain()["cold_start_value"][s.group < 2].tolist() == pytest.approx(
        [np.nan] * 6, nan_ok=True
    )
    assert s.value[s.group == 2] == pytest.approx([0.3] * 3)


def test_gain_rewards_the_rise() -> None:
    # Opinions 0.2 before anything, then 0.5, 0.6, 0.6: gains 0.3, 0.1, 0.
    levels = iter([0.2, 0.5, 0.6, 0.6])
    s = make(QuickInitUCB, 9, slot_rounds=1, cold_start="gain")
    for t in range(1, 5):
        one_round(s, t, 3, lambda cohort: next(levels))
    assert [s.value[s.group == g][0] for g in range(3)] == pytest.approx([0.3, 0.1, 0.0])


@pytest.mark.parametrize("k", [1, 2, 3, 4, 6])
def test_subsets_come_once_each_by_falling_sum(k: int) -> None:
    values = np.sort(np.random.default_rng(k).choice([0.0, 0.1, 0.25, 0.7], 6))[::-1]
    made = [tuple(s.tolist()) for s in descending_subsets(values, k)]
    assert sorted(made) == list(combinations(range(6), k))
    sums = [values[list(s)].sum() for s in made]
    assert all(a >= b - 1e-12 for a, b in zip(sums, sums[1:], strict=False))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    groups=st.lists(st.sampled_from([0.1, 0.2, 0.3, 0.7]), min_size=1, max_size=9),
    k=st.integers(1, 5),
    seed=st.integers(0, 10**6),
)
def test_equal_sums_come_in_the_order_of_the_numbers(
    groups: list[float], k: int, seed: int
) -> None:
    worth = np.array(groups)
    numbers = np.argsort(-worth, kind="stable")  # best first, low numbers first among equals
    subsets = descending_subsets(worth[numbers], k, numbers.tolist())
    made = [tuple(sorted(numbers[places].tolist())) for places in subsets]
    arms = combinations(range(len(groups)), k)
    assert made == sorted(arms, key=lambda arm: (-math.fsum(worth[list(arm)]), arm))


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    n=st.integers(3, 10),
    k=st.integers(1, 4),
    mu=st.sampled_from([0.0, 0.03, 1.0]),
    seed=st.integers(0, 10**6),
    spread=st.sampled_from([0.0, 0.05]),
    all_online=st.booleans(),
)
def test_listed_ties_are_those_of_a_program_that_lists_the_arms(
    n: int, k: int, mu: float, seed: int, spread: float, all_online: bool
) -> None:
    k = min(k, n - 1)
    s = make(QuickInitUCB, n, seed, mu=mu, slot_rounds=1, ties="listed")
    world = noisy(n, seed, spread)
    rng = np.random.default_rng(seed)
    book: BruteForce | None = None
    for t in range(1, -(-n // k) + 40):
        online = np.arange(n)
        if not (all_online or s.slot < s.groups or t == 1):
            online = np.flatnonzero(rng.random(n) < 0.9)
        if len(online) <= k:
            continue
        played = tuple(sorted(s.cohort.tolist()))
        last = world(list(played))
        one_round(s, t, k, world, online)
        if book is not None:
            book.play(played, last)
        if s.slot > s.groups:
            book = book or BruteForce(s.value, k, mu)
            # In the order of combinations().
            arms = [arm for arm in book.mean if set(arm) <= set(online.tolist())]
            first = int(np.argmax([round(book.index(arm, s.slot), 10) for arm in arms]))
            assert tuple(sorted(s.cohort.tolist())) == arms[first]


@pytest.mark.parametrize("ties", ["random", "listed"])
def test_100000_clients_in_milliseconds_and_little_memory(ties: str) -> None:
    n = 100_000
    k = 20
    s = make(QuickInitUCB, n, slot_rounds=1, mu=0.02, ties=ties)
    s._make_groups(k)
    s.value = np.random.default_rng(0).random(n)
    s.known[:] = True
    s.slot = s.groups
    world = noisy(n, 0)
    one_round(s, 1, k, world)
    tracemalloc.start()
    # This process's own time: other work on the machine does not count.
    started = time.process_time()
    for t in range(2, 102):
        one_round(s, t, k, world)
    seconds = (time.process_time() - started) / 100
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # A pass over the clients takes a few milliseconds, more under tracemalloc; listing the
    # C(100000, 20) arms would never end.
    assert seconds < 0.2
    assert peak < 30 * 8 * n  # a few arrays over the clients
    assert len(list(islice(descending_subsets(np.arange(40.0)[::-1], k), 500))) == 500


def test_ties_do_not_follow_the_ids() -> None:
    # Cold start: 12 clients, 4 groups of 3, all of the same worth. So every later pick is any 3 of
    # 12 equal clients.
    counts = np.zeros(12)
    for seed in range(1000):
        s = make(QuickInitUCB, 12, seed, slot_rounds=1)
        for t in range(1, 6):
            rows = one_round(s, t, 3, lambda cohort: 0.5)
        counts[rows] += 1
    assert np.abs(counts - 250).max() < five_sigma(1000, 0.25)


def test_quick_init_finds_the_good_clients() -> None:
    # 20 clients, the first 5 worth 0.16 each to a set's opinion, noise 0.02, K = 5, mu as in the
    # small comparisons. A random set has 1.25 good members. Over 20 seeds the picks of the last 100
    # of 200 slots have at least 3 on average, not 5: the cold start groups good with bad, so the
    # climb goes set by set.
    def world_of(seed: int) -> World:
        rng = np.random.default_rng(seed)

        def world(cohort: list[int]) -> float:
            good_members = sum(i < 5 for i in cohort)
            return float(np.clip(0.1 + 0.16 * good_members + 0.02 * rng.normal(), 0, 1))

        return world

    good = []
    for seed in range(20):
        s = make(QuickInitUCB, 20, seed, slot_rounds=1, mu=0.05)
        world = world_of(seed)
        picks = [one_round(s, t, 5, world) for t in range(1, 201)]
        good.append(np.mean([(rows < 5).sum() for rows in picks[100:]]))
    assert np.mean(good) > 3


# ---- ucb


def test_ucb_plays_every_set_before_any_twice() -> None:
    s = make(UCB, 5, slot_rounds=1)
    world = noisy(5, 0)
    seen = []
    for t in range(1, 11):
        seen.append(tuple(sorted(one_round(s, t, 2, world).tolist())))
    assert sorted(seen) == list(combinations(range(5), 2))
    # Then it is UCB1, whose means are the world's own: this world always says the same of a set.
    count = dict.fromkeys(seen, 1)
    for t in range(11, 40):
        arm = tuple(sorted(one_round(s, t, 2, world).tolist()))
        index = {a: world(list(a)) + math.sqrt(math.log(t) / count[a]) for a in count}
        assert index[arm] == pytest.approx(max(index.values()), abs=1e-9)
        count[arm] += 1


def test_new_sets_are_uniform() -> None:
    # The first set of 2000 selectors: any of 10, 200 times each.
    counts: dict[tuple[int, ...], int] = {}
    for seed in range(2000):
        s = make(UCB, 5, seed)
        arm = tuple(sorted(s.select(look(s.clients), 2).tolist()))
        counts[arm] = counts.get(arm, 0) + 1
    assert len(counts) == 10
    assert max(abs(c - 200) for c in counts.values()) < five_sigma(2000, 0.1)


def test_ucb_at_10000_clients_and_150_seats() -> None:
    # C(10000, 150) has more than 300 digits, so no float holds it.
    s = make(UCB, 10_000, slot_rounds=1)
    for t in range(1, 4):
        assert len(one_round(s, t, 150, lambda cohort: 0.5)) == 150
    assert s.diagnostics()["sets_played"] == 2


# ---- oracle


def test_oracle_asks_whom_it_is_told() -> None:
    s = make(Oracle, 8, clients="2,3,7")
    assert s.select(look(s.clients, 1), 5).tolist() == [1, 2, 6]
    assert s.select(look(s.clients, 9, [0, 2, 6]), 1).tolist() == [2, 6]
    assert make(Oracle, 4).select(look(table(4)), 2).tolist() == [0, 1, 2, 3]


def test_oracles_sets_take_turns() -> None:
    s = make(Oracle, 8, clients="1,2;3;4,5", slot_rounds=2)
    cohorts = [s.select(look(s.clients, t), 2).tolist() for t in range(1, 8)]
    assert cohorts == [[0, 1], [0, 1], [2], [2], [3, 4], [3, 4], [0, 1]]


@pytest.mark.parametrize("text", ["", "1,x", "1,1", "1;;2", "1.5"])
def test_oracle_refuses_what_is_no_set(text: str) -> None:
    with pytest.raises(UserError, match="clients: expected distinct ids"):
        Oracle.Params.from_mapping({"clients": text + " "})
    with pytest.raises(UserError, match="oracle.clients: client 9 takes no part"):
        make(Oracle, 8, clients="1,9")


# ---- all of them


@pytest.mark.parametrize("cls", [QuickInitUCB, UCB])
@pytest.mark.parametrize("after", [3, 13, 47])
def test_a_resumed_selector_continues_exactly(cls: type[TimeSlotSelector], after: int) -> None:
    def play(s: TimeSlotSelector, rounds: range) -> list[list[int]]:
        return [one_round(s, t, 3, noisy(9, 4)).tolist() for t in rounds]

    first, second = (make(cls, 9, seed, slot_rounds=2, mu=0.05) for seed in (1, 2))
    play(first, range(1, after))
    second.load_state_dict(wire.decode(wire.encode(first.state_dict())))
    assert play(first, range(after, 80)) == play(second, range(after, 80))
    assert first.diagnostics() == second.diagnostics()


@pytest.mark.parametrize("cls", [QuickInitUCB, UCB])
def test_a_state_can_be_loaded_twice(cls: type[TimeSlotSelector]) -> None:
    def play(s: TimeSlotSelector, rounds: range) -> list[list[int]]:
        return [one_round(s, t, 2, noisy(5, 4)).tolist() for t in rounds]

    first, second, third = (make(cls, 5, seed, slot_rounds=1, mu=0.01) for seed in (1, 2, 3))
    play(first, range(1, 25))
    state = copy.deepcopy(first.state_dict())
    second.load_state_dict(state)
    picks = play(second, range(25, 40))
    # What the second has learned since is not in the state that it was given.
    third.load_state_dict(state)
    assert third.table.count.tolist() == first.table.count.tolist()
    assert play(third, range(25, 40)) == picks
