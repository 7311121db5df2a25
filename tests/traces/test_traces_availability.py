"""Who is online when: the two look-ups against a reference that reads like the definition."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsuv_plugin.traces import availability as module
from fedsuv_plugin.traces.availability import Availability

Client = tuple[list[tuple[float, float]], float]  # intervals and period


def make(clients: list[Client]) -> Availability:
    intervals = [pair for pairs, _ in clients for pair in pairs]
    return Availability(
        starts=np.array([a for a, _ in intervals], float),
        ends=np.array([b for _, b in intervals], float),
        offsets=np.cumsum([0] + [len(pairs) for pairs, _ in clients]),
        periods=np.array([p for _, p in clients], float),
    )


def by_the_book(client: Client, time: float) -> bool:
    intervals, period = client
    return any(start <= time % period <= end for start, end in intervals)


@st.composite
def client(draw: st.DrawFn) -> Client:
    """Ascending, disjoint intervals, on a period that may cut the last ones off.

    Some touch each other, and some have length 0."""
    fraction = draw(st.sampled_from([1.0, 0.25]))
    marks = sorted(draw(st.lists(st.integers(0, 5000), max_size=16)))
    pairs = [(a * fraction, b * fraction) for a, b in zip(marks[::2], marks[1::2], strict=False)]
    return pairs, float(draw(st.sampled_from([100, 1000, 5000, 6000])))


def interesting_times(clients: list[Client]) -> list[float]:
    """Ends, just outside them, and the same in the next periods."""
    ends = [t for pairs, _ in clients for pair in pairs for t in pair]
    edges = [t + nudge for t in ends for nudge in (-0.125, 0.0, 0.125)]
    periods = [p for _, p in clients]
    times = [t + k * p for t in [*edges, 0.0] for k in (0, 1, 7) for p in periods]
    return [t for t in times if t >= 0][:60]


@settings(max_examples=150, deadline=None)
@given(st.lists(client(), min_size=1, max_size=6), st.data())
def test_online_is_the_definition(clients: list[Client], data: st.DataObject) -> None:
    trace = make(clients)
    n = len(clients)
    times = interesting_times(clients) + data.draw(st.lists(st.floats(0, 20_000), max_size=5))
    for time in times:
        expected = [by_the_book(c, time) for c in clients]
        assert trace.online(time).tolist() == expected  # everybody: by shelf
        assert trace.online(np.full(n, time)).tolist() == expected  # one time each: by search
    rows = np.array(data.draw(st.lists(st.integers(0, n - 1), max_size=8)), np.int64)
    some = st.lists(st.sampled_from(times), min_size=len(rows), max_size=len(rows))
    own = np.array(data.draw(some), float)
    expected = [by_the_book(clients[r], t) for r, t in zip(rows, own, strict=True)]
    assert trace.online(own, rows).tolist() == expected
    picked = trace.take(rows)
    assert picked.online(times[0]).tolist() == [by_the_book(clients[r], times[0]) for r in rows]


def test_ends_are_inclusive_and_the_period_repeats() -> None:
    # Online 10..20 and 30..40 of every 100 s. 140 is 40 again (online), 140.5 is past the end; 100
    # is 0 (offline).
    trace = make([([(10, 20), (30, 40)], 100.0)])
    times = [9.9, 10, 20, 20.1, 30, 40, 40.1, 100, 110, 140, 140.5, 100 * 10_000 + 15]
    answers = [bool(trace.online(t)[0]) for t in times]
    assert answers == [False, True, True, False, True, True, False, False, True, True, False, True]


def test_nothing_wraps_past_the_period() -> None:
    # 90..110 on a period of 100: 110 is never reached, and 105 is 5, when the client is offline; as
    # in FedScale.
    trace = make([([(90, 110)], 100.0)])
    assert [bool(trace.online(t)[0]) for t in (95, 99.9, 105)] == [True, True, False]


def test_asking_changes_nothing() -> None:
    # FedScale's answer depends on who asked before; ours is the same in any order.
    trace = make([([(0, 1), (10, 11), (20, 21)], 100.0)])
    assert [bool(trace.online(t)[0]) for t in (20.5, 10.5, 0.5, 20.5)] == [True] * 4


def test_clients_without_intervals_are_never_online() -> None:
    trace = make([([], 10.0), ([(0, 10)], 10.0), ([], 10.0)])
    assert trace.online(3.0).tolist() == [False, True, False]
    assert trace.online(np.array([3.0, 3.0, 3.0])).tolist() == [False, True, False]
    assert make([([], 10.0)]).online(3.0).tolist() == [False]
    assert make([([], 10.0)]).online(np.array([3.0])).tolist() == [False]


def test_many_distinct_periods_are_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_PERIODS", 3)
    clients = [([(0.0, 5.0)], 10.0 + i) for i in range(5)]
    trace = make(clients)
    assert trace._shelves is None
    for time in (3.0, 12.0, 100.0):
        assert trace.online(time).tolist() == [by_the_book(c, time) for c in clients]


def test_times_past_what_a_shelf_can_index() -> None:
    # A shelf sorts by whole seconds in 31 bits; later starts share the last one and are told apart
    # exactly.
    late = 2.0**31
    clients = [
        ([(late, late + 5), (late + 10, late + 20)], 2.0**33),
        ([(late + 8, late + 9)], 2.0**33),
    ]
    trace = make(clients)
    for time in (late - 1, late, late + 5, late + 6, late + 8.5, late + 10, late + 20, late + 21):
        assert trace.online(time).tolist() == [by_the_book(c, time) for c in clients]


def large_trace() -> Availability:
    """2,000 clients with up to 29 intervals in a week, on three periods."""
    rng = np.random.default_rng(3)
    lengths = rng.integers(0, 30, 2000)
    each = [np.sort(rng.choice(600_000, 2 * k, replace=False)) for k in lengths]
    marks = np.concatenate(each).astype(float)
    return Availability(
        starts=marks[::2],
        ends=marks[1::2],
        offsets=np.concatenate([[0], np.cumsum(lengths)]),
        periods=rng.choice([86_400.0, 518_400.0, 604_800.0], 2000),
    )


def test_both_look_ups_agree_on_a_large_trace() -> None:
    trace = large_trace()
    for time in (0.0, 777.0, 90_000.5, 2_000_000.0):
        np.testing.assert_array_equal(trace.online(time), trace.online(np.full(2000, time)))


# ---- shares of time


def test_the_share_of_a_window_by_hand() -> None:
    # Worked example R1 of the selector refl: the window from 100 s to 200 s.
    traces: list[list[tuple[float, float]]] = [
        [(0, 90)],
        [(0, 150)],
        [(0, 250)],
        [(0, 120), (130, 260)],
    ]
    trace = make([(pairs, 1000.0) for pairs in traces])
    assert trace.share(100.0, 200.0).tolist() == [0.0, 0.5, 1.0, 0.9]
    # In the window from 900 s to 1100 s the trace begins anew at 1000 s.
    assert trace.share(900.0, 1100.0).tolist() == [0.45, 0.5, 0.5, 0.5]
    with pytest.raises(ValueError, match="expected an end after"):
        trace.share(5.0, 5.0)


def share_by_the_book(client: Client, start: float, end: float) -> float:
    """Every interval of every period, cut to the window."""
    pairs, period = client
    online = 0.0
    for repeat in range(int(start // period), int(end // period) + 1):
        for a, b in pairs:
            a, b = min(a, period) + repeat * period, min(b, period) + repeat * period
            online += max(0.0, min(b, end) - max(a, start))
    return online / (end - start)


@pytest.mark.parametrize("most_periods", [32, 0])  # by shelf, and by search
@settings(max_examples=150, deadline=None)
@given(
    clients=st.lists(client(), min_size=1, max_size=6),
    start=st.floats(0, 20_000),
    length=st.one_of(st.floats(0.5, 200), st.floats(0.5, 20_000)),
)
def test_the_share_is_the_definition(
    most_periods: int, clients: list[Client], start: float, length: float
) -> None:
    trace = make(clients)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_MOST_PERIODS", most_periods)
        assert (trace._shelves is None) == (most_periods == 0)
    share = trace.share(start, start + length)
    expected = [share_by_the_book(c, start, start + length) for c in clients]
    assert share == pytest.approx(expected, abs=1e-7)
    assert ((share >= -1e-9) & (share <= 1 + 1e-9)).all()


def test_both_ways_to_the_share_agree_on_a_large_trace() -> None:
    trace = large_trace()
    for start, length in ((0.0, 100.0), (86_300.5, 250.0), (2e6, 90_000.0), (5e5, 2e6)):
        until = trace._online_until(start + length) - trace._online_until(start)
        assert trace.share(start, start + length) == pytest.approx(until / length, abs=1e-9)
