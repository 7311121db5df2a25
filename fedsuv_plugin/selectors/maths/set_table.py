"""The sets of clients that a bandit has played as arms, with mean reward and count of each."""

from __future__ import annotations

from typing import Any

import numpy as np


class SetTable:
    """m sets of k rows each, in the order of their first play; rows are sorted within a set.

    Sets that were never played take no memory.

    >>> table = SetTable()
    >>> table.add(np.array([3, 1]), reward=0.5)
    >>> table.add(np.array([1, 3]), reward=0.7)
    >>> table.sets.tolist(), table.mean.tolist(), table.count.tolist()
    ([[1, 3]], [0.6], [2])
    """

    def __init__(
        self,
        sets: np.ndarray | None = None,
        mean: np.ndarray | None = None,
        count: np.ndarray | None = None,
    ):
        # What is given still belongs to the caller, so it is copied.
        self.sets = np.empty((0, 0), np.int64) if sets is None else sets.copy()  # (m, k)
        self.mean = np.empty(0) if mean is None else mean.copy()  # (m,)
        self.count = np.empty(0, np.int64) if count is None else count.copy()  # (m,)
        self._place = {row.tobytes(): i for i, row in enumerate(self.sets)}

    def __len__(self) -> int:
        return len(self.sets)

    def __contains__(self, rows: np.ndarray) -> bool:
        return _key(rows) in self._place

    def add(self, rows: np.ndarray, reward: float, mean: float = 0.0, count: int = 0) -> None:
        """Book a reward of a set; `mean` and `count` are what a new set starts with."""
        key = _key(rows)
        if key not in self._place:
            self._place[key] = len(self)
            self.sets = np.vstack([self.sets.reshape(len(self), len(rows)), np.sort(rows)])
            self.mean = np.append(self.mean, mean)
            self.count = np.append(self.count, count)
        i = self._place[key]
        self.count[i] += 1
        self.mean[i] += (reward - self.mean[i]) / self.count[i]

    def within(self, allowed: np.ndarray) -> np.ndarray:
        """Places of the sets whose members are all allowed, `allowed` being a mask of clients."""
        if not len(self):
            return np.empty(0, np.int64)
        return np.flatnonzero(allowed[self.sets].all(axis=1))

    def upper_bounds(self, places: np.ndarray, mu: float, t: int) -> np.ndarray:
        """UCB1's index of the sets at these places: mean + mu sqrt(ln t / count)."""
        return self.mean[places] + mu * np.sqrt(np.log(t) / self.count[places])

    def state(self) -> dict[str, Any]:
        return {"sets": self.sets, "mean": self.mean, "count": self.count}


def _key(rows: np.ndarray) -> bytes:
    return np.sort(np.asarray(rows, np.int64)).tobytes()
