"""Merging: the updates that are due in a round, and the global model -> the next global model.

Updates are folded in one at a time, in a fixed order, so that a policy that needs only sums never
holds more than one of them, and the outcome does not depend on who was faster. The job's
`gradient_policy` then steps from the old model to the merged one (`model.py`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

Weights = Sequence[np.ndarray]  # one array per entry of the model's state_dict, buffers included


def end_to_end(weights: Weights) -> np.ndarray:
    """All entries as one vector, in float32: what is kept of an update that has to wait."""
    return np.concatenate([np.asarray(w, np.float32).reshape(-1) for w in weights])


def like(vector: np.ndarray, weights: Weights) -> list[np.ndarray]:
    """A vector cut into the shapes of these weights."""
    ends = np.cumsum([w.size for w in weights])[:-1]
    return [part.reshape(w.shape) for part, w in zip(np.split(vector, ends), weights, strict=True)]


@dataclass(frozen=True, eq=False)
class Update:
    """What one client's training made of the model it received."""

    client: int
    weights: Weights
    weight: float = 1.0  # its say in an average
    staleness: int = 0  # rounds between the model it trained from and the current one


class Merge(ABC):
    """One round's merging. A policy gets the global model first, then every update that is due."""

    def __init__(self, model: Weights):
        self.model = model

    @abstractmethod
    def add(self, update: Update) -> None:
        """Fold one update in. The arrays may change afterwards: keep copies."""

    @abstractmethod
    def result(self) -> Weights:
        """The next global model, in the types of the current one; that one if nothing came."""


class WeightedAverage(Merge):
    """The weighted mean of all updates, summed in double precision.

    >>> merge = WeightedAverage([np.zeros(2)])
    >>> merge.add(Update(1, [np.array([1.0, 2.0])], weight=1))
    >>> merge.add(Update(2, [np.array([4.0, 8.0])], weight=2))
    >>> merge.result()[0].tolist()
    [3.0, 6.0]
    """

    def __init__(self, model: Weights):
        super().__init__(model)
        self._sums = [np.zeros(np.shape(w)) for w in model]
        self._total = 0.0

    def add(self, update: Update) -> None:
        for total, w in zip(self._sums, update.weights, strict=True):
            total += update.weight * np.asarray(w, np.float64)
        self._total += update.weight

    def average(self) -> list[np.ndarray]:
        """The mean of what has been added so far, in double precision."""
        return [total / self._total for total in self._sums]

    def result(self) -> Weights:
        if not self._total:
            return self.model
        return [as_type(mean, w) for mean, w in zip(self.average(), self.model, strict=True)]


def as_type(average: np.ndarray, like: np.ndarray) -> np.ndarray:
    """A count, such as BatchNorm's of batches, is rounded."""
    floating = np.issubdtype(like.dtype, np.floating)
    return (average if floating else np.rint(average)).astype(like.dtype)
