"""NCCB: clusters, their counters, and who is chosen to explore them."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from conftest import MakeJob, records, run, run_killed_and_resumed, same_records
from hypothesis import given, settings
from hypothesis import strategies as st
from neural_ucb_by_the_book import ByTheBook, random_bits, world
from selector_worlds import Rows, answered, five_sigma, look, outcome, table

from fedsuv_plugin import wire
from fedsuv_plugin.errors import UserError
from fedsuv_plugin.selectors.base import RoundView
from fedsuv_plugin.selectors.baselines.lsh import Lsh, LshParams
from fedsuv_plugin.selectors.baselines.nccb import NONE, Nccb, NccbParams
from fedsuv_plugin.selectors.signals import FINGERPRINT, INTERVIEW_ACCURACY


def make(n: int, seed: int = 0, **params: object) -> Nccb:
    return Nccb(NccbParams.from_mapping(params), table(n), np.random.default_rng(seed))


def asked(
    s: Nccb, bits: np.ndarray, online: Rows = None, silent: Iterable[int] = (), t: int = 1
) -> RoundView:
    """The view of the selection, once those who are asked have told their bits."""
    return answered(s, look(s.clients, t, online), FINGERPRINT, bits, list(silent))


def kinds(per_kind: int, count: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """The kind of each client, and bits that are equal within a kind and opposite or so without."""
    of = np.repeat(np.arange(count), per_kind)
    return of, random_bits(count, 1)[of]


def clustered(per_kind: int, counts: list[int], **params: Any) -> tuple[Nccb, np.ndarray]:
    """A selector with a cluster for each kind, of the given counts, and the kind of each client."""
    of, bits = kinds(per_kind, len(counts))
    s = make(len(of), clusters=len(counts), **params)
    s.select(asked(s, bits), 1)
    first = [int(s.cluster[of == kind][0]) for kind in range(len(counts))]
    assert sorted(first) == list(range(len(counts)))
    s.cluster_count[first] = counts
    return s, of


# ---- worked by hand


def test_a_cluster_is_explored_until_more_than_k_were_asked() -> None:
    # Counters 11, 10 and 3, k = 10, 5 seats: a random client each of the second and the third
    # cluster, and three by upper bound.
    s, of = clustered(6, [11, 10, 3], explore=10)
    counts = np.zeros(18)
    for _ in range(1000):
        rows = s.select(look(s.clients, 2), 5)
        told = s.explain()
        assert sorted(of[rows[:2]].tolist()) == [1, 2]
        assert np.flatnonzero(told["explored"]).tolist() == sorted(rows[:2].tolist())
        left = np.setdiff1d(np.arange(18), rows)
        assert told["upper"][rows[2:]].min() >= told["upper"][left].max() - 1e-9
        counts[rows[:2]] += 1
    assert np.abs(counts[6:] - 1000 / 6).max() < five_sigma(1000, 1 / 6)
    assert told["cluster_count"][of == 1].tolist() == [10] * 6
    assert s.diagnostics()["clusters"] == 3
    assert s.diagnostics()["unexplored_clusters"] == 2
    assert s.diagnostics()["explored"] == 2


def test_fewer_seats_than_unexplored_clusters_go_to_random_ones() -> None:
    s, of = clustered(4, [0, 9, 1, 2], explore=5)
    counts = np.zeros(4)
    for _ in range(1000):
        rows = s.select(look(s.clients, 2), 2)
        assert len(set(of[rows].tolist())) == 2
        counts[of[rows]] += 1
    assert counts[1] == 0
    assert np.abs(counts[[0, 2, 3]] - 2000 / 3).max() < five_sigma(1000, 2 / 3)


def test_clusters_of_which_nobody_is_online_are_passed_over() -> None:
    s, of = clustered(4, [0, 0, 0])
    online = np.flatnonzero(of != 1)
    rows = s.select(look(s.clients, 2, online), 3)
    assert sorted(of[rows[:2]].tolist()) == [0, 2]
    assert s.explain()["explored"].sum() == 2


def test_everyone_asked_counts_for_its_cluster_valid_or_not() -> None:
    s, of = clustered(4, [0, 0, 0])
    s.update(outcome(2, [0, 1, 4], valid=[True, False, False]))
    assert [int(s.explain()["cluster_count"][of == kind][0]) for kind in range(3)] == [2, 1, 0]
    assert s.times.sum() == 1


@pytest.mark.parametrize(
    ("n", "clusters", "expected"),
    [(1, None, 1), (5, None, 1), (6, None, 2), (29, None, 9), (30, None, 10), (100, None, 10)]
    + [(30, 4, 4), (5, 40, 5)],
)
def test_how_many_clusters_there_are(n: int, clusters: int | None, expected: int) -> None:
    s = make(n, clusters=clusters)
    s.select(asked(s, random_bits(n)), 1)
    assert s.diagnostics()["clusters"] == expected


# ---- who comes late, and who never tells


def test_clusters_are_made_once_there_are_enough_clients_and_newcomers_join_the_nearest() -> None:
    of, bits = kinds(3)
    s = make(9, clusters=3)
    s.select(asked(s, bits, [0, 3]), 1)
    assert s.explain()["cluster"].tolist() == [NONE] * 9
    assert s.explain()["cluster_count"].tolist() == [0] * 9
    assert not s.explain()["explored"].any()
    s.update(outcome(1, [0, 3]))  # before there are clusters nobody counts
    s.select(asked(s, bits, [0, 3, 6], t=2), 1)
    found = s.explain()["cluster"]
    assert sorted(found[[0, 3, 6]].tolist()) == [0, 1, 2]
    assert s.diagnostics()["unexplored_clusters"] == 3
    centres = s.centres.copy()
    bits[7, :5] ^= 1  # a little off
    s.select(asked(s, bits, silent=[8], t=3), 1)
    late = s.explain()["cluster"]
    assert [late[of == kind][:2].tolist() for kind in range(3)] == [
        [found[3 * i]] * 2 for i in range(3)
    ]
    assert late[8] == NONE
    np.testing.assert_array_equal(s.centres, centres)


def test_a_client_without_bits_is_asked_last_and_counts_for_no_cluster() -> None:
    _, bits = kinds(2)
    s = make(6, clusters=3)
    rows = s.select(asked(s, bits, silent=[5]), 6)
    assert rows[-1] == 5
    assert not s.explain()["explored"][5]
    s.update(outcome(1, rows))
    assert s.cluster_count.sum() == 5


def test_where_nobody_is_asked_all_cohorts_are_random() -> None:
    s = make(10)
    counts = np.zeros(10)
    for t in range(1, 2001):
        rows = s.select(look(s.clients, t), 4)
        s.update(outcome(t, rows))
        counts[rows] += 1
    assert np.abs(counts - 800).max() < five_sigma(2000, 0.4)


def test_lsh_is_what_is_left_once_all_clusters_are_explored() -> None:
    # From equal states the same clients are chosen, up to the order of ties, of which there are
    # none.
    s, _ = clustered(5, [99, 99, 99], steps=30)
    bits = random_bits(15)
    s.bits = bits
    plain = Lsh(LshParams(steps=30), s.clients, np.random.default_rng(0))
    state = s.state_dict()
    plain.load_state_dict({name: state[name] for name in ("rng", *Lsh.state)})
    for t in range(2, 8):
        view = look(s.clients, t)
        rows = s.select(view, 4)
        assert rows.tolist() == plain.select(view, 4).tolist()
        for each in (s, plain):
            each.update(outcome(t, rows, utility=rows + 1.0))


# ---- against the page, with plain loops and autograd


@pytest.mark.parametrize("seed", range(100))
def test_agrees_with_the_pseudocode(seed: int) -> None:
    rng, params = world(seed)
    n = int(rng.integers(2, 14))
    wanted = int(rng.integers(1, 5))
    explore = int(rng.integers(0, 3))
    s = make(n, seed, clusters=wanted, explore=explore, **params)
    book = ByTheBook(s)
    bits = random_bits(n, seed)
    counters: dict[int, int] = {}
    member: dict[int, int] = {}
    for t in range(1, 6):
        online = np.flatnonzero(rng.random(n) < 0.8)
        view = asked(s, bits, online, silent=rng.integers(0, n, 1).tolist(), t=t)
        book.hear(view)
        k = int(rng.integers(1, 6))
        rows = s.select(view, k).tolist()
        told = s.explain()
        # Clusters are there as soon as enough are known, and everyone known is in the nearest.
        if len(book.contexts) >= min(wanted, n):
            for i in book.contexts:
                apart = [int((bits[i] != centre).sum()) for centre in s.centres]
                member.setdefault(i, apart.index(min(apart)))
        assert told["cluster"].tolist() == [member.get(i, NONE) for i in range(n)]
        counts = [counters.get(member[i], 0) if i in member else 0 for i in range(n)]
        assert told["cluster_count"].tolist() == counts
        # A client each of as many unexplored clusters as there are seats for.
        open_ones = {member[i] for i in online.tolist() if i in member}
        open_ones = {c for c in open_ones if counters.get(c, 0) <= explore}
        explored = rows[: min(k, len(open_ones))]
        assert len({member[i] for i in explored}) == len(explored)
        assert {member[i] for i in explored} <= open_ones
        assert set(np.flatnonzero(told["explored"]).tolist()) == set(explored)
        # Then the largest upper bounds of the others, and then those without bits.
        bounds = book.bounds(i for i in online.tolist() if i not in explored)
        rest = rows[len(explored) :]
        by_bound = [i for i in rest if i in bounds]
        assert rest[: len(by_bound)] == by_bound
        uppers = sorted((upper for _, upper in bounds.values()), reverse=True)
        seats = min(k - len(explored), len(uppers))
        assert [bounds[i][1] for i in by_bound] == pytest.approx(uppers[:seats], abs=1e-7)
        assert len(rows) == min(k, len(online))
        utility = rng.random(len(rows)) * 50
        valid = rng.random(len(rows)) < 0.7
        book.learn(rows, utility.tolist(), valid.tolist(), copy.deepcopy(s.rng))
        s.update(outcome(t, rows, utility=utility, valid=valid))
        for i in rows:
            if i in member:
                counters[member[i]] = counters.get(member[i], 0) + 1


# ---- invariants


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    n=st.integers(1, 14),
    k=st.integers(0, 16),
    seed=st.integers(0, 99),
    clusters=st.sampled_from([None, 1, 3, 50]),
    explore=st.integers(0, 3),
    data=st.data(),
)
def test_min_k_online_distinct_rows_and_a_resumed_selector_goes_on_alike(
    n: int, k: int, seed: int, clusters: int | None, explore: int, data: st.DataObject
) -> None:
    def fresh(number: int) -> Nccb:
        return make(n, number, clusters=clusters, explore=explore, width=4, steps=6)

    s = fresh(seed)
    bits = random_bits(n, seed)
    bits[:3] = 0
    for t in range(1, 6):
        online = data.draw(st.sets(st.integers(0, n - 1)))
        silent = data.draw(st.sets(st.integers(0, n - 1)))
        twin = fresh(seed + 1)
        twin.load_state_dict(wire.decode(wire.encode(s.state_dict())))
        rows = s.select(asked(s, bits, sorted(online), silent, t), k)
        again = twin.select(asked(twin, bits, sorted(online), silent, t), k)
        assert rows.tolist() == again.tolist()
        assert len(rows) == len(set(rows.tolist())) == min(k, len(online))
        assert set(rows.tolist()) <= online
        told = s.explain()
        np.testing.assert_equal(told, twin.explain())
        json.dumps(s.diagnostics(), allow_nan=False)
        assert set(np.flatnonzero(told["explored"]).tolist()) <= set(rows.tolist())
        in_one = told["cluster"] != NONE
        assert not (in_one & ~s.known).any()
        assert len(s.centres) == 0 or (in_one == s.known).all()
        before = s.cluster_count.sum()
        valid = np.random.default_rng([seed, t]).random(len(rows)) < 0.7
        s.update(outcome(t, rows, utility=3.0, valid=valid))
        assert s.cluster_count.sum() - before == np.count_nonzero(in_one[rows])


@pytest.mark.parametrize(
    ("name", "value"), [("clusters", 0), ("explore", -1), ("explore", 1.5), ("width", 3)]
)
def test_bad_parameters_are_refused(name: str, value: object) -> None:
    with pytest.raises(UserError, match=name):
        NccbParams.from_mapping({name: value})


# ---- real jobs


@pytest.mark.parametrize("keys", [{}, {"nccb__utility": "accuracy_energy"}], ids=["plain", "mean"])
def test_a_job_with_it_learns_and_resumes(job: MakeJob, keys: dict[str, Any]) -> None:
    small = job(
        sample_mode="nccb",
        rounds=14,
        checkpoint_every=3,
        nccb__steps=100,
        nccb__explore=3,
        nccb__clusters=4,
        **keys,
    )
    whole = run(small)
    rounds = records(whole)
    metrics = records(whole, "metrics.jsonl")
    assert metrics[-1]["loss"] < 0.8 * metrics[0]["loss"]
    told = [r["selector"] for r in rounds]
    assert told[0]["explored"] == told[0]["clusters"] == 4
    # Five are asked in a round, at least one of each unexplored cluster: after four rounds all are.
    assert [each["unexplored_clusters"] for each in told[4:]] == [0] * 10
    assert [each["explored"] for each in told[4:]] == [0] * 10
    # Killed while clusters are explored, and afterwards.
    same_records(run_killed_and_resumed(small, 3), whole)
    same_records(run_killed_and_resumed(small, 11), whole)


# ---- learning


def kinds_of_rewards(seed: int) -> tuple[np.ndarray, np.ndarray, np.random.Generator]:
    """100 clients of 5 kinds, whose bits differ from the kind's in 3 of 64 on average."""
    rng = np.random.default_rng(seed)
    kind = np.repeat(np.arange(5), 20)
    bits = (rng.integers(0, 2, (5, 64))[kind] ^ (rng.random((100, 64)) < 0.05)).astype(np.uint8)
    return kind, bits, rng


@pytest.mark.parametrize("seed", range(5))
def test_it_finds_the_kind_of_clients_with_the_highest_reward(seed: int) -> None:
    # Rewards 1 to 5 by kind. In the first rounds the ten clusters, each of one kind at the best,
    # are explored. With k = 2 each is asked three times: 30 seats of five a round at most, unless
    # others are chosen by upper bound in between. Then the best kind is known: predictions are good
    # to 0.03, kinds are 0.2 apart, and widths are the same for all, as all were met.
    # 20 rounds of 5 at random have a mean of 3 with a standard deviation of sqrt(2 / 100) = 0.14.
    kind, bits, _ = kinds_of_rewards(seed)
    s = make(100, seed, explore=2)
    view = asked(s, bits)
    rewards = []
    for t in range(1, 41):
        rows = s.select(view, 5)
        s.update(outcome(t, rows, utility=kind[rows] + 1.0))
        rewards.append(float(kind[rows].mean()) + 1)
        view = look(s.clients, t + 1)
    assert np.mean(rewards[20:]) > 4.5


def test_exploring_clusters_saves_it_from_the_first_kind_that_is_good_enough() -> None:
    # The same worlds. Once trained, `lsh` predicts nothing bad of kinds it has not met, but nothing
    # better than the best it has met either, so that it may settle there. `nccb` has met all kinds.
    def settled(cls: type[Lsh], seed: int) -> float:
        kind, bits, _ = kinds_of_rewards(seed)
        s = cls(cls.Params(), table(100), np.random.default_rng(seed))
        view = answered(s, look(s.clients), FINGERPRINT, bits)
        for t in range(1, 36):
            rows = s.select(view, 5)
            s.update(outcome(t, rows, utility=kind[rows] + 1.0))
            view = look(s.clients, t + 1)
        return float(kind[rows].mean()) + 1

    assert [settled(Nccb, seed) for seed in range(4)] == [5.0] * 4
    without = [settled(Lsh, seed) for seed in range(4)]
    assert min(without) < 5.0


def test_mean_utilities_are_the_rewards() -> None:
    clients = replace(table(3), energy=np.array([3.0, 8, 10]))
    s = Nccb(NccbParams(utility="accuracy_energy"), clients, np.random.default_rng(0))
    s.select(asked(s, random_bits(3)), 2)
    told = replace(outcome(1, [0, 1]), signals={INTERVIEW_ACCURACY: np.array([0.3, 0.45])})
    s.update(told)
    assert s.reward_sum == pytest.approx([0.5, 0.325, 0.0])
