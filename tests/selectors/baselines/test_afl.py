"""Active Federated Learning."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from conftest import MakeJob, records, run, run_killed_and_resumed, same_records
from hypothesis import given, settings
from hypothesis import strategies as st
from selector_worlds import Numbers, Rows, answered, five_sigma, look, outcome, table

from fedsuv_plugin import wire
from fedsuv_plugin.errors import UserError
from fedsuv_plugin.selectors.base import RoundOutcome, RoundView
from fedsuv_plugin.selectors.baselines.afl import Afl, AflParams, by_value
from fedsuv_plugin.selectors.signals import LOSS

# sqrt(100) 2 = 20, sqrt(441) 1 = 21, sqrt(25) 3 = 15, sqrt(961) 0.5 = 15.5, and so on.
LOSSES = np.array([2, 1, 3, 0.5, 2.5, 1.5, 0.2, 4])
SAMPLES = [100, 441, 25, 961, 100, 144, 2500, 16]
VALUES = [20, 21, 15, 15.5, 25, 18, 10, 16]


def make(n: int, seed: int = 0, samples: Numbers = 40, **params: object) -> Afl:
    clients = table(n, samples=samples)
    return Afl(AflParams.from_mapping(params), clients, np.random.default_rng(seed))


def asked(
    s: Afl, losses: np.ndarray, online: Rows = None, silent: Iterable[int] = (), t: int = 1
) -> RoundView:
    """The view of the selection, once those who are asked have told their losses."""
    return answered(s, look(s.clients, t, online), LOSS, losses, list(silent))


def done(t: int, rows: np.ndarray, losses: np.ndarray, valid: Any = True) -> RoundOutcome:
    """The outcome with the losses under the received model; the training loss is another."""
    base = outcome(t, rows, utility=99.0, valid=valid)
    return replace(base, signals={LOSS: np.where(base.valid, losses, 0.0)})


# ---- worked by hand


def test_valuations_and_probabilities_by_hand() -> None:
    # Dropped: floor(0.75 8) = 6, all but 25 and 21. p_4 = e^0.25 / (e^0.25 + e^0.21) =
    # 1 / (1 + e^-0.04) = 0.509999.
    s = make(8, samples=SAMPLES)
    s.select(asked(s, LOSSES), 2)
    told = s.explain()
    assert told["valuation"] == pytest.approx(VALUES)
    assert np.flatnonzero(told["dropped"]).tolist() == [0, 2, 3, 5, 6, 7]
    assert told["probability"] == pytest.approx([0, 0.490001, 0, 0, 0.509999, 0, 0, 0], abs=5e-7)
    assert s.diagnostics() == {
        "known": 8,
        "median_valuation": 17.0,  # between 16 and 18
        "dropped": 6,
        "by_value": 1,
        "uniform": 1,
    }


def test_other_parameters_by_hand() -> None:
    # Half are dropped: 10, 15, 15.5 and 16. The others have weights e^2, e^2.1, e^2.5 and e^1.8 =
    # 7.389, 8.166, 12.182, 6.050, together 33.787.
    s = make(8, samples=SAMPLES, drop_share=0.5, softmax_factor=0.1)
    s.select(asked(s, LOSSES), 2)
    assert np.flatnonzero(s.explain()["dropped"]).tolist() == [2, 3, 6, 7]
    assert s.explain()["probability"] == pytest.approx(
        [0.218693, 0.241693, 0, 0, 0.360564, 0.179051, 0, 0], abs=5e-7
    )


def test_seats_by_hand() -> None:
    # floor(0.9 m): 4.5 -> 4, 9, 18, 180.
    for k, seats in ((5, 4), (10, 9), (20, 18), (200, 180)):
        assert by_value(k, 0.1) == seats
        s = make(1000)
        s.select(asked(s, np.ones(1000)), k)
        parts = s.diagnostics()
        assert (parts["by_value"], parts["uniform"]) == (seats, k - seats)


def test_no_seat_and_nobody_is_lost_to_rounding() -> None:
    # In binary floating point (1 - 0.9) 10 = 0.99999..., and 0.29 100 = 28.999...
    assert math.floor((1 - 0.9) * 10) == 0
    assert by_value(10, 0.9) == 1
    assert math.floor(0.29 * 100) == 28
    s = make(100, drop_share=0.29)
    s.select(asked(s, np.arange(100.0)), 5)
    assert s.diagnostics()["dropped"] == 29


def test_the_unknown_count_as_the_median_of_all_known() -> None:
    # Known: 1, 2, 6, 8 and, offline, 30, whose median is 6; client 5 does not answer. Of the five
    # online floor(0.6 5) = 3 are dropped: 1, 2 and one of 6 and the unknown, which is level.
    dropped = np.zeros(6)
    for seed in range(400):
        s = make(6, seed, samples=1, drop_share=0.6)
        s.update(done(1, np.array([3]), np.array([30.0])))
        s.select(asked(s, np.array([1.0, 2, 6, 0, 8, 0]), [0, 1, 2, 4, 5], silent=[5]), 1)
        dropped += s.explain()["dropped"]
    assert dropped[[0, 1, 3, 4]].tolist() == [400, 400, 0, 0]
    assert abs(dropped[2] - 200) < five_sigma(400, 0.5)
    assert np.isnan(s.explain()["valuation"][5])
    assert np.isnan(s.explain()["probability"][3])
    # p_4 beside one of value 6: 1 / (1 + e^-0.02).
    assert s.explain()["probability"][4] == pytest.approx(1 / (1 + math.exp(-0.02)))


# ---- against the page, with plain loops


def by_the_book(
    value: list[float], known: list[bool], online: list[int], params: AflParams
) -> tuple[dict[int, float], set[int], bool]:
    """The probabilities of the clients in the draw, who is dropped, and whether luck has a say.

    It has where the last of the dropped and the first of the others are level."""
    heard = sorted(v for v, k in zip(value, known, strict=True) if k)
    middle = 0.0
    if heard:
        middle = (heard[(len(heard) - 1) // 2] + heard[len(heard) // 2]) / 2
    believed = {i: value[i] if known[i] else middle for i in online}
    order = sorted(online, key=lambda i: believed[i])
    cut = int(params.drop_share * len(online) + 1e-9)
    total = sum(math.exp(params.softmax_factor * believed[i]) for i in order[cut:])
    shares = {i: math.exp(params.softmax_factor * believed[i]) / total for i in order[cut:]}
    level = 0 < cut < len(order) and believed[order[cut - 1]] == believed[order[cut]]
    return shares, set(order[:cut]), level


@pytest.mark.parametrize("seed", range(100))
def test_agrees_with_the_pseudocode(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 40))
    params = AflParams(
        drop_share=float(rng.random()), softmax_factor=float(rng.choice([0.0, 0.01, 0.1, 1.0]))
    )
    samples = rng.integers(1, 500, n)
    s = Afl(params, table(n, samples=samples), rng)
    value = [0.0] * n
    known = [False] * n
    for t in range(1, 6):
        online = np.flatnonzero(rng.random(n) < 0.7)
        losses = rng.random(n)
        view = asked(s, losses, online, silent=rng.integers(0, n, 1).tolist(), t=t)
        if view.probe is not None:
            for i in view.probe.rows.tolist():
                value[i] = math.sqrt(samples[i]) * losses[i]
                known[i] = True
        rows = s.select(view, 5)
        shares, dropped, level = by_the_book(value, known, online.tolist(), params)
        if not level:
            assert set(np.flatnonzero(s.explain()["dropped"]).tolist()) == dropped
            for i in online.tolist():
                assert s.explain()["probability"][i] == pytest.approx(shares.get(i, 0.0))
        chosen = min(5, len(online))
        seats = min(int(0.9 * chosen + 1e-9), len(shares))
        assert s.diagnostics()["by_value"] == seats
        assert not set(rows[:seats].tolist()) & set(np.flatnonzero(s.explain()["dropped"]).tolist())
        valid = rng.random(len(rows)) < 0.8
        fresh = rng.random(len(rows))
        s.update(done(t, rows, fresh, valid))
        for i, loss, ok in zip(rows.tolist(), fresh, valid, strict=True):
            if ok:
                value[i] = math.sqrt(samples[i]) * loss
                known[i] = True


# ---- the draws


def test_seats_by_value_are_drawn_in_proportion() -> None:
    # Two of 3 clients with weights 1, 2 and 5 (values 0, ln 2, ln 5; alpha_2 = 1) in 4000 draws:
    # the first pick is client i with p_i = 1/8, 2/8, 5/8, and 0 then 2 come with 1/8 5/7.
    s = make(3, samples=1, drop_share=0.0, softmax_factor=1.0, uniform_share=0.0)
    view = asked(s, np.log([1.0, 2.0, 5.0]))
    out = np.zeros(3)
    for _ in range(4000):
        rows = s.select(view, 2)
        out[3 - rows.sum()] += 1
    w = np.array([1, 2, 5]) / 8
    for left in range(3):
        a, b = (i for i in range(3) if i != left)
        p = w[a] * w[b] / (1 - w[a]) + w[b] * w[a] / (1 - w[b])
        assert abs(out[left] - 4000 * p) < five_sigma(4000, p)


def test_the_rest_is_drawn_uniformly_from_everybody_left_the_dropped_included() -> None:
    # 8 clients; 6 dropped; of 2 seats floor(0.5 2) = 1 is by value: 6 or 7, weights equal. The
    # other goes to each of the 7 left alike. So a dropped one is chosen with probability 1/7, one
    # of the two others with 1/2 + 1/2 1/7 = 4/7.
    s = make(8, samples=1, softmax_factor=0.0, uniform_share=0.5)
    view = asked(s, np.arange(8.0))
    counts = np.zeros(8)
    for _ in range(4000):
        counts[s.select(view, 2)] += 1
    assert np.abs(counts[:6] - 4000 / 7).max() < five_sigma(4000, 1 / 7)
    assert np.abs(counts[6:] - 4000 * 4 / 7).max() < five_sigma(4000, 4 / 7)


def test_seats_that_cannot_be_filled_by_value_are_drawn_uniformly() -> None:
    s = make(8, samples=1)
    rows = s.select(asked(s, np.arange(8.0)), 6)
    assert set(rows[:2].tolist()) == {6, 7}
    assert s.diagnostics()["by_value"] == 2
    assert s.diagnostics()["uniform"] == 4
    s = make(8, drop_share=1.0)
    assert len(s.select(asked(s, np.arange(8.0)), 6)) == 6
    assert (s.explain()["probability"] == 0).all()


def test_ties_at_the_boundary_are_broken_fairly() -> None:
    # 10 equal clients, 7 dropped: Binomial(2000, 0.7) each.
    s = make(10)
    view = asked(s, np.ones(10))
    counts = np.zeros(10)
    for _ in range(2000):
        s.select(view, 1)
        counts += s.explain()["dropped"]
    assert np.abs(counts - 1400).max() < five_sigma(2000, 0.7)


def test_one_absurd_valuation_takes_one_seat_and_blinds_nobody() -> None:
    # Beside 1e300 exp(v - max) of all others is 0. They are drawn as if it were not there: values
    # 0 and 3, so the latter with e^3 / (1 + e^3) = 0.953.
    s = make(3, samples=1, drop_share=0.0, softmax_factor=1.0, uniform_share=0.0)
    view = asked(s, np.array([0.0, 3.0, 1e300]))
    second = []
    for _ in range(1000):
        rows = s.select(view, 2)
        assert rows[0] == 2
        second.append(int(rows[1]))
    p = 1 / (1 + math.exp(-3))
    assert abs(sum(second) - 1000 * p) < five_sigma(1000, p)


# ---- who is asked, and what is learnt


def test_clients_are_asked_until_they_have_answered_once() -> None:
    s = make(6)
    first = s.probe(look(s.clients, 1, [0, 1, 2]))
    assert first is not None
    assert first.rows.tolist() == [0, 1, 2]
    s.select(asked(s, np.ones(6), [0, 1, 2], silent=[2]), 2)
    second = s.probe(look(s.clients, 2, [0, 2, 3]))
    assert second is not None
    assert second.rows.tolist() == [2, 3]
    s.update(done(2, np.array([2, 3, 4]), np.ones(3), [True, True, False]))
    third = s.probe(look(s.clients, 3))
    assert third is not None
    assert third.rows.tolist() == [4, 5]  # 4 missed its round, and is not known yet
    s.select(asked(s, np.ones(6)), 2)
    assert s.probe(look(s.clients, 4)) is None


def test_the_signal_comes_before_the_training_loss() -> None:
    s = make(3, samples=[4, 9, 16])
    s.update(done(1, np.array([0, 1]), np.array([1.0, 2.0]), [True, False]))
    s.update(outcome(2, [2], 5.0))  # without the signal: the training loss
    assert s.explain()["valuation"][[0, 2]].tolist() == [2.0, 20.0]
    assert np.isnan(s.explain()["valuation"][1])


# ---- invariants


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    n=st.integers(1, 15),
    k=st.integers(0, 18),
    seed=st.integers(0, 99),
    drop=st.sampled_from([0.0, 0.3, 0.75, 1.0]),
    factor=st.sampled_from([0.0, 0.01, 100.0]),
    uniform=st.sampled_from([0.0, 0.1, 1.0]),
    data=st.data(),
)
def test_min_k_online_distinct_rows_and_a_resumed_selector_goes_on_alike(
    n: int, k: int, seed: int, drop: float, factor: float, uniform: float, data: st.DataObject
) -> None:
    def fresh(number: int) -> Afl:
        shares = {"drop_share": drop, "softmax_factor": factor, "uniform_share": uniform}
        return make(n, number, samples=np.arange(n), **shares)

    s = fresh(seed)
    with np.errstate(divide="raise", invalid="raise", over="raise"):
        for t in range(1, 5):
            online = data.draw(st.sets(st.integers(0, n - 1)))
            silent = data.draw(st.sets(st.integers(0, n - 1)))
            losses = np.random.default_rng([seed, t]).choice([0.0, 1e-300, 1.0, 2.0, 1e300], n)
            twin = fresh(seed + 1)
            twin.load_state_dict(wire.decode(wire.encode(s.state_dict())))
            rows = s.select(asked(s, losses, sorted(online), silent, t), k)
            again = twin.select(asked(twin, losses, sorted(online), silent, t), k)
            assert rows.tolist() == again.tolist()
            assert len(rows) == len(set(rows.tolist())) == min(k, len(online))
            assert set(rows.tolist()) <= online
            told = s.explain()
            np.testing.assert_equal(told, twin.explain())
            json.dumps(s.diagnostics(), allow_nan=False)
            here = np.isin(np.arange(n), list(online))
            assert np.array_equal(np.isfinite(told["probability"]), here)
            if not told["dropped"][here].all():
                assert told["probability"][here].sum() == pytest.approx(1)
            valid = np.random.default_rng([seed, t, 1]).random(len(rows)) < 0.7
            s.update(done(t, rows, losses[rows], valid))
            assert np.isfinite(s.valuation).all()


@pytest.mark.parametrize(
    ("name", "value"),
    [("drop_share", 1.1), ("drop_share", -0.1), ("softmax_factor", -1), ("uniform_share", 2)],
)
def test_bad_parameters_are_refused(name: str, value: object) -> None:
    with pytest.raises(UserError, match=name):
        AflParams.from_mapping({name: value})


# ---- learning


@pytest.mark.parametrize("seed", range(3))
def test_clients_that_the_model_fits_badly_are_asked_more(seed: int) -> None:
    # 100 clients of equal size; 25 have loss 2, the others 1, and alpha_1 drops exactly those. Of
    # 10 seats 9 are drawn from the 25; the tenth is one of the 91 left, 16 of them hard. So hard
    # ones have 9.176 of 10 seats; the tenth is Binomial(50, 0.176) over 50 rounds, at most 5
    # standard deviations (0.27 of a seat) off.
    hard = np.arange(100) < 25
    losses = np.where(hard, 2.0, 1.0)
    s = make(100, seed)
    seats = 0
    for t in range(1, 51):
        rows = s.select(asked(s, losses, t=t), 10)
        seats += int(hard[rows].sum())
        s.update(done(t, rows, losses[rows]))
    assert abs(seats - 50 * (9 + 16 / 91)) < five_sigma(50, 16 / 91)


def test_a_job_with_it_learns_and_resumes(job: MakeJob) -> None:
    small = job(sample_mode="afl", rounds=12, checkpoint_every=3, overcommitment=1.0)
    whole = run(small)
    rounds = records(whole)
    metrics = records(whole, "metrics.jsonl")
    assert metrics[-1]["loss"] < 0.8 * metrics[0]["loss"]
    assert {r["selector"]["known"] for r in rounds} == {20}  # everyone answered before round 1
    assert rounds[0]["selector"]["dropped"] == 15
    medians = [r["selector"]["median_valuation"] for r in rounds]
    assert medians[-1] < medians[0]  # valuations are renewed, and fall with the losses
    same_records(run_killed_and_resumed(small, 8), whole)
