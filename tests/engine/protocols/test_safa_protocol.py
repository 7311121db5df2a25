"""SAFA's protocol: worked numbers, a slow reference that reads like its steps, whole jobs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import (
    DEVICES,
    MakeJob,
    checkpoint,
    records,
    run,
    run_killed_and_resumed,
    same_records,
)
from protocol_worlds import Rounds, rounds_of
from selector_worlds import table

from fedsuv_plugin.engine.protocols.safa import first_come
from fedsuv_plugin.errors import UserError
from fedsuv_plugin.selectors.baselines.safa import Safa, SafaParams

PROTOCOL = {"sample_mode": "safa", "safa__mode": "protocol", "aggregation_weights": "samples"}


def selector(tolerance: int, clients: int) -> Safa:
    params = SafaParams(mode="protocol", lag_tolerance=tolerance)
    return Safa(params, table(clients), np.random.default_rng(0))


def world(tolerance: int, quota: int, sizes: list[int], train: Any, **keys: Any) -> Any:
    made = selector(tolerance, len(sizes))
    return rounds_of(made, sizes, train, num_participants=quota, **keys)


# ---- worked numbers


def test_s1_who_gets_the_global_model() -> None:
    """tau 5, round 7 (from 0), versions 6 6 4 1 0 -1: lags 0 0 2 5 6 7.

    The clients went on from a model of 50 of their own, the global model is 7."""
    started: dict[int, float] = {}

    def train(client: int, start: float, number: int) -> float:
        started[client] = start
        return start

    with world(5, 6, [1] * 6, train, round_deadline=10.0) as rounds:
        protocol = rounds.protocol
        rounds.play({client: 1.0 for client in range(1, 7)})
        protocol._version[:] = [6, 6, 4, 1, 0, -1]
        for row in range(6):
            protocol._own[row] = np.array([50.0])
        rounds.number = 7
        rounds.model = 7.0
        rounds.play({client: 1.0 for client in range(1, 7)})
    assert started == {1: 7.0, 2: 7.0, 3: 50.0, 4: 50.0, 5: 7.0, 6: 7.0}


ARRIVALS = {1: 20.0, 2: 35.0, 3: 40.0, 4: 55.0, 5: 60.0, 6: 90.0, 7: 130.0}


@pytest.mark.parametrize(
    ("quota", "picked", "undrafted", "closing"),
    [
        (3, {3, 5, 6}, {1, 2, 4}, 90.0),
        (5, {3, 5, 6, 1, 2}, {4}, 100.0),
        (8, {1, 2, 3, 4, 5, 6}, set(), 100.0),
    ],
)
def test_s2_first_come_first_merge_compensates(
    quota: int, picked: set[int], undrafted: set[int], closing: float
) -> None:
    """Clients 0 to 6 of the page are 1 to 7 here; 0, 1 and 3 were picked last round."""
    with world(5, quota, [1] * 7, lambda *_: 1.0, round_deadline=100.0) as rounds:
        rounds.play({client: ARRIVALS[client] for client in (1, 2, 4)})
        settled, trained, _ = rounds.play(ARRIVALS)
    assert set(settled.due.tolist()) == picked == set(trained.reports)
    assert set(settled.undrafted.tolist()) == undrafted
    assert settled.late.tolist() == [7]
    assert settled.seconds == closing


def test_s3_three_steps_of_aggregation() -> None:
    """Weights 1/4 1/2 1/4, tau 1; clients A, B, C are 1, 2, 3."""
    trained_to = {(1, 1): 4.0, (1, 2): 2.0, (2, 2): 6.0, (3, 1): 5.0, (1, 3): 9.0}

    def train(client: int, start: float, number: int) -> float:
        return trained_to[number, client]

    def entries(rounds: Rounds) -> list[float]:
        return [float(rounds.protocol._cache[row][0]) for row in range(3)]

    with world(1, 1, [1, 2, 1], train, round_deadline=10.0) as rounds:
        # A comes first and is picked, B is undrafted, C is offline when done.
        rounds.play({1: 1.0, 2: 2.0, 3: 3.0}, away=(3,))
        assert rounds.model == 1.0
        assert entries(rounds) == [4.0, 2.0, 0.0]
        rounds.play({2: 1.0})
        assert rounds.model == 4.0
        assert entries(rounds) == [4.0, 6.0, 0.0]
        _, trained, _ = rounds.play({1: 1.0})
        assert rounds.model == 5.25
        assert entries(rounds) == [5.0, 6.0, 4.0]  # C is deprecated: the global model, which was 4
        # What C did in the first round is lost now: 3 s, and 2 J a second in this world.
        assert trained.late is not None
        assert (trained.late.dropped.client_time, trained.late.dropped.energy_joules) == (3.0, 6.0)


def test_a_round_closes_when_nobody_is_left_to_wait_for() -> None:
    with world(5, 9, [1, 1], lambda *_: 1.0, round_deadline=10.0) as rounds:
        assert rounds.play({1: 2.0, 2: 3.0})[0].seconds == 3.0
        assert rounds.play({1: 2.0, 2: 11.0})[0].seconds == 10.0  # the second comes later
        assert rounds.play({})[0].seconds == 1.0  # it arrives, and nobody else can
        assert rounds.play({})[0].seconds == 10.0


def test_without_a_deadline_the_limit_is_the_slowest_expected_duration() -> None:
    with world(5, 9, [1, 1], lambda *_: 1.0) as rounds:
        settled, _, _ = rounds.play({1: 2.0, 2: 7.5}, expected={1: 3.0, 2: 7.0})
        assert (settled.seconds, settled.due.tolist(), settled.late.tolist()) == (7.0, [1], [2])


def test_first_come_in_plain_numbers() -> None:
    clients, arrival = np.array([5, 3, 8, 1]), np.array([1.0, 2.0, 3.0, 4.0])
    picked, closing = first_come(clients, arrival, np.array([5, 8]), quota=2)
    assert (clients[picked].tolist(), closing) == ([3, 1], 4.0)
    picked, closing = first_come(clients, arrival, np.array([5, 8]), quota=3)
    assert (clients[picked].tolist(), closing) == ([5, 3, 1], None)


# ---- the protocol by the book


class Book:
    """SAFA with a number for a model: dictionaries, loops, and the steps in their order."""

    def __init__(self, sizes: list[int], tau: int, quota: int, limit: float):
        n = len(sizes)
        self.tau, self.quota, self.limit = tau, quota, limit
        self.share = {k + 1: size / sum(sizes) for k, size in enumerate(sizes)}
        self.version = dict.fromkeys(range(1, n + 1), -1)
        self.entry = dict.fromkeys(range(1, n + 1), 0.0)
        self.own: dict[int, float] = {}  # the last model each trained, delivered or not
        self.coming: dict[int, tuple[float, float]] = {}  # client -> arrival, model
        self.last: set[int] = set()
        self.model = 0.0
        self.clock = 0.0
        self.t = 0

    def deprecate(self) -> None:
        for k, version in self.version.items():
            if (self.t - 1) - version > self.tau:
                self.version[k] = self.t - 1
                self.entry[k] = self.model
                self.own.pop(k, None)
                self.coming.pop(k, None)

    def play(self, asked: dict[int, float], away: set[int], train: Any) -> set[int]:
        arrivals = {k: (time - self.clock, m) for k, (time, m) in self.coming.items()}
        for k, seconds in asked.items():
            behind = (self.t - 1) - self.version[k] > 0
            start = self.own[k] if behind and k in self.own else self.model
            self.own[k] = train(k, start, self.t + 1)
            if k not in away:
                arrivals[k] = (seconds, self.own[k])
        done = sorted((time, k) for k, (time, _) in arrivals.items() if time <= self.limit)
        order = [k for _, k in done if k not in self.last] + [k for _, k in done if k in self.last]
        picked = order[: self.quota]
        prior = [k for k in picked if k not in self.last]
        if len(prior) == self.quota:
            closing = max(arrivals[k][0] for k in picked)
        elif len(done) == len(set(asked) | set(self.coming)) > 0:
            closing = done[-1][0]
        else:
            closing = self.limit
        for k in picked:
            self.entry[k] = arrivals[k][1]
        self.model = sum(self.share[k] * self.entry[k] for k in self.entry)
        for _, k in done:
            self.entry[k] = arrivals[k][1]
            self.version[k] = self.t
        self.coming = {
            k: (self.clock + time, m) for k, (time, m) in arrivals.items() if time > self.limit
        }
        self.last = set(picked)
        self.clock += closing
        self.t += 1
        return set(picked)


@pytest.mark.parametrize("seed", range(100))
def test_the_protocol_is_the_book(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 9))
    sizes = rng.integers(1, 20, n).tolist()
    tau, quota = int(rng.integers(0, 4)), int(rng.integers(1, n + 1))
    drift = rng.normal(size=(n + 1, 20))

    def train(client: int, start: float, number: int) -> float:
        return 0.5 * start + client + float(drift[client, number])

    book = Book(sizes, tau, quota, limit=10.0)
    with world(tau, quota, sizes, train, round_deadline=10.0) as rounds:
        for _ in range(12):
            book.deprecate()
            free = [k for k in range(1, n + 1) if k not in book.coming]
            asked = {k: float(rng.exponential(8.0)) for k in free if rng.random() < 0.7}
            away = {k for k in asked if rng.random() < 0.2}
            on_the_way = sorted(book.coming)
            settled, trained, pending = rounds.play(asked, tuple(away))
            picked = book.play(asked, away, train)
            assert pending.clients.tolist() == on_the_way
            assert {*settled.due.tolist(), *settled.arrived.tolist()} == picked
            assert rounds.clock == pytest.approx(book.clock)
            assert rounds.model == pytest.approx(book.model, rel=1e-5, abs=1e-5)
            assert rounds.protocol._version.tolist() == list(book.version.values())
            assert trained.late is not None
            assert list(trained.late.on_the_way) == sorted(book.coming)


# ---- whole jobs


def test_with_everyone_in_time_and_picked_it_is_averaging_over_all(job: MakeJob) -> None:
    keys: dict[str, Any] = {"rounds": 5, "round_deadline": 60.0, "num_participants": 20}
    safa = run(job(**keys, **PROTOCOL))
    plain = run(job(**keys, sample_mode="random", aggregation_weights="samples"))
    assert all(len(r["valid"]) == 20 for r in records(safa))
    mine = checkpoint(safa)["model"]["weights"]
    other = checkpoint(plain)["model"]["weights"]
    for a, b in zip(mine, other, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)


# A deadline that about half of the clients meet; some are offline when they are done.
LATE = {
    **PROTOCOL,
    "device_conf_file": DEVICES,
    "round_deadline": 14.37,
    "upload_success": 0.9,
    "rounds": 9,
    "checkpoint_every": 3,
    "safa__lag_tolerance": 2,
}


def test_late_updates_arrive_and_the_bill_adds_up(job: MakeJob) -> None:
    rounds = records(run(job(**LATE)))
    assert any(r["late"] for r in rounds)
    assert any(r["undrafted"] for r in rounds)
    assert any(r["wasted"]["client_time"] > 0 for r in rounds)
    picks = [len(r["valid"]) + len(r["late"]) for r in rounds]
    assert max(picks) == 4
    shares = [1 - len(r["on_the_way"]["clients"]) / 20 for r in rounds]
    assert 0.2 < np.mean(shares) < 0.8
    for before, after in zip(rounds, rounds[1:], strict=False):
        given_up = after["wasted"]["client_time"] > 0
        still = set(before["on_the_way"]["clients"]) & set(after["asked"])
        assert not still or given_up  # only who was deprecated is asked anew
        for update in after["late"]:
            assert update["staleness"] == after["round"] - update["asked_in"] >= 1


def test_a_killed_job_resumes_with_updates_on_the_way(job: MakeJob) -> None:
    small = job(**LATE)
    whole = run(small)
    assert records(whole)[5]["on_the_way"]["clients"]  # at the checkpoint it resumes from
    resumed = run_killed_and_resumed(small, 8)
    same_records(resumed, whole)
    for a, b in zip(
        checkpoint(resumed)["model"]["weights"], checkpoint(whole)["model"]["weights"], strict=True
    ):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("options", [{"launcher": "processes", "executors": 2}, {"budget": 0}])
def test_launchers_and_memory_do_not_matter(job: MakeJob, options: dict[str, Any]) -> None:
    keys = {"late_budget_mb": options.pop("budget")} if "budget" in options else {}
    same_records(run(job(**LATE, **keys), **options), run(job(**LATE)))


def test_q_fedavg_is_refused(job: MakeJob, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="gradient_policy: expected fed-avg, fed-prox or fed-yogi"):
        run(job(**PROTOCOL, gradient_policy="q-fedavg"))
