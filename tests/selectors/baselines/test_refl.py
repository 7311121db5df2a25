"""REFL by hand, against the steps with plain loops, its invariants, and what it is good for."""

from __future__ import annotations

import json
import logging
import math
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import MakeJob, records, run, run_killed_and_resumed, same_records
from engine_worlds import user
from hypothesis import given, settings
from hypothesis import strategies as st
from selector_worlds import Rows, five_sigma, look, outcome, table

from fedsuv_plugin import wire
from fedsuv_plugin.errors import UserError
from fedsuv_plugin.randomness import uniforms
from fedsuv_plugin.selectors.base import ClientTable, LateUpdates, RoundView
from fedsuv_plugin.selectors.baselines.refl import HOUR, Refl, ReflParams, by_hour
from fedsuv_plugin.traces.availability import Availability

Share = Callable[[float, float], np.ndarray]
Intervals = Sequence[Sequence[tuple[float, float]]]  # of each client
DAY = 24 * HOUR


def make(n: int, seed: int = 0, duration: Any = 10.0, **params: object) -> Refl:
    clients = table(n, duration=duration)
    return Refl(ReflParams.from_mapping(params), clients, np.random.default_rng(seed))


def at(
    s: Refl,
    t: int,
    clock: float = 0.0,
    share: Share | Sequence[float] | None = None,
    online: Rows = None,
    **more: Any,
) -> RoundView:
    """The view of a round; a share is a function of the window, or a number for each client."""
    known = share if share is None or callable(share) else lambda start, end: np.array(share)
    return replace(look(s.clients, t, online), clock=clock, online_share=known, **more)


def trace(intervals: Intervals, period: float) -> Availability:
    pairs = [pair for each in intervals for pair in each]
    return Availability(
        starts=np.array([a for a, _ in pairs], float),
        ends=np.array([b for _, b in pairs], float),
        offsets=np.cumsum([0] + [len(each) for each in intervals]),
        periods=np.full(len(intervals), period),
    )


def late(staleness: Sequence[int], deviation: Sequence[float], fresh: int = 2) -> LateUpdates:
    m = len(staleness)
    return LateUpdates(9, np.arange(m), np.array(staleness, np.int64), np.array(deviation), fresh)


# ---- worked by hand: who is chosen


def test_the_least_available_in_the_next_slot_by_hand() -> None:
    # A window of 100 s: the slot from 100 s to 200 s counts, of which client 0 is there for
    # nothing, 1 for 50 s, 2 all the time, 3 for 20 s and 70 s.
    online = trace([[(0, 90)], [(0, 150)], [(0, 250)], [(0, 120), (130, 260)]], 1000.0)
    s = make(4, accuracy=1)
    rows = s.select(at(s, 1, share=online.share, deadline=100.0), 2)
    assert s.explain()["forecast"].tolist() == [0.0, 0.5, 1.0, 0.9]
    assert rows.tolist() == [0, 1]
    assert s.diagnostics() == {
        "expected_round": 0.0,
        "target": 2,
        "window": 100.0,
        "resting": 0,
        "filled_up": 0,
        "pending": 0,
        "mean_forecast": 0.25,
    }


def test_who_was_asked_rests_by_hand() -> None:
    # Round 8: client 1 was asked in 6 and 3 in 2. So 1 rests, until round 11, although it is the
    # least available.
    s = make(5, accuracy=1)
    s.update(outcome(2, [3]))
    s.update(outcome(6, [1], valid=False))
    shares = [0.9, 0.2, 0.5, 0.25, 1.0]
    assert s.select(at(s, 8, share=shares), 2).tolist() == [3, 2]
    assert s.explain()["resting"].tolist() == [False, True, False, False, False]
    assert s.select(at(s, 10, share=shares), 5).tolist() == [3, 2, 0, 4, 1]
    assert s.diagnostics()["filled_up"] == 1
    assert s.select(at(s, 11, share=shares), 5).tolist() == [1, 3, 2, 0, 4]
    assert s.diagnostics()["filled_up"] == 0


def test_those_who_rest_fill_up_the_longest_rested_first() -> None:
    # Asked in rounds 3, 4, 4 and 5; round 6. Client 4 alone has rested.
    s = make(5, accuracy=1)
    s.update(outcome(3, [0]))
    s.update(outcome(4, [1, 2]))
    s.update(outcome(5, [3]))
    view = at(s, 6, share=[1.0, 0.8, 0.3, 0.0, 1.0])
    for k, expected in ((1, [4]), (2, [4, 0]), (3, [4, 0, 2]), (5, [4, 0, 2, 1, 3])):
        assert s.select(view, k).tolist() == expected
        assert s.diagnostics()["filled_up"] == k - 1


@pytest.mark.parametrize(("rest", "resting"), [(0, 0), (1, 0), (2, 1), (3, 2)])
def test_a_rest_counts_from_the_round_in_which_a_client_was_asked(rest: int, resting: int) -> None:
    # Asked in rounds 4 and 5, looked at in round 6: two rounds and one round ago.
    s = make(2, rest=rest)
    s.update(outcome(4, [0]))
    s.update(outcome(5, [1]))
    s.select(at(s, 6), 1)
    assert np.flatnonzero(s.explain()["resting"]).tolist() == [0, 1][2 - resting :]


def test_the_first_rounds_do_not_take_everyone_for_resting() -> None:
    s = make(3)
    for t in range(1, 6):
        s.select(at(s, t), 1)
        assert not s.explain()["resting"].any()


def test_the_expected_round_by_hand() -> None:
    # Rounds of 80, 120 and 100 s: 0.75 80 = 60, 0.75 120 + 0.25 60 = 105, 0.75 100 + 0.25 105.
    s = make(3)
    found = []
    for t, clock in enumerate((0.0, 80.0, 200.0, 300.0), start=1):
        s.select(at(s, t, clock, deadline=50.0), 1)
        found.append(s.diagnostics()["expected_round"])
    assert found == [0.0, 60.0, 105.0, 101.25]


def test_rounds_without_a_selection_count_as_their_mean() -> None:
    # 240 s for rounds 2, 3 and 4: 80 s each.
    s = make(3)
    s.select(at(s, 2, 10.0), 1)
    s.select(at(s, 5, 250.0), 1)
    assert s.diagnostics()["expected_round"] == 60.0


def test_the_window_is_the_deadline_or_the_expected_round() -> None:
    asked: list[tuple[float, float]] = []

    def share(start: float, end: float) -> np.ndarray:
        asked.append((start, end))
        return np.zeros(3)

    s = make(3, duration=[30.0, 10.0, 60.0])
    s.select(at(s, 1, 1000.0, share, deadline=100.0), 1)
    s.select(at(s, 2, 1100.0, share, deadline=100.0), 1)
    assert asked == [(1100.0, 1200.0), (1200.0, 1300.0)]
    asked.clear()
    s = make(3, duration=[30.0, 10.0, 60.0])
    s.select(at(s, 1, 1000.0, share), 1)  # the median of the durations: 30 s
    s.select(at(s, 2, 1080.0, share), 1)  # 0.75 80 = 60 s
    assert asked == [(1030.0, 1060.0), (1140.0, 1200.0)]
    asked.clear()
    s = make(3, duration=0.0)  # no time passes, and yet there is a window
    s.select(at(s, 1, 1000.0, share), 1)
    assert asked[0][0] < asked[0][1]


def test_the_adaptive_target_by_hand() -> None:
    # N_0 = 10, mu = 100 after a round of 400/3 s. Updates with 30, 70 and 130 s to go: two within
    # mu, 8 to ask. Eight within mu: 2 (published: half of 10). More than ten: 1.
    for remaining, target in (
        ([30.0, 70.0, 130.0], 8),
        ([100.0, 100.1], 9),
        ([50.0] * 8, 2),
        ([50.0] * 12, 1),
        ([], 10),
    ):
        s = make(40, adaptive_target=True)
        s.select(at(s, 1, 0.0), 10)
        pending = np.arange(len(remaining))
        view = at(
            s,
            2,
            400 / 3,
            online=range(20, 40),
            pending=pending,
            pending_seconds=np.array(remaining),
            cohort_size=10,
        )
        rows = s.select(view, 10)
        assert s.diagnostics()["expected_round"] == pytest.approx(100.0, abs=1e-9)
        assert len(rows) == s.diagnostics()["target"] == target
        assert np.flatnonzero(s.explain()["pending"]).tolist() == pending.tolist()


def test_the_target_is_taken_from_whom_a_round_asks_not_from_who_is_online() -> None:
    # N_0 = 10 and three late ones expected: 7 are wanted. 5 are online, so all of them are asked;
    # of 9 online, 7.
    due: dict[str, Any] = {
        "pending": np.arange(3),
        "pending_seconds": np.zeros(3),
        "cohort_size": 10,
    }
    s = make(40, adaptive_target=True)
    assert len(s.select(at(s, 1, online=range(20, 25), **due), 5)) == 5
    assert len(s.select(at(s, 1, online=range(20, 29), **due), 9)) == 7
    assert len(s.select(at(s, 1, online=[], **due), 0)) == 0
    # A warm-up asks everyone.
    assert len(s.select(at(s, 1, online=range(3, 40), **due), 37)) == 37
    # Where nobody says how many a round asks, as many as there are seats.
    unknown = {**due, "cohort_size": None}
    assert len(s.select(at(s, 1, online=range(20, 29), **unknown), 9)) == 6


def test_a_cohort_is_free_with_the_adaptive_target_alone() -> None:
    assert make(3, adaptive_target=True).free_cohort
    assert not make(3).free_cohort
    s = make(40)
    due: dict[str, Any] = {
        "pending": np.arange(3),
        "pending_seconds": np.zeros(3),
        "cohort_size": 10,
    }
    assert len(s.select(at(s, 1, online=range(3, 40), **due), 10)) == 10


# ---- worked by hand: what late updates weigh


def test_weights_of_late_updates_by_hand() -> None:
    # Fresh (1, 0) and (0, 1), mean (1/2, 1/2) of squared length 1/2. Late (2, 2), one round: apart
    # by (3/2, 3/2), 4.5 / 0.5 = 9. Late (-1, 0), three rounds: 2.5 / 0.5 = 5, 5/9 of the largest.
    # 0.65/2 + 0.35 (1 - e^-1) = 0.546242, 0.65/4 + 0.35 (1 - e^-0.555556) = 0.311686.
    s = make(9)
    weights = s.late_weights(late([1, 3], [9.0, 5.0]))
    assert weights == pytest.approx([0.546242, 0.311686], abs=5e-7)
    everyone = np.array([1.0, 1.0, *weights])
    updates = np.array([[1.0, 0.0], [0.0, 1.0], [2.0, 2.0], [-1.0, 0.0]])
    shares = everyone / everyone.sum()
    assert shares == pytest.approx([0.349904, 0.349904, 0.191132, 0.109060], abs=5e-7)
    assert shares @ updates == pytest.approx([0.623108, 0.732168], abs=5e-7)
    # A single one is boosted in full, whatever it is: 0.65/4 + 0.35 (1 - e^-1).
    for deviation in (1e-9, 5.0):
        assert s.late_weights(late([3], [deviation])) == pytest.approx([0.383742], abs=5e-7)


def test_only_how_deviations_compare_counts() -> None:
    # The paper's Lambda divides by (n_F + 1)^2 more, which is the same for all and cancels; so does
    # the length of the fresh ones' mean.
    s = make(9)
    deviation = np.array([0.2, 0.9, 0.5])
    weights = s.late_weights(late([1, 2, 3], deviation.tolist()))
    for fresh, factor in ((1, 1 / 4), (9, 1 / 100), (9, 1e12), (9, 1e-300)):
        scaled = s.late_weights(late([1, 2, 3], (factor * deviation).tolist(), fresh))
        assert scaled == pytest.approx(weights)


def test_other_ways_to_weigh_by_hand() -> None:
    # tau = 1 and 3: 1/2 and 1/4, e^-2 and e^-4, 1 / mean(2, 4) = 1/3.
    given = late([1, 3], [9.0, 5.0])
    for kind, expected in (
        ("equal", [1.0, 1.0]),
        ("inverse", [0.5, 0.25]),
        ("exponential", [math.exp(-2), math.exp(-4)]),
        ("mean", [1 / 3, 1 / 3]),
    ):
        assert make(9, late_weight=kind).late_weights(given) == pytest.approx(expected)
    assert make(9, beta=0).late_weights(given) == pytest.approx([0.5, 0.25])
    assert make(9, beta=1).late_weights(given) == pytest.approx(
        [1 - math.exp(-1), 1 - math.exp(-5 / 9)]
    )


def test_without_a_fresh_update_staleness_alone_counts() -> None:
    # The page says: by their staleness term. It must weigh something with beta = 1, too.
    for beta in (0.35, 1.0):
        weights = make(9, beta=beta).late_weights(late([1, 3], [0.0, 0.0], fresh=0))
        assert weights == pytest.approx([0.5, 0.25])
    # With fresh ones that do not move the model, or late ones just like them, there is no boost.
    assert make(9).late_weights(late([1, 3], [0.0, 0.0])) == pytest.approx([0.325, 0.1625])


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    kind=st.sampled_from(["deviation", "equal", "inverse", "exponential", "mean"]),
    beta=st.sampled_from([0.0, 0.35, 1.0]),
    fresh=st.integers(0, 3),
    each=st.lists(
        st.tuples(
            st.integers(1, 10_000),
            st.one_of(st.floats(0, 10), st.sampled_from([0.0, 5e-324, 1e308, math.inf])),
        ),
        max_size=6,
    ),
)
def test_weights_are_numbers_from_0_to_1_and_do_not_all_vanish(
    kind: str, beta: float, fresh: int, each: list[tuple[int, float]]
) -> None:
    s = make(9, late_weight=kind, beta=beta)
    staleness = [tau for tau, _ in each]
    with np.errstate(divide="raise", invalid="raise", over="raise"):
        weights = s.late_weights(late(staleness, [d if fresh else 0.0 for _, d in each], fresh))
    assert weights.shape == (len(each),)
    assert ((weights >= 0) & (weights <= 1)).all()
    if each and (not fresh or beta < 1):
        assert (weights > 0).all()


# ---- forecasts


def test_wrong_forecasts_are_as_many_as_said_and_uniform() -> None:
    # The truth is 0.5 for 20,000 clients; 1 - 0.9 of the answers are others, Binomial(20000, 0.1),
    # uniform: a mean of 1/2 with a standard deviation of sqrt(1/12 / 2000).
    n = 20_000
    s = make(n)
    wrong = []
    for t in (1, 2):
        s.select(at(s, t, share=[0.5] * n), 1)
        told = s.explain()["forecast"]
        wrong.append(told != 0.5)
        count = int(wrong[-1].sum())
        assert abs(count - 2000) < five_sigma(n, 0.1)
        answers = told[wrong[-1]]
        assert abs(answers.mean() - 0.5) < 5 * math.sqrt(1 / 12 / count)
        quarters = np.histogram(answers, np.linspace(0, 1, 5))[0]
        assert np.abs(quarters - count / 4).max() < five_sigma(count, 1 / 4)
    # Another round has other errors: both wrong with 0.01.
    assert abs(int((wrong[0] & wrong[1]).sum()) - 200) < five_sigma(n, 0.01)


@pytest.mark.parametrize(("accuracy", "truths"), [(1.0, 300), (0.0, 0)])
def test_forecasts_are_always_right_or_never(accuracy: float, truths: int) -> None:
    s = make(300, accuracy=accuracy)
    s.select(at(s, 1, share=[0.5] * 300), 1)
    assert np.count_nonzero(s.explain()["forecast"] == 0.5) == truths


def test_a_forecast_depends_on_client_and_round_not_on_who_else_is_asked() -> None:
    shares = np.linspace(0, 1, 50)
    first = make(50, seed=4)
    second = make(50, seed=4)
    first.select(at(first, 1, share=shares.tolist()), 30)
    second.select(at(second, 1, share=shares.tolist(), online=[3, 7, 9]), 1)
    first.select(at(first, 2, share=shares.tolist()), 30)
    second.select(at(second, 2, share=shares.tolist(), online=[40, 41]), 2)
    assert first.explain()["forecast"].tolist() == second.explain()["forecast"].tolist()
    other = make(50, seed=5)
    other.select(at(other, 2, share=shares.tolist()), 30)
    assert first.explain()["forecast"].tolist() != other.explain()["forecast"].tolist()


def test_what_the_trace_hands_out_is_not_written_to() -> None:
    mine = np.full(300, 0.5)
    s = make(300, accuracy=0.0)
    s.select(at(s, 1, share=lambda start, end: mine), 1)
    assert (mine == 0.5).all()


def test_rounding_errors_of_a_trace_make_no_order() -> None:
    # 0.1 + 0.2 is not 0.3: clients 0 and 1 tie, and each is first in half of the cases.
    first = 0
    for seed in range(400):
        s = make(3, seed, accuracy=1)
        first += int(s.select(at(s, 1, share=[0.3, 0.1 + 0.2, 0.9]), 1)[0])
    assert abs(first - 200) < five_sigma(400, 0.5)
    assert s.explain()["forecast"].tolist() == [0.3, 0.3, 0.9]
    s.select(at(s, 2, share=[-1e-12, 1 + 1e-9, 0.5]), 1)
    assert s.explain()["forecast"].tolist() == [0.0, 1.0, 0.5]


def test_ties_are_broken_fairly() -> None:
    # Two of five seats are taken by clients 0 and 1; each of the other eight gets one of the three
    # left with 3/8.
    s = make(10, accuracy=1, rest=0)
    counts = np.zeros(10)
    view = at(s, 1, share=[0.0, 0.1] + [0.5] * 8)
    for _ in range(2000):
        counts[s.select(view, 5)] += 1
    assert counts[:2].tolist() == [2000, 2000]
    assert np.abs(counts[2:] - 750).max() < five_sigma(2000, 3 / 8)


def test_without_a_trace_choice_is_at_random_with_one_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    s = make(10, rest=0)
    counts = np.zeros(10)
    with caplog.at_level(logging.WARNING):
        for t in range(1, 1001):
            counts[s.select(at(s, t), 4)] += 1
        resumed = make(10)
        resumed.load_state_dict(wire.decode(wire.encode(s.state_dict())))
        resumed.select(at(resumed, 1001), 4)
    assert np.abs(counts - 400).max() < five_sigma(1000, 0.4)
    assert s.explain()["forecast"].tolist() == [1.0] * 10
    assert [r.message for r in caplog.records] == [
        "refl: without an availability trace (device_avail_file) everyone is always online, so "
        "clients are chosen at random"
    ]


def test_with_a_trace_or_by_history_nobody_is_warned(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        s = make(3)
        s.select(at(s, 1, share=[0.0, 0.5, 1.0]), 1)
        s = make(3, forecast="history")
        s.select(at(s, 1), 1)
    assert not caplog.records


def test_forecasts_by_history_by_hand() -> None:
    # Hour 1 of three days: client 0 is online in 1 of 3 visits, 1 in 2 of 2 (once it is on the way
    # with an update, which is no visit), 2 in 0 of 3. Hour 2, once: 0 and 2. Asked at 0:50 for a
    # window of 50 minutes: from 1:40 to 2:30, 2/5 in hour 1 and 3/5 in hour 2.
    s = make(3, forecast="history")
    on_the_way: dict[str, Any] = {"pending": np.array([1]), "pending_seconds": np.ones(1)}
    s.select(at(s, 1, 1.2 * HOUR, online=[0, 1]), 1)
    s.select(at(s, 2, DAY + 1.9 * HOUR, online=[1]), 1)
    s.select(at(s, 3, 2 * DAY + 1.0 * HOUR, online=[], **on_the_way), 0)
    s.select(at(s, 4, 2 * DAY + 2.1 * HOUR, online=[0, 2]), 1)
    s.select(at(s, 5, 3 * DAY + 5 / 6 * HOUR, online=[0, 2], deadline=5 / 6 * HOUR), 1)
    assert s.explain()["forecast"] == pytest.approx([0.4 / 3 + 0.6, 0.4, 0.6], abs=1e-6)
    # The hours from 5 to 7 were never seen: each has its share of all visits, the one at 0:50 and
    # this one included: 4 of 6, 3 of 5 and 2 of 6.
    s.select(at(s, 6, 3 * DAY + 4 * HOUR, online=[0, 1], deadline=HOUR), 1)
    assert s.explain()["forecast"] == pytest.approx([4 / 6, 3 / 5, 2 / 6], abs=1e-6)


def test_history_is_right_more_often_with_the_days() -> None:
    # 60 clients; half of them are online from 8 to 12 o'clock only, half from 8 to 20. Rounds of
    # half an hour. On the first day nobody has been seen at 12 o'clock, and all alike so far: of 10
    # picks at 11:00, for 12:00 to 13:00, about half will have left. From the second day on, all.
    leaves = np.arange(60) % 2 == 0
    leaving = []
    for seed in range(5):
        s = make(60, seed, forecast="history", rest=0)
        t = 0
        for half in range(3 * 48):
            t += 1
            hour = half % 48 / 2
            online = np.flatnonzero((hour >= 8) & (hour < np.where(leaves, 12, 20)))
            rows = s.select(at(s, t, half * HOUR / 2, online=online, deadline=HOUR / 2), 10)
            if hour == 11.5:
                leaving.append(int(leaves[rows].sum()))
    first = leaving[::3]
    assert abs(sum(first) - 25) < five_sigma(50, 0.5)
    assert leaving[1::3] == leaving[2::3] == [10] * 5


@settings(max_examples=200, deadline=None, derandomize=True)
@given(start=st.integers(0, 3 * 24 * 60), minutes=st.integers(1, 2 * 24 * 60))
def test_the_hours_of_a_window_are_counted_by_the_minute(start: int, minutes: int) -> None:
    counted = np.zeros(24)
    for minute in range(start, start + minutes):
        counted[minute // 60 % 24] += 1 / minutes
    found = by_hour(60.0 * start, 60.0 * (start + minutes))
    assert found == pytest.approx(counted, abs=1e-9)
    assert found.sum() == pytest.approx(1.0)


# ---- against the page, with plain loops


@dataclass
class World:
    """Clients that come and go, some of them busy with late updates, seen round by round."""

    seed: int
    n: int = field(init=False)
    deadline: float | None = field(init=False)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng([8, self.seed])
        self.n = int(self.rng.integers(1, 40))
        self.deadline = float(self.rng.integers(10, 4000)) if self.rng.random() < 0.5 else None
        self.period = float(self.rng.integers(5000, 100_000))
        self.intervals = [self._of_one() for _ in range(self.n)]
        self.availability = trace(self.intervals, self.period)
        self.clock = 0.0
        self.arrivals: dict[int, float] = {}  # of those on the way

    def _of_one(self) -> list[tuple[float, float]]:
        """Intervals that a client is online; in half of the cases also at both ends of a period."""
        marks = np.sort(self.rng.random(2 * int(self.rng.integers(1, 5)))) * self.period
        if self.rng.random() < 0.5:
            marks = np.concatenate([[0.0], marks, [self.period]])
        return list(zip(marks[::2].tolist(), marks[1::2].tolist(), strict=True))

    def share(self, client: int, start: float, end: float) -> float:
        """The share of a window in which a client is online, interval by interval."""
        seconds = 0.0
        for day in range(int(start // self.period), int(end // self.period) + 1):
            for a, b in self.intervals[client]:
                begin = max(a + day * self.period, start)
                seconds += max(0.0, min(b + day * self.period, end) - begin)
        return seconds / (end - start)

    def view(self, clients: ClientTable, t: int) -> RoundView:
        self.arrivals = {i: at for i, at in self.arrivals.items() if at > self.clock}
        pending = sorted(self.arrivals)
        online = np.flatnonzero(self.availability.online(self.clock))
        return replace(
            look(clients, t, np.setdiff1d(online, pending)),
            clock=self.clock,
            deadline=self.deadline,
            pending=np.array(pending, np.int64),
            pending_seconds=np.array([self.arrivals[i] - self.clock for i in pending]),
            online_share=self.availability.share,
            cohort_size=5,
        )

    def pass_on(self, rows: np.ndarray) -> np.ndarray:
        """The round goes by. Who was in time, (m,) bool; some of the others come late."""
        lasts = float(self.rng.choice([30.0, 400.0, 3000.0])) * float(self.rng.random())
        valid = self.rng.random(len(rows)) < 0.6
        for row in rows[~valid].tolist():
            if self.rng.random() < 0.8:
                self.arrivals[row] = self.clock + lasts * (1 + 3 * float(self.rng.random()))
        self.clock += lasts
        return valid


class ByTheBook:
    """The steps of the page, with numbers in dictionaries."""

    def __init__(self, world: World, params: ReflParams, durations: list[float], luck_seed: int):
        self.world = world
        self.params = params
        self.durations = sorted(durations)
        self.luck_seed = luck_seed
        self.mu = 0.0
        self.clock_before: float | None = None
        self.last_run: dict[int, int] = {}
        self.seen: dict[tuple[int, int], list[bool]] = {}  # client, hour -> online at each visit

    def begin(self, view: RoundView) -> None:
        if self.clock_before is not None:
            a = self.params.smoothing
            self.mu = (1 - a) * (view.clock - self.clock_before) + a * self.mu
        self.clock_before = view.clock
        hour = int(view.clock / 3600) % 24
        for i in range(self.world.n):
            if i not in view.pending:
                self.seen.setdefault((i, hour), []).append(i in view.online)

    def window(self, view: RoundView) -> float:
        if view.deadline is not None:
            return view.deadline
        if view.round > 1:
            return self.mu
        middle = len(self.durations) // 2
        return (self.durations[middle] + self.durations[-middle - 1]) / 2

    def forecast(self, view: RoundView, i: int) -> float:
        window = self.window(view)
        start = view.clock + window
        end = start + window
        if self.params.forecast == "history":
            return self._by_history(i, start, end)
        luck = uniforms(self.luck_seed, "forecast", np.array([i + 1]), view.round)[0]
        if luck > self.params.accuracy:
            return float((luck - self.params.accuracy) / (1 - self.params.accuracy))
        return self.world.share(i, start, end)

    def _by_history(self, i: int, start: float, end: float) -> float:
        every = [answer for (j, _), answers in self.seen.items() if j == i for answer in answers]
        total = 0.0
        for hour in range(int(start / 3600), int(end / 3600) + 1):
            overlap = min(end, 3600 * (hour + 1)) - max(start, 3600 * hour)
            answers = self.seen.get((i, hour % 24), every)
            total += overlap / (end - start) * (sum(answers) / len(answers) if answers else 0.0)
        return total

    def waits(self, view: RoundView, i: int) -> int:
        """Rounds until client i may be asked again."""
        if i not in self.last_run:
            return 0
        return max(0, self.last_run[i] + self.params.rest - view.round)

    def target(self, view: RoundView, k: int) -> int:
        if not self.params.adaptive_target:
            return k
        b = sum(1 for left in view.pending_seconds if left <= self.mu)
        assert view.cohort_size is not None
        return min(k, max(1, view.cohort_size - b))


@pytest.mark.parametrize("seed", range(100))
def test_agrees_with_the_page(seed: int) -> None:
    world = World(seed)
    rng = world.rng
    params = ReflParams(
        forecast=str(rng.choice(["trace", "history"])),
        accuracy=float(rng.choice([1.0, 0.9, 0.3])),
        rest=int(rng.choice([0, 2, 5])),
        adaptive_target=bool(rng.random() < 0.5),
        smoothing=float(rng.choice([0.25, 0.8])),
    )
    durations = (1 + 400 * rng.random(world.n)).tolist()
    s = Refl(params, table(world.n, duration=durations), np.random.default_rng(seed))
    book = ByTheBook(world, params, durations, s.forecast_seed)
    for t in range(1, 13):
        view = world.view(s.clients, t)
        book.begin(view)
        k = min(5, len(view.online))
        rows = s.select(view, k)
        told = s.explain()
        assert s.diagnostics()["expected_round"] == pytest.approx(book.mu)
        assert s.diagnostics()["window"] == pytest.approx(book.window(view))
        expected = [book.forecast(view, i) for i in range(world.n)]
        assert told["forecast"] == pytest.approx(expected, abs=2e-6)
        waits = [book.waits(view, i) for i in range(world.n)]
        assert told["resting"].tolist() == [left > 0 for left in waits]
        # Everyone online in the order in which it is asked; who ties may change places.
        order = sorted((waits[i], told["forecast"][i]) for i in view.online.tolist())
        assert [(waits[i], told["forecast"][i]) for i in rows.tolist()] == order[
            : book.target(view, k)
        ]
        valid = world.pass_on(rows)
        s.update(outcome(t, rows, valid=valid))
        for i in rows.tolist():
            book.last_run[i] = t


# ---- invariants


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    n=st.integers(1, 12),
    k=st.integers(0, 14),
    seed=st.integers(0, 99),
    forecast=st.sampled_from(["trace", "history"]),
    accuracy=st.sampled_from([0.0, 0.9, 1.0]),
    rest=st.integers(0, 6),
    adaptive=st.booleans(),
    data=st.data(),
)
def test_distinct_online_rows_and_a_resumed_selector_goes_on_alike(
    n: int,
    k: int,
    seed: int,
    forecast: str,
    accuracy: float,
    rest: int,
    adaptive: bool,
    data: st.DataObject,
) -> None:
    def fresh(number: int) -> Refl:
        return make(
            n,
            number,
            forecast=forecast,
            accuracy=accuracy,
            rest=rest,
            adaptive_target=adaptive,
        )

    s = fresh(seed)
    clock = 0.0
    with np.errstate(divide="raise", invalid="raise", over="raise"):
        for t in range(1, 5):
            state = data.draw(st.lists(st.sampled_from("ofp"), min_size=n, max_size=n))
            online = [i for i in range(n) if state[i] == "o"]
            pending = np.array([i for i in range(n) if state[i] == "p"], np.int64)
            shares = np.random.default_rng([seed, t]).choice([0.0, 0.25, 1.0], n)
            twin = fresh(seed + 1)
            twin.load_state_dict(wire.decode(wire.encode(s.state_dict())))
            view = at(
                s,
                t,
                clock,
                data.draw(st.sampled_from([None, shares.tolist()])),
                online,
                pending=pending,
                pending_seconds=5.0 * np.arange(len(pending)),
                cohort_size=k,
                deadline=data.draw(st.sampled_from([None, 7.0])),
            )
            seats = min(k, len(online))
            rows = s.select(view, seats)
            assert rows.tolist() == twin.select(view, seats).tolist()
            assert len(rows) == len(set(rows.tolist())) <= seats
            assert adaptive or len(rows) == seats
            assert len(rows) >= min(1, seats)
            assert set(rows.tolist()) <= set(online)
            np.testing.assert_equal(s.explain(), twin.explain())
            assert ((s.forecast >= 0) & (s.forecast <= 1)).all()
            json.dumps(s.diagnostics(), allow_nan=False)
            # Nobody rests in the cohort while somebody rested is left out.
            left_out = np.setdiff1d(online, rows).astype(np.int64)
            if s.resting[rows].any():
                assert s.resting[left_out].all()
            s.update(outcome(t, rows))
            clock += float(data.draw(st.sampled_from([0.0, 3.0, 5000.0])))


@pytest.mark.parametrize("seed", range(20))
def test_clients_in_another_order_are_chosen_alike(seed: int) -> None:
    # Shares differ, so that nothing is left to luck; luck with forecasts follows the client's id.
    rng = np.random.default_rng([5, seed])
    n = 20
    shares = rng.permutation(n) / n
    order = rng.permutation(n)
    s = make(n, seed)
    shuffled = Refl(s.params, replace(s.clients, ids=s.clients.ids[order]), np.random.default_rng())
    shuffled.forecast_seed = s.forecast_seed
    for t in range(1, 8):
        online = np.flatnonzero(rng.random(n) < 0.8)
        rows = s.select(at(s, t, share=shares.tolist(), online=online), 4)
        places = np.flatnonzero(np.isin(order, online))
        again = shuffled.select(at(shuffled, t, share=shares[order].tolist(), online=places), 4)
        assert order[again].tolist() == rows.tolist()
        s.update(outcome(t, rows))
        shuffled.update(outcome(t, again))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("forecast", "oracle"),
        ("accuracy", 1.1),
        ("rest", -1),
        ("rest", 2.5),
        ("smoothing", 2),
        ("late_weight", "1/(tau+1)"),
        ("beta", -0.1),
        ("adaptive_target", "perhaps"),
    ],
)
def test_bad_parameters_are_refused(name: str, value: object) -> None:
    with pytest.raises(UserError, match=name):
        ReflParams.from_mapping({name: value})


# ---- what it is good for


@pytest.mark.parametrize("seed", range(3))
def test_it_asks_those_about_to_leave_and_one_wrong_forecast_in_ten_costs_one_seat(
    seed: int,
) -> None:
    # In each of 100 rounds 10 of 200 clients are about to leave (share 0), the others stay (1);
    # 10 seats. With forecasts that are always right all seats go to those 10. With 0.9 each of them
    # is asked for sure if its forecast is right, as no other answer is 0. Of the 10 - C others
    # about to leave, and of the W ~ Binomial(190, 0.1) that stay and are forecast wrongly, the
    # lowest uniform answers fill the 10 - C seats: of expected (10 - C)^2 / (10 - C + W) seats to
    # the former. So of 1000 seats 900 + about 7, with a standard deviation below
    # sqrt(1000 0.1 0.9) = 9.5.
    for accuracy, expected, off in ((1.0, 1000, 0.0), (0.9, 907, five_sigma(1000, 0.1))):
        rng = np.random.default_rng([6, seed])
        s = make(200, seed, accuracy=accuracy, rest=0)
        taken = 0
        for t in range(1, 101):
            leaves = np.zeros(200, bool)
            leaves[rng.choice(200, 10, replace=False)] = True
            rows = s.select(at(s, t, share=(~leaves).astype(float).tolist()), 10)
            taken += int(leaves[rows].sum())
        assert abs(taken - expected) <= off


def test_a_job_with_it_learns_merges_late_updates_and_resumes(job: MakeJob, tmp_path: Path) -> None:
    # Everyone takes about 0.8 s, so that about half are late. Odd clients are offline from 4 s to
    # 8 s. Rounds of 0.8 s: in one that begins after 2.5 s, the slot after the coming one ends past
    # 4 s, and 4 of the odd ones are asked, as fewer than 7 of those 10 have an update on the way.
    users = {0: user((0, 900)), 1: user((0, 4), (8, 900))}
    (tmp_path / "trace").write_bytes(pickle.dumps(users))
    small = job(
        sample_mode="refl",
        refl__rest=0,
        refl__accuracy=1.0,
        rounds=15,
        checkpoint_every=3,
        device_avail_file=str(tmp_path / "trace"),
        round_deadline=0.8,
        duration_jitter=0.5,
    )
    whole = run(small)
    rounds = records(whole)
    metrics = records(whole, "metrics.jsonl")
    assert metrics[-1]["loss"] < 0.8 * metrics[0]["loss"]
    began = [0.0, *(r["clock"] for r in rounds)]
    about = [r for r, clock in zip(rounds, began, strict=False) if 2.5 < clock < 4]
    assert about
    assert all(client % 2 for r in about for client in r["asked"])
    late_ones = [update for r in rounds for update in r["late"]]
    assert len(late_ones) > 5
    assert all(0 < update["weight"] < 1 for update in late_ones)
    assert {r["selector"]["window"] for r in rounds} == {0.8}
    assert max(r["selector"]["pending"] for r in rounds) > 0
    same_records(run_killed_and_resumed(small, 8), whole)
