"""Vectors by number, in memory and in a file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsuv_plugin.selectors.maths.vector_store import MB, VectorStore

HALF = MB // 4 // 2  # numbers of a vector of half a megabyte


@pytest.mark.parametrize(("budget", "in_memory"), [(0, 0), (1, 2), (9, 5)])
def test_what_does_not_fit_the_budget_is_in_the_file(budget: int, in_memory: int) -> None:
    store = VectorStore(budget)
    for number in (3, 0, 5, 1, 8):
        store[number] = np.full(HALF, number)
    assert len(store._memory) == in_memory
    assert (store._mapped is None) == (in_memory == 5)
    assert {number: set(vector.tolist()) for number, vector in store.items()} == {
        number: {float(number)} for number in (3, 0, 5, 1, 8)
    }
    assert list(store) == [3, 0, 5, 1, 8]


def test_a_place_that_was_given_up_is_used_again() -> None:
    store = VectorStore(1)
    for number in range(40):
        store[number] = np.full(HALF, number)
        if number >= 4:
            del store[number - 4]
    assert sorted(store) == [36, 37, 38, 39]
    assert all(store[number][0] == number for number in store)
    assert store._mapped is not None
    assert len(store._mapped) == 16  # five places are ever in use, two of them in memory


def test_what_is_stored_does_not_follow_the_callers_array() -> None:
    for budget in (0, 1):
        store = VectorStore(budget)
        mine = np.ones(3, np.float32)
        store[1] = mine
        mine[:] = 7
        assert store[1].tolist() == [1, 1, 1]


def test_nothing_is_left_in_the_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    store = VectorStore(0)
    store[1] = np.ones(1000)
    assert store._file is not None
    assert not list(tmp_path.iterdir())  # not even while it is in use


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 30), st.booleans()), max_size=80), st.booleans())
def test_it_is_a_dictionary_of_vectors(steps: list[tuple[int, bool]], on_disk: bool) -> None:
    store = VectorStore(0 if on_disk else 1)
    expected: dict[int, float] = {}
    for i, (number, remove) in enumerate(steps):
        if remove and number in expected:
            del store[number], expected[number]
        else:
            store[number] = np.full(3, i)
            expected[number] = i
    assert {number: float(vector[2]) for number, vector in store.items()} == expected
    assert list(store) == list(expected)
