"""What passes between the aggregator and its executors: which values can be results of a task."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedsuv_plugin.engine.task import PROBE, TEST, TRAIN, Task
from fedsuv_plugin.selectors.signals import LOSS, OPINIONS

REPORT: dict[str, Any] = {
    "client_id": 3,
    "moving_loss": 0.5,
    "utility": np.float64(2),
    "update_weight": {"w": np.ones((2, 2), np.float32), "n": np.array(7)},
    "signals": {"loss": np.float64(1), "direction": np.zeros(4)},
}
COUNTS = {"test_len": 10, "top_1": 3, "top_5": 9, "test_loss": 4.5}


def train(*clients: int) -> Task:
    return Task(1, TRAIN, np.array(clients))


def of_chunks(first: int, every: int) -> Task:
    return Task(1, TEST, settings={"samples": None, "first": first, "every": every})


def probe(kind: str, *clients: int) -> Task:
    return Task(1, PROBE, np.array(clients), {"probe": kind})


@pytest.mark.parametrize(
    ("task", "value"),
    [
        (train(3), {3: REPORT}),
        (train(3, 1), {3: REPORT, 1: {**REPORT, "moving_loss": np.nan, "signals": {}}}),
        (train(), {}),
        (probe(LOSS, 2, 4), {2: np.float64(0.5), 4: np.float32(1)}),
        (probe(LOSS, 2), {2: np.zeros(3)}),
        (probe(OPINIONS, 2, 4), {4: np.float64(1)}),  # client 2 holds nothing out
        (of_chunks(1, 2), {1: COUNTS, 3: COUNTS, 5: {**COUNTS, "test_loss": np.inf}}),
        (of_chunks(0, 3), {}),  # more executors than chunks
    ],
)
def test_what_executors_answer_fits_its_task(task: Task, value: object) -> None:
    assert task.misfit(value) == ""


@pytest.mark.parametrize(
    ("task", "value", "reason"),
    [
        (train(3), None, "expected an answer by client or by chunk"),
        (train(3), [REPORT], "expected an answer by client or by chunk"),
        (train(3), {"3": REPORT}, "expected an answer by client or by chunk"),
        (train(3), {True: REPORT}, "expected an answer by client or by chunk"),
        (train(3, 1), {3: REPORT}, "expected the clients [1, 3], got [3]"),
        (train(3), {3: REPORT, 4: REPORT}, "expected the clients [3], got [3, 4]"),
        (train(3), {3: None}, "client 3: expected moving_loss and utility as numbers"),
        (train(3), {3: {**REPORT, "utility": "2"}}, "client 3: expected moving_loss"),
        (train(3), {3: {**REPORT, "utility": None}}, "client 3: expected moving_loss"),
        (train(3), {3: {**REPORT, "update_weight": [1]}}, "client 3: expected moving_loss"),
        (train(3), {3: {**REPORT, "update_weight": {"w": [1.0]}}}, "client 3: expected"),
        (train(3), {3: {**REPORT, "signals": {"x": "y"}}}, "client 3: expected moving_loss"),
        (probe(LOSS, 2, 4), {4: 1.0}, "expected the clients [2, 4], got [4]"),
        (probe(OPINIONS, 2), {3: 1.0}, "expected the clients [2], got [3]"),
        (probe(LOSS, 2), {2: "much"}, "client 2: expected a number or an array of numbers"),
        (probe(LOSS, 2), {2: np.array(["a"])}, "client 2: expected a number or an array"),
        (of_chunks(1, 2), {2: COUNTS}, "expected the chunks 1, 3, ..., got [2]"),
        (of_chunks(1, 2), {1: COUNTS, 5: COUNTS}, "expected the chunks 1, 3, ..., got [1, 5]"),
        (of_chunks(0, 1), {0: {}}, "chunk 0: expected test_len >= top_5 >= top_1 >= 0 as integers"),
        (of_chunks(0, 1), {0: {**COUNTS, "top_1": 10}}, "chunk 0: expected test_len >= top_5"),
        (of_chunks(0, 1), {0: {**COUNTS, "top_1": -1}}, "chunk 0: expected test_len >= top_5"),
        (of_chunks(0, 1), {0: {**COUNTS, "top_5": 9.0}}, "chunk 0: expected test_len >= top_5"),
        (of_chunks(0, 1), {0: {**COUNTS, "test_loss": None}}, "chunk 0: expected test_len >="),
    ],
)
def test_rubbish_does_not(task: Task, value: object, reason: str) -> None:
    assert reason in task.misfit(value)


def test_what_is_said_of_rubbish_is_fit_for_a_log() -> None:
    assert len(train(3).misfit(dict.fromkeys(range(10**5)))) < 200
