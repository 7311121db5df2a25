"""When clients are online: interval arrays, and pure look-ups for all clients at once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

_MOST_PERIODS = (
    32  # with more distinct periods than this the shelves would be too short to be worth keeping
)


@dataclass(frozen=True)
class _Shelf:
    """The intervals of one period that are shorter than `reach`, by the second they begin in: whoever is online at t
    began no earlier than t - reach, so a look-up reads a slice of the shelf, and a good part of it is the answer."""

    period: float
    reach: float
    seconds: np.ndarray  # (s,) int64, ascending
    starts: np.ndarray  # (s,) float64
    ends: np.ndarray  # (s,) float64
    rows: np.ndarray  # (s,) int32, whose interval it is


@dataclass(frozen=True)
class Availability:
    """Client i is online from starts[j] to ends[j], both included, for j in offsets[i] .. offsets[i + 1] - 1.

    Intervals of a client are ascending and do not overlap; its trace repeats every periods[i] seconds. As in FedScale
    nothing wraps: what lies past the period's end is never reached."""

    starts: np.ndarray  # (m,) float64 seconds
    ends: np.ndarray  # (m,) float64 seconds
    offsets: np.ndarray  # (n + 1,) int64
    periods: np.ndarray  # (n,) float64 seconds

    def __len__(self) -> int:
        return len(self.periods)

    @property
    def lengths(self) -> np.ndarray:
        """Number of intervals of each client, (n,)."""
        return np.diff(self.offsets)

    def online(self, time: float | np.ndarray, rows: np.ndarray | None = None) -> np.ndarray:
        """Whether each client (each of `rows`) is online at `time`, one time for all or one per client; (n,) bool."""
        if rows is None and np.ndim(time) == 0 and self._shelves is not None:
            return self._online_by_shelf(float(time))
        return self._online_by_search(time, rows)

    def take(self, rows: np.ndarray) -> Availability:
        """The availability of `rows`, which may repeat."""
        lengths = self.lengths[rows]
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        picked = np.arange(offsets[-1]) + np.repeat(self.offsets[rows] - offsets[:-1], lengths)
        return Availability(self.starts[picked], self.ends[picked], offsets, self.periods[rows])

    def _online_by_search(self, time: float | np.ndarray, rows: np.ndarray | None) -> np.ndarray:
        """A binary search that all clients walk together: as many vector steps as the longest trace needs."""
        periods = self.periods if rows is None else self.periods[rows]
        low = self.offsets[:-1] if rows is None else self.offsets[rows]
        high = self.offsets[1:] if rows is None else self.offsets[rows + 1]
        if not len(self.starts):
            return np.zeros(len(periods), bool)
        time = np.mod(time, periods)
        first, low, high = low, low.copy(), high.copy()
        for _ in range(
            int(np.max(high - low, initial=0)).bit_length()
        ):  # ends with low = number of starts <= time
            middle = (low + high) >> 1
            started = (low < high) & (self.starts[np.minimum(middle, len(self.starts) - 1)] <= time)
            low = np.where(started, middle + 1, low)
            high = np.where(started, high, middle)
        last = low - 1  # the interval that began last
        return (last >= first) & (time <= self.ends[np.maximum(last, 0)])

    def _online_by_shelf(self, time: float) -> np.ndarray:
        """The whole population at one time: reads about twice as many intervals as there are clients online."""
        online = np.zeros(len(self), bool)
        for shelf in self._shelves or ():
            now = time % shelf.period
            near = slice(
                np.searchsorted(shelf.seconds, _whole(now - shelf.reach), "left"),
                np.searchsorted(shelf.seconds, _whole(now), "right"),
            )
            online[shelf.rows[near][(shelf.starts[near] <= now) & (now <= shelf.ends[near])]] = True
        return online

    @cached_property
    def _shelves(self) -> tuple[_Shelf, ...] | None:
        """Sorted once, at the first look-up of everybody; None where there are too many distinct periods."""
        periods, period_of = np.unique(self.periods, return_inverse=True)
        if len(periods) > _MOST_PERIODS:
            return None
        rows = np.repeat(np.arange(len(self), dtype=np.int32), self.lengths)
        # the exponent of a float: length < 2**doubling. Below 2**10 s one shelf is fine enough, and 2**63 s is past any
        # trace, so that period and doubling fit in one code.
        doubling = np.clip(((self.ends - self.starts).view(np.int64) >> 52) - 1022, 10, 63)
        codes = period_of.astype(np.int16)[rows] * np.int16(64) + doubling.astype(np.int16)
        return tuple(
            self._shelf(
                periods[code // 64], 2.0 ** (code % 64), np.flatnonzero(codes == code), rows
            )
            for code in np.flatnonzero(np.bincount(codes)).tolist()
        )

    def _shelf(self, period: float, reach: float, picked: np.ndarray, rows: np.ndarray) -> _Shelf:
        # sorting second and place in one integer is several times faster than argsort
        seconds = _whole(self.starts[picked])
        order = np.sort((seconds << 32) | np.arange(len(picked))) & 0xFFFFFFFF
        picked = picked[order]
        return _Shelf(
            float(period),
            reach,
            seconds[order],
            self.starts[picked],
            self.ends[picked],
            rows[picked],
        )


def _whole(seconds: np.ndarray | float) -> np.ndarray:
    """The whole second, in 31 bits; what lies outside them lands on the nearest end, which keeps the order."""
    return np.clip(np.floor(seconds), 0, 2**31 - 1).astype(np.int64)
