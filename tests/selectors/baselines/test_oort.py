"""Oort: by hand, against FedScale's bundled Oort, invariants, the faults of that one, learning."""

from __future__ import annotations

import builtins
import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict
from types import FrameType, ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from selector_worlds import five_sigma, look, outcome, table

from fedsuv_plugin import wire
from fedsuv_plugin.errors import UserError
from fedsuv_plugin.selectors.base import ClientTable, RoundOutcome, sample_by_weight
from fedsuv_plugin.selectors.baselines.oort import Oort, OortParams


def make(clients: ClientTable, seed: int = 0, **params: Any) -> Oort:
    return Oort(OortParams(**params), clients, np.random.default_rng(seed))


def started(clients: ClientTable, first: RoundOutcome, seed: int = 0, **params: Any) -> Oort:
    """A selector whose first, random round is over and went as `first` says."""
    s = make(clients, seed, **params)
    s.select(look(clients), 1)
    s.update(first)
    return s


EXPLOIT_ONLY: dict[str, Any] = {"exploration_factor": 0.0, "exploration_min": 0.0}


# The bundled Oort, as FedScale's client manager and aggregator drive it


@pytest.fixture
def bundled_module(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """FedScale's module with the builtins put back that its `from numpy import *` shadows.

    The state of np.random is restored afterwards, because the module reseeds it."""
    module = pytest.importorskip("thirdparty.oort.oort")
    for name in vars(builtins):
        if not name.startswith("__") and hasattr(module, name):
            monkeypatch.setattr(module, name, getattr(builtins, name))
    before = np.random.get_state()
    yield module
    np.random.set_state(before)


class Bundled:
    """The bundled selector with our methods: rows instead of ids, and its scores made visible."""

    def __init__(self, module: ModuleType, clients: ClientTable, **params: Any):
        args = SimpleNamespace(**asdict(OortParams(**params)), exploration_alpha=0.3)
        self.oort = module._training_selector(args)
        self.scores: dict[int, float] = {}
        for i, client in enumerate(clients.ids.tolist()):
            size = int(clients.round_samples[i])
            self.oort.register_client(client, {"reward": size, "duration": 1.0})
            self.oort.update_duration(client, float(clients.expected_duration[i]))

    def select(self, online: Iterable[int], k: int) -> list[int]:
        """Its cohort as rows.

        `scores` are read from the local variables of its getTopK, also if that raises an error."""

        def watch(frame: FrameType, event: str, _: object) -> None:
            if event == "return" and frame.f_code.co_name == "getTopK":
                scores = frame.f_locals.get("scores", {})
                self.scores = {client - 1: score for client, score in scores.items()}

        ids = {int(row) + 1 for row in online}
        sys.setprofile(watch)
        try:
            picked = self.oort.select_participant(k, feasible_clients=ids)
        finally:
            sys.setprofile(None)
        return [int(client) - 1 for client in picked]

    def update(self, result: RoundOutcome) -> None:
        """Feedback as FedScale's aggregator reports it.

        Valid clients are reported as they finish, late ones when the next round has begun."""
        utilities = result.utility[result.valid].tolist()
        mean = sum(utilities) / max(1, len(utilities))
        for i, row in enumerate(result.rows.tolist()):
            ok = bool(result.valid[i])
            feedback = {
                "reward": float(result.utility[i]) if ok else mean,
                "duration": float(result.duration[i]),
                "status": True,
                "time_stamp": result.round if ok else result.round + 1,
            }
            self.oort.update_client_util(row + 1, feedback)

    @property
    def exploited(self) -> np.ndarray:
        return np.array(self.oort.exploitClients, np.int64) - 1


def history(
    rng: np.random.Generator, t: int, online: np.ndarray, exploited: np.ndarray
) -> RoundOutcome:
    """What the test lets happen in round t.

    Some of the exploited and some others were asked, and a fifth of them was late. Utilities are
    level, then 20 times as high from round 20 on, so that the pacer sees no change and a sharp one.
    All are below 100 times their median, so that none is absurd; some are 0."""
    size = 30 if t == 1 else 10
    favoured = rng.permutation(exploited)[: size // 2]
    others = rng.permutation(np.setdiff1d(online, favoured))[: size - len(favoured)]
    rows = np.concatenate([favoured, others])
    utility = rng.uniform(20, 40, size) * (20 if t >= 20 else 1) * (rng.random(size) > 0.05)
    return outcome(
        t, rows, utility, valid=rng.random(size) > 0.2, duration=rng.lognormal(3, 1, size)
    )


VARIANTS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "quick pacer": {"pacer_step": 3, "pacer_delta": 4.0, "round_threshold": 50.0},
    "pacer to the end": {"pacer_step": 1, "pacer_delta": 30.0, "round_penalty": 0.5},
    "all clipped": {
        "clip_bound": 0.5,
        "cut_off_util": 0.9,
        "exploration_min": 0.0,
        "exploration_decay": 0.8,
    },
    "blacklist": {"blacklist_rounds": 3, "blacklist_max_len": 1.0, "round_threshold": 0.0},
    "speed is nothing": {"round_threshold": 100.0, "exploration_factor": 0.0, "clip_bound": 1.0},
}


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("variant", VARIANTS)
def test_agrees_with_the_bundled_oort(bundled_module: ModuleType, variant: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    params = VARIANTS[variant]
    clients = table(80, rng.integers(5, 60, 80), rng.lognormal(3, 1, 80))
    ours = make(clients, seed, **params)
    theirs = Bundled(bundled_module, clients, **params)
    thresholds = [ours.round_threshold]
    punished = 0
    for t in range(1, 46):
        online = np.flatnonzero(rng.random(80) < 0.8)
        ours.select(look(clients, t, online), 10)
        if t > 1:  # FedScale does not ask its Oort for the first cohort
            # It may fail to draw a cohort, but it has computed the scores by then.
            with suppress(IndexError, ValueError):
                theirs.select(online, 10)
            score = ours.explain()["score"]
            rows = np.array(list(theirs.scores))
            expected = list(theirs.scores.values())
            np.testing.assert_allclose(score[rows], expected, rtol=1e-9, atol=1e-12)
            extra = set(np.flatnonzero(~np.isnan(score)).tolist()) - set(rows.tolist())
            assert extra == {c - 1 for c in theirs.oort.blacklist} & set(online.tolist())
            preferred = theirs.oort.round_prefer_duration
            assert ours.preferred_duration == pytest.approx(preferred, rel=1e-9)
            assert ours.exploration == pytest.approx(theirs.oort.exploration, rel=1e-9)
            assert ours.round_threshold == pytest.approx(theirs.oort.round_threshold, rel=1e-9)
            thresholds.append(ours.round_threshold)
            punished += int((ours.duration[rows] > ours.preferred_duration).sum())
            # The two draw differently, but the pacers have to look at the same clients.
            ours.exploited = theirs.exploited
        result = history(rng, t, online, theirs.exploited)
        ours.update(result)
        theirs.update(result)
    # The histories did what they are for: slow clients were punished, and the pacer moved, up and
    # down.
    assert punished > 20 or variant == "speed is nothing"
    if variant == "quick pacer":
        assert min(np.diff(thresholds)) == -4
        assert max(np.diff(thresholds)) == 4
    if variant == "pacer to the end":
        assert max(thresholds) == 100
        assert min(thresholds) == 30


@pytest.mark.parametrize("jump", [1.0, 20.0])
def test_pacer_by_hand(jump: float) -> None:
    # pacer_step 2, all of 5 exploited, utilities 10 each until round 4, then `jump` times that. The
    # exploited means seen at training rounds 1..6 are 0 (nobody exploited before), 10, 10, 10,
    # 10 jump, 10 jump (times m/(m + 1e-4)).
    # Round 4: |20 - 10| is neither <= 1 nor >= 50: no move.
    # Round 6: |20 jump - 20| against 20. With jump 1 it is 0 <= 2, so 30 + 7; with jump 20 it is
    # 380 >= 100, so 30 - 7.
    clients = table(6)
    s = make(clients, pacer_step=2, pacer_delta=7.0, **EXPLOIT_ONLY)
    seen = []
    for t in range(1, 8):
        rows = s.select(look(clients, t), 5)
        seen.append(s.round_threshold)
        s.update(outcome(t, np.arange(6) if t == 1 else rows, 10.0 * (jump if t >= 5 else 1)))
    assert seen == [30.0] * 6 + [37.0 if jump == 1 else 23.0]
    # The history is no longer than the pacer needs.
    assert s.exploit_history == pytest.approx([10, 10, 10 * jump, 10 * jump], rel=1e-4)


# Worked by hand


def test_scores_by_hand() -> None:
    clients = table(5, samples=40, duration=10.0)
    s = started(clients, outcome(1, [0, 1, 2], [10, 20, 30], duration=[10, 10, 40]), **EXPLOIT_ONLY)

    # Second selection, R = 1, ln R = 0. Rewards 10 20 30 40 40: clip = place int(5 * 0.9) = 4, that
    # is 40; low = 9.99, span = 40 - 9.99 = 30.01. Durations 10 10 10 10 40: T = place int(5 * 0.3)
    # = 1, that is 10.
    s.select(look(clients, 2), 1)
    assert s.explain()["score"] == pytest.approx(
        [0.01 / 30.01, 10.01 / 30.01, 20.01 / 30.01 / 16, np.nan, np.nan], nan_ok=True
    )
    assert s.diagnostics()["preferred_duration"] == 10

    # Client 0 now says 20; client 3 was late, is booked with that mean (20) at round 2 + 1, and
    # took 50. R = 2. Rewards 20 20 30 20 40: low = 19.98, span = 20.02, clip = 40.
    s.update(outcome(2, [0, 3], [20, 0], valid=[True, False], duration=[10, 50]))
    s.select(look(clients, 3), 1)
    fresh = [np.sqrt(0.1 * np.log(2) / stamp) for stamp in (2, 1, 1, 3)]
    assert s.explain()["score"] == pytest.approx(
        [
            0.02 / 20.02 + fresh[0],
            0.02 / 20.02 + fresh[1],
            (10.02 / 20.02 + fresh[2]) / 16,
            (0.02 / 20.02 + fresh[3]) / 25,
            np.nan,
        ],
        nan_ok=True,
    )
    assert s.explain()["count"].tolist() == [2, 1, 1, 1, 0]
    assert s.explain()["reward"].tolist() == [20, 20, 30, 20, 40]
    assert s.explain()["duration"].tolist() == [10, 10, 40, 50, 10]


def test_before_any_feedback_rewards_are_sizes_and_durations_expected() -> None:
    s = make(table(3, [7, 1, 600], [4.0, 5.0, 6.0]))
    assert s.explain()["reward"].tolist() == [7, 1, 600]
    assert s.explain()["duration"].tolist() == [4, 5, 6]
    assert np.isnan(s.explain()["score"]).all()


def test_a_round_that_all_missed_books_zero() -> None:
    s = started(table(4), outcome(3, [1, 2], valid=False))
    assert s.explain()["reward"].tolist() == [40, 0, 0, 40]
    assert s.time_stamp.tolist() == [0, 4, 4, 0]


def test_seats_by_hand() -> None:
    # 0.9 * 0.98 = 0.882 of 10 seats is 8 to explore, 2 to exploit; 20 are explored, so both can be
    # had.
    clients = table(60)
    s = started(clients, outcome(1, np.arange(20), 50.0))
    rows = s.select(look(clients, 2), 10)
    assert (rows < 20).sum() == 2
    assert (rows >= 20).sum() == 8
    assert s.diagnostics() == {
        "exploration": pytest.approx(0.882),
        "round_threshold": 30.0,
        "preferred_duration": 10.0,
        "unexplored": 40,
        "exploited": 2,
        "explored": 8,
        "filled_up": 0,
    }
    # Only 1 of the explored is online: the other seat goes to a new client.
    s.select(look(clients, 3, [0, *range(20, 60)]), 10)
    assert (s.diagnostics()["exploited"], s.diagnostics()["explored"]) == (1, 9)


def test_draws_are_successive_and_proportional() -> None:
    # Weights 1 2 3. First: w/6. The pair (2, then 1): 3/6 * 2/3 = 1/3; (0, then 2): 1/6 * 3/5 =
    # 1/10.
    n = 6000
    rng = np.random.default_rng(0)
    weights = np.array([1.0, 2.0, 3.0])
    pairs = [tuple(sample_by_weight(weights, 2, rng).tolist()) for _ in range(n)]
    for i, p in enumerate([1 / 6, 2 / 6, 3 / 6]):
        assert abs(sum(first == i for first, _ in pairs) - n * p) < five_sigma(n, p)
    assert abs(pairs.count((2, 1)) - n / 3) < five_sigma(n, 1 / 3)
    assert abs(pairs.count((0, 2)) - n / 10) < five_sigma(n, 1 / 10)


def test_weight_zero_comes_last_and_in_random_order() -> None:
    n = 1000
    rng = np.random.default_rng(0)
    weights = np.array([0.0, 1e-300, 0.0, 5.0])
    draws = [sample_by_weight(weights, 3, rng).tolist() for _ in range(n)]
    assert all(drawn[:2] == [3, 1] for drawn in draws)
    assert abs(sum(drawn[2] == 0 for drawn in draws) - n / 2) < five_sigma(n, 0.5)


@pytest.mark.parametrize(("cut_off", "lowest"), [(1.0, 29), (0.5, 18), (0.0, 0)])
def test_cut_off_by_hand(cut_off: float, lowest: int) -> None:
    # 40 clients with utilities 100..139, one seat, R = 1. low = 99.9, clip = place int(40 * 0.9) =
    # 36, that is 136, so the first one left out scores (136 - 99.9)/39.1. Cut at
    # - 1.0 of it: four reach that, but more than ten times the seats are considered: the best 11,
    #   from row 29 on;
    # - 0.5 of it: u >= 99.9 + 36.1/2 = 117.95, from row 18 on;
    # - 0: all.
    clients = table(41, samples=100)
    first = outcome(1, np.arange(40), np.arange(100.0, 140.0))
    s = started(clients, first, cut_off_util=cut_off, **EXPLOIT_ONLY)
    picked = set()
    for _ in range(600):
        s.training_round = 0  # this very selection again
        picked.add(int(s.select(look(clients, 2, np.arange(40)), 1)[0]))
    assert picked <= set(range(lowest, 40))
    # Nobody considered from row 18 on is without a chance: row 18 has 18.1 of a total weight of at
    # most 776, so 600 draws miss it with probability (1 - 0.023)^600 < 1e-6; rows 0 to 17
    # together have a fifth of that weight.
    assert picked >= set(range(max(lowest, 18), 40))
    assert lowest > 0 or min(picked) < 18


def test_exploring_prefers_large_and_fast() -> None:
    # Sizes 1..20 in rows 0..19; 2 seats. Rows 18 and 19 are ten times slower than T = 10: their
    # value is size/100, 0.19 and 0.2. sample_window 1: exactly the two best, rows 16 and 17.
    # sample_window 5: among the ten best, rows 8..17.
    clients = table(21, [*range(1, 21), 50], [10.0] * 18 + [100.0, 100.0, 10.0])
    first = outcome(1, [20], 50.0)
    for window, allowed in ((1.0, {16, 17}), (5.0, set(range(8, 18)))):
        s = started(
            clients, first, sample_window=window, exploration_factor=1.0, exploration_min=1.0
        )
        picked = set()
        for t in range(2, 202):
            picked |= set(s.select(look(clients, t), 2).tolist())
        # Row 8 has 9 of a weight of 135 in each of two draws: 200 rounds miss it with probability <
        # 0.94^200 = 4e-6.
        assert picked == allowed


# Fairness


def test_first_selection_is_uniform_whatever_the_sizes() -> None:
    # 10 clients, 4 seats, 2000 selectors: Binomial(2000, 0.4) each.
    clients = table(10, np.arange(1, 11) * 50)
    counts = np.zeros(10)
    for seed in range(2000):
        counts[make(clients, seed).select(look(clients), 4)] += 1
    assert np.abs(counts - 800).max() < five_sigma(2000, 0.4)


def test_equal_clients_are_explored_and_exploited_alike() -> None:
    # 30 explored and 30 new clients, all alike. 0.5 * 10 seats each way, 2000 selections:
    # Binomial(2000, 5/30) each; sample_window 1 leaves the choice of the new ones to the ties
    # alone.
    clients = table(60)
    counts = np.zeros(60)
    s = started(
        clients,
        outcome(1, np.arange(30), 40.0),
        exploration_factor=0.5,
        exploration_min=0.5,
        sample_window=1.0,
    )
    for t in range(2, 2002):
        counts[s.select(look(clients, t), 10)] += 1
    assert np.abs(counts - 2000 / 6).max() < five_sigma(2000, 1 / 6)


# Invariants

UTILITIES = np.array(
    [0.0, 5e-324, 1e-9, 1.0, 2.0, 20.0, 30.0, 40.0, 50.0, 1e6, 1e30, sys.float_info.max]
)
DURATIONS = np.array([0.0, 1e-9, 1.0, 10.0, 10.0, 20.0, 1e9])
# The online rows, k and a seed of one round.
ROUND = st.tuples(st.sets(st.integers(0, 14)), st.integers(0, 17), st.integers(0, 2**32))
PARAMS = st.sampled_from(
    [
        {},
        EXPLOIT_ONLY,
        {"exploration_factor": 1.0, "exploration_min": 1.0},
        {"round_threshold": 0.0, "pacer_step": 1},
        {"blacklist_rounds": 0, "blacklist_max_len": 1.0},
        {"blacklist_rounds": 1, "blacklist_max_len": 0.2},
        {"blacklist_rounds": 0, "blacklist_max_len": 0.0},
        {"cut_off_util": 1.0, "clip_bound": 0.0, "sample_window": 1.0},
        {"round_penalty": 500.0, "round_threshold": 50.0},
    ]
)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    params=PARAMS,
    smallest=st.sampled_from([0, 1, 30]),
    rounds=st.lists(ROUND, min_size=2, max_size=8),
)
def test_always_min_k_online_distinct_online_rows(
    params: dict[str, Any], smallest: int, rounds: list[tuple[set[int], int, int]]
) -> None:
    clients = table(15, np.linspace(smallest, 30, 15))
    s = make(clients, **params)
    with np.errstate(divide="raise", invalid="raise", over="raise"):
        for t, (online, k, seed) in enumerate(rounds, 1):
            was_explored = s.count > 0
            rows = s.select(look(clients, t, sorted(online)), k)
            assert len(rows) == len(set(rows.tolist())) == min(k, len(online))
            assert set(rows.tolist()) <= online
            score = s.explain()["score"]
            if t > 1 and 0 < k < len(online):
                expected = was_explored & np.isin(np.arange(15), list(online))
                assert np.array_equal(np.isfinite(score), expected)
                parts = ("exploited", "explored", "filled_up")
                assert sum(s.diagnostics()[part] for part in parts) == k
            json.dumps(s.diagnostics(), allow_nan=False)
            rng = np.random.default_rng(seed)
            m = len(rows)
            utility = rng.choice(UTILITIES, m)
            valid = rng.random(m) < 0.7
            s.update(outcome(t, rows, utility, valid, rng.choice(DURATIONS, m)))
            assert np.isfinite(s.reward).all()
            assert np.isfinite(s.exploit_history).all()


def test_nothing_moves_when_there_is_no_choice() -> None:
    clients = table(9)
    s = started(clients, outcome(1, [0, 1, 2], 30.0))
    assert s.select(look(clients, 2, [3, 5, 8]), 3).tolist() == [3, 5, 8]
    assert (s.training_round, s.exploration, s.exploit_history) == (0, 0.9, [])
    s.select(look(clients, 3), 3)
    assert s.training_round == 1


def test_a_resumed_selector_continues_exactly() -> None:
    clients = table(50, np.arange(1, 51), np.linspace(5, 50, 50))
    params = {"pacer_step": 2, "blacklist_rounds": 2}

    def play(s: Oort, rounds: range) -> list[list[int]]:
        picks = []
        for t in rounds:
            rng = np.random.default_rng(t)
            rows = s.select(look(clients, t, np.flatnonzero(rng.random(50) < 0.8)), 8)
            utility = rng.uniform(1, 50, 8)
            valid = rng.random(8) > 0.2
            s.update(outcome(t, rows, utility, valid, rng.uniform(1, 60, 8)))
            picks.append(rows.tolist())
        return picks

    for stop in (1, 2, 9):
        first = make(clients, seed=1, **params)
        second = make(clients, seed=2, **params)
        play(first, range(1, stop + 1))
        second.load_state_dict(wire.decode(wire.encode(first.state_dict())))
        assert play(first, range(stop + 1, stop + 12)) == play(second, range(stop + 1, stop + 12))
        assert first.diagnostics() == second.diagnostics()
        np.testing.assert_array_equal(first.explain()["score"], second.explain()["score"])


def test_history_stays_bounded() -> None:
    clients = table(30)
    s = make(clients, pacer_step=3)
    for t in range(1, 40):
        s.update(outcome(t, s.select(look(clients, t), 5), 10.0))
    assert len(s.exploit_history) == 6
    assert len(s.heard) == 5


# What the bundled one does wrong


def feed_both(
    module: ModuleType, clients: ClientTable, result: RoundOutcome, **params: Any
) -> tuple[Oort, Bundled]:
    theirs = Bundled(module, clients, **params)
    theirs.update(result)
    return started(clients, result, **params), theirs


def test_few_explored(bundled_module: ModuleType) -> None:
    # 1 explored, 4 seats of which int(4 * 0.882) = 3 explore. The bundled one wants the score of a
    # second explored client for its cut-off, and there is none.
    clients = table(20)
    ours, theirs = feed_both(bundled_module, clients, outcome(1, [0], 30.0))
    with pytest.raises(IndexError):
        theirs.select(range(20), 4)
    rows = ours.select(look(clients, 2), 4)
    assert len(rows) == 4
    assert 0 in rows


def test_nobody_explored() -> None:
    clients = table(20)
    s = make(clients)
    s.select(look(clients), 4)  # and no feedback comes: the round failed
    assert len(s.select(look(clients, 2), 4)) == 4


def test_all_explored(bundled_module: ModuleType) -> None:
    # 0.882 of 10 seats go to exploring, and nobody is new: 2 are left.
    clients = table(20)
    first = outcome(1, np.arange(20), np.arange(20.0, 40.0))
    ours, theirs = feed_both(bundled_module, clients, first)
    assert len(theirs.select(range(20), 10)) == 2
    rows = ours.select(look(clients, 2), 10).tolist()
    assert len(set(rows)) == 10
    assert ours.diagnostics()["filled_up"] == 8
    # The 8 are the best of the other 18. Place int(20 * 0.9) = 18 is 38, so rows 18 and 19 tie and
    # may swap.
    rest = [row for row in range(19, -1, -1) if row not in rows[:2]]
    assert set(rows[2:]) == set(rest[:8])


def test_old_explore_list(bundled_module: ModuleType) -> None:
    # Round 2 explores all new clients, round 3 has none, and those of round 2 are offline by then.
    clients = table(24)
    ours, theirs = feed_both(bundled_module, clients, outcome(1, np.arange(20), 30.0))
    picked: list[tuple[Oort | Bundled, list[int]]] = [
        (ours, ours.select(look(clients, 2), 8).tolist()),
        (theirs, theirs.select(range(24), 8)),
    ]
    for s, rows in picked:
        assert {20, 21, 22, 23} <= set(rows)
        s.update(outcome(2, rows, 30.0))
    assert {20, 21, 22, 23} <= set(theirs.select(range(20), 8))
    assert set(ours.select(look(clients, 3, np.arange(20)), 8).tolist()) <= set(range(20))


def test_scores_of_zero(bundled_module: ModuleType) -> None:
    # T = 0, as 7 of 20 clients take no time: all slower ones score exactly 0, and more than 7 are
    # asked for.
    clients = table(20, duration=[0.0] * 7 + [10.0] * 13)
    result = outcome(1, np.arange(20), 30.0, duration=clients.expected_duration)
    ours, theirs = feed_both(bundled_module, clients, result, **EXPLOIT_ONLY)
    with pytest.raises(ValueError, match="non-zero"):
        theirs.select(range(20), 9)
    assert set(range(7)) <= set(ours.select(look(clients, 2), 9).tolist())


def test_sizes_of_zero(bundled_module: ModuleType) -> None:
    clients = table(20, samples=[30] * 4 + [0] * 16)
    ours, theirs = feed_both(bundled_module, clients, outcome(1, np.arange(4), 30.0))
    with pytest.raises(ValueError, match="sum to 1"):
        theirs.select(range(20), 10)
    assert len(ours.select(look(clients, 2), 10)) == 10


def test_blacklist_without_room(bundled_module: ModuleType) -> None:
    # More than 0.3 * 10 clients were asked more than once. Only the 3 asked most often are listed:
    # 0, 1 and 2.
    clients = table(10)
    params = {
        "blacklist_rounds": 1,
        "blacklist_max_len": 0.3,
        "exploration_factor": 0.5,
        "exploration_min": 0.5,
    }
    ours, theirs = feed_both(bundled_module, clients, outcome(1, np.arange(10), 30.0), **params)
    for t, rows in ((2, range(7)), (3, range(3))):
        ours.update(outcome(t, np.array(rows), 30.0))
        theirs.update(outcome(t, np.array(rows), 30.0))
    with pytest.raises(TypeError):
        theirs.select(range(10), 4)
    for t in range(4, 40):  # 4 seats are drawn, 3 filled up
        assert not {0, 1, 2} & set(ours.select(look(clients, t), 7).tolist())
    # With 9 seats two of them must play, after all others.
    rows = ours.select(look(clients, 40), 9).tolist()
    assert set(rows[:7]) == set(range(3, 10))
    assert set(rows[7:]) < {0, 1, 2}


def test_blacklist_breaks_ties_fairly() -> None:
    # All 10 were asked once, 3 fit on the list: Binomial(2000, 0.3) each.
    clients = table(10)
    counts = np.zeros(10)
    s = started(clients, outcome(1, np.arange(10), 30.0), blacklist_rounds=0, blacklist_max_len=0.3)
    for _ in range(2000):
        counts += s._blacklist()
    assert counts.sum() == 6000
    assert np.abs(counts - 600).max() < five_sigma(2000, 0.3)


def test_blacklist_of_nobody_and_of_everybody() -> None:
    clients = table(6)
    first = outcome(1, np.arange(6), 30.0)
    nobody = started(clients, first, blacklist_rounds=0, blacklist_max_len=0.0)
    everybody = started(clients, first, blacklist_rounds=0, blacklist_max_len=1.0)
    for s in (nobody, everybody):
        assert len(set(s.select(look(clients, 2), 4).tolist())) == 4
    assert nobody.diagnostics()["exploited"] == 1  # 4 - int(4 * 0.882)
    assert everybody.diagnostics()["exploited"] == 0


# One absurd value

UTILITY = np.arange(20.0, 40.0)


def test_an_absurd_utility_flattens_nobody(bundled_module: ModuleType) -> None:
    clients = table(30, samples=30)
    lie = UTILITY.copy()
    lie[4] = 1e30
    first = outcome(1, np.arange(20), lie)
    liar, theirs = feed_both(bundled_module, clients, first, **EXPLOIT_ONLY)
    with pytest.raises(ValueError, match="sum to 1"):
        theirs.select(range(30), 5)
    liar.select(look(clients, 2), 5)
    # The bundled one no longer sees any difference between the others, and fails.
    assert max(theirs.scores.values()) < 1e-25
    # It counts as the largest of the others, 39, so all scores are those of a world where it said
    # that.
    honest_utility = UTILITY.copy()
    honest_utility[4] = 39.0
    honest = started(clients, outcome(1, np.arange(20), honest_utility), **EXPLOIT_ONLY)
    honest.select(look(clients, 2), 5)
    np.testing.assert_array_equal(liar.explain()["score"], honest.explain()["score"])
    assert liar.explain()["reward"][4] == 39.0


def test_an_absurd_utility_is_not_booked_for_others() -> None:
    # Valid say 1e30, 20 and 30; believed are 30, 20 and 30, so who missed the round gets 80/3.
    valid = [True, True, True, False, False]
    s = started(table(6), outcome(1, np.arange(5), [1e30, 20, 30, 0, 0], valid=valid))
    assert s.explain()["reward"] == pytest.approx([30, 20, 30, 80 / 3, 80 / 3, 40])


def test_a_lone_liar_is_found_out_by_the_first_honest_answer() -> None:
    # Alone, 1e30 is all there is to compare with, and is booked for those who missed the round. The
    # next answer, 25, makes it absurd (the median of two is the lower one), and the booked ones
    # with it.
    s = started(table(6), outcome(1, [0, 1, 2], [1e30, 0, 0], valid=[True, False, False]))
    s.update(outcome(2, [3], 25.0))
    assert s.explain()["reward"].tolist() == [25, 25, 25, 25, 40, 40]


def test_ordinary_extremes_are_believed() -> None:
    # 100 times the median is not absurd yet: the lower median of 1, 1, 100 is 1.
    s = started(table(4), outcome(1, [0, 1, 2], [1.0, 1.0, 100.0]))
    assert s.explain()["reward"].tolist() == [1, 1, 100, 40]


# Learning


def good_share(
    selector: Oort, clients: ClientTable, utility: np.ndarray, good: np.ndarray
) -> float:
    """Share of the seats that good clients have in rounds 41..60 of 60, 20 seats each."""
    rng = np.random.default_rng(7)
    seats = 0
    for t in range(1, 61):
        rows = selector.select(look(clients, t), 20)
        noisy = utility[rows] * rng.lognormal(0, 0.05, 20)
        selector.update(outcome(t, rows, noisy, duration=clients.expected_duration[rows]))
        seats += int(good[rows].sum()) if t > 40 else 0
    return seats / 400


@pytest.mark.parametrize("seed", range(3))
def test_useful_and_fast_clients_are_found(seed: int) -> None:
    # 200 clients; 40 useful ones (utility 100, others 20), every other client slow (100 s, others
    # 10 s), so 20 are both useful and fast: a random choice gives them 10 % of the seats, 1.5 %
    # standard deviation over 400 seats. T stays 10 s (30th to 40th percentile), so slow ones score
    # a hundredth. At R = 50, the fast and useful score about 1.1 (20 of them: 22), the fast others
    # 0.1 to 0.3 (80: 8 to 24), the slow below 0.02 (100: 2): the first draw takes a good one with
    # probability > 0.45, and 14 of the 20 seats are drawn so. Nobody is new by then, and the other
    # 6 go to the highest scores left, good ones. Even if the draws only managed a quarter (they
    # deplete the good ones) it is (6 + 3.5)/20 > 0.45.
    clients = table(200, duration=np.where(np.arange(200) % 2, 100.0, 10.0))
    useful = np.arange(200) < 40
    good = useful & (clients.expected_duration == 10)
    share = good_share(make(clients, seed), clients, np.where(useful, 100.0, 20.0), good)
    assert share > 0.45


# Parameters


def test_defaults_are_fedscales() -> None:
    from fedsuv_plugin.engine import fedscale_env

    options = fedscale_env.options()
    assert asdict(OortParams()) == {name: options[name].default for name in asdict(OortParams())}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("exploration_factor", 1.1),
        ("exploration_decay", -0.1),
        ("round_threshold", 101),
        ("pacer_step", 0),
        ("sample_window", 0.5),
        ("clip_bound", 2),
        ("blacklist_rounds", -2),
        ("blacklist_max_len", "many"),
    ],
)
def test_bad_parameters_are_refused(name: str, value: object) -> None:
    with pytest.raises(UserError, match=name):
        OortParams.from_mapping({name: value})


def test_feedback_for_a_client_never_seen_fails() -> None:
    with pytest.raises(IndexError):
        make(table(3)).update(outcome(1, [3], 1.0))
