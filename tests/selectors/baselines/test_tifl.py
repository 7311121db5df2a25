"""TiFL: tiers of equally fast clients."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from conftest import DEVICES, MakeJob, records, run, run_killed_and_resumed, same_records
from hypothesis import given, settings
from hypothesis import strategies as st
from selector_worlds import Numbers, Rows, answered, five_sigma, look, table

from fedsuv_plugin import wire
from fedsuv_plugin.config.resolved import resolve
from fedsuv_plugin.errors import UserError
from fedsuv_plugin.selectors.base import RoundView
from fedsuv_plugin.selectors.baselines.tifl import TiFL, TiFLParams, ranked
from fedsuv_plugin.selectors.signals import OPINIONS


def make(n: int, seed: int = 0, duration: Numbers | None = None, **params: object) -> TiFL:
    """Client i takes i + 1 seconds, unless durations are given."""
    clients = table(n, duration=np.arange(1.0, n + 1) if duration is None else duration)
    return TiFL(TiFLParams.from_mapping(params), clients, np.random.default_rng(seed))


def at(
    s: TiFL,
    t: int,
    opinions: np.ndarray,
    online: Rows = None,
    silent: Iterable[int] = (),
    rounds: int = 100,
) -> RoundView:
    """The view of round t, once those who are asked have told their opinions."""
    view = replace(look(s.clients, t, online), total_rounds=rounds)
    return answered(s, view, OPINIONS, opinions, list(silent))


def played(s: TiFL, rounds: int, opinions: np.ndarray, k: int = 1) -> list[int]:
    """The tier of each round."""
    tiers = []
    for t in range(1, rounds + 1):
        s.select(at(s, t, opinions, rounds=rounds), k)
        tiers.append(s.diagnostics()["tier"])
    return tiers


# ---- worked by hand


def test_probabilities_by_hand() -> None:
    # The lowest accuracy, 0.6, has 3 of 3 + 2 + 1 shares, then 0.7 has 2 and 0.8 one.
    rng = np.random.default_rng(0)
    assert ranked(np.array([0.8, 0.6, 0.7]), rng) == pytest.approx([1 / 6, 1 / 2, 1 / 3])
    assert ranked(np.array([0.8, 0.7]), rng) == pytest.approx([1 / 3, 2 / 3])
    assert ranked(np.array([0.8]), rng) == pytest.approx([1.0])


def test_tiers_by_hand() -> None:
    # 7 clients in 3 tiers: 3, 2 and 2 of them, the fastest first.
    s = make(7, duration=[50, 10, 70, 20, 60, 30, 40], tiers=3)
    assert s.explain()["tier"].tolist() == [1, 0, 2, 0, 2, 0, 1]
    assert set(make(3, tiers=5).explain()["tier"].tolist()) == {0, 1, 2}


def hears(before: list[float], now: list[float], spent: Iterable[int] = ()) -> TiFL:
    """Three tiers of two clients; opinions before round 1 and before round 11; tier 1 was last."""
    s = make(6, tiers=3, credits=50)
    s.select(at(s, 1, np.repeat(before, 2)), 2)
    s.current = 1
    s.credits[list(spent)] = 0
    s.select(at(s, 11, np.repeat(now, 2)), 2)
    return s


def test_probabilities_change_where_the_current_tier_has_not_got_better() -> None:
    assert hears([0.5, 0.6, 0.5], [0.8, 0.6, 0.7]).probability == pytest.approx(
        [1 / 6, 1 / 2, 1 / 3]
    )
    assert hears([0.5, 0.5, 0.9], [0.8, 0.6, 0.7]).probability == pytest.approx([1 / 3] * 3)


def test_a_tier_without_credits_has_no_probability() -> None:
    s = hears([0.5, 0.6, 0.5], [0.8, 0.6, 0.7], spent=[1])
    assert s.probability == pytest.approx([1 / 3, 0, 2 / 3])
    # If none has any, they do not count.
    s = hears([0.5, 0.6, 0.5], [0.8, 0.6, 0.7], spent=[0, 1, 2])
    assert s.probability == pytest.approx([1 / 6, 1 / 2, 1 / 3])


def test_a_tiers_accuracy_is_the_mean_of_those_who_answer() -> None:
    s = make(6, tiers=3)
    s.select(at(s, 1, np.array([0.2, 0.4, 0.6, 0.9, 0.1, 0.3]), silent=[3, 4, 5]), 2)
    assert s.diagnostics()["accuracies"] == [pytest.approx(0.3), pytest.approx(0.6), None]
    assert s.explain()["accuracy"][:4] == pytest.approx([0.3, 0.3, 0.6, 0.6])
    # Whoever does not answer later on leaves it as it was.
    s.select(at(s, 11, np.array([0.9, 0.9, 0, 0, 0.5, 0.7]), silent=[2, 3]), 2)
    assert s.diagnostics()["accuracies"] == pytest.approx([0.9, 0.6, 0.6])


def test_a_tier_that_never_answered_counts_as_the_mean_of_the_others() -> None:
    # Tier 2 never answers: 0.5, between 0.2 and 0.8. Were it 0, it would have one half.
    s = make(6, tiers=3, credits=50)
    s.select(at(s, 1, np.repeat([0.2, 0.8, 0], 2), silent=[4, 5]), 2)
    s.current = 0
    s.select(at(s, 11, np.repeat([0.2, 0.8, 0], 2), silent=[4, 5]), 2)
    assert s.probability == pytest.approx([1 / 2, 1 / 6, 1 / 3])


def test_silence_of_the_current_tier_changes_nothing() -> None:
    s = make(6, tiers=3, credits=50)
    s.select(at(s, 1, np.repeat([0.5, 0.6, 0.7], 2)), 2)
    s.current = 1
    s.select(at(s, 11, np.repeat([0.5, 0.6, 0.7], 2), silent=[2, 3]), 2)
    assert s.probability == pytest.approx([1 / 3] * 3)
    # Nobody answered: the same.
    s.current = 1
    s.select(at(s, 21, np.zeros(6), silent=range(6)), 2)
    assert s.probability == pytest.approx([1 / 3] * 3)


def test_opinions_are_asked_for_every_interval() -> None:
    s = make(6, interval=4, tiers=2)
    asked = []
    for t in range(1, 14):
        online = [] if t in (5, 6) else [0, 2, 4]  # in round 5 nobody is there to be asked
        view = look(s.clients, t, online)
        question = s.probe(view)
        if question is not None:
            assert question.rows.tolist() == [0, 2, 4]
            asked.append(t)
        s.select(answered(s, view, OPINIONS, np.ones(6)), 2)
    assert asked == [1, 7, 11]


def test_credits_by_hand() -> None:
    # 10 rounds and 4 tiers: ceil(2.5) = 3 rounds each.
    s = make(40, tiers=4)
    tiers = played(s, 10, np.ones(40), k=3)
    counts = np.bincount(tiers, minlength=4)
    assert counts.max() <= 3
    assert s.diagnostics()["credits"] == (3 - counts).tolist()
    s = make(40, tiers=4, credits=1)
    assert sorted(played(s, 4, np.ones(40), k=3)) == [0, 1, 2, 3]
    assert s.diagnostics()["credits"] == [0] * 4
    assert len(s.select(at(s, 5, np.ones(40)), 3)) == 3
    assert s.diagnostics()["credits"] == [0] * 4


def test_a_cohort_is_of_one_tier_and_seats_left_go_to_another_at_no_cost() -> None:
    s = make(12, tiers=4)
    for t in range(1, 9):
        rows = s.select(at(s, t, np.ones(12)), 3)
        assert len(set(s.tier[rows].tolist())) == 1
    spent = s.credits.sum()
    rows = s.select(at(s, 9, np.ones(12)), 5)
    tiers = s.tier[rows].tolist()
    assert len(set(tiers[:3])) == 1
    assert len(set(tiers[3:])) == 1
    assert set(tiers[:3]) != set(tiers[3:])
    assert s.diagnostics()["tier"] == tiers[0]
    assert s.credits.sum() == spent - 1


def test_a_tier_with_credits_comes_before_those_without() -> None:
    s = make(12, tiers=4)
    s.select(at(s, 1, np.ones(12)), 3)
    s.credits[:] = [0, 0, 1, 0]
    s.probability[:] = [0.9, 0.1, 0.0, 0.0]
    rows = s.select(at(s, 2, np.ones(12)), 3)
    assert set(s.tier[rows].tolist()) == {2}
    # Nobody of tier 2 is online: tier 0 or 1 without credits, by their probabilities, not tier 3.
    s.credits[:] = [0, 0, 1, 0]
    rows = s.select(at(s, 3, np.ones(12), online=np.flatnonzero(s.tier != 2)), 3)
    assert set(s.tier[rows].tolist()) <= {0, 1}
    assert s.credits.tolist() == [0, 0, 1, 0]


# ---- against the page, with plain loops


class ByTheBook:
    """The probabilities and credits of the adaptive policy, given which tier each round drew."""

    def __init__(self, tiers: int, credit: int, interval: int):
        self.probability = [1 / tiers] * tiers
        self.credits = [credit] * tiers
        self.interval = interval
        self.current: int | None = None
        self.before: list[float] | None = None

    def begin(self, r: int, accuracy: list[float]) -> None:
        """Round r = 0, 1, ..., before the draw."""
        if r % self.interval == 0:
            if self.before is not None and self.current is not None:
                if accuracy[self.current] <= self.before[self.current]:
                    self.change(accuracy)
            self.before = accuracy

    def change(self, accuracy: list[float]) -> None:
        order = sorted(
            (t for t in range(len(accuracy)) if self.credits[t] > 0), key=lambda t: accuracy[t]
        )
        n = len(order)
        self.probability = [0.0] * len(accuracy)
        for rank, t in enumerate(order):
            self.probability[t] = (n - rank) / (n * (n + 1) / 2)

    def drew(self, tier: int) -> None:
        assert self.credits[tier] > 0
        self.credits[tier] -= 1
        self.current = tier


@pytest.mark.parametrize("seed", range(100))
def test_agrees_with_the_pseudocode(seed: int) -> None:
    rng = np.random.default_rng(seed)
    tiers = int(rng.integers(1, 6))
    n = tiers * int(rng.integers(3, 8))
    interval = int(rng.integers(1, 5))
    rounds = int(rng.integers(10, 30))
    s = make(n, seed, duration=rng.random(n), tiers=tiers, interval=interval)
    order = np.argsort(s.clients.expected_duration)
    size = n // tiers
    book = ByTheBook(tiers, -(-rounds // tiers), interval)
    for r in range(rounds):
        opinions = rng.random(n)
        members = [order[t * size : (t + 1) * size] for t in range(tiers)]
        book.begin(r, [float(np.mean(opinions[rows])) for rows in members])
        rows = s.select(at(s, r + 1, opinions, rounds=rounds), 3)
        drawn = s.diagnostics()["tier"]
        assert set(rows.tolist()) <= set(members[drawn].tolist())
        assert book.probability[drawn] > 0 or sum(
            p for p, c in zip(book.probability, book.credits, strict=True) if c
        ) == pytest.approx(0)
        book.drew(drawn)
        assert s.diagnostics()["probabilities"] == pytest.approx(book.probability)
        assert s.diagnostics()["credits"] == book.credits


# ---- the draws


def test_tiers_are_drawn_by_their_probabilities() -> None:
    # 3000 draws with 1/6, 1/2 and 1/3, no limit of credits.
    s = make(30, tiers=3, credits=10**6)
    s.select(at(s, 1, np.ones(30)), 2)
    s.probability[:] = [1 / 6, 1 / 2, 1 / 3]
    counts = np.zeros(3)
    for _ in range(3000):
        s.select(look(s.clients, 2), 2)
        counts[s.diagnostics()["tier"]] += 1
    for count, p in zip(counts, (1 / 6, 1 / 2, 1 / 3), strict=True):
        assert abs(count - 3000 * p) < five_sigma(3000, p)


def test_a_tiers_clients_are_drawn_uniformly() -> None:
    # One tier of 10, 4 seats, 2000 rounds: Binomial(2000, 0.4).
    s = make(10, tiers=1, credits=10**6)
    counts = np.zeros(10)
    for _ in range(2000):
        counts[s.select(look(s.clients), 4)] += 1
    assert np.abs(counts - 800).max() < five_sigma(2000, 0.4)


def test_ties_are_broken_fairly() -> None:
    # Equal speeds: each of 10 clients is in tier 0 of 2 half of the time. Equal accuracies: each of
    # 2 tiers has 2/3 half of the time.
    fast = sum(make(10, seed, duration=1.0, tiers=2).tier[0] == 0 for seed in range(2000))
    assert abs(int(fast) - 1000) < five_sigma(2000, 0.5)
    rng = np.random.default_rng(0)
    most = sum(ranked(np.ones(2), rng)[0] > 0.5 for _ in range(2000))
    assert abs(int(most) - 1000) < five_sigma(2000, 0.5)


# ---- invariants


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    n=st.integers(1, 15),
    k=st.integers(0, 18),
    seed=st.integers(0, 99),
    tiers=st.integers(1, 6),
    interval=st.integers(1, 3),
    credit=st.sampled_from([None, 1, 2]),
    data=st.data(),
)
def test_min_k_online_distinct_rows_and_a_resumed_selector_goes_on_alike(
    n: int,
    k: int,
    seed: int,
    tiers: int,
    interval: int,
    credit: int | None,
    data: st.DataObject,
) -> None:
    def fresh(number: int) -> TiFL:
        return make(n, number, duration=1.0, tiers=tiers, interval=interval, credits=credit)

    s = fresh(seed)
    with np.errstate(divide="raise", invalid="raise", over="raise"):
        for t in range(1, 8):
            online = sorted(data.draw(st.sets(st.integers(0, n - 1))))
            silent = data.draw(st.sets(st.integers(0, n - 1)))
            opinions = np.random.default_rng([seed, t]).choice([0.0, 0.5, 1.0], n)
            twin = fresh(seed + 1)
            twin.load_state_dict(wire.decode(wire.encode(s.state_dict())))
            rows = s.select(at(s, t, opinions, online, silent), k)
            again = twin.select(at(twin, t, opinions, online, silent), k)
            assert rows.tolist() == again.tolist()
            assert len(rows) == len(set(rows.tolist())) == min(k, len(online))
            assert set(rows.tolist()) <= set(online)
            np.testing.assert_equal(s.explain(), twin.explain())
            json.dumps(s.diagnostics(), allow_nan=False)
            assert s.probability.sum() == pytest.approx(1)
            assert (s.probability >= 0).all()
            assert (s.credits >= 0).all()
            sizes = np.bincount(s.tier)
            assert sizes.max() - sizes.min() <= 1


@pytest.mark.parametrize(("name", "value"), [("tiers", 0), ("interval", 0), ("credits", 0)])
def test_bad_parameters_are_refused(name: str, value: object) -> None:
    with pytest.raises(UserError, match=name):
        TiFLParams.from_mapping({name: value})


# ---- behaviour


@pytest.mark.parametrize("seed", range(3))
def test_cohorts_are_equally_fast_and_ill_served_tiers_come_more_often(seed: int) -> None:
    # 50 clients of 1 to 50 seconds; a cohort of 5 lies within a tier, so that its slowest takes at
    # most 9 seconds longer than its fastest: of a random cohort that is 34 in the mean (4/6 of 51).
    # The slower a tier the lower its accuracy, and no tier ever gets better: from round 2 on tier
    # 4 has probability 5/15 and tier 0 1/15. In 300 rounds that is 100 and 20, of which five
    # standard deviations, 5 sqrt(300 1/3 2/3) = 41 and 22, leave 59 and 42.
    s = make(50, seed, interval=1, credits=10**6)
    opinions = 0.9 - 0.1 * s.tier
    counts = np.zeros(5)
    for t in range(1, 302):
        rows = s.select(at(s, t, opinions, rounds=301), 5)
        seconds = s.clients.expected_duration[rows]
        assert seconds.max() - seconds.min() <= 9
        counts[s.diagnostics()["tier"]] += t > 1
    assert counts[4] > 59
    assert counts[0] < 42


def test_a_job_with_it_keeps_a_share_learns_and_resumes(job: MakeJob) -> None:
    small = job(
        sample_mode="tifl",
        rounds=20,
        num_clients=40,
        device_conf_file=DEVICES,
        checkpoint_every=3,
        overcommitment=1.0,
        tifl__interval=2,
    )
    assert resolve(small).config.holdout_fraction == 0.2
    whole = run(small)
    rounds = records(whole)
    metrics = records(whole, "metrics.jsonl")
    assert metrics[-1]["loss"] < 0.8 * metrics[0]["loss"]
    assert None not in rounds[0]["selector"]["accuracies"]
    assert sum(rounds[-1]["selector"]["credits"]) == 5 * 4 - 20
    shares: list[Any] = [tuple(r["selector"]["probabilities"]) for r in rounds]
    assert len(set(shares)) > 1
    same_records(run_killed_and_resumed(small, 17), whole)


def test_without_probes_it_draws_tiers_alike() -> None:
    # FedScale's own aggregator asks nobody.
    s = make(40, tiers=4, credits=10**6)
    counts = np.zeros(4)
    for t in range(1, 1001):
        s.select(look(s.clients, t), 3)
        counts[s.diagnostics()["tier"]] += 1
    assert np.abs(counts - 250).max() < five_sigma(1000, 1 / 4)
