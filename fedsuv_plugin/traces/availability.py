"""When clients are online: interval arrays, and one pure look-up for all clients at once."""
from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Availability:
    """Client i is online from starts[j] to ends[j], both included, for j in offsets[i] .. offsets[i + 1] - 1.

    Intervals of a client are ascending and do not overlap; its trace repeats every periods[i] seconds."""

    starts: np.ndarray   # (m,) float64 seconds
    ends: np.ndarray     # (m,) float64 seconds
    offsets: np.ndarray  # (n + 1,) int64
    periods: np.ndarray  # (n,) float64 seconds

    def __len__(self) -> int:
        return len(self.periods)

    def online(self, time: float | np.ndarray, rows: np.ndarray | None = None) -> np.ndarray:
        """Whether each client (each of `rows`) is online at `time`, one time for all or one per client; (n,) bool.

        A binary search that all clients walk together: as many vector steps as the longest trace needs."""
        periods = self.periods if rows is None else self.periods[rows]
        low = self.offsets[:-1] if rows is None else self.offsets[rows]
        high = self.offsets[1:] if rows is None else self.offsets[rows + 1]
        if not len(self.starts):
            return np.zeros(len(periods), bool)
        time = np.mod(time, periods)
        first, low, high = low, low.copy(), high.copy()
        for _ in range(int(np.max(high - low, initial=0)).bit_length()):  # ends with low = number of starts <= time
            middle = (low + high) >> 1
            started = (low < high) & (self.starts[np.minimum(middle, len(self.starts) - 1)] <= time)
            low = np.where(started, middle + 1, low)
            high = np.where(started, high, middle)
        last = low - 1  # the interval that began last
        return (last >= first) & (time <= self.ends[np.maximum(last, 0)])

    def take(self, rows: np.ndarray) -> Availability:
        """The availability of `rows`, which may repeat."""
        lengths = (self.offsets[1:] - self.offsets[:-1])[rows]
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        picked = np.arange(offsets[-1]) + np.repeat(self.offsets[rows] - offsets[:-1], lengths)
        return Availability(self.starts[picked], self.ends[picked], offsets, self.periods[rows])
