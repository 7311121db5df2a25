"""FilFL: algorithm 1 against plain loops, when algorithm 2 filters, jobs around every selector."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from conftest import records, run, run_killed_and_resumed, same_records
from hypothesis import given, settings
from hypothesis import strategies as st
from selector_worlds import five_sigma, look, outcome, table

from fedsuv_plugin import named, wire
from fedsuv_plugin.config.job import Job
from fedsuv_plugin.errors import UserError
from fedsuv_plugin.params import NoParams
from fedsuv_plugin.selectors.base import (
    LateUpdates,
    Probe,
    ProbeAnswer,
    RoundOutcome,
    RoundView,
    Selector,
)
from fedsuv_plugin.selectors.baselines.random import Random
from fedsuv_plugin.selectors.baselines.refl import Refl, ReflParams
from fedsuv_plugin.selectors.filfl import Filfl, FilflParams, Updates, greedy_filter
from fedsuv_plugin.selectors.signals import LOSS, PUBLIC_LOSS, WEIGHTS

MakeJob = Callable[..., Job]
SetFunction = Callable[[frozenset[int]], float]
P = 6


def make(n: int, seed: int = 0, inner: Selector | None = None, **params: object) -> Filfl:
    clients = table(n)
    inner = inner or Random(NoParams(), clients, np.random.default_rng(seed + 1))
    return Filfl(FilflParams.from_mapping(params), clients, np.random.default_rng(seed), inner)


# ---- algorithm 1 on set functions: vectors are unit vectors, so a sum says who is in the set


def on_sets(f: SetFunction, n: int, variant: str, seed: int = 0) -> Any:
    return greedy_filter(
        list(np.eye(n)),
        lambda total, count: f(frozenset(np.flatnonzero(total > 0.5).tolist())),
        make(n, seed, variant=variant).accept,
    )


def by_the_book(
    f: SetFunction, n: int, coin: Callable[[float], bool], variant: str
) -> frozenset[int]:
    """Algorithm 1 as printed, with sets."""
    x = frozenset[int]()
    y = frozenset(range(n))
    for u in range(n):
        a = f(x | {u}) - f(x)
        b = f(y - {u}) - f(y)
        a0 = max(a, 0.0)
        b0 = max(b, 0.0)
        if variant == "dgf":
            p = 1.0 if a > b else 0.0
        else:
            p = 1.0 if a0 == b0 == 0 else a0 / (a0 + b0)
        if coin(p):
            x = x | {u}
        else:
            y = y - {u}
    assert x == y
    return x


def random_function(n: int, seed: int) -> SetFunction:
    values = np.random.default_rng(seed).normal(size=2**n)
    return lambda members: float(values[sum(2**i for i in members)])


@pytest.mark.parametrize("seed", range(40))
def test_dgf_equals_the_pseudocode_on_random_set_functions(seed: int) -> None:
    n = 8
    f = random_function(n, seed)
    result = on_sets(f, n, "dgf")
    expected = by_the_book(f, n, lambda p: p == 1.0, "dgf")
    assert frozenset(np.flatnonzero(result.kept).tolist()) == expected
    assert result.before == f(frozenset(range(n)))
    assert result.after == f(expected)


@pytest.mark.parametrize("seed", range(3))
def test_rgf_accepts_with_the_probabilities_of_the_pseudocode(seed: int) -> None:
    """2,000 runs are within five sigmas of the exact distribution.

    The exact one is found by following all branches."""
    n = 3
    runs = 2000
    f = random_function(n, seed)

    def branch(coins: tuple[bool, ...]) -> tuple[frozenset[int], float]:
        chance = 1.0
        left = list(coins)

        def coin(p: float) -> bool:
            nonlocal chance
            heads = left.pop(0)
            chance *= p if heads else 1 - p
            return heads

        return by_the_book(f, n, coin, "rgf"), chance

    exact = dict(branch(coins) for coins in itertools.product([True, False], repeat=n))
    assert sum(exact.values()) == pytest.approx(1)
    seen: dict[frozenset[int], int] = {}
    for trial in range(runs):
        members = frozenset(np.flatnonzero(on_sets(f, n, "rgf", trial).kept).tolist())
        seen[members] = seen.get(members, 0) + 1
    for members, chance in exact.items():
        assert abs(seen.get(members, 0) - runs * chance) <= five_sigma(runs, chance)


@pytest.mark.parametrize("variant", ["dgf", "rgf"])
def test_on_a_monotone_function_everyone_is_kept_and_a_planted_bad_one_is_not(variant: str) -> None:
    weights = np.array([3.0, 1.0, 2.0, 0.5, 4.0])
    assert on_sets(lambda s: math.sqrt(sum(weights[i] for i in s)), 5, variant).kept.all()
    # Row 2 costs 100 wherever it goes: adding it never gains, dropping it always does.
    result = on_sets(lambda s: math.sqrt(sum(weights[i] for i in s)) - 100 * (2 in s), 5, variant)
    assert result.kept.tolist() == [True, True, False, True, True]
    assert result.gain_add[2] < 0 < result.gain_drop[2]


def test_gains_by_hand() -> None:
    # f = -(sum - 3)^2 of the members 1, 2, 5 (rows 0, 1, 2): f(empty) = -9, f(all) = -25.
    # Row 0: a = -4 + 9 = 5, b = -16 + 25 = 9: dropped.
    # Row 1: a = -1 + 9 = 8, b = f({2}) - f({1,2}) = -4 + 16 = 12: dropped.
    # Row 2: a = -4 + 9 = 5, b = f({}) - f({2}) = -9 + 4 = -5: kept.
    values = [1.0, 2.0, 5.0]
    result = on_sets(lambda s: -((sum(values[i] for i in s) - 3.0) ** 2), 3, "dgf")
    assert result.gain_add.tolist() == [5, 8, 5]
    assert result.gain_drop.tolist() == [9, 12, -5]
    assert result.kept.tolist() == [False, False, True]


def test_two_rewards_per_client_and_two_more() -> None:
    calls: list[int] = []

    def reward(total: np.ndarray, count: int) -> float:
        calls.append(count)
        return float(count)

    greedy_filter(list(np.eye(9)), reward, lambda a, b: a > b)
    assert len(calls) == 2 * 9 + 2
    assert len(greedy_filter([], lambda total, count: 0.0, lambda a, b: True).kept) == 0


# ---- algorithm 2, with a server whose public loss is the squared distance from a target

TARGET = np.ones(P, np.float32)


def server(view: RoundView, weights: np.ndarray | None = None) -> RoundView:
    return replace(
        view,
        weights=np.zeros(P, np.float32) if weights is None else weights,
        public_loss=lambda w: float(((w - TARGET) ** 2).sum()),
    )


def trained(
    t: int, rows: Sequence[int] | np.ndarray, weights: np.ndarray, valid: object = True
) -> RoundOutcome:
    base = outcome(t, rows, valid=valid)  # type: ignore[arg-type]
    return replace(base, signals={WEIGHTS: np.where(base.valid[:, None], weights, 0.0)})


def good(rows: Sequence[int], bad: set[int]) -> np.ndarray:
    """Clients near the target, and bad ones on the far side of the start."""
    return np.array([(-1.0 if row in bad else 0.5 + 0.01 * row) * TARGET for row in rows])


@pytest.mark.parametrize("variant", ["dgf", "rgf"])
def test_a_planted_bad_client_is_filtered_out(variant: str) -> None:
    s = make(8, variant=variant)
    view = server(look(s.clients, 1))
    s.select(view, 8)
    s.update(trained(1, range(8), good(range(8), {3})))
    s.select(server(look(s.clients, 5)), 8)
    told = s.explain()
    assert not told["filtered_in"][3]
    assert told["filtered_in"][[0, 1, 2]].all()
    report = s.diagnostics()["filtering"]
    assert report["dropped"] == [4]  # FedScale's ids count from 1
    assert report["value_after"] > report["value_before"]
    assert report["visited"] == 8


def test_it_filters_every_period_and_when_the_available_clients_change() -> None:
    s = make(10, period=4)
    filtered = []
    for t in range(1, 13):
        s.select(server(look(s.clients, t, range(9) if t == 6 else None)), 3)
        filtered.append(s.diagnostics()["filtering"] is not None)
    # Rounds 4, 8, 12 by the period; 6 and 7 because row 9 went and came back.
    assert [t + 1 for t, due in enumerate(filtered) if due] == [4, 6, 7, 8, 12]


def test_in_the_first_round_and_when_never_seen_everyone_passes() -> None:
    s = make(10, period=1)
    s.select(server(look(s.clients, 1)), 3)
    assert s.explain()["filtered_in"].all()
    s.update(trained(1, [2, 5], good([2, 5], {5})))
    s.select(server(look(s.clients, 2)), 3)
    assert np.flatnonzero(~s.explain()["filtered_in"]).tolist() == [5]
    assert np.flatnonzero(np.isfinite(s.explain()["gain_add"])).tolist() == [2, 5]


def test_nobody_kept_means_everybody_passes_and_a_small_set_is_the_cohort() -> None:
    s = make(3, period=1)
    s.select(server(look(s.clients, 1)), 3)
    s.update(trained(1, range(3), good(range(3), {0, 1, 2})))  # all of them are worse than nobody
    s.select(server(look(s.clients, 2)), 3)
    assert s.explain()["filtered_in"].all()
    s = make(6, period=1)
    s.select(server(look(s.clients, 1)), 6)
    s.update(trained(1, range(6), good(range(6), {0, 1, 2, 3})))
    assert s.select(server(look(s.clients, 2)), 4).tolist() == [4, 5]


def test_a_loss_that_is_not_finite_counts_as_hopeless() -> None:
    s = make(4, period=1)
    s.select(server(look(s.clients, 1)), 4)
    s.update(trained(1, range(4), good(range(4), set())))

    def loss(w: np.ndarray) -> float:
        return math.nan if (w > 0.515).any() else 1.0

    s.select(replace(server(look(s.clients, 2)), public_loss=loss), 4)
    assert np.isfinite(s.gains).all()
    assert s.gains.min() == -1e6 + 1.0


def test_one_absurd_update_does_not_blind_the_filter_to_the_others() -> None:
    found = []
    for size in (-1.0, -1e38):
        s = make(8, period=1)
        s.select(server(look(s.clients, 1)), 8)
        weights = good(range(8), {3})
        weights[5] = size * TARGET
        s.update(trained(1, range(8), weights))
        s.select(server(look(s.clients, 2)), 8)
        found.append(s.explain()["filtered_in"].tolist())
    assert found[0] == found[1]
    assert not found[0][5]


def test_zero_updates_do_not_shorten_the_others() -> None:
    # Six of eight clients sent back what they received. The median of the lengths that are not 0
    # is that of an honest update, so the one absurdly long is cut to 10 times that.
    kept = Updates(8, 1)
    for row in range(6):
        kept.put(row, np.zeros(P))
    kept.put(6, 0.5 * TARGET)
    kept.put(7, 0.7 * TARGET)
    updates = kept.of(np.arange(8))
    np.testing.assert_array_equal(updates[6], 0.5 * TARGET)
    np.testing.assert_array_equal(updates[7], np.float32(0.7) * TARGET)
    kept.put(5, 1e9 * TARGET)
    np.testing.assert_allclose(kept.of(np.arange(8))[5], 7.0 * TARGET, rtol=1e-6)


def test_only_zero_updates_stay_zero() -> None:
    kept = Updates(3, 1)
    for row in range(3):
        kept.put(row, np.zeros(P))
    assert not np.any(list(kept.of(np.arange(3))))


def test_updates_are_added_to_the_current_model() -> None:
    """Row 0's last update was + 0.25; from a model at 0.75 that reaches the target exactly."""
    s = make(2, period=1)
    s.select(server(look(s.clients, 1)), 2)
    s.update(trained(1, [0, 1], np.array([0.25 * TARGET, -TARGET])))
    view = server(look(s.clients, 2), 0.75 * TARGET)
    s.select(view, 2)
    nobody = -float(P)  # squared distance of zero parameters
    assert s.gains[0, 0] == pytest.approx(0.0 - nobody)
    assert s.explain()["filtered_in"].tolist() == [True, False]


def test_fresh_weights_are_asked_for_when_filtering_is_due() -> None:
    s = make(6, period=3, weights="fresh")
    assert Filfl.required(s.params) == {PUBLIC_LOSS}
    for t in range(1, 8):
        view = server(look(s.clients, t))
        question = s.probe(view)
        if t % 3:
            assert question is None
        else:
            assert question is not None
            assert (question.kind, question.one_by_one, question.more) == (WEIGHTS, True, True)
            for row in question.rows.tolist():
                if row != 4:  # row 4 does not answer
                    s.receive(row, good([row], {1})[0])
            answer = ProbeAnswer(WEIGHTS, np.array([0, 1, 2, 3, 5]), np.empty((5, 0)))
            view = replace(view, probe=answer)
            assert s.probe(view) is None
        rows = s.select(view, 6)
        assert (1 in rows) == (t < 3)
        assert 4 in rows


class Asker(Random):
    """An inner selector that asks two questions, and remembers what it saw."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.seen: list[RoundView] = []
        self.heard: list[RoundOutcome] = []

    def probe(self, view: RoundView) -> Probe | None:
        return Probe(LOSS, view.online, more=view.probe is None)

    def select(self, view: RoundView, k: int) -> np.ndarray:
        self.seen.append(view)
        return super().select(view, k)

    def update(self, outcome: RoundOutcome) -> None:
        self.heard.append(outcome)


@pytest.mark.parametrize("weights", ["last", "fresh"])
def test_the_inner_selector_sees_those_filtered_in_and_its_own_answers(weights: str) -> None:
    inner = Asker(NoParams(), table(6), np.random.default_rng(0))
    s = make(6, inner=inner, period=1, weights=weights)
    for t in (1, 2):
        view = server(look(s.clients, t))
        asked = []
        while True:
            question = s.probe(view)
            assert question is not None
            asked.append(question.kind)
            if question.kind == WEIGHTS:
                for row in question.rows.tolist():
                    s.receive(row, good([row], {1})[0])
            values = np.full(len(question.rows), float(t))
            view = replace(view, probe=ProbeAnswer(question.kind, question.rows, values))
            if not question.more:
                break
        filters_fresh = weights == "fresh" and t == 2
        assert asked == ([WEIGHTS, LOSS, LOSS] if filters_fresh else [LOSS, LOSS])
        rows = s.select(view, 3)
        s.update(trained(t, range(6), good(range(6), {1})))
        assert set(rows.tolist()) <= set(inner.seen[-1].online.tolist())
    assert inner.seen[-1].online.tolist() == [0, 2, 3, 4, 5]
    assert inner.seen[-1].probe is not None
    assert inner.seen[-1].probe.rows.tolist() == [0, 2, 3, 4, 5]
    assert len(inner.heard) == 2


@pytest.mark.parametrize("weights", ["last", "fresh"])
def test_the_inner_selector_does_not_ask_where_all_filtered_in_are_taken(weights: str) -> None:
    inner = Asker(NoParams(), table(6), np.random.default_rng(0))
    s = make(6, inner=inner, period=1, weights=weights)
    asked: list[str] = []
    for t, seats in ((1, 6), (2, 5), (3, 4)):
        view = replace(server(look(s.clients, t)), seats=seats)
        while (question := s.probe(view)) is not None:
            asked.append(f"{t} {question.kind}")
            if question.kind == WEIGHTS:
                for row in question.rows.tolist():
                    s.receive(row, good([row], {1})[0])
            values = np.zeros(len(question.rows))
            view = replace(view, probe=ProbeAnswer(question.kind, question.rows, values))
            if not question.more:
                break
        rows = s.select(view, seats)
        s.update(trained(t, range(6), good(range(6), {1})))
    # All six pass in round 1, five in rounds 2 and 3; only in round 3 is there a choice.
    assert [word for word in asked if LOSS in word] == [f"3 {LOSS}"] * 2
    assert len(rows) == 4
    assert len(inner.seen) == 1


# ---- where updates live


@pytest.mark.parametrize("budget", [0, 1, 2048])
def test_updates_come_back_from_memory_and_from_disk(budget: int) -> None:
    p = 100_000  # 0.4 MB: two fit into a budget of 1 MB
    kept = Updates(7, budget)
    rng = np.random.default_rng(0)
    sent = rng.normal(size=(7, p)).astype(np.float32)
    for row in (3, 0, 5, 1, 3, 0):
        sent[row] += 1
        kept.put(row, sent[row])
    assert np.flatnonzero(kept.known).tolist() == [0, 1, 3, 5]
    for row, update in zip([0, 1, 3, 5], kept.of(np.array([0, 1, 3, 5])), strict=True):
        np.testing.assert_array_equal(update, sent[row])
    rows, updates = wire.decode(wire.encode(kept.state()))
    assert rows.tolist() == [3, 0, 5, 1]
    np.testing.assert_array_equal(updates[2], sent[5])
    kept.clear()
    assert not kept.known.any()


@pytest.mark.parametrize("budget", [0, 2048])
@pytest.mark.parametrize("variant", ["dgf", "rgf"])
def test_a_resumed_selector_continues_exactly(variant: str, budget: int) -> None:
    def play(s: Filfl, first: int) -> list[list[int]]:
        picks = []
        rng = np.random.default_rng(first)
        for t in range(first, first + 8):
            rows = s.select(server(look(s.clients, t)), 4)
            picks.append(rows.tolist())
            s.update(trained(t, rows, rng.normal(0.5, 1, (len(rows), P))))
        return picks

    whole = make(20, variant=variant, period=2, weights_budget_mb=budget)
    play(whole, 1)
    resumed = make(20, 9, variant=variant, period=2)
    resumed.load_state_dict(wire.decode(wire.encode(whole.state_dict())))
    np.testing.assert_array_equal(resumed.explain()["gain_add"], whole.explain()["gain_add"])
    assert play(resumed, 9) == play(whole, 9)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    n=st.integers(1, 12),
    k=st.integers(1, 14),
    seed=st.integers(0, 99),
    variant=st.sampled_from(["dgf", "rgf"]),
    weights=st.sampled_from(["last", "fresh"]),
    data=st.data(),
)
def test_distinct_online_rows_at_most_k_and_never_nobody(
    n: int, k: int, seed: int, variant: str, weights: str, data: st.DataObject
) -> None:
    rng = np.random.default_rng(seed)
    s = make(n, seed, variant=variant, weights=weights, period=2)
    for t in range(1, 6):
        online = sorted(data.draw(st.sets(st.integers(0, n - 1), min_size=1)))
        scale = data.draw(st.sampled_from([0.0, 1.0, 1e38]))
        view = server(look(s.clients, t, online))
        question = s.probe(view)
        if question is not None:
            for row in question.rows.tolist():
                s.receive(row, scale * rng.uniform(-1, 1, P))
            nothing_kept = np.empty((len(question.rows), 0))
            s.probe(replace(view, probe=ProbeAnswer(WEIGHTS, question.rows, nothing_kept)))
        rows = s.select(view, k)
        assert 1 <= len(rows) == len(set(rows.tolist())) <= min(k, len(online))
        assert set(rows.tolist()) <= set(online)
        weights_sent = scale * rng.uniform(-1, 1, (len(rows), P))
        s.update(trained(t, rows, weights_sent, valid=rng.random(len(rows)) < 0.7))
        assert np.isfinite(s.gains).all()


# ---- real jobs

INNER = sorted(
    name
    for name in named.installed()
    if (cls := named.selector_class(name)) is not None and cls is not Filfl and not cls.time_slots
)


@pytest.mark.parametrize("inner", INNER)
def test_it_goes_around_every_registered_selector(job: MakeJob, inner: str) -> None:
    path = run(
        job(sample_mode="filfl", filfl__inner=inner, filfl__period=2, rounds=6, overcommitment=1.0)
    )
    rounds = records(path)
    chosen = named.selector_class(inner)
    assert chosen is not None
    most = 20 if chosen.free_cohort else 4  # all online, or num_participants
    assert all(1 <= len(r["asked"]) <= most for r in rounds)
    assert [r["selector"]["filtering"] is not None for r in rounds] == [False, True] * 3
    assert all(inner in r["selector"] for r in rounds)


def test_late_updates_are_dealt_with_as_the_inner_selector_has_it() -> None:
    late = LateUpdates(2, np.array([0]), np.array([1]), np.array([0.0]), fresh=1)
    assert make(3).protocol == "synchronous"
    inner = Refl(ReflParams(late_weight="inverse"), table(3), np.random.default_rng(0))
    around = make(3, inner=inner)
    assert around.protocol == "late_updates"
    assert around.late_weights(late).tolist() == [0.5]


def test_the_inner_selector_gets_its_own_parameters(job: MakeJob) -> None:
    path = run(job(sample_mode="filfl", filfl__inner="pow_d", pow_d__d=9, rounds=1))
    assert records(path)[0]["selector"]["pow_d"]["candidates"] == 9


def test_inner_selectors_that_cannot_be_wrapped_are_refused(
    job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = "filfl.inner: expected a selector .* not itself, got 'filfl'"
    with pytest.raises(UserError, match=message):
        job(sample_mode="filfl", filfl__inner="filfl")
    with pytest.raises(UserError, match="unknown client manager 'nobody'"):
        job(sample_mode="filfl", filfl__inner="nobody")
    monkeypatch.setattr(Random, "time_slots", True)
    with pytest.raises(UserError, match="without time slots, and not itself, got 'random'"):
        job(sample_mode="filfl")


@pytest.mark.parametrize(
    "values",
    [
        {"gradient_policy": "fed-prox"},
        {"filfl__weights": "fresh", "filfl__variant": "rgf", "filfl__inner": "gpfl"},
        {
            "data_set": "digits",
            "model": "shufflenet_v2_x0_5",
            "local_steps": 1,
            "num_clients": 8,
            "rounds": 3,
        },
        {"filfl__weights_budget_mb": 0},
    ],
)
def test_it_works_with_fed_prox_fresh_weights_batch_norm_and_a_file(
    job: MakeJob, values: dict[str, object]
) -> None:
    common = {"sample_mode": "filfl", "filfl__period": 2, "rounds": 5}
    rounds = records(run(job(**{**common, **values})))
    report = rounds[1]["selector"]["filtering"]
    assert report["visited"] > 0
    assert math.isfinite(report["value_after"])


def test_the_budget_changes_nothing_but_where_updates_are(job: MakeJob) -> None:
    values = {"sample_mode": "filfl", "filfl__period": 2, "rounds": 8}
    in_a_file = run(job(**values, filfl__weights_budget_mb=0))
    in_memory = run(job(**values, filfl__weights_budget_mb=9))
    assert records(in_a_file) == records(in_memory)


def test_processes_give_the_numbers_of_loopback(job: MakeJob) -> None:
    values = {
        "sample_mode": "filfl",
        "filfl__weights": "fresh",
        "filfl__period": 2,
        "filfl__variant": "rgf",
        "filfl__inner": "pow_d",
        "rounds": 5,
    }
    same_records(run(job(**values)), run(job(**values), launcher="processes", executors=2))


@pytest.mark.parametrize("inner", ["random", "gpfl"])
def test_a_resumed_job_ends_with_the_same_records(job: MakeJob, inner: str) -> None:
    values = {
        "sample_mode": "filfl",
        "filfl__inner": inner,
        "filfl__variant": "rgf",
        "filfl__period": 3,
        "rounds": 11,
        "checkpoint_every": 4,
        "filfl__weights_budget_mb": 0,
    }
    same_records(run_killed_and_resumed(job(**values), 10), run(job(**values)))


def test_clients_with_wrong_labels_are_filtered_out_more_often(job: MakeJob) -> None:
    """20 iid clients, 5 with every label wrong: once all have been seen, dgf drops mostly those."""
    from fedsuv_plugin.tasks.federated_data import noisy_clients

    noisy_job = job(
        sample_mode="filfl",
        label_noise_clients=0.25,
        partition="iid",
        synthetic_samples=2000,
        rounds=30,
        num_participants=8,
        filfl__period=1,
        filfl__variant="dgf",
        learning_rate=0.05,
    )
    wrong = noisy_clients(noisy_job.config, 20)
    rounds = records(run(noisy_job))[15:]
    asked = [c for r in rounds for c in r["asked"]]
    share = sum(c in wrong for c in asked) / len(asked)
    assert share < 0.1  # a quarter without filtering
