"""BSFL: fast clients by a bandit, and equal participation."""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest
from conftest import DEVICES, MakeJob, records, run, run_killed_and_resumed, same_records
from hypothesis import given, settings
from hypothesis import strategies as st
from selector_worlds import Numbers, five_sigma, look, outcome, table

from fedsuv_plugin import wire
from fedsuv_plugin.errors import UserError
from fedsuv_plugin.selectors.baselines import bsfl
from fedsuv_plugin.selectors.baselines.bsfl import BSFL, BSFLParams, best_set


def make(n: int, seed: int = 0, duration: Numbers = 1.0, **params: object) -> BSFL:
    clients = table(n, duration=duration)
    return BSFL(BSFLParams.from_mapping(params), clients, np.random.default_rng(seed))


def of_o3(**params: float) -> BSFL:
    """Rates 0.9 0.5 0.2 0.4 of 7, 4, 3 and 6 participations in 10 rounds."""
    s = make(4, 0, 1.0, **params)
    s.rate[:] = [0.9, 0.5, 0.2, 0.4]
    s.count[:] = [7, 4, 3, 6]
    s.rounds = 10
    return s


# ---- worked by hand


def test_indices_and_needs_by_hand() -> None:
    # 0.9 + sqrt(3 ln 10 / 7) = 0.9 + 0.993389; (2/4 - 7/10)^5 = -0.2^5 = -0.00032.
    s = of_o3()
    s.select(look(s.clients, 11), 2)
    assert s.explain()["index"] == pytest.approx([1.893389, 1.814130, 1.717427, 1.472983], abs=1e-6)
    assert s.explain()["need"] == pytest.approx([-0.00032, 0.00001, 0.00032, -0.00001])


def test_the_best_set_by_hand() -> None:
    # Speed decides at alpha 1: clients 0 and 1. At 1e4 they have 1.81 - 1.55 = 0.26, and 1 and 2
    # have 1.72 + 1.65 = 3.37.
    s = of_o3()
    assert sorted(s.select(look(s.clients, 11), 2).tolist()) == [0, 1]
    s = of_o3(alpha=1e4)
    assert sorted(s.select(look(s.clients, 11), 2).tolist()) == [1, 2]
    assert s.diagnostics() == {
        "unexplored": 0,
        "explored": 0,
        "lowest_index": pytest.approx(1.717427, abs=1e-6),
        "mean_need": pytest.approx(0.000165),
    }


def test_beta_is_the_exponent() -> None:
    s = of_o3(beta=2.0)
    s.select(look(s.clients, 11), 2)
    assert s.explain()["need"] == pytest.approx([-0.04, 0.01, 0.04, -0.01])


def test_rates_by_hand() -> None:
    # tau_min is the smallest expected duration, 2: 2/4 and 2/8 are 0.375 in the mean; 1 second is
    # faster still and counts as 1; whoever missed the round counts, too.
    s = make(3, duration=[2.0, 4.0, 10.0])
    s.update(outcome(1, [0, 1], duration=[1.0, 4.0]))
    s.update(outcome(2, [1, 2], duration=[8.0, 20.0], valid=[True, False]))
    assert s.explain()["rate"].tolist() == [1.0, 0.375, 0.1]
    assert s.explain()["count"].tolist() == [1, 2, 1]
    assert s.rounds == 2
    s = make(3, duration=[2.0, 4.0, 10.0], tau_min=0.1)
    s.update(outcome(1, [0], duration=[4.0]))
    assert s.explain()["rate"][0] == pytest.approx(0.025)
    assert np.isnan(s.explain()["rate"][1:]).all()


def test_without_durations_everyone_is_as_fast_as_can_be() -> None:
    s = make(2, duration=0.0)
    with np.errstate(divide="raise", invalid="raise"):
        s.update(outcome(1, [0, 1], duration=0.0))
    assert s.rate.tolist() == [1.0, 1.0]


def test_everyone_is_asked_once_first() -> None:
    s = make(10)
    asked: list[int] = []
    for t in range(1, 4):
        rows = s.select(look(s.clients, t), 4)
        asked += rows.tolist()
        s.update(outcome(t, rows, duration=1.0))
    assert set(asked) == set(range(10))
    # Four, four, and two of the third round, which come before two that have been asked.
    assert set(asked[:8]) | set(asked[8:10]) == set(range(10))
    assert s.diagnostics()["explored"] == 2
    assert s.diagnostics()["unexplored"] == 0
    # Who was offline till now comes next.
    s = make(5)
    for t in range(1, 6):
        s.update(outcome(t, s.select(look(s.clients, t, [0, 1, 2]), 2)))
    assert s.select(look(s.clients, 6), 3)[:2].tolist() in ([3, 4], [4, 3])


# ---- the best set, against every set


def value(index: np.ndarray, need: np.ndarray, rows: list[int], alpha: float) -> float:
    return min(float(index[i]) for i in rows) + alpha * sum(float(need[i]) for i in rows) / len(
        rows
    )


@pytest.mark.parametrize("block", [1, 3, 4096])
@pytest.mark.parametrize("seed", range(100))
def test_no_set_is_better(seed: int, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bsfl, "BLOCK", block)
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 11))
    kinds = [rng.random(n), rng.integers(0, 3, n).astype(float), rng.normal(size=n)]
    index = kinds[seed % 3]
    need = kinds[seed // 3 % 3] * rng.choice([1.0, -1.0])
    for m in range(1, n + 1):
        for alpha in (0.0, 0.3, 1.0, 10.0):
            rows = best_set(index, need, m, alpha).tolist()
            assert len(rows) == len(set(rows)) == m
            reached = max(
                value(index, need, list(each), alpha)
                for each in itertools.combinations(range(n), m)
            )
            assert value(index, need, rows, alpha) == pytest.approx(reached, abs=1e-12)


def test_no_seats_and_more_seats_than_clients() -> None:
    assert best_set(np.ones(3), np.ones(3), 0, 1.0).tolist() == []
    assert best_set(np.array([0.1, 0.3, 0.2]), np.ones(3), 5, 1.0).tolist() == [1, 2, 0]


# ---- against the page, with plain loops


@pytest.mark.parametrize("seed", range(100))
def test_agrees_with_the_pseudocode(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(4, 9))
    m = int(rng.integers(1, n))
    alpha = float(rng.choice([0.0, 1.0, 100.0]))
    expected = rng.uniform(1, 20, n)
    s = make(n, seed, duration=expected, alpha=alpha, beta=2.0)
    rates: list[list[float]] = [[] for _ in range(n)]
    for t in range(1, 16):
        online = np.flatnonzero(rng.random(n) < 0.9).tolist()
        k = min(m, len(online))
        rows = s.select(look(s.clients, t, online), m).tolist()
        seen = [i for i in online if rates[i]]
        new = [i for i in online if not rates[i]]
        assert len(set(rows) & set(new)) == min(k, len(new))
        seats = k - min(k, len(new))
        if seats:
            index = np.zeros(n)
            need = np.zeros(n)
            for i in seen:
                width = math.sqrt((k + 1) * math.log(t - 1) / len(rates[i]))
                index[i] = sum(rates[i]) / len(rates[i]) + width
                off = k / n - len(rates[i]) / (t - 1)
                need[i] = math.copysign(abs(off) ** 2.0, off)
            reached = max(
                value(index, need, list(each), alpha)
                for each in itertools.combinations(seen, seats)
            )
            chosen = [i for i in rows if rates[i]]
            assert value(index, need, chosen, alpha) == pytest.approx(reached)
            assert s.explain()["index"][seen] == pytest.approx(index[seen])
            assert s.explain()["need"][seen] == pytest.approx(need[seen])
        seconds = rng.uniform(1, 20, len(rows))
        if rows:
            s.update(outcome(t, rows, duration=seconds, valid=rng.random(len(rows)) < 0.8))
        else:
            s.rounds += 1  # so that the loops' t - 1 and the selector's agree
        for i, each in zip(rows, seconds.tolist(), strict=True):
            rates[i].append(min(1.0, float(expected.min()) / each))


# ---- the draws


@pytest.mark.parametrize("explored", [False, True])
def test_ties_are_broken_fairly(explored: bool) -> None:
    # 4 of 10 equal clients: Binomial(2000, 0.4).
    counts = np.zeros(10)
    for seed in range(2000):
        s = make(10, seed)
        if explored:
            s.update(outcome(1, np.arange(10), duration=2.0))
        counts[s.select(look(s.clients, 2), 4)] += 1
    assert np.abs(counts - 800).max() < five_sigma(2000, 0.4)


# ---- invariants


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    n=st.integers(1, 15),
    k=st.integers(0, 18),
    seed=st.integers(0, 99),
    alpha=st.sampled_from([0.0, 1.0, 1e30]),
    beta=st.sampled_from([0.5, 5.0, 100.0]),
    data=st.data(),
)
def test_min_k_online_distinct_rows_and_a_resumed_selector_goes_on_alike(
    n: int, k: int, seed: int, alpha: float, beta: float, data: st.DataObject
) -> None:
    rng = np.random.default_rng(seed)
    seconds = rng.choice([0.0, 1.0, 1e9], n)

    def fresh(number: int) -> BSFL:
        return make(n, number, duration=seconds, alpha=alpha, beta=beta)

    s = fresh(seed)
    with np.errstate(divide="raise", invalid="raise", over="raise"):
        for t in range(1, 7):
            online = sorted(data.draw(st.sets(st.integers(0, n - 1))))
            view = look(s.clients, t, online)
            twin = fresh(seed + 1)
            twin.load_state_dict(wire.decode(wire.encode(s.state_dict())))
            rows = s.select(view, k)
            assert rows.tolist() == twin.select(view, k).tolist()
            assert len(rows) == len(set(rows.tolist())) == min(k, len(online))
            assert set(rows.tolist()) <= set(online)
            np.testing.assert_equal(s.explain(), twin.explain())
            json.dumps(s.diagnostics(), allow_nan=False)
            s.update(outcome(t, rows, duration=seconds[rows] * rng.random(len(rows))))
            assert ((s.rate >= 0) & (s.rate <= 1)).all()
            assert (s.count <= s.rounds).all()


@pytest.mark.parametrize(("name", "value"), [("alpha", -1), ("beta", 0), ("tau_min", 0)])
def test_bad_parameters_are_refused(name: str, value: object) -> None:
    with pytest.raises(UserError, match=name):
        BSFLParams.from_mapping({name: value})


# ---- learning


@pytest.mark.parametrize("seed", range(3))
def test_slow_clients_are_asked_seldom(seed: int) -> None:
    # 5 clients of rate 1 and 5 of rate 1/20; alpha 0. A slow one is in the best set of five only
    # if its index is at least that of some fast one, which is more than 1. So 0.05 + sqrt(6 ln t /
    # n) > 1 and n < 6 ln 500 / 0.9025 = 41.3 before it is asked again, and at most 42 after. Five
    # of them have at most 210 of 2500 seats; at random it is 1250.
    seconds = np.where(np.arange(10) < 5, 1.0, 20.0)
    s = make(10, seed, duration=seconds, alpha=0.0)
    for t in range(1, 501):
        rows = s.select(look(s.clients, t), 5)
        s.update(outcome(t, rows, duration=seconds[rows]))
    assert s.count[5:].max() <= 42
    assert s.count.sum() == 2500


@pytest.mark.parametrize("seed", range(3))
def test_with_a_large_alpha_everyone_is_asked_as_often(seed: int) -> None:
    # Whoever was asked less often has the larger need, however little, and 1e30 makes it count.
    seconds = np.random.default_rng(seed).uniform(1, 20, 10)
    s = make(10, seed, duration=seconds, alpha=1e30)
    for t in range(1, 101):
        rows = s.select(look(s.clients, t), 3)
        s.update(outcome(t, rows, duration=seconds[rows]))
        assert s.count.max() - s.count.min() <= 1


def test_a_job_with_it_learns_and_resumes(job: MakeJob) -> None:
    small = job(
        sample_mode="bsfl", rounds=12, device_conf_file=DEVICES, checkpoint_every=3, bsfl__alpha=0.0
    )
    whole = run(small)
    rounds = records(whole)
    metrics = records(whole, "metrics.jsonl")
    assert metrics[-1]["loss"] < 0.8 * metrics[0]["loss"]
    # 5 of 20 a round, overcommitment included: all are explored after four rounds.
    assert [r["selector"]["unexplored"] for r in rounds[:5]] == [15, 10, 5, 0, 0]
    same_records(run_killed_and_resumed(small, 8), whole)
