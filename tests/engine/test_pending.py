"""Updates on the way: who comes when, what they cost, and that a checkpoint holds them."""

from __future__ import annotations

import numpy as np
import pytest

from fedsuv_plugin.engine.pending import Pending, PendingUpdate
from fedsuv_plugin.engine.rounds import Spent


def three(budget_mb: int) -> Pending:
    pending = Pending(budget_mb)
    for client, arrival in ((9, 30.0), (4, 20.0), (7, 30.0)):
        spent = Spent(client_time=float(client), energy_joules=1.0)
        pending.add(PendingUpdate(client, 1, arrival, spent), np.full(3, client))
    return pending


@pytest.mark.parametrize("budget_mb", [0, 1])
def test_updates_come_in_the_order_of_arrival(budget_mb: int) -> None:
    pending = three(budget_mb)
    assert pending.clients == [4, 7, 9]
    on_the_way = pending.on_the_way(clock=15.0)
    assert on_the_way.clients.tolist() == [4, 7, 9]
    assert on_the_way.seconds.tolist() == [5.0, 15.0, 15.0]
    assert pending.arrived_by(19.9).tolist() == []
    assert pending.arrived_by(30.0).tolist() == [4, 7, 9]
    update, vector = pending.pop(4)
    assert (update.client, update.asked_in, update.arrival) == (4, 1, 20.0)
    # The place of what was popped is taken by the next one; what was popped stays as it was.
    pending.add(PendingUpdate(5, 2, 40.0, Spent()), np.full(3, 5.0))
    assert vector.tolist() == [4.0] * 3
    assert pending.clients == [5, 7, 9]


@pytest.mark.parametrize("budget_mb", [0, 1])
def test_what_they_cost_is_known_until_they_come_or_are_given_up(budget_mb: int) -> None:
    pending = three(budget_mb)
    assert pending.spent == Spent(20.0, 3.0)
    assert pending.drop(9) == Spent(9.0, 1.0)
    assert pending.spent == Spent(11.0, 2.0)
    assert pending.clients == [4, 7]


def test_a_checkpoint_holds_them_whatever_the_budget() -> None:
    pending = three(0)
    again = Pending(1)
    again.load_state_dict(pending.state_dict())
    assert again.on_the_way(0.0).seconds.tolist() == pending.on_the_way(0.0).seconds.tolist()
    for client in (4, 7, 9):
        mine, vector = pending.pop(client)
        same, same_vector = again.pop(client)
        assert mine == same
        assert vector.tolist() == same_vector.tolist()
