"""What goes to and from a client manager in a round, whichever kind it is."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from fedsuv_plugin.engine.rounds import Played
from fedsuv_plugin.selectors.base import ClientTable, RoundOutcome


class ModelFacts(NamedTuple):
    """The global model as a selection finds it, as far as the selector needs to know it."""

    accuracy: float | None = None
    loss: float | None = None
    weights: np.ndarray | None = None  # (p,) flat parameters
    public_loss: Callable[[np.ndarray], float] | None = None


Keep = Callable[[int, np.ndarray], np.ndarray]  # (client, its answer) -> what to keep of it
# (the signal, whom to ask, what to keep of each answer) -> client -> answer
Ask = Callable[[str, np.ndarray, Keep], Mapping[int, np.ndarray]]


def keep_all(client: int, answer: np.ndarray) -> np.ndarray:
    return answer


def finite_answers(kind: str, answers: Mapping[int, np.ndarray]) -> dict[int, np.ndarray]:
    """The answers to a probe, without those of clients that answered with rubbish."""
    finite = {client: a for client, a in answers.items() if np.all(np.isfinite(a))}
    if len(finite) < len(answers):
        logging.warning(
            "%d of %d answers to probe %s are not finite and are left out",
            len(answers) - len(finite),
            len(answers),
            kind,
        )
    return finite


@dataclass(frozen=True, eq=False)
class Feedback:
    """What became of one client that was asked."""

    client: int
    seconds: float
    utility: float
    loss: float | None  # of its training; none: it missed the round
    signals: Mapping[str, np.ndarray] = field(default_factory=dict)


def feedback_of(played: Played) -> list[Feedback]:
    """Everyone who was asked. Those who missed the round are booked at the others' mean utility."""
    mean_utility = played.trained.mean_utility
    times = played.settled.times.tolist()
    feedback = []
    for client, seconds in zip(played.cohort.clients.tolist(), times, strict=True):
        report = played.trained.reports.get(client)
        if report is None:
            feedback.append(Feedback(client, seconds, mean_utility, None))
        else:
            loss = report["moving_loss"]
            feedback.append(Feedback(client, seconds, report["utility"], loss, report["signals"]))
    return feedback


def give_feedback(manager: Any, feedback: list[Feedback], round_number: int) -> None:
    """FedScale's call for everyone who was asked."""
    for each in feedback:
        manager.register_feedback(
            each.client,
            each.utility,
            auxi=1.0 if each.loss is None else math.sqrt(each.loss),
            time_stamp=round_number,
            duration=each.seconds,
            success=each.loss is not None,
        )


@dataclass
class Report:
    """What one client reported, in numbers that are finite."""

    success: bool
    duration: float
    loss: float
    utility: float
    signals: Mapping[str, np.ndarray] = field(default_factory=dict)


def outcome(
    round_number: int,
    clients: ClientTable,
    rows: np.ndarray,
    reports: list[Report],
    accuracy: float | None,
    test_loss: float | None,
) -> RoundOutcome:
    """The round as the selector hears of it; reports[i] is that of the client in rows[i]."""
    valid = np.array([r.success for r in reports])
    duration = np.array([r.duration for r in reports])
    return RoundOutcome(
        round=round_number,
        rows=rows,
        valid=valid,
        duration=np.where(np.isfinite(duration), duration, clients.expected_duration[rows]),
        loss=np.array([r.loss for r in reports]),
        utility=np.array([r.utility for r in reports]),
        samples=np.where(valid, clients.round_samples[rows], 0),
        signals=_stack([r.signals for r in reports], valid),
        accuracy=accuracy,
        test_loss=test_loss,
    )


def _stack(signals: list[Mapping[str, np.ndarray]], valid: np.ndarray) -> dict[str, np.ndarray]:
    """Each signal as one array over the cohort, zero where the client missed the round."""
    stacked = {}
    for name in {name for each in signals for name in each}:
        shape = np.shape(next(each[name] for each in signals if name in each))
        values = np.zeros((len(signals), *shape))
        for i in np.flatnonzero(valid):
            values[i] = signals[i][name]
        stacked[name] = values
    return stacked
