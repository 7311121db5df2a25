"""What a run's accuracy does over the rounds, and what it costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedsuv_plugin.records import Records

NAN = float("nan")
COSTS = ("client_time", "energy_joules", "megabytes")


def accuracy_curve(metrics: Records) -> list[list[float]]:
    """[round, accuracy] of every evaluation."""
    return [[m["round"], m["accuracy"]] for m in metrics]


def last_mean(accuracies: list[float], evaluations: int = 10) -> float:
    """The end of a curve that zigzags: the mean of its last evaluations."""
    return float(np.mean(accuracies[-evaluations:]))


@dataclass(frozen=True, eq=False)
class Curve:
    """The evaluations of a run, and what had been spent by each; arrays are aligned."""

    round: np.ndarray
    seconds: np.ndarray  # virtual
    client_seconds: np.ndarray
    joules: np.ndarray
    megabytes: np.ndarray
    accuracy: np.ndarray


def curve_of(rounds: Records, metrics: Records) -> Curve:
    """Evaluations with the costs of all rounds up to each; costs not recorded are NaN."""
    numbers = np.array([r["round"] for r in rounds])
    spent = {name: np.cumsum([_cost(r, name) for r in rounds]) for name in COSTS}
    at = np.searchsorted(numbers, [m["round"] for m in metrics], side="right")

    def upto(name: str) -> np.ndarray:
        return np.concatenate([[0.0], spent[name]])[at]

    return Curve(
        round=np.array([m["round"] for m in metrics]),
        seconds=np.array([m["clock"] for m in metrics], float),
        client_seconds=upto("client_time"),
        joules=upto("energy_joules"),
        megabytes=upto("megabytes"),
        accuracy=np.array([m["accuracy"] for m in metrics], float),
    )


def _cost(record: Mapping[str, Any], name: str) -> float:
    """What a round cost its clients, training and probing together."""
    return float(record.get(name, NAN)) + float(record.get("probing", {}).get(name, NAN))
