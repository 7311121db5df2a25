"""LSH: contexts, rewards and upper bounds; the fingerprints of real clients on every launcher."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from conftest import (
    DEVICES,
    MakeJob,
    checkpoint,
    records,
    run,
    run_killed_and_resumed,
    same_records,
)
from engine_worlds import client_conf, data_of
from hypothesis import given, settings
from hypothesis import strategies as st
from neural_ucb_by_the_book import ByTheBook, random_bits, world
from selector_worlds import Rows, answered, five_sigma, look, outcome, table

from fedsuv_plugin import wire
from fedsuv_plugin.config.resolved import resolve
from fedsuv_plugin.engine import signals as engine_signals
from fedsuv_plugin.engine import training
from fedsuv_plugin.engine.client import PluginClient
from fedsuv_plugin.engine.simhash import simhash
from fedsuv_plugin.errors import UserError
from fedsuv_plugin.selectors.base import RoundView
from fedsuv_plugin.selectors.baselines.lsh import ABSURD, Lsh, LshParams, context
from fedsuv_plugin.selectors.signals import FINGERPRINT, INTERVIEW_ACCURACY
from fedsuv_plugin.tasks.federated_data import Samples


def make(n: int, seed: int = 0, **params: object) -> Lsh:
    return Lsh(LshParams.from_mapping(params), table(n), np.random.default_rng(seed))


def asked(
    s: Lsh, bits: np.ndarray, online: Rows = None, silent: Iterable[int] = (), t: int = 1
) -> RoundView:
    """The view of the selection, once those who are asked have told their bits."""
    return answered(s, look(s.clients, t, online), FINGERPRINT, bits, list(silent))


# ---- worked by hand


def test_contexts_by_hand() -> None:
    # Two ones: written twice four, so that each is 1 / 2. Without ones a context has no length.
    bits = np.zeros((2, 64), np.uint8)
    bits[0, [3, 60]] = 1
    found = context(bits)
    assert found[0, [3, 60]].tolist() == [0.5, 0.5]
    assert found.sum() == 1.0
    both = np.hstack([context(random_bits(9))] * 2)
    assert (both**2).sum(axis=1) == pytest.approx(np.ones(9))


class Logits(torch.nn.Module):
    """Scores that are the samples themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = torch.nn.Parameter(torch.zeros(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.shift


def test_a_reward_by_hand(job: MakeJob) -> None:
    # Scores (0, log(e^L - 1)) have a loss of L for the first class. Three samples of losses 1, 2
    # and 3: 3 sqrt((1 + 4 + 9) / 3) = 6.480741.
    scores = np.log(np.exp([1.0, 2, 3]) - 1)
    x = torch.tensor([[0.0, score] for score in scores])
    conf = client_conf(job(local_steps=1))
    report = PluginClient(conf).train(Samples(x, torch.zeros(3, dtype=torch.int64)), Logits(), conf)
    s = make(4)
    s.select(asked(s, random_bits(4)), 2)
    s.update(outcome(1, [2], utility=report["utility"]))
    assert s.reward_sum[2] == pytest.approx(6.480741, abs=1e-6)


def test_the_largest_upper_bounds_are_chosen_and_prediction_and_width_told() -> None:
    s = make(30, gamma=2.0)
    bits = random_bits(30)
    rows = s.select(asked(s, bits), 5)
    told = s.explain()
    predicted, upper = s.bandit.bounds(context(bits), 2.0)
    assert told["predicted"] == pytest.approx(predicted.tolist(), abs=1e-12)
    assert told["upper"] == pytest.approx(upper.tolist())
    assert rows.tolist() == np.argsort(-upper)[:5].tolist()
    assert s.diagnostics() == {
        "known": 30,
        "participations": 0,
        "largest_reward": 0.0,
        "squared_error": None,
        "mean_width": pytest.approx(float(np.mean(upper - predicted))),
    }


def test_rewards_are_divided_by_the_largest_and_averaged_by_client() -> None:
    # Client 0: 40 and 20, client 1: 10. Divided by 40: 0.75 and 0.25.
    s = make(2, steps=5000, lam=1e-6)
    bits = np.zeros((2, 64), np.uint8)
    bits[0, :32] = 1
    bits[1, 32:] = 1
    s.select(asked(s, bits), 2)
    s.update(outcome(1, [0, 1], utility=[40.0, 10.0]))
    s.update(outcome(2, [0], utility=20.0))
    s.select(look(s.clients, 3), 1)
    # Training ends at a mean squared error of 0.001: at most sqrt(3 0.001) off for each.
    assert s.explain()["predicted"] == pytest.approx([0.75, 0.25], abs=0.055)
    assert s.diagnostics()["squared_error"] <= 1e-3
    assert s.diagnostics()["participations"] == 3
    assert s.diagnostics()["largest_reward"] == 40.0


def test_one_absurd_reward_is_shortened() -> None:
    # Client means 2, 4 and rewards 1, 1e40: the median of 1, 2, 4, 1e40 is 3.
    s = make(5)
    s.select(asked(s, random_bits(5)), 2)
    s.update(outcome(1, [0, 1], utility=[2.0, 4.0]))
    s.update(outcome(2, [2, 3], utility=[1.0, 1e40]))
    assert s.reward_sum.tolist() == [2.0, 4.0, 1.0, 3.0 * ABSURD, 0.0]
    assert s.largest == 300.0


def test_the_invalid_and_those_without_bits_teach_nothing() -> None:
    s = make(4)
    s.select(asked(s, random_bits(4), silent=[3]), 2)
    before = copy.deepcopy(s.state_dict())
    s.update(outcome(1, [0, 3], utility=[9.0, 9.0], valid=[False, True]))
    np.testing.assert_equal(s.state_dict(), before)
    s.update(outcome(2, [1, 3], utility=[9.0, 9.0]))
    assert s.times.tolist() == [0, 1, 0, 0]


def test_z_takes_the_gradients_before_the_training() -> None:
    s = make(6, lam=0.1)
    bits = random_bits(6)
    s.select(asked(s, bits), 2)
    fresh = copy.deepcopy(s.bandit)
    fresh.observe(context(bits[[1, 4]]))
    s.update(outcome(1, [1, 4, 5], utility=[5.0, 3.0, 0.0], valid=[True, True, False]))
    np.testing.assert_array_equal(s.bandit.z_first, fresh.z_first)
    np.testing.assert_array_equal(s.bandit.z_last, fresh.z_last)
    assert (s.bandit.last != fresh.last).any()


def test_without_training_the_widest_are_chosen() -> None:
    s = make(20, steps=0)
    bits = random_bits(20)
    view = asked(s, bits)
    for t in range(1, 4):
        widths = s.bandit.bounds(context(bits), 1.0)[1]
        rows = s.select(view, 3)
        assert rows.tolist() == np.argsort(-widths)[:3].tolist()
        s.update(outcome(t, rows, utility=5.0))
        view = look(s.clients, t + 1)
    assert s.explain()["predicted"] == pytest.approx(np.zeros(20), abs=1e-12)
    assert s.diagnostics()["squared_error"] is None


# ---- against the page, with plain loops and autograd


@pytest.mark.parametrize("seed", range(100))
def test_agrees_with_the_pseudocode(seed: int) -> None:
    rng, params = world(seed)
    n = int(rng.integers(2, 12))
    s = make(n, seed, **params)
    book = ByTheBook(s)
    bits = random_bits(n, seed)
    for t in range(1, 5):
        online = np.flatnonzero(rng.random(n) < 0.8)
        view = asked(s, bits, online, silent=rng.integers(0, n, 1).tolist(), t=t)
        book.hear(view)
        k = int(rng.integers(1, 5))
        rows = s.select(view, k)
        bounds = book.bounds(online.tolist())
        told = s.explain()
        for i in range(n):
            bound = (told["predicted"][i], told["upper"][i])
            assert bound == pytest.approx(bounds.get(i, (np.nan, np.nan)), abs=1e-7, nan_ok=True)
        uppers = sorted((upper for _, upper in bounds.values()), reverse=True)
        by_bound = [i for i in rows.tolist() if i in bounds]
        assert rows[: len(by_bound)].tolist() == by_bound  # the others come last
        found = [bounds[i][1] for i in by_bound]
        assert found == pytest.approx(uppers[: min(k, len(uppers))], abs=1e-7)
        utility = rng.random(len(rows)) * 50
        valid = rng.random(len(rows)) < 0.7
        book.learn(rows.tolist(), utility.tolist(), valid.tolist(), copy.deepcopy(s.rng))
        s.update(outcome(t, rows, utility=utility, valid=valid))


# ---- who is asked


def test_clients_are_asked_until_they_have_answered_once() -> None:
    s = make(6)
    first = s.probe(look(s.clients, 1, [0, 1, 2]))
    assert first is not None
    assert first.rows.tolist() == [0, 1, 2]
    s.select(asked(s, random_bits(6), [0, 1, 2], silent=[2]), 2)
    second = s.probe(look(s.clients, 2, [0, 2, 3]))
    assert second is not None
    assert second.rows.tolist() == [2, 3]
    s.select(asked(s, random_bits(6)), 2)
    assert s.probe(look(s.clients, 3)) is None


def test_clients_without_bits_come_last_and_at_random() -> None:
    counts = np.zeros(10)
    for seed in range(1000):
        s = make(10, seed, width=2)
        rows = s.select(asked(s, random_bits(10), silent=range(2, 10)), 4)
        assert set(rows[:2].tolist()) == {0, 1}
        counts[rows[2:]] += 1
    assert np.abs(counts[2:] - 250).max() < five_sigma(1000, 1 / 4)
    assert np.isnan(s.explain()["upper"][2:]).all()


def test_where_nobody_is_asked_all_cohorts_are_random() -> None:
    s = make(10)
    counts = np.zeros(10)
    for t in range(1, 2001):
        rows = s.select(look(s.clients, t), 4)
        s.update(outcome(t, rows))
        counts[rows] += 1
    assert np.abs(counts - 800).max() < five_sigma(2000, 0.4)


def test_ties_are_broken_fairly(monkeypatch: pytest.MonkeyPatch) -> None:
    # Equal bits have equal bounds, but for rounding, which goes by the place in a matrix product:
    # Binomial(1000, 0.3).
    s = make(10, steps=0)
    bounds = s.bandit.bounds

    def rounded(contexts: np.ndarray, gamma: float) -> tuple[np.ndarray, np.ndarray]:
        predicted, upper = bounds(contexts, gamma)
        return predicted, upper + 1e-14 * np.arange(len(upper))

    monkeypatch.setattr(s.bandit, "bounds", rounded)
    view = asked(s, np.tile(random_bits(1), (10, 1)))
    counts = np.zeros(10)
    for _ in range(1000):
        counts[s.select(view, 3)] += 1
    assert np.abs(counts - 300).max() < five_sigma(1000, 0.3)


# ---- accuracy and energy in place of the utility


def test_mean_utilities_are_the_rewards() -> None:
    # Energy scores 0.7, 0.2, 0; accuracies 0.3, 0.45, 0.55: utilities 0.5, 0.325, 0.275.
    clients = replace(table(3), energy=np.array([3.0, 8, 10]))
    params = LshParams(utility="accuracy_energy")
    s = Lsh(params, clients, np.random.default_rng(0))
    s.select(asked(s, random_bits(3)), 2)
    told = outcome(1, [0, 1, 2], utility=77.0, valid=[True, True, False])
    s.update(replace(told, signals={INTERVIEW_ACCURACY: np.array([0.3, 0.45, 0.0])}))
    s.update(replace(outcome(2, [2]), signals={INTERVIEW_ACCURACY: np.array([0.55])}))
    assert s.reward_sum == pytest.approx([0.5, 0.325, 0.275])
    assert s.largest == 1.0  # so that they stay as they are


def test_interviews_are_needed_only_where_they_are_used(job: MakeJob) -> None:
    assert Lsh.required(LshParams()) == frozenset()
    assert Lsh.required(LshParams(utility="accuracy_energy")) == {INTERVIEW_ACCURACY}
    assert resolve(job(sample_mode="lsh")).config.interview_fraction == 0.0
    chosen = job(sample_mode="lsh", lsh__utility="accuracy_energy")
    assert resolve(chosen).config.interview_fraction == 0.2


# ---- invariants


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    n=st.integers(1, 12),
    k=st.integers(0, 15),
    seed=st.integers(0, 99),
    gamma=st.sampled_from([0.0, 1.0, 100.0]),
    utility=st.sampled_from(["own", "accuracy_energy"]),
    data=st.data(),
)
def test_min_k_online_distinct_rows_and_a_resumed_selector_goes_on_alike(
    n: int, k: int, seed: int, gamma: float, utility: str, data: st.DataObject
) -> None:
    def fresh(number: int) -> Lsh:
        return make(n, number, gamma=gamma, utility=utility, width=4, steps=6)

    s = fresh(seed)
    bits = random_bits(n, seed)
    bits[0] = 0
    with np.errstate(divide="raise", invalid="raise", over="raise"):
        for t in range(1, 5):
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
            here = s.known & np.isin(np.arange(n), list(online))
            assert np.array_equal(np.isfinite(told["upper"]), here)
            assert (told["upper"][here] >= told["predicted"][here]).all()
            rng = np.random.default_rng([seed, t])
            worth = rng.choice([0.0, 1e-300, 1.0, 2.0, 1e300], len(rows))
            told_round = outcome(t, rows, utility=worth, valid=rng.random(len(rows)) < 0.7)
            accuracy = np.where(told_round.valid, rng.random(len(rows)), 0.0)
            s.update(replace(told_round, signals={INTERVIEW_ACCURACY: accuracy}))
            assert np.isfinite(s.bandit.first).all()
            assert np.isfinite(s.reward_sum).all()


def test_the_same_seed_gives_the_same_cohorts_and_another_seed_others() -> None:
    def cohorts(seed: int) -> list[list[int]]:
        s = make(30, seed, steps=20)
        view = asked(s, random_bits(30))
        picks = []
        for t in range(1, 6):
            rows = s.select(view, 4)
            s.update(outcome(t, rows, utility=rows + 1.0))
            picks.append(rows.tolist())
            view = look(s.clients, t + 1)
        return picks

    assert cohorts(1) == cohorts(1)
    assert cohorts(1) != cohorts(2)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("gamma", -1),
        ("lam", 0),
        ("width", 7),
        ("width", 0),
        ("steps", -1),
        ("learning_rate", 0),
        ("utility", "loss"),
    ],
)
def test_bad_parameters_are_refused(name: str, value: object) -> None:
    with pytest.raises(UserError, match=name):
        LshParams.from_mapping({name: value})


# ---- real jobs


JOBS: dict[str, dict[str, Any]] = {
    "plain": {},
    "accuracy_energy": {"lsh__utility": "accuracy_energy", "lsh__energy": "uniform"},
}


@pytest.mark.parametrize("keys", JOBS.values(), ids=JOBS)
def test_a_job_with_it_learns_and_resumes(job: MakeJob, keys: dict[str, Any]) -> None:
    small = job(sample_mode="lsh", rounds=12, checkpoint_every=3, lsh__steps=100, **keys)
    whole = run(small)
    rounds = records(whole)
    metrics = records(whole, "metrics.jsonl")
    assert metrics[-1]["loss"] < 0.8 * metrics[0]["loss"]
    told = [r["selector"] for r in rounds]
    assert {each["known"] for each in told} == {20}  # everyone answered before round 1
    taught = np.cumsum([len(r["valid"]) for r in rounds])
    assert [each["participations"] for each in told] == taught.tolist()
    assert len({tuple(r["asked"]) for r in rounds}) > 1
    same_records(run_killed_and_resumed(small, 8), whole)


def test_fingerprints_are_the_same_on_every_launcher_and_by_hand(
    job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked once, of 20 clients in groups of 3 that one, two or three executors share."""
    monkeypatch.setattr(training, "CLIENTS_AT_ONCE", 3)
    monkeypatch.setattr(engine_signals, "CLIENTS_AT_ONCE", 3)
    small = job(sample_mode="lsh", rounds=3, lsh__steps=50, device_conf_file=DEVICES)
    here = run(small)
    state = checkpoint(here)["client_manager"]["selector"]
    data = data_of(small)
    by_hand = [simhash(data)(data.training(client)).tolist() for client in range(1, 21)]
    assert state["bits"].tolist() == by_hand
    assert len(np.unique(state["bits"], axis=0)) > 10
    for executors in (2, 3):
        there = run(small, launcher="processes", executors=executors)
        same_records(here, there)
        found = checkpoint(there)["client_manager"]["selector"]["bits"]
        assert found.tolist() == by_hand
    bills = [line["probing"] for line in records(here)]
    assert [bill["clients"] for bill in bills] == [20, 0, 0]
    assert bills[0]["megabytes"] == pytest.approx(20 * 8 / 1e6)
    assert bills[0]["client_time"] > 0


# ---- learning


@pytest.mark.parametrize("seed", range(5))
def test_clients_whose_data_are_like_those_of_high_reward_are_asked(seed: int) -> None:
    # 100 clients of 5 kinds, 20 each, whose bits differ from the kind's in 3 of 64 on average, and
    # from another kind's in 32. Rewards 1 to 5. Half of each kind took part once, in random
    # cohorts. The others are as like the first half as those are like one another, so that they are
    # predicted as well: to about 0.03 of the largest reward, where training ends, while kinds are
    # 0.2 apart. So a cohort of the other half, chosen without widths, is of the best kind.
    rng = np.random.default_rng(seed)
    kind = np.tile(np.arange(5), 20)
    bits = (rng.integers(0, 2, (5, 64))[kind] ^ (rng.random((100, 64)) < 0.05)).astype(np.uint8)
    s = make(100, seed, gamma=0.0)
    s.select(asked(s, bits), 5)
    for t, rows in enumerate(rng.permutation(50).reshape(10, 5), start=1):
        s.update(outcome(t, rows, utility=kind[rows] + 1.0))
    rows = s.select(look(s.clients, 11, range(50, 100)), 5)
    assert kind[rows].tolist() == [4] * 5
    predicted = s.explain()["predicted"][50:]
    assert np.abs(predicted - (kind[50:] + 1) / 5).mean() < 0.1
