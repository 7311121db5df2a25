"""`pczfl`: against the algorithm box in plain loops, invariants, a world of two clusters."""

from __future__ import annotations

import math
import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from selector_worlds import look, outcome, table

from fedsuv_plugin import wire
from fedsuv_plugin.selectors import pczfl
from fedsuv_plugin.selectors.base import ProbeAnswer, RoundOutcome
from fedsuv_plugin.selectors.pczfl import PCZFL, undominated
from fedsuv_plugin.selectors.signals import INTERVIEW_ACCURACY


def make(n: int, seed: int = 0, energy_of: np.ndarray | None = None, **params: Any) -> PCZFL:
    clients = table(n) if energy_of is None else replace(table(n), energy=energy_of)
    return PCZFL(PCZFL.Params.from_mapping(params), clients, np.random.default_rng(seed))


def result(
    t: int, rows: np.ndarray, accuracy: np.ndarray, valid: np.ndarray | bool = True
) -> RoundOutcome:
    came = outcome(t, rows, valid=valid)
    return replace(came, signals={INTERVIEW_ACCURACY: np.where(came.valid, accuracy, 0.0)})


class ByTheBook:
    """Algorithm 1 in plain loops; a ball is (centre, radius, mean, count)."""

    def __init__(self, context: np.ndarray, a_b: float, warmup: int):
        self.x = [tuple(c) for c in context.tolist()]
        self.a_b = a_b
        self.warmup = warmup
        self.balls: list[list[Any]] = [[(0.5, 0.5), math.sqrt(0.5), (0.0, 0.0), 0]]

    def u(self, b: list[Any]) -> float:
        return math.sqrt(2 * self.a_b / b[3]) if b[3] else math.inf

    def domain(self, i: int) -> int:
        smallest = 0
        for j, (centre, radius, _, _) in enumerate(self.balls):
            if j and math.dist(self.x[i], centre) <= radius <= self.balls[smallest][1]:
                smallest = j
        return smallest

    def significance(self, b: list[Any]) -> tuple[float, ...]:
        return tuple(
            b[1] + min(o[2][j] + self.u(o) + o[1] + math.dist(o[0], b[0]) for o in self.balls)
            for j in (0, 1)
        )

    def select(self, t: int, online: list[int]) -> list[int]:
        relevant = sorted({self.domain(i) for i in online})
        g = {b: self.significance(self.balls[b]) for b in relevant}

        def dominated(b: int) -> bool:
            return any(
                all(p <= q for p, q in zip(g[b], g[o], strict=True)) and g[b] != g[o]
                for o in relevant
            )

        front = [b for b in relevant if t <= self.warmup or not dominated(b)]
        return [i for i in online if self.domain(i) in front]

    def update(self, rows: list[int], accuracy: list[float]) -> None:
        told = {i: (a, self.x[i][1]) for i, a in zip(rows, accuracy, strict=True)}
        members: dict[int, list[int]] = {}
        for i in rows:
            members.setdefault(self.domain(i), []).append(i)
        for b in sorted(members):
            ball = self.balls[b]
            mine = members[b]
            reward = tuple(sum(told[i][j] for i in mine) / len(mine) for j in (0, 1))
            if self.u(ball) <= ball[1]:
                centre = self.x[min(mine, key=lambda i: math.dist(self.x[i], reward))]
                self.balls.append([centre, ball[1] / 2, centre, 0])
            ball[2] = tuple((ball[2][j] * ball[3] + reward[j]) / (ball[3] + 1) for j in (0, 1))
            ball[3] += 1
        for i in rows:
            self.x[i] = told[i]


@pytest.mark.parametrize("seed", range(6))
def test_the_balls_are_those_of_the_algorithm_box(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = 25
    a_b = [1.0, 0.3, 0.05, 1e-4][seed % 4]
    s = make(n, energy_of=rng.random(n) * 40, a_b=a_b, warmup_rounds=5)
    # Contexts are spread, so that no two are equally near to anything.
    s.context[:, 0] = rng.random(n)
    s.known.started = True
    book = ByTheBook(s.context, a_b, 5)
    for t in range(1, 201):
        online = np.flatnonzero(rng.random(n) < 0.8)
        rows = s.select(look(s.clients, t, online), 5)
        assert sorted(rows.tolist()) == book.select(t, online.tolist())
        valid = rng.random(len(rows)) < 0.9
        accuracy = rng.random(len(rows)) * t / 200
        s.update(result(t, rows, accuracy, valid))
        book.update(rows[valid].tolist(), accuracy[valid].tolist())
        assert s.ball.tolist() == [book.domain(i) for i in range(n)]
    assert len(s.count) == len(book.balls) > 10
    np.testing.assert_allclose(s.centre, [b[0] for b in book.balls], atol=1e-12)
    np.testing.assert_allclose(s.radius, [b[1] for b in book.balls])
    np.testing.assert_allclose(s.mean, [b[2] for b in book.balls], atol=1e-12)
    assert s.count.tolist() == [b[3] for b in book.balls]


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 10**6),
    n=st.integers(1, 20),
    a_b=st.sampled_from([1e-3, 0.1, 1.0]),
    warmup=st.integers(0, 5),
    corners=st.booleans(),
)
def test_every_context_is_covered_at_all_times(
    seed: int, n: int, a_b: float, warmup: int, corners: bool
) -> None:
    rng = np.random.default_rng(seed)
    s = make(n, seed, energy_of=rng.random(n), a_b=a_b, warmup_rounds=warmup)
    for t in range(1, 40):
        rows = s.select(look(s.clients, t), 5)
        assert len(rows) >= 1
        size = len(rows)
        s.update(result(t, rows, rng.integers(2, size=size) if corners else rng.random(size)))
        away = np.linalg.norm(s.context - s.centre[s.ball], axis=1)
        assert ((away <= s.radius[s.ball]) | (s.ball == 0)).all()
        assert ((s.context >= 0) & (s.context <= 1)).all()
        assert np.isfinite(s.mean).all()


def test_first_zoom_by_hand() -> None:
    # a_b = 1: u = sqrt(2/N) <= sqrt(0.5) from N = 4 on, so ball 0 zooms for the first time in its
    # fifth round.
    s = make(3, energy_of=np.array([1.0, 2.0, 4.0]), warmup_rounds=9)
    assert s.explain()["energy_score"] == pytest.approx([0.75, 0.5, 0.0])
    for t in range(1, 5):
        s.update(result(t, s.select(look(s.clients, t), 1), np.array([0.5, 0.5, 0.5])))
        assert len(s.count) == 1
    s.update(result(5, s.select(look(s.clients, 5), 1), np.array([0.6, 0.6, 0.6])))
    # The reward is (0.6, 1.25/3 = 0.417). Nearest to it by its context before, (0.5, score), is the
    # client with score 0.5.
    assert s.centre[1] == pytest.approx([0.5, 0.5])
    assert s.radius[1] == pytest.approx(math.sqrt(0.5) / 2)
    assert s.mean[1].tolist() == [0.5, 0.5]
    assert s.count.tolist() == [5, 0]
    assert s.mean[0] == pytest.approx([(4 * 0.5 + 0.6) / 5, 1.25 / 3])
    assert s.ball.tolist() == [1, 1, 0]  # (0.6, 0) is 0.51 from the centre, the radius is 0.354


def test_the_untrained_accuracy_is_asked_for_once() -> None:
    s = make(4)
    view = look(s.clients, 1)
    asked = s.probe(view)
    assert asked is not None
    assert asked.rows.tolist() == [0]
    s.select(replace(view, probe=ProbeAnswer(INTERVIEW_ACCURACY, asked.rows, np.array([0.1]))), 2)
    assert s.explain()["accuracy"].tolist() == [0.1] * 4
    assert s.probe(look(s.clients, 2)) is None


def late_answer(s: PCZFL, t: int, accuracy: float) -> None:
    """Round t, in which the untrained accuracy is asked for and told at last."""
    view = look(s.clients, t)
    asked = s.probe(view)
    assert asked is not None
    told = ProbeAnswer(INTERVIEW_ACCURACY, asked.rows, np.array([accuracy]))
    s.select(replace(view, probe=told), 2)


def test_a_late_first_answer_leaves_those_alone_who_took_part() -> None:
    s = make(5)
    s.select(look(s.clients, 1), 2)  # asked, and nobody answered
    s.update(result(1, np.array([0, 1, 2]), np.array([0.7, 0.9, 0.5]), np.array([1, 1, 0], bool)))
    late_answer(s, 2, 0.1)
    assert s.explain()["accuracy"].tolist() == [0.7, 0.9, 0.1, 0.1, 0.1]
    assert s.probe(look(s.clients, 3)) is None


def test_a_late_first_answer_moves_clients_to_the_balls_around_them() -> None:
    # Rows 0 and 1 zoom ball 0 into a ball of radius 0.35 around accuracy 0.5; the others are at
    # accuracy 0 and outside it until the answer puts them at 0.45.
    s = make(4, energy_of=np.array([1.0, 2.0, 2.0, 2.0]), a_b=1e-3)
    for t in (1, 2, 3):
        s.update(result(t, np.array([0, 1]), np.array([0.5, 0.5])))
    assert len(s.count) > 1
    assert s.ball[2:].tolist() == [0, 0]
    late_answer(s, 4, 0.45)
    book = ByTheBook(s.context, 1e-3, 0)
    book.balls = [list(ball) for ball in zip(s.centre, s.radius, s.mean, s.count, strict=True)]
    assert s.ball.tolist() == [book.domain(i) for i in range(4)]
    assert (s.ball[2:] > 0).all()


# ---- many clients


def with_balls(n: int, balls: int, seed: int = 0) -> PCZFL:
    """n clients anywhere and that many balls, most of which will zoom."""
    rng = np.random.default_rng(seed)
    s = make(n, seed, energy_of=rng.random(n), a_b=0.001, warmup_rounds=99)
    s.context[:, 0] = rng.random(n)
    s.known.started = True
    s.centre = np.vstack([s.centre, rng.random((balls - 1, 2))])
    s.radius = np.append(s.radius, np.sqrt(0.5) / 2.0 ** rng.integers(1, 5, balls - 1))
    s.mean = np.vstack([s.mean, s.centre[1:]])
    s.count = np.append(s.count, rng.integers(0, 9, balls - 1))
    s.ball = s._owners(s.context, balls)
    return s


def test_pieces_of_any_size_give_the_same_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    def play() -> dict[str, Any]:
        s = with_balls(60, 30)
        for t in range(1, 6):
            rng = np.random.default_rng(t)
            rows = s.select(look(s.clients, t), 5)
            s.update(result(t, rows, rng.random(len(rows))))
        return {**s.state_dict(), "significance": s._significance}

    whole = play()
    monkeypatch.setattr(pczfl, "PIECE_BYTES", 2000)  # a few clients at a time
    in_pieces = play()
    assert len(whole["count"]) > 60
    for name in (*PCZFL.state, "significance"):
        np.testing.assert_equal(whole[name], in_pieces[name])


def test_memory_does_not_grow_with_clients_times_balls() -> None:
    # An array over clients and balls and both coordinates has 800 MB here.
    n = 100_000
    s = with_balls(n, 500)
    tracemalloc.start()
    rows = s.select(look(s.clients, 1), 5)
    s.update(result(1, rows, np.random.default_rng(1).random(n)))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(s.count) > 700  # it zoomed
    assert peak < pczfl.PIECE_BYTES + 30 * 8 * n  # and a few arrays over the clients


def test_a_ball_without_answers_is_left_alone() -> None:
    s = make(5)
    rows = s.select(look(s.clients, 1), 2)
    s.update(result(1, rows, np.full(5, 0.5), valid=False))
    assert s.count.tolist() == [0]
    assert s.explain()["accuracy"].tolist() == [0.0] * 5


def test_max_clients_trims_by_context_but_not_in_the_warm_up() -> None:
    s = make(6, energy_of=np.array([6.0, 5, 4, 3, 2, 1]), warmup_rounds=1, max_clients=2)
    rows = s.select(look(s.clients, 1), 3)
    assert len(rows) == 6
    s.update(result(1, rows, np.array([0.9, 0.1, 0.1, 0.1, 0.1, 0.2])))
    # Sums are 0.9 + 0, 0.1 + 1/6, ..., 0.1 + 4/6, 0.2 + 5/6. There is one ball, so everyone is on
    # the front.
    assert sorted(s.select(look(s.clients, 2), 3).tolist()) == [0, 5]


coordinates = st.sampled_from([0.0, 0.5, 1.0, 2.0, math.inf])


@settings(max_examples=100, deadline=None, derandomize=True)
@given(points=st.lists(st.tuples(coordinates, coordinates), min_size=1, max_size=12))
def test_undominated_is_its_definition(points: list[tuple[float, float]]) -> None:
    expected = [not any(q[0] >= p[0] and q[1] >= p[1] and q != p for q in points) for p in points]
    assert undominated(np.array(points)).tolist() == expected


def test_a_resumed_selector_continues_exactly() -> None:
    def play(s: PCZFL, rounds: range) -> list[list[int]]:
        picks = []
        for t in rounds:
            rng = np.random.default_rng(t)
            rows = s.select(look(s.clients, t, np.flatnonzero(rng.random(15) < 0.8)), 5)
            s.update(result(t, rows, rng.random(len(rows))))
            picks.append(rows.tolist())
        return picks

    first, second = (
        make(15, seed, energy="uniform", warmup_rounds=3, max_clients=4, a_b=0.1) for seed in (1, 2)
    )
    play(first, range(1, 30))
    second.load_state_dict(wire.decode(wire.encode(first.state_dict())))
    assert play(first, range(30, 60)) == play(second, range(30, 60))


def test_on_two_clusters_it_saves_energy_and_loses_no_accuracy() -> None:
    # 15 good clients: accuracy 0.8 (sd 0.05), 10 joules; 15 bad ones: 0.4, 40 joules (both sd 2).
    # Whoever is Pareto optimal is good, so after the warm-up the mean joules must be well below the
    # 25 and the accuracy above the 0.6 of a random choice; halfway to the good cluster is the
    # margin asked for.
    rng = np.random.default_rng(0)
    good = np.arange(30) < 15
    joules = np.where(good, 10, 40) + 2 * rng.normal(size=30)
    s = make(30, energy_of=joules, warmup_rounds=10)
    spent = []
    reached = []
    for t in range(1, 151):
        rows = s.select(look(s.clients, t), 5)
        noise = 0.05 * rng.normal(size=len(rows))
        accuracy = np.clip(np.where(good, 0.8, 0.4)[rows] + noise, 0, 1)
        s.update(result(t, rows, accuracy))
        if t > 50:
            spent.append(joules[rows].mean())
            reached.append(accuracy.mean())
    assert np.mean(spent) < 17.5
    assert np.mean(reached) > 0.7
