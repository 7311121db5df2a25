"""The sets of clients that have been played as arms: mean reward and count of each. Rows are sorted within a set."""

from __future__ import annotations

from typing import Any

import numpy as np


class SetTable:
    """m sets of k rows each, in the order of their first play. Memory O(m k); nothing is kept of sets not played."""

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
        """One more reward of a set; `mean` and `count` are what it starts with the first time."""
        key = _key(rows)
        if key not in self._place:
            self._place[key] = len(self)
            self.sets = np.vstack([self.sets.reshape(len(self), len(rows)), np.sort(rows)])
            self.mean, self.count = np.append(self.mean, mean), np.append(self.count, count)
        i = self._place[key]
        self.count[i] += 1
        self.mean[i] += (reward - self.mean[i]) / self.count[i]

    def within(self, allowed: np.ndarray) -> np.ndarray:
        """Places of the sets all of whose members are allowed, a mask over all clients."""
        return (
            np.flatnonzero(allowed[self.sets].all(axis=1)) if len(self) else np.empty(0, np.int64)
        )

    def upper_bounds(self, places: np.ndarray, mu: float, t: int) -> np.ndarray:
        """UCB1: mean + mu sqrt(ln t / count)."""
        return self.mean[places] + mu * np.sqrt(np.log(t) / self.count[places])

    def state(self) -> dict[str, Any]:
        return {"sets": self.sets, "mean": self.mean, "count": self.count}


def _key(rows: np.ndarray) -> bytes:
    return np.sort(np.asarray(rows, np.int64)).tobytes()
