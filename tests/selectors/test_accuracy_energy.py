"""Accuracy and energy as the utility of PCZFL's baselines."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from conftest import MakeJob, records, run, run_killed_and_resumed, same_records
from hypothesis import given, settings
from hypothesis import strategies as st
from selector_worlds import answered, five_sigma, look, outcome, table

from fedsuv_plugin import wire
from fedsuv_plugin.config.resolved import resolve
from fedsuv_plugin.errors import UserError
from fedsuv_plugin.selectors.accuracy_energy import (
    AccuracyEnergy,
    MeanUtility,
    UtilityParams,
    mean_utility,
    trace_scores,
    uniform_scores,
)
from fedsuv_plugin.selectors.base import ClientTable, ProbeAnswer, RoundOutcome, RoundView, Selector
from fedsuv_plugin.selectors.baselines import facility_location
from fedsuv_plugin.selectors.baselines.afl import Afl
from fedsuv_plugin.selectors.baselines.divfl import Divfl
from fedsuv_plugin.selectors.baselines.pow_d import PowD
from fedsuv_plugin.selectors.pczfl import PCZFL
from fedsuv_plugin.selectors.signals import DIRECTION, INTERVIEW_ACCURACY, LOSS

# Energy scores 0.7, 0.2, 0.9, 0.6, 0: the largest of these is 10.
JOULES = np.array([3.0, 8, 1, 4, 10])
ACCURACIES = np.array([0.30, 0.45, 0.12, 0.43, 0.55])
EVERYONE = np.arange(5)
BASELINES: tuple[type[Selector], ...] = (Afl, Divfl, PowD)
THE_BASELINES = pytest.mark.parametrize("cls", BASELINES, ids=lambda cls: cls.name)


def spending(joules: np.ndarray) -> ClientTable:
    return replace(table(len(joules)), energy=joules)


def make(cls: type[Selector], joules: np.ndarray, seed: int = 0, **params: object) -> Any:
    """The selector with the mean utility, unless `utility` says otherwise."""
    chosen = cls.Params.from_mapping({"utility": "accuracy_energy", **params})
    return cls(chosen, spending(joules), np.random.default_rng(seed))


def mean_of(joules: np.ndarray, **params: object) -> MeanUtility:
    chosen = UtilityParams.from_mapping({"utility": "accuracy_energy", **params})
    made = mean_utility(chosen, spending(joules), np.random.default_rng(0))
    assert made is not None
    return made


def told(t: int, rows: np.ndarray, accuracy: np.ndarray, valid: Any = True) -> RoundOutcome:
    """The outcome with the accuracy of each of `rows` on the interview set."""
    base = outcome(t, rows, valid=valid)
    return replace(base, signals={INTERVIEW_ACCURACY: np.where(base.valid, accuracy, 0.0)})


# ---- worked by hand


@pytest.mark.parametrize(
    ("weight", "expected"),
    [
        (0.5, [0.5, 0.325, 0.51, 0.515, 0.275]),  # (0.3 + 0.7) / 2, (0.45 + 0.2) / 2, ...
        (0.8, [0.38, 0.4, 0.276, 0.464, 0.44]),  # 0.8 0.3 + 0.2 0.7, ...
        (1.0, ACCURACIES.tolist()),
        (0.0, [0.7, 0.2, 0.9, 0.6, 0.0]),
    ],
)
def test_utilities_by_hand(weight: float, expected: list[float]) -> None:
    mean = mean_of(JOULES, accuracy_weight=weight)
    mean.learn(told(1, EVERYONE, ACCURACIES))
    assert mean.values == pytest.approx(expected)


def test_energy_scores() -> None:
    assert trace_scores(np.array([0.0, 1.0, 4.0])).tolist() == [1.0, 0.75, 0.0]
    assert trace_scores(np.zeros(3)).tolist() == [1.0] * 3
    uniform = uniform_scores(500, np.random.default_rng(0))
    assert 0.5 <= uniform.min() < 0.51
    assert 0.99 < uniform.max() <= 1


def test_who_consumes_less_is_worth_more() -> None:
    mean = mean_of(np.array([1.0, 2.0, 3.0]))
    mean.learn(told(1, np.arange(3), np.full(3, 0.4)))
    assert (np.diff(mean.values) < 0).all()


def test_pow_d_takes_the_largest_utilities_of_its_candidates() -> None:
    # 0.515, 0.51 and 0.5 of clients 3, 2 and 0; by accuracy it would be 4, 1 and 3.
    s = make(PowD, JOULES, d=5)
    s.update(told(1, EVERYONE, ACCURACIES))
    assert s.select(look(s.clients, 2), 3).tolist() == [3, 2, 0]
    assert s.explain()["utility"] == pytest.approx([0.5, 0.325, 0.51, 0.515, 0.275])
    assert s.diagnostics() == {"candidates": 5, "mean_candidate_utility": pytest.approx(0.425)}
    # Candidates are drawn by data as before, here client 1 and 4 alone; seats left go on by
    # utility.
    s = make(PowD, JOULES, d=2)
    s.clients.samples[:] = [0, 9, 0, 0, 9]
    s.update(told(1, EVERYONE, ACCURACIES))
    assert s.select(look(s.clients, 2), 4).tolist() == [1, 4, 3, 2]


def test_who_is_asked_about_the_untrained_model_is_chosen_no_sooner() -> None:
    # Client 0 is asked and answers; candidates are drawn by data, here 3 and 4.
    s = make(PowD, JOULES, d=2)
    s.clients.samples[:] = [0, 0, 0, 5, 5]
    view = look(s.clients)
    question = s.probe(view)
    assert question.rows.tolist() == [0]
    assert sorted(s.select(answers(view, question.rows, 0.1), 2).tolist()) == [3, 4]


def test_afl_values_clients_by_it_without_their_samples() -> None:
    # floor(0.75 5) = 3 are dropped, all but 0.515 and 0.51: e^0.0051, e^0.00515, which is nearly
    # a fair coin. Client 4 has the most data, and none of it counts.
    s = make(Afl, JOULES)
    s.clients.samples[:] = [1, 1, 1, 1, 10**6]
    s.update(told(1, EVERYONE, ACCURACIES))
    s.select(look(s.clients, 2), 2)
    assert s.explain()["valuation"] == pytest.approx([0.5, 0.325, 0.51, 0.515, 0.275])
    assert np.flatnonzero(s.explain()["dropped"]).tolist() == [0, 1, 4]
    assert s.explain()["probability"] == pytest.approx([0, 0, 0.4999875, 0.5000125, 0], abs=1e-7)


def test_divfl_represents_the_utilities() -> None:
    # Utilities 0.38 0.4 0.276 0.464 0.44. The medoid is 0.4: 0.02 + 0.124 + 0.064 + 0.04 = 0.248,
    # against 0.268 of 0.38 and 0.288 of 0.44. Then 0.276 saves its own 0.124, and 0.464 or 0.44
    # save 0.08. The two largest utilities would be clients 3 and 4.
    for seed in range(5):
        s = make(Divfl, JOULES, seed, greedy="lazy", accuracy_weight=0.8)
        s.update(told(1, EVERYONE, ACCURACIES))
        assert s.select(look(s.clients, 2), 2).tolist() == [1, 2]
        # Nearest to 0.4 are 0.38, 0.464 and 0.44 beside itself.
        assert s.explain()["cluster_size"].tolist() == [0, 4, 1, 0, 0]
        assert s.diagnostics()["objective"] == pytest.approx(0.124, abs=1e-6)


def test_distances_that_divfl_keeps_follow_the_utilities(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facility_location, "FEW", 0)  # bounds are used for few points, too
    picks = []
    for budget in (0, 512):
        s = make(Divfl, np.zeros(60), greedy="lazy", distances_budget_mb=budget)
        rng = np.random.default_rng(0)
        rounds = []
        for t in range(1, 9):
            s.update(told(t, np.arange(60), rng.random(60), rng.random(60) < 0.5))
            rounds.append(s.select(look(s.clients, t), 6).tolist())
        picks.append(rounds)
    assert picks[0] == picks[1]


def test_a_utility_of_divfl_is_no_direction_that_could_be_too_long() -> None:
    # 0.02 four times and 0.9: a direction of more than ten times the median would be shortened.
    s = make(Divfl, JOULES, greedy="lazy", accuracy_weight=1.0)
    s.update(told(1, EVERYONE, np.array([0.02, 0.02, 0.02, 0.02, 0.9])))
    s.select(look(s.clients, 2), 1)
    assert s.explain()["distance"][4] == pytest.approx(0.88)


# ---- what is known of whom


class ByTheBook:
    """Whose accuracy is which, in plain loops."""

    def __init__(self, n: int):
        self.untrained: float | None = None
        self.own: dict[int, float] = {}
        self.n = n

    def values(self, joules: np.ndarray, weight: float) -> list[float]:
        found = []
        for i in range(self.n):
            accuracy = self.own.get(i, self.untrained or 0.0)
            score = 1.0 if max(joules) == 0 else 1 - joules[i] / max(joules)
            found.append(weight * accuracy + (1 - weight) * score)
        return found


@pytest.mark.parametrize("seed", range(100))
def test_agrees_with_plain_loops(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 20))
    joules = rng.random(n) * rng.choice([0.0, 1.0, 50.0])
    weight = float(rng.random())
    mean = mean_of(joules, accuracy_weight=weight)
    book = ByTheBook(n)
    for t in range(1, 8):
        view = look(spending(joules), t, np.flatnonzero(rng.random(n) < 0.7))
        question = mean.question(view)
        assert (question is None) == (book.untrained is not None or not len(view.online))
        if question is not None and rng.random() < 0.5:
            accuracy = float(rng.random())
            book.untrained = accuracy
            mean.hear(answers(view, question.rows, accuracy))
        else:
            mean.hear(view)
        rows = rng.permutation(n)[:5]
        accuracies = rng.random(len(rows))
        valid = rng.random(len(rows)) < 0.7
        mean.learn(told(t, rows, accuracies, valid))
        for i, a, ok in zip(rows.tolist(), accuracies.tolist(), valid, strict=True):
            if ok:
                book.own[i] = a
        assert mean.values == pytest.approx(book.values(joules, weight))


def answers(view: RoundView, rows: np.ndarray, accuracy: float) -> RoundView:
    return replace(view, probe=ProbeAnswer(INTERVIEW_ACCURACY, rows, np.array([accuracy])))


def test_an_answer_to_another_question_is_not_taken_for_it() -> None:
    mean = mean_of(JOULES)
    view = look(spending(JOULES))
    mean.hear(replace(view, probe=ProbeAnswer(LOSS, EVERYONE, ACCURACIES)))
    assert not mean.started
    assert mean.context[:, 0].tolist() == [0.0] * 5


def test_outcomes_without_interviews_change_nothing() -> None:
    mean = mean_of(JOULES)
    mean.learn(outcome(1, EVERYONE))
    assert mean.context[:, 0].tolist() == [0.0] * 5
    assert not mean.took_part.any()


def test_selectors_of_one_seed_have_the_same_uniform_energies() -> None:
    # So that PCZFL and its baselines spend the same for the same clients.
    scores = [
        make(cls, JOULES, seed=7, energy="uniform").utility.context[:, 1] for cls in BASELINES
    ]
    pczfl = PCZFL(PCZFL.Params(energy="uniform"), spending(JOULES), np.random.default_rng(7))
    for each in scores:
        assert each.tolist() == pczfl.explain()["energy_score"].tolist()


# ---- it is chosen by a parameter, and nothing changes where it is not


@THE_BASELINES
def test_a_selector_asks_for_interviews_only_where_it_uses_them(cls: type[Selector]) -> None:
    own = {"afl": LOSS, "divfl": DIRECTION, "pow_d": LOSS}[cls.name]
    assert cls.may_ask(cls.Params()) == {own}
    assert cls.required(cls.Params()) == {own} & cls.needs
    chosen = cls.Params.from_mapping({"utility": "accuracy_energy"})
    assert cls.may_ask(chosen) == cls.required(chosen) == {INTERVIEW_ACCURACY}


@THE_BASELINES
def test_a_job_keeps_an_interview_set_only_where_it_is_used(
    job: MakeJob, cls: type[Selector]
) -> None:
    assert resolve(job(sample_mode=cls.name)).config.interview_fraction == 0.0
    keys = {f"{cls.name}__utility": "accuracy_energy"}
    assert resolve(job(sample_mode=cls.name, **keys)).config.interview_fraction == 0.2
    assert resolve(job(sample_mode="random", **keys)).config.interview_fraction == 0.0
    with pytest.raises(UserError, match=f"{cls.name} needs interview_accuracy"):
        resolve(job(sample_mode=cls.name, interview_fraction=0.0, **keys))


@THE_BASELINES
def test_with_its_own_utility_the_other_parameters_play_no_part(cls: type[Selector]) -> None:
    others: list[dict[str, object]] = [{}, {"accuracy_weight": 0.1, "energy": "uniform"}]
    picks = []
    for other in others:
        s = make(cls, JOULES, 0, utility="own", **other)
        if cls is Divfl:
            for row in EVERYONE:
                s.receive(row, np.random.default_rng(row).normal(size=3))
        rounds = []
        for t in range(1, 6):
            view = replace(look(s.clients, t), seats=2)
            if cls is not Divfl:
                view = answered(s, view, LOSS, ACCURACIES)
            rounds.append(s.select(view, 2).tolist())
            s.update(told(t, np.array(rounds[-1]), ACCURACIES[rounds[-1]]))
        picks.append((rounds, s.rng.bit_generator.state, json.dumps(s.diagnostics())))
    assert picks[0] == picks[1]


@pytest.mark.parametrize(
    ("name", "value"), [("utility", "loss"), ("accuracy_weight", 1.1), ("energy", "none")]
)
def test_bad_parameters_are_refused(name: str, value: object) -> None:
    with pytest.raises(UserError, match=name):
        UtilityParams.from_mapping({name: value})


# ---- invariants


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    cls=st.sampled_from(BASELINES),
    n=st.integers(1, 15),
    k=st.integers(0, 18),
    seed=st.integers(0, 99),
    energy=st.sampled_from(["trace", "uniform"]),
    data=st.data(),
)
def test_min_k_online_distinct_rows_and_a_resumed_selector_goes_on_alike(
    cls: type[Selector], n: int, k: int, seed: int, energy: str, data: st.DataObject
) -> None:
    rng = np.random.default_rng(seed)
    joules = rng.random(n)
    s = make(cls, joules, seed, energy=energy)
    for t in range(1, 5):
        online = sorted(data.draw(st.sets(st.integers(0, n - 1))))
        silent = data.draw(st.sets(st.integers(0, n - 1)))
        twin = make(cls, joules, seed + 1, energy=energy)
        twin.load_state_dict(wire.decode(wire.encode(s.state_dict())))
        accuracies = rng.choice([0.0, 0.1, 1.0], n)
        views = [
            answered(each, look(each.clients, t, online), INTERVIEW_ACCURACY, accuracies, [*silent])
            for each in (s, twin)
        ]
        rows = s.select(views[0], k)
        assert rows.tolist() == twin.select(views[1], k).tolist()
        assert len(rows) == len(set(rows.tolist())) == min(k, len(online))
        assert set(rows.tolist()) <= set(online)
        np.testing.assert_equal(s.explain(), twin.explain())
        json.dumps(s.diagnostics(), allow_nan=False)
        s.update(told(t, rows, accuracies[rows], rng.random(len(rows)) < 0.7))
        values = s.utility.values
        assert ((values >= 0) & (values <= 1)).all()


def test_a_state_that_was_handed_over_is_not_written_to() -> None:
    part = AccuracyEnergy("trace", spending(JOULES), np.random.default_rng(0))
    first = PCZFL(PCZFL.Params(), spending(JOULES), np.random.default_rng(0))
    state = {**first.state_dict(), "known": part.state_dict()}
    first.load_state_dict(state)
    first.update(told(1, EVERYONE, ACCURACIES))
    assert part.context[:, 0].tolist() == [0.0] * 5
    assert not part.took_part.any()


# ---- learning


@pytest.mark.parametrize("seed", range(3))
def test_on_two_clusters_pow_d_saves_energy_and_loses_no_accuracy(seed: int) -> None:
    # 15 good clients: accuracy 0.8, 10 joules; 15 bad ones: 0.4, 40 joules. Everyone took part
    # once. Of 10 candidates of 30 the number of good ones is hypergeometric: mean 5, variance
    # 10 1/4 20/29 = 1.72. All five are good where there are at least five, which has probability
    # 0.65; in the mean E min(good, 5) = 4.5 of 5. Over 100 rounds its standard deviation, below
    # 1.31 a round, is at most 0.131; five of them leave 3.8 of 5, against 2.5 of a random choice.
    good = np.arange(30) < 15
    s = make(PowD, np.where(good, 10.0, 40.0), seed)
    s.update(told(1, np.arange(30), np.where(good, 0.8, 0.4)))
    seats = 0
    for t in range(2, 102):
        rows = s.select(look(s.clients, t), 5)
        seats += int(good[rows].sum())
        s.update(told(t, rows, np.where(good, 0.8, 0.4)[rows]))
    assert seats / 100 > 3.8


@pytest.mark.parametrize("seed", range(3))
def test_on_two_clusters_afl_draws_by_value_among_the_good(seed: int) -> None:
    # 10 of 40 are good, and alpha_1 = 0.75 drops exactly the others. floor(0.9 5) = 4 of 5 seats
    # are theirs, and the last is one of the 36 left, 6 of them good: Binomial(100, 1/6).
    good = np.arange(40) < 10
    s = make(Afl, np.where(good, 10.0, 40.0), seed)
    s.update(told(1, np.arange(40), np.where(good, 0.8, 0.4)))
    seats = sum(int(good[s.select(look(s.clients, t), 5)].sum()) for t in range(2, 102))
    assert abs(seats - 100 * (4 + 1 / 6)) < five_sigma(100, 1 / 6)


@pytest.mark.parametrize("seed", range(3))
def test_divfl_takes_clients_of_every_utility(seed: int) -> None:
    # Utilities near 0.2, 0.5 and 0.8, ten clients each, at most 0.02 off: any cohort of three
    # without one of each leaves ten clients at least 0.26 away, 2.6 in all; one of each leaves at
    # most 30 times 0.04 = 1.2. Lazy greedy takes the medoid, and then a client of each other kind.
    rng = np.random.default_rng(seed)
    kind = np.repeat([0.2, 0.5, 0.8], 10)
    s = make(Divfl, np.zeros(30), seed, accuracy_weight=1.0, greedy="lazy")
    s.update(told(1, np.arange(30), kind + rng.uniform(-0.02, 0.02, 30)))
    assert sorted(kind[s.select(look(s.clients, 2), 3)].tolist()) == [0.2, 0.5, 0.8]


@THE_BASELINES
def test_a_job_with_it_learns_and_resumes(job: MakeJob, cls: type[Selector]) -> None:
    keys = {f"{cls.name}__utility": "accuracy_energy", f"{cls.name}__energy": "uniform"}
    small = job(sample_mode=cls.name, rounds=10, checkpoint_every=3, warmup_rounds=2, **keys)
    whole = run(small)
    metrics = records(whole, "metrics.jsonl")
    assert metrics[-1]["loss"] < metrics[0]["loss"]
    assert len({tuple(r["asked"]) for r in records(whole)}) > 1
    same_records(run_killed_and_resumed(small, 8), whole)
