"""k-modes: majorities and nearest centres by hand and in plain loops, k-means++ by its chances."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from selector_worlds import five_sigma

from fedsuv_plugin.selectors.baselines import k_modes as module
from fedsuv_plugin.selectors.baselines.k_modes import (
    distances,
    k_modes,
    majorities,
    nearest,
    refined,
    spread_out,
)


def rows(*words: str) -> np.ndarray:
    return np.array([[int(bit) for bit in word] for word in words], np.uint8)


def test_clusters_by_hand() -> None:
    bits = rows("0000", "0001", "0011", "1111", "1110", "1100")
    centres, labels = refined(bits, rows("0000", "1111"))
    assert labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert centres.tolist() == rows("0001", "1110").tolist()


def test_a_majority_tie_goes_to_0_and_a_tie_of_centres_to_the_first() -> None:
    assert majorities(rows("01", "11"), np.zeros(2, int), rows("11")).tolist() == [[0, 1]]
    assert nearest(rows("01", "10"), rows("00", "11")).tolist() == [0, 0]


def test_a_cluster_without_members_keeps_its_centre() -> None:
    bits = rows("000", "000")
    centres, labels = refined(bits, rows("000", "111"))
    assert labels.tolist() == [0, 0]
    assert centres.tolist() == [[0, 0, 0], [1, 1, 1]]


def refined_by_the_book(
    bits: list[list[int]], centres: list[list[int]]
) -> tuple[list[list[int]], list[int]]:
    def near(row: list[int]) -> int:
        apart = [sum(a != b for a, b in zip(row, centre, strict=True)) for centre in centres]
        return apart.index(min(apart))

    labels = [near(row) for row in bits]
    while True:
        for c in range(len(centres)):
            members = [row for row, label in zip(bits, labels, strict=True) if label == c]
            if members:
                ones = [sum(column) for column in zip(*members, strict=True)]
                centres[c] = [int(2 * one > len(members)) for one in ones]
        renewed = [near(row) for row in bits]
        if renewed == labels:
            return centres, labels
        labels = renewed


@pytest.mark.parametrize("seed", range(100))
def test_agrees_with_plain_loops(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOCK", 7)
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 40))
    bits = rng.integers(0, 2, (n, int(rng.integers(1, 9)))).astype(np.uint8)
    start = spread_out(bits, int(rng.integers(1, 6)), rng)
    centres, labels = refined(bits, start)
    expected = refined_by_the_book(bits.tolist(), start.tolist())
    assert (centres.tolist(), labels.tolist()) == expected
    apart = [[sum(a != b for a, b in zip(x, c, strict=True)) for c in start.tolist()] for x in bits]
    assert distances(bits, start).tolist() == apart


def test_further_centres_are_drawn_by_their_hamming_distance() -> None:
    # From the first row the others are 0, 1 and 3 bits away: 1/4 and 3/4; from the second, the
    # same. From 01: 1, 1 and 2; from 111: 3, 3 and 2.
    bits = rows("000", "000", "001", "111")
    counts = np.zeros((2, 2, 2))
    n = 4000
    for seed in range(n):
        first, second = spread_out(bits, 2, np.random.default_rng(seed)).sum(axis=1)
        assert first != second
        if first == 0:
            counts[0, 0, int(second == 3)] += 1
        elif first == 1:
            counts[1, 0, int(second == 3)] += 1
    total = counts[0, 0].sum()
    assert abs(total - n / 2) < five_sigma(n, 1 / 2)  # the first one is any row
    assert abs(counts[0, 0, 1] - total * 3 / 4) < five_sigma(int(total), 3 / 4)
    total = counts[1, 0].sum()
    assert abs(total - n / 4) < five_sigma(n, 1 / 4)
    assert abs(counts[1, 0, 1] - total / 2) < five_sigma(int(total), 1 / 2)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(n=st.integers(1, 30), b=st.integers(1, 6), c=st.integers(1, 12), seed=st.integers(0, 99))
def test_every_row_has_its_nearest_centre_and_no_centre_is_there_twice_at_first(
    n: int, b: int, c: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    bits = rng.integers(0, 2, (n, b)).astype(np.uint8)
    start = spread_out(bits, c, np.random.default_rng(seed))
    assert len(np.unique(start, axis=0)) == len(start) == min(c, len(np.unique(bits, axis=0)))
    centres, labels = k_modes(bits, c, np.random.default_rng(seed))
    assert centres.shape == start.shape
    assert centres.dtype == np.uint8
    apart = distances(bits, centres)
    assert (apart[np.arange(n), labels] == apart.min(axis=1)).all()
    # No worse than the first centres.
    assert apart.min(axis=1).sum() <= distances(bits, start).min(axis=1).sum()
    again, same = k_modes(bits, c, np.random.default_rng(seed))
    assert (again.tolist(), same.tolist()) == (centres.tolist(), labels.tolist())


@pytest.mark.parametrize("seed", range(5))
def test_clusters_that_are_far_apart_are_found(seed: int) -> None:
    # Centres of 64 bits differ in 32 on average; members in 3 of theirs. A member of one cluster is
    # 20 times as likely to be the next first centre if its cluster has none. So that all 4 have one
    # is likely but not certain; a cluster that is found is found whole.
    rng = np.random.default_rng(seed)
    whole = rng.integers(0, 2, (4, 64))
    of = np.repeat(np.arange(4), 25)
    bits = (whole[of] ^ (rng.random((100, 64)) < 0.05)).astype(np.uint8)
    found, labels = k_modes(bits, 4, rng)
    for cluster in range(4):
        assert len(np.unique(of[labels == cluster])) <= 2
    purity = sum(np.bincount(of[labels == cluster]).max() for cluster in range(4)) / 100
    assert purity >= 0.75
    assert len(found) == 4
