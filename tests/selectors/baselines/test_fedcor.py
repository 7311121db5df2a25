"""FedCor: the Gaussian process of loss changes, the picks, the samples, and whole jobs."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from conftest import MakeJob, records, run, run_killed_and_resumed, same_records
from hypothesis import given, settings
from hypothesis import strategies as st
from selector_worlds import Numbers, Rows, answered, five_sigma, look, outcome, table

from fedsuv_plugin import wire
from fedsuv_plugin.errors import UserError
from fedsuv_plugin.selectors.base import RoundView
from fedsuv_plugin.selectors.baselines import fedcor
from fedsuv_plugin.selectors.baselines.fedcor import (
    FedCor,
    FedCorParams,
    Samples,
    trained_positions,
    weighted_means,
)
from fedsuv_plugin.selectors.signals import LOSS


def make(n: int, seed: int = 0, samples: Numbers = 40, **params: object) -> FedCor:
    clients = table(n, samples=samples)
    return FedCor(FedCorParams.from_mapping(params), clients, np.random.default_rng(seed))


def asked(
    s: FedCor, t: int, losses: np.ndarray, online: Rows = None, silent: Iterable[int] = ()
) -> RoundView:
    """The view of round t = 1, 2, ..., once those who are asked have told their losses."""
    return answered(s, look(s.clients, t, online), LOSS, losses, list(silent))


# ---- picks


SIGMA = np.array([[1, 0.8, 0, 0.1], [0.8, 1, 0.1, 0], [0, 0.1, 0.5, 0], [0.1, 0, 0, 0.25]])


def placed(sigma: np.ndarray, samples: Numbers, noise: float = 0.1, **params: Any) -> FedCor:
    """A selector past its warm-up whose covariance is `sigma`."""
    n = len(sigma)
    values, vectors = np.linalg.eigh(sigma - noise**2 * np.eye(n))
    assert (values > 0).all()
    params = {"warmup": 0, "interval": 0, "dimension": n, "noise": noise, **params}
    s = make(n, samples=samples, **params)
    s.positions = vectors * np.sqrt(values)
    s.placed[:] = True
    return s


def greedy_by_the_book(
    sigma: np.ndarray, p: np.ndarray, alpha: np.ndarray, online: list[int], k: int
) -> tuple[list[int], list[dict[int, float]]]:
    """The picks and the scores before each of them, with the whole matrix and plain loops."""
    sigma = sigma.copy()
    n = len(sigma)
    chosen: list[int] = []
    history = []
    while len(chosen) < min(k, len(online)):
        scores = {}
        for c in online:
            if c not in chosen:
                total = sum(p[i] * sigma[i, c] for i in range(n) if i not in chosen)
                scores[c] = alpha[c] / math.sqrt(sigma[c, c]) * total
        pick = max(scores, key=lambda c: scores[c])
        history.append(scores)
        chosen.append(pick)
        sigma = sigma - np.outer(sigma[:, pick], sigma[pick]) / sigma[pick, pick]
    return chosen, history


def test_picks_by_hand() -> None:
    # p = 0.4 0.2 0.3 0.1. Client 0: (0.4 1 + 0.2 0.8 + 0 + 0.1 0.1) / 1 = 0.57; 2: (0.2 0.1 +
    # 0.3 0.5) / sqrt(0.5) = 0.240416. After 0 was taken client 1 is left with variance 0.36 and
    # (0.2 0.36 + 0.3 0.1 - 0.1 0.08) / 0.6 = 0.156667, so 2 is next.
    s = placed(SIGMA, [40, 20, 30, 10])
    assert s.select(look(s.clients, 3), 2).tolist() == [0, 2]
    told = s.explain()
    assert told["score"] == pytest.approx([0.57, 0.55, 0.240416, 0.13], abs=5e-7)
    assert told["sigma"] == pytest.approx([1, 1, math.sqrt(0.5), 0.5])
    assert told["chosen_as"].tolist() == [1, 0, 2, 0]
    assert s.diagnostics()["best_score"] == pytest.approx(0.57)
    assert s.diagnostics()["random_cohort"] is False
    p = np.array([0.4, 0.2, 0.3, 0.1])
    _, scores = greedy_by_the_book(SIGMA, p, np.ones(4), [0, 1, 2, 3], 2)
    assert scores[1] == pytest.approx({1: 0.156667, 2: 0.240416, 3: 0.016330}, abs=5e-7)


def test_picks_with_annealing_by_hand() -> None:
    # Client 0 was asked twice: 0.95^2 0.57 = 0.514425 < 0.55, so 1 comes first, then 0 with
    # 0.195542 before 2 with 0.164286.
    s = placed(SIGMA, [40, 20, 30, 10])
    for t in (3, 4):
        s.update(outcome(t, [0]))
    assert s.select(look(s.clients, 5), 2).tolist() == [1, 0]
    assert s.explain()["annealing"].tolist() == pytest.approx([0.9025, 1, 1, 1])
    assert s.explain()["score"][:2] == pytest.approx([0.514425, 0.55])
    p = np.array([0.4, 0.2, 0.3, 0.1])
    _, scores = greedy_by_the_book(SIGMA, p, np.array([0.9025, 1, 1, 1]), [0, 1, 2, 3], 2)
    assert scores[1][0] == pytest.approx(0.195542, abs=5e-7)
    assert scores[1][2] == pytest.approx(0.164286, abs=5e-7)


@pytest.mark.parametrize("seed", range(100))
def test_picks_are_those_of_the_dense_form(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(3, 40))
    d = int(rng.integers(1, 8))
    noise = float(rng.choice([0.01, 0.1, 1.0]))
    samples = rng.integers(1, 100, n)
    s = make(n, seed, samples=samples, warmup=0, interval=0, dimension=d, noise=noise)
    s.positions = rng.normal(size=(n, d)) + 0.3
    s.placed = rng.random(n) < 0.8
    s.annealing = np.power(0.9, rng.integers(0, 4, n), dtype=np.float64)
    online = np.flatnonzero(rng.random(n) < 0.7)
    k = int(rng.integers(1, n))
    rows = s.select(look(s.clients, 2, online), k)
    # Clients without a position are no part of the book's world.
    there = np.flatnonzero(s.placed)
    sigma = s.positions[there] @ s.positions[there].T + noise**2 * np.eye(len(there))
    p = samples[there] / samples[there].sum()
    local = [i for i, row in enumerate(there) if row in online]
    book, scores = greedy_by_the_book(sigma, p, s.annealing[there], local, k)
    assert rows[: len(book)].tolist() == there[book].tolist()
    assert not s.placed[rows[len(book) :]].any()
    if scores:
        first = {int(there[i]): value for i, value in scores[0].items()}
        assert {i: s.score[i] for i in np.flatnonzero(np.isfinite(s.score)).tolist()} == (
            pytest.approx(first, rel=1e-9, abs=1e-12)
        )


def test_equal_clients_are_picked_alike() -> None:
    counts = np.zeros(10)
    s = placed(np.eye(10), 10)
    s.positions[:] = 0  # eigenvectors leave rounding errors, which would break the ties
    for _ in range(2000):
        counts[s.select(look(s.clients, 3), 4)] += 1
    assert np.abs(counts - 800).max() < five_sigma(2000, 0.4)


def test_clients_without_a_position_come_last_and_count_for_nothing() -> None:
    s = placed(SIGMA, [40, 20, 30, 10])
    s.placed[0] = False
    # p = 0 2/6 3/6 1/6. Client 1: 2/6 + 3/6 0.1 = 0.383; 2: (2/6 0.1 + 3/6 0.5) / sqrt(0.5) =
    # 0.4007; 3: 1/6 0.25 / 0.5 = 0.083.
    assert s.select(look(s.clients, 3), 4).tolist() == [2, 1, 3, 0]
    assert s.explain()["score"][1:] == pytest.approx([0.383333, 0.400694, 0.083333], abs=5e-7)
    assert np.isnan(s.explain()["score"][0])
    assert np.isnan(s.explain()["sigma"][0])


# ---- the likelihood and its training


def samples_of(off: np.ndarray, answered: np.ndarray | None = None, gamma: float = 1.0) -> Samples:
    answered = np.ones(off.shape, bool) if answered is None else answered
    weights = gamma ** np.arange(len(off))[::-1].astype(float)
    return Samples(np.where(answered, off, 0.0), answered, weights)


def likelihood_by_the_book(positions: np.ndarray, samples: Samples, noise: float) -> float:
    """With the dense covariance of those that answered, and its inverse."""
    total = 0.0
    for members, mask in samples.groups():
        for i in members:
            there = np.flatnonzero(mask)
            y = samples.off[i, there]
            k = positions[there] @ positions[there].T + noise**2 * np.eye(len(there))
            log_det = math.log(np.linalg.det(k))
            each = y @ np.linalg.inv(k) @ y + log_det + len(there) * math.log(2 * math.pi)
            total -= 0.5 * samples.weights[i] * each
    return total


def test_likelihood_by_hand() -> None:
    # X = (1, 0.5, -0.5), y - mu = (-0.2, -0.1, 0.1) = -0.2 X: all of it lies along X. |X|^2 =
    # 1.5, so with s = sigma_n^2 the covariance has the eigenvalues 1.5 + s, s and s:
    # -1/2 (0.06 / (1.5 + s) + ln(1.5 + s) + 2 ln s + 3 ln 2 pi).
    positions = np.array([[1.0], [0.5], [-0.5]])
    samples = samples_of(np.array([[-0.3, -0.2, 0.0]]) + 0.1)
    for noise, expected in ((0.01, 6.230760), (0.1, 1.622432)):
        s = noise**2
        by_hand = -0.5 * (
            0.06 / (1.5 + s) + math.log(1.5 + s) + 2 * math.log(s) + 3 * math.log(2 * math.pi)
        )
        assert by_hand == pytest.approx(expected, abs=5e-7)
        assert samples.log_likelihood(positions, noise) == pytest.approx(by_hand)


def test_means_by_hand() -> None:
    # Rounds 3 and 5, gamma 0.9: (0.81 -1 + -2) / 1.81 = -1.552486, and twice that.
    changes = np.array([[-1.0, -2.0], [-2.0, -4.0]])
    everyone = np.ones((2, 2), bool)
    means = weighted_means(changes, everyone, np.array([0.9**2, 1.0]))
    assert means == pytest.approx([-1.552486, -3.104972], abs=5e-7)


def trained_by_the_book(
    positions: np.ndarray, samples: Samples, noise: float, steps: int, rate: float
) -> np.ndarray:
    """torch's Adam and torch's gradient of the dense likelihood, as published."""
    import torch

    x = torch.tensor(positions, requires_grad=True)
    adam = torch.optim.Adam([x], lr=rate)
    for _ in range(steps):
        adam.zero_grad()
        loss = torch.zeros((), dtype=torch.float64)
        for members, mask in samples.groups():
            there = torch.tensor(np.flatnonzero(mask))
            k = x[there] @ x[there].T + noise**2 * torch.eye(len(there), dtype=torch.float64)
            normal = torch.distributions.MultivariateNormal(
                torch.zeros(len(there), dtype=torch.float64), covariance_matrix=k
            )
            for i in members:
                y = torch.tensor(samples.off[i])[there]
                loss = loss - samples.weights[i] * normal.log_prob(y)
        loss.backward()
        adam.step()
    return x.detach().numpy()


@pytest.mark.parametrize("seed", range(100))
def test_likelihood_and_training_are_those_of_the_dense_form(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fedcor, "BLOCK", 7)
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 20))
    d = int(rng.integers(1, 6))
    noise = float(rng.choice([0.1, 0.5]))
    answered = rng.random((4, n)) < rng.choice([0.7, 2.0])
    answered[:, 0] = True  # nobody's sample is empty
    answered[3] = answered[1]
    samples = samples_of(rng.normal(size=(4, n)), answered, 0.9)
    start = rng.normal(size=(n, d)) / math.sqrt(d)
    assert samples.log_likelihood(start, noise) == pytest.approx(
        likelihood_by_the_book(start, samples, noise), rel=1e-8
    )
    ours = trained_positions(start, samples, noise, 10, 0.01)
    np.testing.assert_allclose(
        ours, trained_by_the_book(start, samples, noise, 10, 0.01), atol=1e-6
    )
    unseen = ~answered.any(axis=0)
    np.testing.assert_array_equal(ours[unseen], start[unseen])


def test_the_gradient_is_that_of_the_likelihood() -> None:
    rng = np.random.default_rng(0)
    samples = samples_of(rng.normal(size=(3, 6)), rng.random((3, 6)) < 0.8, 0.8)
    x = rng.normal(size=(6, 2))
    b, c = samples.slopes(*samples.moments(x, slice(None)), 0.3)
    gradient = samples.gradient(x, slice(None), b, c)
    for i in range(6):
        for j in range(2):
            step = np.zeros_like(x)
            step[i, j] = 1e-6
            rise = samples.log_likelihood(x + step, 0.3) - samples.log_likelihood(x - step, 0.3)
            assert gradient[i, j] == pytest.approx(rise / 2e-6, rel=1e-5, abs=1e-6)


# ---- rounds and samples


def play(
    s: FedCor, rounds: range, losses: np.ndarray, k: int = 2, **view: Any
) -> list[dict[str, Any]]:
    """Rounds (1, 2, ...) with losses[t - 1] at the start of round t; the diagnostics of each."""
    told = []
    for t in rounds:
        rows = s.select(asked(s, t, losses[t - 1], **view), k)
        told.append({**s.diagnostics(), "rows": rows.tolist()})
        s.update(outcome(t, rows))
    return told


def test_random_rounds_and_questions_come_when_they_should() -> None:
    # Counted from 0: random are 0, 1, 2 (the warm-up) and 5, 10; asked are those and the rounds
    # after them: 0, 1, 2, 3, 5, 6, 10, 11.
    s = make(8, warmup=2, interval=5, dimension=2, first_steps=2, steps=2)
    losses = np.random.default_rng(0).random((13, 8))
    random = []
    questions = []
    samples = []
    for t in range(1, 14):
        question = s.probe(look(s.clients, t))
        if question is not None:
            questions.append(t - 1)
            assert question.rows.tolist() == list(range(8))
        (told,) = play(s, range(t, t + 1), losses)
        if told["random_cohort"]:
            random.append(t - 1)
        samples.append(told["samples"])
    assert random == [0, 1, 2, 5, 10]
    assert questions == [0, 1, 2, 3, 5, 6, 10, 11]
    assert samples == [0, 1, 2, 3, 3, 3, 4, 4, 4, 4, 4, 5, 5]
    assert s.sample_rounds.tolist() == [0, 1, 2, 5, 10]
    for i, t in enumerate(s.sample_rounds.tolist()):
        np.testing.assert_allclose(s.changes[i], losses[t + 1] - losses[t])


def test_an_interval_of_0_means_no_sample_after_the_warm_up() -> None:
    s = make(5, warmup=1, interval=0, dimension=2, first_steps=1)
    told = play(s, range(1, 40), np.random.default_rng(0).random((40, 5)))
    assert [each["random_cohort"] for each in told] == [True] * 2 + [False] * 37
    assert s.probe(look(s.clients, 40)) is None


def test_samples_grow_old() -> None:
    # history 6: in round 10 (from 0) those of round 3 and before are dropped.
    s = make(6, warmup=4, interval=5, history=6, dimension=2, first_steps=1, steps=1)
    play(s, range(1, 13), np.random.default_rng(0).random((12, 6)))
    assert s.sample_rounds.tolist() == [4, 5, 10]
    assert len(s.changes) == len(s.answered) == 3


def test_a_sample_is_of_those_who_answered_twice() -> None:
    s = make(5, warmup=3, dimension=2)
    losses = np.arange(20.0).reshape(4, 5) ** 2
    s.select(asked(s, 1, losses[0], [0, 1, 2, 3], silent=[1]), 2)
    s.select(asked(s, 2, losses[1], [1, 2, 3, 4]), 2)
    assert s.answered.tolist() == [[False, False, True, True, False]]
    assert s.changes[0].tolist() == [0, 0, 49 - 4, 64 - 9, 0]


def test_a_round_without_a_valid_client_gives_no_sample() -> None:
    s = make(4, warmup=3, dimension=2)
    for t, valid in ((1, True), (2, False), (3, True), (4, True)):
        rows = s.select(asked(s, t, np.full(4, float(t))), 2)
        s.update(outcome(t, rows, valid=valid))
    assert s.sample_rounds.tolist() == [0, 2]


def test_a_gap_in_the_questions_makes_no_sample() -> None:
    # Nobody is online in round 2, so that round 3's losses are not compared with round 1's.
    s = make(4, warmup=5, dimension=2)
    s.select(asked(s, 1, np.ones(4)), 2)
    assert s.probe(look(s.clients, 2, [])) is None
    assert s.select(look(s.clients, 2, []), 2).size == 0
    s.select(asked(s, 3, np.zeros(4)), 2)
    assert len(s.sample_rounds) == 0


def test_one_absurd_loss_is_shortened() -> None:
    # Changes 1, 2, 3, 1e40: their sizes have the median 2.5, so 250 is believed.
    s = make(4, warmup=3, dimension=2)
    s.select(asked(s, 1, np.zeros(4)), 2)
    s.select(asked(s, 2, np.array([1.0, 2, 3, 1e40])), 2)
    assert s.changes[0].tolist() == [1, 2, 3, 250]


def test_annealing_by_hand() -> None:
    # Warm-up: rounds 0 and 1. From then on everyone asked is annealed, until round 4 is over.
    s = make(4, warmup=1, interval=4, beta=0.5)
    seen = []
    for t, rows, valid in ((0, [0], True), (1, [0], True), (2, [0, 1], False), (3, [0], True)):
        s.update(outcome(t + 1, rows, valid=valid))
        seen.append(s.explain()["annealing"].tolist())
    assert seen == [[1] * 4, [1] * 4, [0.5, 0.5, 1, 1], [0.25, 0.5, 1, 1]]
    s.update(outcome(5, [2]))
    assert s.explain()["annealing"].tolist() == [1] * 4


@pytest.mark.parametrize("update_mean", [True, False])
def test_training_is_on_the_weighted_samples_and_as_long_as_said(update_mean: bool) -> None:
    """Positions after every round are those of the book, begun anew at each training."""
    params: dict[str, Any] = {"warmup": 2, "interval": 4, "gamma": 0.8, "dimension": 3}
    steps = {"first_steps": 9, "warmup_steps": 4, "steps": 6}
    s = make(10, update_mean=update_mean, noise=0.2, **params, **steps)
    x = s.positions.copy()
    losses = np.random.default_rng(1).random((11, 10))
    first = {3: 9} if update_mean else {1: 4, 2: 4, 3: 4}
    when = {**first, 5: 6, 9: 6}  # rounds from 0, at the start of which there is a training
    gone: list[int] = []
    for t in range(11):
        if t in (1, 2, 3, 5, 9):
            gone.append(t - 1)
        play(s, range(t + 1, t + 2), losses)
        if t in when:
            changes = np.array([losses[r + 1] - losses[r] for r in gone])
            weights = np.array([0.8 ** (gone[-1] - r) for r in gone])
            mean = (weights[:, None] * changes).sum(0) / weights.sum() if update_mean else 0.0
            samples = Samples(changes - mean, np.ones(changes.shape, bool), weights)
            x = trained_by_the_book(x, samples, 0.2, when[t], 0.01)
            per_change = likelihood_by_the_book(x, samples, 0.2) / (10 * weights.sum())
            assert s.diagnostics()["log_likelihood"] == pytest.approx(per_change, rel=1e-6)
        np.testing.assert_allclose(s.positions, x, atol=1e-6)


def test_training_makes_up_for_a_warm_up_without_a_last_sample() -> None:
    s = make(6, warmup=1, interval=0, dimension=2, first_steps=3)
    start = s.positions.copy()
    losses = np.random.default_rng(0).random((4, 6))
    play(s, range(1, 3), losses)
    np.testing.assert_array_equal(s.positions, start)  # not before the warm-up is over
    s.before_round = fedcor.NEVER  # as after a round without a valid client
    (told,) = play(s, range(3, 4), losses)
    assert told["samples"] == 1
    assert told["random_cohort"] is False
    assert (s.positions != start).all()


def test_without_answers_all_cohorts_are_random() -> None:
    s = make(10, warmup=0, interval=0)
    counts = np.zeros(10)
    for t in range(1, 2001):
        counts[s.select(look(s.clients, t), 4)] += 1
    assert np.abs(counts - 800).max() < five_sigma(2000, 0.4)


# ---- invariants


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    n=st.integers(1, 12),
    k=st.integers(0, 14),
    seed=st.integers(0, 99),
    warmup=st.integers(0, 3),
    interval=st.integers(0, 4),
    update_mean=st.booleans(),
    huge=st.sampled_from([1.0, 1e-200, 1e300]),
    data=st.data(),
)
def test_min_k_online_distinct_rows_and_a_resumed_selector_goes_on_alike(
    n: int,
    k: int,
    seed: int,
    warmup: int,
    interval: int,
    update_mean: bool,
    huge: float,
    data: st.DataObject,
) -> None:
    def fresh(number: int) -> FedCor:
        rounds = {"warmup": warmup, "interval": interval, "history": 3}
        steps = {"first_steps": 5, "warmup_steps": 3, "steps": 2, "dimension": 3}
        return make(n, number, samples=np.arange(n), update_mean=update_mean, **rounds, **steps)

    s = fresh(seed)
    with np.errstate(divide="raise", invalid="raise", over="raise"):
        for t in range(1, 8):
            online = data.draw(st.sets(st.integers(0, n - 1)))
            silent = data.draw(st.sets(st.integers(0, n - 1), max_size=2))
            losses = np.random.default_rng([seed, t]).choice([0.0, 0.5, 2.0, huge], n)
            twin = fresh(seed + 1)
            twin.load_state_dict(wire.decode(wire.encode(s.state_dict())))
            rows = s.select(asked(s, t, losses, sorted(online), silent), k)
            again = twin.select(asked(twin, t, losses, sorted(online), silent), k)
            assert rows.tolist() == again.tolist()
            assert len(rows) == len(set(rows.tolist())) == min(k, len(online))
            assert set(rows.tolist()) <= online
            np.testing.assert_equal(s.explain(), twin.explain())
            assert s.diagnostics() == twin.diagnostics()
            json.dumps(s.diagnostics(), allow_nan=False)
            assert np.isfinite(s.positions).all()
            assert np.isfinite(s.explain()["sigma"][s.placed]).all()
            valid = np.random.default_rng([seed, t, 1]).random(len(rows)) < 0.7
            s.update(outcome(t, rows, valid=valid))


def test_the_same_seed_gives_the_same_cohorts_and_another_seed_others() -> None:
    def cohorts(seed: int) -> list[list[int]]:
        s = make(30, seed, warmup=3, interval=4, dimension=3, first_steps=20, steps=5)
        losses = np.random.default_rng(0).random((12, 30))
        return [told["rows"] for told in play(s, range(1, 13), losses, 5)]

    assert cohorts(1) == cohorts(1)
    assert cohorts(1) != cohorts(2)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("warmup", -1),
        ("interval", 1.5),
        ("beta", 0),
        ("gamma", 1.1),
        ("history", -1),
        ("dimension", 0),
        ("noise", 0),
        ("first_steps", 0),
        ("learning_rate", 0),
    ],
)
def test_bad_parameters_are_refused(name: str, value: object) -> None:
    with pytest.raises(UserError, match=name):
        FedCorParams.from_mapping({name: value})


# ---- learning


@pytest.mark.parametrize("seed", range(5))
def test_each_group_of_clients_that_move_together_gets_a_seat(seed: int) -> None:
    # Five groups of 8 clients; the losses of a group rise and fall together by 0.3, each group on
    # its own, with noise of 0.01 as the model has it. Who knows the covariance takes one client of
    # each group for five seats: given one change of a group, those of the others have a standard
    # deviation of 0.014 and score a twentieth. A random cohort meets 5 (1 - C(32, 5) / C(40, 5)) =
    # 3.5 of the groups, and all five with 8^5 / C(40, 5) = 0.05. Learnt from 30 samples, a
    # correlation between two groups is off by 0.18, too little for a second client of one group to
    # come before the first of another.
    rng = np.random.default_rng(seed)
    group = np.repeat(np.arange(5), 8)
    moves = 0.3 * rng.normal(size=(30, 5))[:, group] + 0.01 * rng.normal(size=(30, 40))
    losses = np.vstack([np.zeros(40), np.cumsum(moves, axis=0)])
    s = make(40, seed, warmup=29, interval=0, dimension=5, first_steps=3000)
    play(s, range(1, 31), losses)
    rows = s.select(asked(s, 31, losses[30]), 5)
    assert sorted(group[rows].tolist()) == [0, 1, 2, 3, 4]


def test_a_job_with_it_learns_and_resumes(job: MakeJob) -> None:
    keys = {"fedcor__warmup": 2, "fedcor__interval": 4, "fedcor__first_steps": 50}
    small = job(sample_mode="fedcor", rounds=12, checkpoint_every=3, overcommitment=1.0, **keys)
    whole = run(small)
    rounds = records(whole)
    metrics = records(whole, "metrics.jsonl")
    assert metrics[-1]["loss"] < 0.8 * metrics[0]["loss"]
    told = [r["selector"] for r in rounds]
    assert [each["random_cohort"] for each in told] == (
        [True] * 3 + [False] + [True] + [False] * 3 + [True] + [False] * 3
    )
    assert [each["samples"] for each in told] == [0, 1, 2, 3, 3, 4, 4, 4, 4, 5, 5, 5]
    assert told[-1]["placed"] == 20
    # Killed within the sample of round 8 (from 0), whose losses before are in the checkpoint.
    same_records(run_killed_and_resumed(small, 9), whole)
    same_records(run_killed_and_resumed(small, 5), whole)
