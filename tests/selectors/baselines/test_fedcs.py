"""FedCS: as many as can be done before the deadline."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from conftest import DEVICES, MakeJob, records, run, run_killed_and_resumed, same_records
from hypothesis import given, settings
from hypothesis import strategies as st
from selector_worlds import Rows, five_sigma, look, table

from fedsuv_plugin import wire
from fedsuv_plugin.errors import UserError
from fedsuv_plugin.selectors.base import ClientTable, RoundView
from fedsuv_plugin.selectors.baselines.fedcs import FedCS, FedCSParams

# The four clients of O1.
DOWNLOAD = np.array([2.0, 2, 4, 2])
COMPUTING = np.array([5.0, 12, 3, 8])
UPLOAD = np.array([6.0, 4, 5, 9])


def taking(download: np.ndarray, computing: np.ndarray, upload: np.ndarray) -> ClientTable:
    clients = table(len(download), duration=download + computing + upload)
    return replace(clients, download=download, upload=upload)


def make(clients: ClientTable, seed: int = 0, **params: object) -> FedCS:
    return FedCS(FedCSParams.from_mapping(params), clients, np.random.default_rng(seed))


def by(s: FedCS, deadline: float | None, online: Rows = None) -> RoundView:
    return replace(look(s.clients, online=online), deadline=deadline)


def times(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Seconds of up to 30 clients, no two alike."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 31))
    return rng.exponential(2, n), rng.exponential(8, n), rng.exponential(5, n)


# ---- worked by hand


@pytest.mark.parametrize(
    ("deadline", "chosen", "done_at"),
    [
        # Theta = 0: client 2 delays by 4 + 5 + 3 = 12, the others by 13, 18 and 19; Theta = 8. Then
        # 0 by 6 (its 5 s are over), 1 by 4 + 4, 3 by 9; Theta = 14. Then 1 by 4 (its 12 s are over)
        # and 3 by 9; Theta = 18, and with the slowest download, 4, the round takes 22. Client 3
        # would end at 4 + 27 = 31.
        (30.0, [2, 0, 1], [18.0, 22.0, 12.0, math.nan]),
        # Now client 1, which would end at 22, is left out, too.
        (20.0, [2, 0], [18.0, math.nan, 12.0, math.nan]),
        # Done exactly at the deadline is not before it.
        (18.0, [2], [math.nan, math.nan, 12.0, math.nan]),
        # Client 2, at 12, does not fit and is passed over; neither does 0, at 13, nor another.
        (12.0, [], [math.nan] * 4),
        (None, [2, 0, 1, 3], [18.0, 22.0, 12.0, 31.0]),
    ],
)
def test_sequential_by_hand(
    deadline: float | None, chosen: list[int], done_at: list[float]
) -> None:
    s = make(taking(DOWNLOAD, COMPUTING, UPLOAD), candidates=1.0, schedule="sequential")
    assert s.select(by(s, deadline), 4).tolist() == chosen
    assert s.explain()["done_at"] == pytest.approx(done_at, nan_ok=True)
    ends = [t for t in done_at if not math.isnan(t)]
    assert s.diagnostics() == {
        "candidates": 4,
        "chosen": len(chosen),
        "expected_round": max(ends) if ends else None,
    }


def test_a_client_that_does_not_fit_is_passed_over_for_one_that_delays_more() -> None:
    # Client 0 delays by 10 + 1 = 11 and client 1 by 0 + 12. The deadline is 12.5: first 0, then 1
    # would end at 10 + 13. Were 0 too slow alone, at 14, client 1 would still fit.
    first = taking(np.array([10.0, 0]), np.array([0.0, 0]), np.array([1.0, 12]))
    s = make(first, candidates=1.0, schedule="sequential")
    assert s.select(by(s, 12.5), 2).tolist() == [0]
    second = taking(np.array([0.0, 0]), np.array([0.0, 0]), np.array([14.0, 12]))
    s = make(second, candidates=1.0, schedule="sequential")
    assert s.select(by(s, 12.5), 2).tolist() == [1]


def test_parallel_by_hand() -> None:
    # 13, 18, 12 and 19 seconds in all.
    s = make(taking(DOWNLOAD, COMPUTING, UPLOAD), candidates=1.0)
    assert s.select(by(s, 18.0), 4).tolist() == [2, 0, 1]  # done at the deadline is in time
    assert s.explain()["done_at"] == pytest.approx([13, 18, 12, math.nan], nan_ok=True)
    assert s.select(by(s, 18.0), 2).tolist() == [2, 0]
    assert s.select(by(s, 11.0), 4).tolist() == []
    assert s.diagnostics() == {"candidates": 4, "chosen": 0, "expected_round": None}
    assert s.select(by(s, None), 4).tolist() == [2, 0, 1, 3]


def test_how_many_candidates_there_are() -> None:
    # ceil(0.1 95) = 10; 0.07 100 = 7.0000000000000009 in binary floating point, and it is 7; never
    # fewer than the seats, nor more than are online.
    for share, online, k, expected in (
        (0.1, 95, 3, 10),
        (0.07, 100, 3, 7),
        (0.1, 95, 20, 20),
        (1.0, 95, 20, 95),
        (0.1, 5, 20, 5),
    ):
        s = make(table(100), candidates=share)
        s.select(by(s, None, np.arange(online)), k)
        assert s.diagnostics()["candidates"] == expected
        assert s.explain()["candidate"].sum() == expected


# ---- against the page, with plain loops


def schedule_by_the_book(
    rows: list[int],
    download: np.ndarray,
    computing: np.ndarray,
    upload: np.ndarray,
    deadline: float,
) -> list[int]:
    """Algorithm 3: every candidate is looked at once and kept if there is time for it."""
    left = list(rows)
    chosen: list[int] = []
    theta = 0.0

    def slowest(members: list[int]) -> float:
        return max((float(download[i]) for i in members), default=0.0)

    def added(i: int) -> float:
        return float(upload[i]) + max(0.0, float(computing[i]) - theta)

    while left:
        x = min(left, key=lambda i: slowest([*chosen, i]) - slowest(chosen) + added(i))
        left.remove(x)
        if slowest([*chosen, x]) + theta + added(x) < deadline:
            theta += added(x)
            chosen.append(x)
    return chosen


@pytest.mark.parametrize("seed", range(100))
def test_sequential_agrees_with_the_pseudocode(seed: int) -> None:
    download, computing, upload = times(seed)
    rng = np.random.default_rng(seed)
    s = make(taking(download, computing, upload), seed, candidates=0.6, schedule="sequential")
    for deadline in (math.inf, 60.0, 30.0, 10.0):
        online = np.flatnonzero(rng.random(len(download)) < 0.8)
        k = int(rng.integers(0, 12))
        rows = s.select(by(s, deadline, online), k)
        candidates = np.flatnonzero(s.explain()["candidate"]).tolist()
        book = schedule_by_the_book(candidates, download, computing, upload, deadline)
        assert rows.tolist() == book[:k]


@pytest.mark.parametrize("seed", range(100))
def test_parallel_agrees_with_the_page(seed: int) -> None:
    download, computing, upload = times(seed)
    rng = np.random.default_rng(seed)
    seconds = download + computing + upload
    s = make(taking(download, computing, upload), seed, candidates=0.6)
    for deadline in (math.inf, 20.0, 10.0):
        online = np.flatnonzero(rng.random(len(download)) < 0.8)
        k = int(rng.integers(0, 12))
        rows = s.select(by(s, deadline, online), k)
        candidates = np.flatnonzero(s.explain()["candidate"]).tolist()
        in_time = sorted(
            (i for i in candidates if seconds[i] <= deadline), key=lambda i: seconds[i]
        )
        assert rows.tolist() == in_time[:k]


# ---- the draws


def test_candidates_are_drawn_uniformly() -> None:
    # 4 of 10 in each of 2000 rounds: Binomial(2000, 0.4).
    s = make(table(10), candidates=0.4)
    counts = np.zeros(10)
    for _ in range(2000):
        s.select(by(s, None), 1)
        counts += s.explain()["candidate"]
    assert np.abs(counts - 800).max() < five_sigma(2000, 0.4)


@pytest.mark.parametrize("schedule", ["parallel", "sequential"])
def test_ties_are_broken_fairly(schedule: str) -> None:
    counts = np.zeros(10)
    clients = taking(np.ones(10), np.ones(10), np.ones(10))
    for seed in range(2000):
        s = make(clients, seed, candidates=1.0, schedule=schedule)
        counts[s.select(by(s, 100.0), 4)] += 1
    assert np.abs(counts - 800).max() < five_sigma(2000, 0.4)


# ---- invariants


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    n=st.integers(1, 15),
    k=st.integers(0, 18),
    seed=st.integers(0, 99),
    schedule=st.sampled_from(["parallel", "sequential"]),
    share=st.sampled_from([0.01, 0.5, 1.0]),
    deadline=st.sampled_from([None, 0.5, 5.0, 20.0]),
    data=st.data(),
)
def test_at_most_k_candidates_that_are_in_time_and_a_resumed_selector_goes_on_alike(
    n: int,
    k: int,
    seed: int,
    schedule: str,
    share: float,
    deadline: float | None,
    data: st.DataObject,
) -> None:
    rng = np.random.default_rng(seed)
    legs = [rng.choice([0.0, 1.0, 2.5, 9.0], n) for _ in range(3)]
    keys: dict[str, Any] = {"schedule": schedule, "candidates": share}
    s = make(taking(*legs), seed, **keys)
    for _ in range(3):
        online = sorted(data.draw(st.sets(st.integers(0, n - 1))))
        twin = make(taking(*legs), seed + 1, **keys)
        twin.load_state_dict(wire.decode(wire.encode(s.state_dict())))
        rows = s.select(by(s, deadline, online), k)
        assert rows.tolist() == twin.select(by(twin, deadline, online), k).tolist()
        assert len(rows) == len(set(rows.tolist())) <= min(k, len(online))
        told = s.explain()
        np.testing.assert_equal(told, twin.explain())
        json.dumps(s.diagnostics(), allow_nan=False)
        assert told["candidate"][rows].all()
        assert set(np.flatnonzero(told["candidate"]).tolist()) <= set(online)
        assert np.flatnonzero(np.isfinite(told["done_at"])).tolist() == sorted(rows.tolist())
        if deadline is None:
            assert len(rows) == min(k, len(online))
        else:
            assert (told["done_at"][rows] <= deadline).all()


@pytest.mark.parametrize(
    ("name", "value"), [("candidates", 0), ("candidates", 1.1), ("schedule", "serial")]
)
def test_bad_parameters_are_refused(name: str, value: object) -> None:
    with pytest.raises(UserError, match=name):
        FedCSParams.from_mapping({name: value})


def test_a_schedule_that_needs_the_transfers_is_refused_without_them() -> None:
    with pytest.raises(UserError, match="fedcs.schedule: expected parallel, where the seconds of"):
        make(table(3), schedule="sequential")
    assert len(make(table(3)).select(look(table(3)), 2)) == 2


# ---- behaviour


def test_nobody_is_asked_in_vain_and_the_job_learns_and_resumes(job: MakeJob) -> None:
    """Without fluctuation whoever is expected in time is in time."""
    # 54.3 s is the median of these 60 devices. Of the 80 that random asks Binomial(80, 1/2) are in
    # time, at most five standard deviations, 0.28, more than a half.
    keys: dict[str, Any] = {
        "rounds": 20,
        "num_clients": 60,
        "device_conf_file": DEVICES,
        "duration_jitter": 0.0,
        "clock_samples": 100,
        "round_deadline": 54.3,
        "checkpoint_every": 3,
        "fedcs__candidates": 0.5,
    }
    shares = {}
    for name in ("fedcs", "random"):
        small = job(sample_mode=name, **keys)
        rounds = records(run(small))
        asked = sum(len(r["asked"]) for r in rounds)
        assert asked == 80
        shares[name] = sum(len(r["valid"]) for r in rounds) / asked
    assert shares["fedcs"] == 1.0
    assert abs(shares["random"] - 0.5) < 0.28
    small = job(sample_mode="fedcs", fedcs__schedule="sequential", **keys)
    whole = run(small)
    metrics = records(whole, "metrics.jsonl")
    assert metrics[-1]["loss"] < 0.8 * metrics[0]["loss"]
    same_records(run_killed_and_resumed(small, 17), whole)


def test_a_round_for_which_nobody_is_fast_enough_asks_nobody(job: MakeJob) -> None:
    whole = run(job(sample_mode="fedcs", device_conf_file=DEVICES, round_deadline=0.01, rounds=3))
    rounds = records(whole)
    assert [r["asked"] for r in rounds] == [[], [], []]
    assert [r["selector"]["chosen"] for r in rounds] == [0, 0, 0]
    assert rounds[-1]["selector"]["candidates"] > 0
