"""GPFL: by hand, against a slow version of algorithm 1, and what must never happen."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from selector_worlds import five_sigma, look, outcome, table

from fedsuv_plugin import wire
from fedsuv_plugin.selectors.base import Probe, ProbeAnswer, RoundOutcome, RoundView
from fedsuv_plugin.selectors.gpfl import FirstDirections, Gpfl, GpflParams
from fedsuv_plugin.selectors.signals import DIRECTION


def make(n: int, seed: int = 0, **params: object) -> Gpfl:
    return Gpfl(GpflParams.from_mapping(params), table(n), np.random.default_rng(seed))


def view(
    s: Gpfl,
    t: int = 1,
    online: Sequence[int] | None = None,
    accuracy: float | None = 0.1,
    test_loss: float | None = 2.0,
    total: int = 100,
    p: int = 2,
) -> RoundView:
    return replace(
        look(s.clients, t, online),
        accuracy=accuracy,
        test_loss=test_loss,
        total_rounds=total,
        weights=np.zeros(p, np.float32),
    )


def answer(
    s: Gpfl,
    seen: RoundView,
    directions: np.ndarray,
    silent: Sequence[int] = (),
    asked: list[Probe] | None = None,
) -> RoundView:
    """Play the engine's part: put the probes to the clients and hand on answers one by one."""
    while (question := s.probe(seen)) is not None:
        if asked is not None:
            asked.append(question)
        rows = np.setdiff1d(question.rows, silent)
        for row in rows.tolist():
            s.receive(row, directions[row].astype(np.float32))
        seen = replace(seen, probe=ProbeAnswer(DIRECTION, rows, np.empty((len(rows), 0))))
        if not question.more:
            break
    return seen


def done(
    t: int,
    rows: Sequence[int] | np.ndarray,
    directions: Sequence[Sequence[float]] | np.ndarray,
    accuracy: float | None = 0.1,
    test_loss: float | None = 2.0,
    valid: object = True,
) -> RoundOutcome:
    base = outcome(t, rows, valid=valid)  # type: ignore[arg-type]
    sent = np.where(base.valid[:, None], np.asarray(directions, float), 0.0)
    return replace(base, signals={DIRECTION: sent}, accuracy=accuracy, test_loss=test_loss)


# ---- by hand


def test_first_projections_and_cohort_by_hand() -> None:
    # d = (3, 0), (0, 4), (3, 4): g = (2, 8/3), ||g|| = 10/3, g/||g|| = (0.6, 0.8);
    # c = 1.8, 3.2, 1.8 + 3.2 = 5.
    s = make(3)
    seen = answer(s, view(s), np.array([[3.0, 0.0], [0.0, 4.0], [3.0, 4.0]]))
    assert s.select(seen, 2).tolist() == [2, 1]
    assert s.explain()["projection"] == pytest.approx([1.8, 3.2, 5.0])
    assert s.explain()["count"].tolist() == [1, 1, 1]
    assert s.probe(view(s, 2)) is None  # once, at the start


def test_reward_and_index_by_hand() -> None:
    # Two clients with c = (0, ln 3): mu = (1/4, 3/4). Accuracy 0.1 -> 0.3: mu of the participant,
    # row 1, times 2 e^0.2. Index for round 2 of 10, rho = 0.5: alpha = 0.1; n = 2 + 1, n_0 = 1,
    # n_1 = 2.
    s = make(2, rho=0.5)
    seen = answer(s, view(s, total=10), np.zeros((2, 2)))
    s.select(seen, 1)
    s.projection[:] = [0.0, math.log(3)]
    s.placed[:] = True
    s.g = np.array([0.0, 1.0])
    s.update(done(1, [1], [[5.0, math.log(3)]], accuracy=0.3))  # its c stays: (5, ln 3) . (0, 1)
    s.select(view(s, 2, total=10, accuracy=0.3), 1)
    told = s.explain()
    assert told["reward_mean"] == pytest.approx([0.25, 0.75 * 2 * math.exp(0.2)])
    idle = 0.25 + 0.1 * math.sqrt(2 * math.log(3))
    participant = 1.5 * math.exp(0.2) + 0.1 * math.sqrt(2 * math.log(3) / 2)
    assert told["score"] == pytest.approx([idle, participant])
    assert told["count"].tolist() == [1, 2]


@pytest.mark.parametrize(
    ("accuracy", "loss", "factor"),
    [
        # The accuracy changed: the loss plays no part.
        (0.3, 9.0, 2 * math.exp(0.2)),
        (0.0, 9.0, 2 * math.exp(-0.1)),
        # It did not: a rising loss raises the reward, as printed.
        (0.1, 2.5, math.exp(0.5)),
        (0.1, 1.0, math.exp(-1.0)),
        (0.1, 1e9, math.exp(10)),  # clipped
        (0.1, 2.0, 1.0),  # nothing changed at all
        (None, None, 1.0),  # not evaluated
        (0.1, None, 1.0),  # a loss that overflowed
    ],
)
def test_equation_8(accuracy: float | None, loss: float | None, factor: float) -> None:
    s = make(2)
    s.select(answer(s, view(s), np.zeros((2, 2))), 1)
    s.update(done(1, [0], [[0.0, 0.0]], accuracy=accuracy, test_loss=loss))
    assert s.explain()["reward_mean"] == pytest.approx([0.5 * factor, 0.5])


def test_projections_use_the_previous_rounds_direction() -> None:
    s = make(3)
    s.select(answer(s, view(s), np.array([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]])), 2)
    s.update(done(1, [0, 1], [[0.0, 2.0], [3.0, 4.0]]))
    # Projections on (1, 0); row 2 keeps its last one.
    assert s.explain()["projection"] == pytest.approx([0.0, 3.0, 1.0])
    assert s.g == pytest.approx([1.5, 3.0])
    s.update(done(2, [2], [[1.0, 1.0]]))
    assert s.explain()["projection"][2] == pytest.approx(4.5 / math.hypot(1.5, 3.0))


def test_a_client_that_missed_the_round_keeps_its_projection_and_counts_as_asked() -> None:
    s = make(3)
    s.select(answer(s, view(s), np.eye(3)[:, :2]), 2)
    before = s.explain()["projection"].copy()
    s.update(done(1, [0, 1], [[7.0, 7.0], [7.0, 7.0]], valid=False))
    assert s.explain()["projection"] == pytest.approx(before)
    assert s.explain()["count"].tolist() == [2, 2, 1]


# ---- the pseudocode


def by_the_book(
    first: np.ndarray,
    rounds: list[tuple[list[int], np.ndarray, float, float]],
    a0: float,
    f0: float,
    rho: float,
    total: int,
) -> tuple[list[float], list[float]]:
    """Algorithm 1 with plain loops: (C, GPCB of every client before round len(rounds) + 1)."""
    n = len(first)
    g = [sum(d[j] for d in first) / n for j in range(first.shape[1])]

    def project(d: np.ndarray) -> float:
        return sum(x * y for x, y in zip(d, g, strict=True)) / math.sqrt(sum(y * y for y in g))

    c = [project(d) for d in first]
    counts = [1] * n
    sums = [0.0] * n
    for rows, directions, accuracy, loss in rounds:
        for row, d in zip(rows, directions, strict=True):
            c[row] = project(d)
            counts[row] += 1
        total_exp = sum(math.exp(x) for x in c)
        for i in range(n):
            mu = math.exp(c[i]) / total_exp
            if i in rows:
                mu *= 2 * math.exp(accuracy - a0) if accuracy != a0 else math.exp(loss - f0)
            sums[i] += mu
        g = [sum(d[j] for d in directions) / len(directions) for j in range(first.shape[1])]
        a0, f0 = accuracy, loss
    t = len(rounds) + 1
    bonus = [math.sqrt(2 * math.log(sum(counts)) / counts[i]) for i in range(n)]
    return c, [sums[i] / len(rounds) + rho * t / total * bonus[i] for i in range(n)]


@pytest.mark.parametrize("seed", range(20))
def test_agrees_with_the_pseudocode(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, p, total = 12, 5, 30
    s = make(n, seed, rho=0.7)
    first = rng.normal(size=(n, p)).astype(np.float32).astype(float)
    rounds = []
    picked = s.select(answer(s, view(s, total=total, p=p), first), 4)
    for t in range(1, 9):
        directions = rng.normal(size=(4, p))
        accuracy = float(rng.choice([0.1, 0.2]))
        loss = float(rng.random())
        rounds.append((picked.tolist(), directions, accuracy, loss))
        s.update(done(t, picked, directions, accuracy, loss))
        picked = s.select(view(s, t + 1, total=total, accuracy=accuracy, test_loss=loss, p=p), 4)
    c, scores = by_the_book(first, rounds, 0.1, 2.0, 0.7, total)
    np.testing.assert_allclose(s.explain()["projection"], c, rtol=1e-6)
    np.testing.assert_allclose(s.explain()["score"], scores, rtol=1e-6)
    assert set(picked.tolist()) == set(np.argsort(scores)[-4:].tolist())


# ---- directions that do not fit into memory


def test_two_passes_give_the_numbers_of_one() -> None:
    rng = np.random.default_rng(0)
    n = 40
    p = 10_000  # 40 directions take 1.5 MB; 26 fit into 1 MB
    directions = rng.normal(size=(n, p))
    directions[7] *= 1e6
    found = []
    for budget, passes in ((2, 1), (1, 2)):
        s = make(n, directions_budget_mb=budget)
        asked: list[Probe] = []
        seen = answer(s, view(s, p=p), directions, asked=asked)
        assert [q.more for q in asked] == [True, False][-passes:]
        s.select(seen, 5)
        found.append(s.explain()["projection"])
    np.testing.assert_allclose(found[0], found[1], rtol=1e-6)


def test_first_directions_keep_only_the_longest() -> None:
    kept = FirstDirections(room=2)
    for row, size in enumerate([1.0, 5.0, 2.0, 100.0, 3.0]):
        kept.add(row, size, np.array([size]))
    assert [row for row, _ in kept.kept()] == [1, 3]
    # With a limit of 10 the sum is 1 + 5 + 2 + 10 + 3.
    assert kept.mean(limit=10.0) == pytest.approx([21 / 5])
    assert FirstDirections(3).mean(1.0).shape == (0,)


# ---- nothing breaks it


def test_huge_projections_are_stable() -> None:
    s = make(4)
    s.select(answer(s, view(s), np.array([[1e30, 0.0]] * 3 + [[-1e30, 0.0]])), 2)
    s.update(done(1, [0, 1], [[3e38, 1e38], [-3e38, 0.0]], accuracy=1.0, test_loss=1e300))
    s.select(view(s, 2, accuracy=1.0), 2)
    assert all(np.isfinite(values).all() for values in s.explain().values())
    assert np.isfinite(s.g).all()


def test_one_absurd_direction_neither_takes_the_softmax_nor_turns_the_global_direction() -> None:
    rng = np.random.default_rng(1)
    honest = np.column_stack([np.ones(20), rng.normal(0, 0.1, 20)])
    lying = honest.copy()
    lying[3] = [0.0, 1e20]
    plain = make(20)
    fooled = make(20)
    plain.select(answer(plain, view(plain), honest), 5)
    fooled.select(answer(fooled, view(fooled), lying), 5)
    # Shortened to 10 times the median length of 1, row 3 adds (0, 10/20) to g: the others'
    # projections fall by a factor of about 1/sqrt(1 + 0.5^2) = 0.89, and keep their order of
    # magnitude.
    others = np.arange(20) != 3
    before = plain.explain()["projection"][others]
    assert (fooled.explain()["projection"][others] > 0.75 * before).all()
    fooled.update(done(1, [0], lying[[0]]))
    assert fooled.explain()["reward_mean"][others].min() > 1e-5


def test_one_whose_probe_failed_and_one_who_joins_later_stand_at_the_median() -> None:
    s = make(5)
    directions = np.array([[1.0, 0.0], [2.0, 0.0], [3.0, 0.0], [9.0, 0.0], [9.0, 0.0]])
    s.select(answer(s, view(s, online=[0, 1, 2, 3]), directions, silent=[3]), 1)
    assert s.explain()["projection"] == pytest.approx([1, 2, 3, 2, 2])
    s.update(done(1, [2], [[3.0, 0.0]]))
    s.select(view(s, 2, online=[0, 1, 2, 3, 4]), 1)
    s.update(done(2, [0], [[1.0, 0.0]]))
    told = s.explain()
    assert s.rounds.tolist() == [2, 2, 2, 2, 1]
    # Rows 3 and 4 have the same mu, each averaged over its own rounds.
    assert told["reward_mean"][3] == pytest.approx(told["reward_mean"][4])
    assert told["reward_mean"][4] > 0


def test_a_newcomers_mean_is_its_softmax_share_until_it_has_a_round() -> None:
    # c = (0, ln 3) of those probed, so the newcomer stands at (ln 3)/2 and softmax(C) is
    # (1, 3, sqrt 3) / (4 + sqrt 3). Nothing changes in round 1, whose rewards are those shares.
    s = make(3, rho=0.0)
    seen = answer(s, view(s, online=[0, 1]), np.array([[0.0, 0.0], [math.log(3), 0.0], [9, 9]]))
    s.select(seen, 1)
    s.update(done(1, [1], [[math.log(3), 0.0]]))
    assert s.select(view(s, 2), 2).tolist() == [1, 2]  # before row 0, whose share is smaller
    shares = np.array([1, 3, math.sqrt(3)]) / (4 + math.sqrt(3))
    assert s.rounds.tolist() == [1, 1, 0]
    assert s.explain()["reward_mean"] == pytest.approx(shares)
    assert s.explain()["score"] == pytest.approx(shares)


def test_ties_are_broken_fairly() -> None:
    counts = np.zeros(10)
    for seed in range(2000):
        s = make(10, seed)
        counts[s.select(answer(s, view(s), np.ones((10, 2))), 4)] += 1
    assert np.abs(counts - 800).max() < five_sigma(2000, 0.4)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(n=st.integers(1, 12), k=st.integers(1, 14), seed=st.integers(0, 99), data=st.data())
def test_always_min_k_online_distinct_rows_and_finite(
    n: int, k: int, seed: int, data: st.DataObject
) -> None:
    rng = np.random.default_rng(seed)
    s = make(n, seed)
    scale = data.draw(st.sampled_from([0.0, 1.0, 1e37]))
    accuracy: float | None = 0.1
    for t in range(1, 5):
        online = sorted(data.draw(st.sets(st.integers(0, n - 1), min_size=1)))
        first = scale * rng.normal(size=(n, 2))
        seen = answer(s, view(s, t, online, accuracy), first, silent=online[:1])
        rows = s.select(seen, k)
        assert len(set(rows.tolist())) == len(rows) == min(k, len(online))
        assert set(rows.tolist()) <= set(online)
        accuracy = data.draw(st.sampled_from([None, 0.0, 0.1, 1.0]))
        directions = scale * rng.normal(size=(len(rows), 2))
        s.update(done(t, rows, directions, accuracy, None, valid=rng.random(len(rows)) < 0.7))
        assert all(np.isfinite(values).all() for values in s.explain().values())


def test_a_resumed_selector_continues_exactly() -> None:
    def play(s: Gpfl, first: int) -> list[list[int]]:
        picks = []
        rng = np.random.default_rng(first)
        for t in range(first, first + 5):
            rows = s.select(view(s, t), 3)
            picks.append(rows.tolist())
            s.update(done(t, rows, rng.normal(size=(3, 2)), float(rng.random())))
        return picks

    whole = make(20)
    answer(whole, view(whole), np.random.default_rng(0).normal(size=(20, 2)))
    play(whole, 1)
    resumed = make(20, seed=5)
    resumed.load_state_dict(wire.decode(wire.encode(whole.state_dict())))
    assert resumed.probe(view(resumed, 6)) is None
    assert play(resumed, 6) == play(whole, 6)


def test_everyone_is_asked_early_on() -> None:
    """The paper's figure 4: with equal rewards the bound takes everyone in turn.

    20 clients, 4 seats, 5 rounds."""
    s = make(20)
    seen: set[int] = set()
    answer(s, view(s), np.ones((20, 2)))
    for t in range(1, 6):
        rows = s.select(view(s, t), 4)
        seen |= set(rows.tolist())
        s.update(done(t, rows, np.ones((4, 2)), accuracy=0.1))
    assert len(seen) == 20
    assert s.diagnostics()["coverage"] == 20
