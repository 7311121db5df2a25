"""Spreads and paired comparisons, by hand."""

from __future__ import annotations

import math

import pytest

from fedsuv_plugin.experiments.statistics import Paired, adjusted, in_words, paired, spread

NAN = float("nan")


def test_a_spread_by_hand() -> None:
    # 2, 4, 9: mean 5, squares 9 + 1 + 16 = 26, variance 13. t(0.975, 2) = 4.302653.
    found = spread({0: 2.0, 1: 4.0, 2: 9.0})
    assert (found.n, found.mean, found.median, found.missing) == (3, 5.0, 4.0, 0)
    assert found.deviation == pytest.approx(math.sqrt(13))
    half = 4.302653 * math.sqrt(13 / 3)
    assert (found.low, found.high) == pytest.approx((5 - half, 5 + half), rel=1e-6)


def test_one_seed_has_a_mean_and_nothing_else() -> None:
    found = spread({7: 0.5})
    assert (found.mean, found.median) == (0.5, 0.5)
    assert all(math.isnan(x) for x in (found.deviation, found.low, found.high))


def test_no_seed_has_nothing() -> None:
    assert math.isnan(spread({}).mean)
    assert math.isnan(spread({}).median)


def test_what_was_not_reached_is_not_averaged_away() -> None:
    found = spread({0: 10.0, 1: NAN, 2: 30.0}, better=-1)
    assert found.missing == 1
    assert math.isnan(found.mean)
    assert math.isnan(found.low)
    # 10, 30, never: the middle one is 30.
    assert found.median == 30.0
    # 10, never, never: the middle one never got there.
    assert math.isnan(spread({0: 10.0, 1: NAN, 2: NAN}, better=-1).median)


def test_equal_values_have_an_interval_of_no_width() -> None:
    found = spread({0: 3.0, 1: 3.0})
    assert (found.deviation, found.low, found.high) == (0.0, 3.0, 3.0)


def test_a_paired_difference_by_hand() -> None:
    # Differences 1, 2, 3: mean 2, sd 1, t = 2 sqrt(3) = 3.4641, p = 0.0742 with 2 degrees.
    found = paired({0: 11.0, 1: 12.0, 2: 13.0}, {0: 10.0, 1: 10.0, 2: 10.0}, better=1)
    assert (found.n, found.wins, found.losses, found.ties) == (3, 3, 0, 0)
    assert found.difference == pytest.approx(2.0)
    half = 4.302653 / math.sqrt(3)
    assert (found.low, found.high) == pytest.approx((2 - half, 2 + half), rel=1e-6)
    assert found.p == pytest.approx(0.0742, abs=1e-4)


def test_lower_may_be_better_and_ties_are_neither() -> None:
    found = paired({0: 5.0, 1: 9.0, 2: 7.0}, {0: 6.0, 1: 8.0, 2: 7.0}, better=-1)
    assert (found.wins, found.losses, found.ties) == (1, 1, 1)


def test_only_seeds_that_both_have_are_compared() -> None:
    found = paired({0: 1.0, 1: 2.0, 5: 9.0}, {0: 0.0, 1: 0.0, 3: 9.0}, better=1)
    assert (found.n, found.difference) == (2, 1.5)


def test_whoever_reached_the_target_wins_over_one_who_did_not() -> None:
    found = paired({0: 10.0, 1: NAN, 2: NAN}, {0: NAN, 1: 20.0, 2: NAN}, better=-1)
    assert (found.wins, found.losses, found.ties) == (1, 1, 1)
    assert math.isnan(found.difference)
    assert math.isnan(found.p)


def test_differences_that_do_not_vary_are_not_tested() -> None:
    found = paired({0: 2.0, 1: 3.0}, {0: 1.0, 1: 2.0}, better=1)
    assert (found.difference, found.wins) == (1.0, 2)
    assert math.isnan(found.p)


def comparison(p: float, n: int = 5, wins: int = 5, difference: float = 1.0) -> Paired:
    return Paired(n, 1, wins, n - wins, difference, 0.5, 1.5, p, p)


def test_p_values_are_corrected_for_their_number() -> None:
    # Benjamini-Hochberg, three tests: 0.01 * 3/1 = 0.03, 0.04 * 3/2 = 0.06, 0.5 * 3/3 = 0.5.
    found = adjusted(
        {"a": comparison(0.04), "b": comparison(0.01), "c": comparison(0.5), "d": comparison(NAN)}
    )
    assert [found[label].p_adjusted for label in "abc"] == pytest.approx([0.06, 0.03, 0.5])
    assert math.isnan(found["d"].p_adjusted)
    assert found["a"].p == 0.04
    assert adjusted({}) == {}


def test_in_words() -> None:
    assert in_words(comparison(NAN, n=1, wins=1)) == "one seed says nothing about another"
    assert "3 seeds are too few to tell" in in_words(comparison(0.001, n=3, wins=3))
    assert in_words(comparison(0.001)) == "ahead, beyond chance"
    assert in_words(comparison(0.001, wins=0, difference=-1.0)) == "behind, beyond chance"
    assert in_words(comparison(0.3, wins=3)).endswith("worse in 2; may be chance")
    assert in_words(Paired(5, 1, 0, 0, 0.0, 0.0, 0.0, NAN, NAN)) == "the same in every seed"
    assert "not all got there" in in_words(Paired(5, -1, 3, 1, NAN, NAN, NAN, NAN, NAN))
