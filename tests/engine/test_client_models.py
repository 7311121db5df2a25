"""A model of every client and their weighted sum, against a plain dictionary of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsuv_plugin.engine.client_models import ClientModels

SHARES = np.array([0.1, 0.4, 0.2, 0.3])

steps = st.lists(
    st.tuples(
        st.booleans(),  # put, else reset
        st.lists(st.integers(0, 3), max_size=4, unique=True),
        st.floats(-1e3, 1e3, width=32),
    ),
    max_size=30,
)


@settings(max_examples=100, deadline=None)
@given(steps, st.sampled_from([0, 1]))
def test_the_sum_is_that_of_all_models(
    steps: list[tuple[bool, list[int], float]], budget: int
) -> None:
    models = ClientModels(SHARES, np.array([1.0, 2.0]), budget)
    expected = {row: np.array([1.0, 2.0], np.float32) for row in range(4)}
    for number, (own, rows, value) in enumerate(steps, start=1):
        model = np.array([value, 1.0], np.float32)
        if own:
            for row in rows:
                models.put(row, model + row)
                expected[row] = model + row
        else:
            models.reset(np.array(rows, np.int64), number, model)
            expected.update({row: model for row in rows})
    for row in range(4):
        assert models[row].tolist() == expected[row].tolist()
    total = sum(SHARES[row] * expected[row].astype(np.float64) for row in range(4))
    assert models.sum == pytest.approx(total, abs=1e-9)
    again = ClientModels(SHARES, np.zeros(2), budget)
    again.load_state_dict(models.state_dict())
    assert again.sum.tolist() == models.sum.tolist()
    assert [again[row].tolist() for row in range(4)] == [models[row].tolist() for row in range(4)]


def test_one_copy_of_a_global_model_serves_all_who_have_it() -> None:
    clients = 10_000
    models = ClientModels(np.full(clients, 1 / clients), np.zeros(50), budget_mb=1)
    for number in range(1, 6):
        models.reset(np.arange(0, clients, 2), number, np.full(50, float(number)))
        models.put(number, np.ones(50))
    state = models.state_dict()
    # Nobody has the models of rounds 1 to 4 any more.
    assert sorted(state["globals"]) == [0, 5]
    assert sorted(state["own"]) == [1, 3, 5]
