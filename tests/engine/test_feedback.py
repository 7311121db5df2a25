"""What goes back to a client manager after a round, by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
from selector_worlds import table

from fedsuv_plugin.engine.feedback import Report, feedback_of, give_feedback, outcome
from fedsuv_plugin.engine.rounds import Cohort, Judgement, Played, Round, Settled, Trained


def played() -> Played:
    """Clients 2, 5 and 7 were asked; 5 missed the round."""
    reports = {
        7: {"utility": 30.0, "moving_loss": 4.0, "signals": {"loss": np.array(0.5)}},
        2: {"utility": 10.0, "moving_loss": 9.0, "signals": {}},
    }
    return Played(
        Round(3, 100.0, 3, 3, None, 0.1, Judgement()),
        Cohort(np.array([2, 5, 7]), 0.0),
        Settled(np.array([1.5, 9.0, 2.5]), np.zeros(3), np.array([2, 7]), 9.0),
        Trained(reports),
        Judgement(0.5, 1.25),
    )


def test_everyone_who_was_asked_is_in_the_feedback() -> None:
    first, missed, last = feedback_of(played())
    assert (first.client, first.seconds, first.utility, first.loss) == (2, 1.5, 10.0, 9.0)
    # FedScale books those who missed the round at the mean of the others.
    assert (missed.client, missed.seconds, missed.utility, missed.loss) == (5, 9.0, 20.0, None)
    assert (last.client, last.seconds, last.utility, last.loss) == (7, 2.5, 30.0, 4.0)
    assert not first.signals
    assert not missed.signals
    assert {name: float(value) for name, value in last.signals.items()} == {"loss": 0.5}


def test_feedback_in_fedscales_calls() -> None:
    calls: list[tuple[Any, ...]] = []

    class Manager:
        def register_feedback(self, client_id: int, reward: float, **named: Any) -> None:
            calls.append((client_id, reward, named))

    give_feedback(Manager(), feedback_of(played()), 3)
    assert calls == [
        (2, 10.0, {"auxi": 3.0, "time_stamp": 3, "duration": 1.5, "success": True}),
        (5, 20.0, {"auxi": 1.0, "time_stamp": 3, "duration": 9.0, "success": False}),
        (7, 30.0, {"auxi": 2.0, "time_stamp": 3, "duration": 2.5, "success": True}),
    ]


def test_an_outcome_by_hand() -> None:
    """Signals are one array over the cohort, zero where a client missed the round."""
    clients = table(4, samples=[10, 20, 30, 40], duration=[1.0, 2.0, 3.0, 4.0])
    reports = [
        Report(True, 5.0, 0.5, 8.0, {"weights": np.array([1.0, 2.0])}),
        Report(False, float("nan"), 0.0, 0.0),
    ]
    told = outcome(6, clients, np.array([3, 1]), reports, 0.75, None)
    assert (told.round, told.accuracy, told.test_loss) == (6, 0.75, None)
    assert told.rows.tolist() == [3, 1]
    assert told.valid.tolist() == [True, False]
    assert told.duration.tolist() == [5.0, 2.0]  # what is not finite is what was expected
    assert told.loss.tolist() == [0.5, 0.0]
    assert told.utility.tolist() == [8.0, 0.0]
    assert told.samples.tolist() == [40, 0]
    assert {k: v.tolist() for k, v in told.signals.items()} == {"weights": [[1.0, 2.0], [0.0, 0.0]]}


def test_a_signal_that_only_the_lost_sent_is_all_zero() -> None:
    reports = [Report(False, 1.0, 0.0, 0.0, {"loss": np.array(3.0)})]
    told = outcome(1, table(2), np.array([0]), reports, None, None)
    assert told.signals["loss"].tolist() == [0.0]
