"""What a run's accuracy does over the rounds."""

from __future__ import annotations

import numpy as np

from fedsuv_plugin.records import Records


def accuracy_curve(metrics: Records) -> list[list[float]]:
    """[round, accuracy] of every evaluation."""
    return [[m["round"], m["accuracy"]] for m in metrics]


def last_mean(accuracies: list[float], evaluations: int = 10) -> float:
    """The end of a curve that zigzags: the mean of its last evaluations."""
    return float(np.mean(accuracies[-evaluations:]))
