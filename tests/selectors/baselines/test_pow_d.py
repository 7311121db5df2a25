"""Power-of-choice."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from selector_worlds import Numbers, Rows, answered, five_sigma, look, outcome, table

from fedsuv_plugin.selectors.base import RoundView
from fedsuv_plugin.selectors.baselines.pow_d import PowD, PowDParams
from fedsuv_plugin.selectors.signals import LOSS


def make(n: int, seed: int = 0, samples: Numbers = 40, **params: object) -> PowD:
    clients = table(n, samples=samples)
    return PowD(PowDParams.from_mapping(params), clients, np.random.default_rng(seed))


def asked(
    s: PowD, losses: np.ndarray, k: int, online: Rows = None, silent: Iterable[int] = ()
) -> RoundView:
    """The view of the selection, once the candidates have answered with their losses."""
    view = replace(look(s.clients, online=online), seats=k)
    return answered(s, view, LOSS, losses, list(silent))


def test_the_largest_losses_of_the_candidates_by_hand() -> None:
    # All 6 are candidates; losses 0 .. 5: the three largest are rows 5, 4, 3, best first.
    s = make(6, d=6)
    assert s.select(asked(s, np.arange(6.0), 3), 3).tolist() == [5, 4, 3]
    assert s.explain()["candidate"].all()


def test_agrees_with_the_pseudocode() -> None:
    """Candidates first, then the k largest losses among them; no other loss plays a part."""
    for seed in range(50):
        losses = np.random.default_rng(seed).random(40)
        s = make(40, seed, d=12)
        view = asked(s, losses, 5)
        candidates = view.probe.rows  # type: ignore[union-attr]
        assert len(candidates) == 12
        expected = sorted(candidates.tolist(), key=lambda row: -losses[row])[:5]
        assert s.select(view, 5).tolist() == expected


def test_candidates_are_drawn_in_proportion_to_data() -> None:
    # One candidate of three clients with 10, 30, 60 samples, 3000 times.
    counts = np.zeros(3)
    s = make(3, samples=[10, 30, 60], d=1)
    for _ in range(3000):
        counts[s.probe(replace(look(s.clients), seats=1)).rows] += 1  # type: ignore[union-attr]
    for count, p in zip(counts, (0.1, 0.3, 0.6), strict=True):
        assert abs(count - 3000 * p) < five_sigma(3000, p)


def test_by_default_there_are_twice_as_many_candidates_as_seats() -> None:
    s = make(50)
    for online, candidates in ((None, 14), ([1, 2, 3], 3)):
        question = s.probe(replace(look(s.clients, online=online), seats=7))
        assert question is not None
        assert len(question.rows) == candidates


def test_seats_left_over_go_to_the_unknown_then_to_the_largest_known_loss() -> None:
    s = make(6, d=2)
    s.update(outcome(1, [0, 1, 2], [1.0, 3.0, 2.0]))
    s.clients.samples[:] = [0, 0, 0, 0, 5, 5]  # the candidates are 4 and 5
    view = asked(s, np.array([0, 0, 0, 0, 0.1, 0.2]), 5)
    # 5 and 4 by their answers; 3 was never heard of; then 1 (loss 3) and 2 (loss 2), not 0 (loss
    # 1).
    assert s.select(view, 5).tolist() == [5, 4, 3, 1, 2]


def test_a_candidate_that_does_not_answer_is_passed_over() -> None:
    s = make(6, d=6)
    assert s.select(asked(s, np.arange(6.0), 3, silent=(5, 4)), 3).tolist() == [3, 2, 1]


def test_without_probes_it_remembers_the_losses_met_in_training() -> None:
    s = make(5, d=5)
    valid = [True, True, True, True, False]
    s.update(outcome(1, [0, 1, 2, 3, 4], [5.0, 1.0, 4.0, 2.0, 3.0], valid=valid))
    picks = s.select(look(s.clients, 2), 3).tolist()
    assert picks == [4, 0, 2]  # 4 missed the round: unknown comes first


def test_ties_are_broken_fairly() -> None:
    counts = np.zeros(10)
    for seed in range(2000):
        s = make(10, seed, d=10)
        counts[s.select(asked(s, np.ones(10), 4), 4)] += 1
    assert np.abs(counts - 800).max() < five_sigma(2000, 0.4)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    n=st.integers(1, 30),
    k=st.integers(1, 35),
    d=st.integers(1, 40),
    seed=st.integers(0, 99),
    data=st.data(),
)
def test_min_k_online_distinct_rows_whoever_answers(
    n: int, k: int, d: int, seed: int, data: st.DataObject
) -> None:
    online = data.draw(st.sets(st.integers(0, n - 1), min_size=1))
    silent = data.draw(st.sets(st.integers(0, n - 1)))
    s = make(n, seed, d=d)
    losses = np.random.default_rng(seed).choice([0.0, 1.0, 1e300], n)
    rows = s.select(asked(s, losses, k, sorted(online), tuple(silent)), k).tolist()
    assert len(rows) == len(set(rows)) == min(k, len(online))
    assert set(rows) <= online
