"""DivFL: facility location by greedy, compression, and what must never happen."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import records
from hypothesis import given, settings
from hypothesis import strategies as st
from selector_worlds import five_sigma, look, outcome, table

from fedsuv_plugin import wire
from fedsuv_plugin.config.job import Job
from fedsuv_plugin.engine.launchers import run_job
from fedsuv_plugin.run_directory import RunDirectory
from fedsuv_plugin.selectors.base import RoundOutcome
from fedsuv_plugin.selectors.baselines import facility_location as location
from fedsuv_plugin.selectors.baselines.divfl import Divfl, DivflParams, Sketch
from fedsuv_plugin.selectors.baselines.facility_location import (
    Centred,
    DistanceBlocks,
    DistanceTable,
    distances,
    facility_location,
    stochastic_facility_location,
)
from fedsuv_plugin.selectors.signals import DIRECTION

MakeJob = Callable[..., Job]


def make(n: int, seed: int = 0, **params: object) -> Divfl:
    return Divfl(DivflParams.from_mapping(params), table(n), np.random.default_rng(seed))


def told(s: Divfl, directions: np.ndarray, rows: object = None) -> Divfl:
    """The selector, after these clients (all by default) have sent their directions."""
    for row in range(len(directions)) if rows is None else rows:  # type: ignore[attr-defined]
        s.receive(row, directions[row])
    return s


def objective(points: np.ndarray, members: object) -> float:
    return float(distances(points, points[list(members)]).min(axis=1).sum())  # type: ignore[call-overload]


def greedy_by_the_book(points: np.ndarray, k: int) -> list[int]:
    chosen: list[int] = []
    for _ in range(k):
        left = [i for i in range(len(points)) if i not in chosen]
        chosen.append(min(left, key=lambda i: objective(points, [*chosen, i])))
    return chosen


# ---- greedy


def test_picks_by_hand() -> None:
    # On a line at 0, 1, 2, 10, 11: the medoid is 2 (distances 2 + 1 + 0 + 8 + 9 = 20); then 10
    # leaves 2 + 1 + 0 + 0 + 1 = 4, 11 leaves 2 + 1 + 0 + 1 + 0 = 4 as well: a tie; then 0 or 1,
    # which leave 2 each.
    points = np.array([0.0, 1.0, 2.0, 10.0, 11.0])[:, None]
    for seed in range(10):
        for picks in (
            facility_location(points, 3, np.random.default_rng(seed)),
            stochastic_facility_location(points, 3, 1e-9, np.random.default_rng(seed)),
        ):
            assert picks[0] == 2
            assert picks[1] in (3, 4)
            assert picks[2] in (0, 1)


@pytest.mark.parametrize("seed", range(20))
def test_lazy_greedy_is_greedy(seed: int) -> None:
    rng = np.random.default_rng(seed)
    points = rng.normal(size=(40, 5))
    book = greedy_by_the_book(points, 6)
    assert facility_location(points, 6, rng).tolist() == book
    # With an epsilon this small the sample is everyone.
    assert stochastic_facility_location(points, 6, 1e-9, rng).tolist() == book


@pytest.mark.parametrize("seed", range(10))
def test_greedy_keeps_its_guarantee(seed: int) -> None:
    """Greedy reaches 1 - 1/e of the best improvement over the constant (Nemhauser et al.).

    Stochastic greedy reaches 1 - 1/e - epsilon on average."""
    rng = np.random.default_rng(seed)
    points = rng.normal(size=(12, 3))
    base = len(points) * 2 * np.linalg.norm(points, axis=1).max()
    best = base - min(objective(points, s) for s in itertools.combinations(range(12), 4))
    assert base - objective(points, facility_location(points, 4, rng)) >= (1 - 1 / math.e) * best
    picks = [stochastic_facility_location(points, 4, 0.1, rng) for _ in range(50)]
    values = [base - objective(points, chosen) for chosen in picks]
    assert np.mean(values) >= (1 - 1 / math.e - 0.1) * best


def test_one_of_each_kind_is_chosen() -> None:
    rng = np.random.default_rng(0)
    kinds = np.repeat(np.arange(4), 10)
    directions = 10 * np.eye(4)[kinds] + rng.normal(0, 0.1, (40, 4))
    for greedy in ("lazy", "stochastic"):
        s = told(make(40, greedy=greedy, epsilon=1e-6), directions)
        rows = s.select(look(s.clients), 4)
        assert sorted(kinds[rows].tolist()) == [0, 1, 2, 3]
        assert s.explain()["cluster_size"][rows].tolist() == [10] * 4
        assert s.diagnostics()["objective"] == pytest.approx(objective(directions, rows), rel=1e-5)


# ---- bounds: they save work and change no pick


def worlds(seed: int, n: int = 300) -> dict[str, np.ndarray]:
    """Directions of n clients, (n, 40), of several kinds."""
    rng = np.random.default_rng(seed)
    points = rng.normal(size=(n, 40))
    centres = rng.normal(size=(7, 40))[rng.integers(7, size=n)]
    return {
        "spread": points,
        "clusters": 10 * centres + points,
        "equal": centres,
        "some are zero": points * (rng.random((n, 1)) < 0.3),
        "one is huge": points * np.where(np.arange(n) == 5, 1e30, 1.0)[:, None],
        "much in common": 1000.0 + points,
        "all are huge": 1e30 * points,
        "all are tiny": 1e-25 * points,
    }


KINDS = list(worlds(0))


@pytest.fixture
def always_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds are used for few points, too."""
    monkeypatch.setattr(location, "FEW", 0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("greedy", ["lazy", "stochastic"])
def test_picks_are_those_of_plain_greedy(
    greedy: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(3):
        directions = worlds(seed)[kind]
        picks = []
        for few, budget in ((2**60, 512), (0, 512), (0, 0)):
            monkeypatch.setattr(location, "FEW", few)
            s = make(300, seed, greedy=greedy, distances_budget_mb=budget)
            told(s, directions, range(280))
            rng = np.random.default_rng(seed)
            rows = []
            for t in range(1, 6):
                online = np.flatnonzero(rng.random(300) < 0.8)
                rows.append(s.select(look(s.clients, t, online), 6).tolist())
                told(s, directions[rng.permutation(300)], [*rows[-1], 280 + t])
            picks.append((rows, s.diagnostics(), s.rng.bit_generator.state))
        assert picks[0] == picks[1] == picks[2]


@pytest.mark.parametrize("kind", KINDS)
def test_lower_bounds_of_distances_are_lower_and_close(kind: str) -> None:
    points = worlds(1)[kind].astype(np.float32).astype(np.float64)
    lengths = np.linalg.norm(points, axis=1)
    centred = Centred.of(300, 40, points.__getitem__, float(lengths.max()))
    lower = centred.lower_distances(slice(0, 300), slice(0, 300)).astype(np.float64)
    exact = np.linalg.norm(points[:, None] - points, axis=2)
    assert (lower <= exact).all()
    # The error of a squared distance is at most 2 x 72 x 2^-24 of |x|^2 + |y|^2 about the centre.
    reach = np.linalg.norm(points - points[::2].mean(axis=0), axis=1)
    error = 1e-5 * (reach[:, None] ** 2 + reach**2) + 1e-12 * lengths.max() ** 2
    assert (lower**2 >= exact**2 - error).all()


@pytest.mark.parametrize("kind", KINDS)
def test_no_gain_is_larger_than_its_bound(kind: str) -> None:
    points = worlds(2)[kind]
    nearest = distances(points, points[[3, 50]]).min(axis=1)
    gains = np.maximum(nearest[:, None] - distances(points, points), 0.0).sum(axis=0)
    table = DistanceTable(300)
    everyone = np.arange(300)
    lengths = np.linalg.norm(points, axis=1)
    known = table.renew(points, everyone, np.ones(300), lengths)
    for bounds in (known, DistanceBlocks(points)):
        assert (bounds.upper_gains(everyone, nearest) >= gains).all()


def test_only_distances_of_changed_directions_are_computed(
    always_bounds: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed = {"pairs": 0, "columns": 0}
    lower_distances = Centred.lower_distances

    def count_pairs(self: Centred, some: slice, others: slice) -> np.ndarray:
        found = lower_distances(self, some, others)
        computed["pairs"] += found.size
        return found

    def count_columns(points: np.ndarray, others: np.ndarray, *more: np.ndarray) -> np.ndarray:
        computed["columns"] += len(others)
        return distances(points, others, *more)

    monkeypatch.setattr(Centred, "lower_distances", count_pairs)
    monkeypatch.setattr(location, "distances", count_columns)
    n = 600
    rng = np.random.default_rng(0)
    for greedy in ("lazy", "stochastic"):
        s = told(make(n, greedy=greedy), rng.normal(size=(n, 40)))
        for t in range(1, 5):
            computed.update(pairs=0, columns=0)
            rows = s.select(look(s.clients, t), 10)
            # First every pair, once but for the blocks on the diagonal; later the cohort's pairs.
            assert computed["pairs"] <= (n * n / 2 + 256 * n if t == 1 else 10 * n)
            # The distances to a pick are needed in float64, and to few others.
            assert computed["columns"] <= 3 * 10
            s.update(done(t, rows, rng.normal(size=(10, 40))))
        s.select(look(s.clients, 5), 10)
        computed.update(pairs=0)
        s.select(look(s.clients, 6, range(100, n)), 10)
        assert computed["pairs"] == 0


def test_the_table_follows_who_comes_who_changes_and_who_is_shortened() -> None:
    n = 120
    rng = np.random.default_rng(0)
    directions = rng.normal(size=(n, 8)).astype(np.float32)
    table = DistanceTable(n)
    for _ in range(30):
        rows = np.flatnonzero(rng.random(n) < 0.6)
        factors = np.where(rows < 20, rng.choice([0.5, 1.0], len(rows)), 1.0)
        points = directions[rows].astype(np.float64) * factors[:, None]
        table.renew(directions, rows, factors, np.linalg.norm(points, axis=1))
        exact = np.linalg.norm(points[:, None] - points, axis=2)
        lower = table._apart[np.ix_(rows, rows)]
        assert (lower <= exact).all()
        assert (lower >= exact - 0.02).all()
        for row in rng.choice(n, 5, replace=False):
            directions[row] = rng.normal(size=8)
            table.forget(row)


@pytest.mark.parametrize("greedy", ["lazy", "stochastic"])
def test_resuming_after_any_round_gives_the_same_picks(always_bounds: None, greedy: str) -> None:
    def play(s: Divfl, t: int) -> list[int]:
        rng = np.random.default_rng(t)
        rows = s.select(look(s.clients, t, np.flatnonzero(rng.random(80) < 0.7)), 8)
        s.update(done(t, rows, rng.normal(size=(len(rows), 50))))
        return rows.tolist()

    directions = np.random.default_rng(0).normal(size=(80, 50))
    directions[::3] = directions[0]
    s = told(make(80, greedy=greedy), directions)
    picks = []
    states = []
    for t in range(1, 9):
        states.append(wire.encode(s.state_dict()))
        picks.append(play(s, t))
    for begin, state in enumerate(states, 1):
        # Neither a new selector nor one with another past is led astray.
        for resumed in (make(80, seed=5, greedy=greedy), s):
            resumed.load_state_dict(wire.decode(state))
            assert [play(resumed, t) for t in range(begin, 9)] == picks[begin - 1 :]


def test_a_checkpoint_holds_no_table(always_bounds: None) -> None:
    s = told(make(300), np.random.default_rng(0).normal(size=(300, 5)))
    s.select(look(s.clients), 5)
    assert len(wire.encode(s.state_dict())) < 300 * 300


# ---- compression


def test_the_sketch_keeps_squared_distances_within_its_stated_distortion() -> None:
    # 400 pairs of 5,000 numbers in 512: the ratio has mean 1 and a standard deviation of at most
    # sqrt(2/512) = 0.0625.
    rng = np.random.default_rng(0)
    ratios = []
    for seed in range(400):
        x = rng.normal(size=5000)
        sketch = Sketch(5000, 512, seed)
        ratios.append(float((sketch(x) ** 2).sum() / (x**2).sum()))
    assert abs(np.mean(ratios) - 1) < 5 * 0.0625 / 20
    assert np.std(ratios) < 0.0625 * 1.15


def test_the_sketch_is_linear_seeded_and_exact_where_it_can_be() -> None:
    x, y = np.random.default_rng(0).normal(size=(2, 3000))
    sketch = Sketch(3000, 100, 7)
    np.testing.assert_allclose(sketch(x - y), sketch(x) - sketch(y), atol=1e-12)
    np.testing.assert_array_equal(sketch(x), Sketch(3000, 100, 7)(x))
    assert not np.array_equal(sketch(x), Sketch(3000, 100, 8)(x))
    np.testing.assert_array_equal(Sketch(80, 100, 7)(x[:80]), x[:80])


# ---- the selector


def done(t: int, rows: np.ndarray, directions: np.ndarray, valid: object = True) -> RoundOutcome:
    base = outcome(t, rows, valid=valid)  # type: ignore[arg-type]
    return replace(base, signals={DIRECTION: np.where(base.valid[:, None], directions, 0.0)})


def test_everyone_is_asked_once_when_first_online_and_then_only_cohorts_tell() -> None:
    s = make(6)
    first = s.probe(look(s.clients, 1, [0, 1, 2, 3]))
    assert first is not None
    assert (first.rows.tolist(), first.one_by_one) == ([0, 1, 2, 3], True)
    told(s, np.eye(6), [0, 1, 2])  # 3 does not answer
    assert s.probe(look(s.clients, 2, [0, 1, 2, 3])) is None
    late = s.probe(look(s.clients, 3))
    assert late is not None
    assert late.rows.tolist() == [4, 5]
    s.update(done(3, np.array([3]), np.ones((1, 6))))
    assert s.explain()["known"].tolist() == [True] * 4 + [False] * 2
    fresh = make(6, directions="fresh")
    for t in (1, 2, 3):
        question = fresh.probe(look(fresh.clients, t))
        assert question is not None
        assert len(question.rows) == 6


def test_clients_without_a_direction_fill_up() -> None:
    s = told(make(6), np.eye(6), [0, 1])
    rows = s.select(look(s.clients), 4).tolist()
    assert set(rows[:2]) == {0, 1}
    assert len(set(rows)) == 4


def test_one_absurd_direction_takes_one_seat_at_most_and_blinds_nobody() -> None:
    rng = np.random.default_rng(0)
    kinds = np.repeat(np.arange(3), 10)
    directions = 10 * np.eye(4)[kinds] + rng.normal(0, 0.1, (30, 4))
    directions[0] = 1e38
    s = told(make(30, greedy="lazy"), directions)
    rows = s.select(look(s.clients), 4).tolist()
    assert set(kinds[[r for r in rows if r != 0]].tolist()) == {0, 1, 2}


@pytest.mark.parametrize("greedy", ["lazy", "stochastic"])
def test_ties_are_broken_fairly(greedy: str) -> None:
    counts = np.zeros(10)
    for seed in range(2000):
        s = told(make(10, seed, greedy=greedy), np.ones((10, 3)))
        counts[s.select(look(s.clients), 4)] += 1
    assert np.abs(counts - 800).max() < five_sigma(2000, 0.4)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    n=st.integers(1, 15),
    k=st.integers(1, 18),
    seed=st.integers(0, 99),
    greedy=st.sampled_from(["lazy", "stochastic"]),
    data=st.data(),
)
def test_always_min_k_online_distinct_rows(
    n: int, k: int, seed: int, greedy: str, data: st.DataObject
) -> None:
    rng = np.random.default_rng(seed)
    s = make(n, seed, greedy=greedy, sketch_dim=3)
    for t in range(1, 4):
        online = data.draw(st.sets(st.integers(0, n - 1), min_size=1))
        scale = data.draw(st.sampled_from([0.0, 1.0, 1e38]))
        told(s, scale * rng.normal(size=(n, 5)), data.draw(st.sets(st.integers(0, n - 1))))
        rows = s.select(look(s.clients, t, sorted(online)), k).tolist()
        assert len(rows) == len(set(rows)) == min(k, len(online))
        assert set(rows) <= online
        assert np.isfinite(s.sketches).all()


def test_a_resumed_selector_continues_exactly() -> None:
    def play(s: Divfl, first: int) -> list[list[int]]:
        picks = []
        rng = np.random.default_rng(first)
        for t in range(first, first + 5):
            rows = s.select(look(s.clients, t), 3)
            picks.append(rows.tolist())
            s.update(done(t, rows, rng.normal(size=(3, 50))))
        return picks

    whole = told(make(20, sketch_dim=10), np.random.default_rng(0).normal(size=(20, 50)))
    play(whole, 1)
    resumed = make(20, seed=5, sketch_dim=10)
    resumed.load_state_dict(wire.decode(wire.encode(whole.state_dict())))
    assert play(resumed, 6) == play(whole, 6)


def test_a_job_with_it_learns(job: MakeJob) -> None:
    paths: list[Path] = []
    for _ in range(2):
        directory = RunDirectory.create(job(sample_mode="divfl", rounds=15, divfl__sketch_dim=16))
        assert run_job(directory)
        paths.append(directory.path)
    metrics = records(paths[0], "metrics.jsonl")
    assert metrics[-1]["loss"] < 0.8 * metrics[0]["loss"]
    assert records(paths[0]) == records(paths[1])
    assert records(paths[0])[0]["selector"]["known"] == 20
