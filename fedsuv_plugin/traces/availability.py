"""When clients are online: interval arrays, and pure look-ups for all clients at once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

# With more distinct periods than this the shelves would be too short to be worth keeping.
_MOST_PERIODS = 32


@dataclass(frozen=True)
class _Shelf:
    """Intervals shorter than `reach` of clients with the same period, sorted by start.

    An interval that contains time t began no earlier than t - reach. A look-up therefore reads one
    slice of the shelf; as no interval is much shorter than `reach`, few of those read are over."""

    period: float
    reach: float
    seconds: np.ndarray  # (s,) int64, whole second of the start, ascending
    starts: np.ndarray  # (s,) float64
    ends: np.ndarray  # (s,) float64
    rows: np.ndarray  # (s,) int32, the client whose interval it is


@dataclass(frozen=True)
class Availability:
    """The intervals in which n clients are online.

    Client i is online from starts[j] to ends[j], both included, for j from offsets[i] to
    offsets[i + 1] - 1. Intervals of a client are ascending and do not overlap; its trace repeats
    every periods[i] seconds. As in FedScale an interval does not wrap around: what lies past the
    end of the period is never reached.

    >>> one_client = Availability(
    ...     starts=np.array([10.0]), ends=np.array([20.0]), offsets=np.array([0, 1]),
    ...     periods=np.array([100.0]),
    ... )
    >>> [bool(one_client.online(time)[0]) for time in (5, 15, 115)]
    [False, True, True]
    """

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
        """Whether each client, or each of `rows`, is online, (n,) bool.

        `time` is one time for all or one per client."""
        if rows is None and np.ndim(time) == 0 and self._shelves is not None:
            return self._online_by_shelf(float(time))
        return self._online_by_search(time, rows)

    def share(self, start: float, end: float) -> np.ndarray:
        """The share of the time from start to end in which each client is online, (n,)."""
        if not end > start:
            raise ValueError(f"expected an end after {start}, got {end}")
        if self._shelves is not None:
            return self._seconds_by_shelf(start, end) / (end - start)
        return (self._online_until(end) - self._online_until(start)) / (end - start)

    def _seconds_by_shelf(self, start: float, end: float) -> np.ndarray:
        """Seconds from start to end for which each client is online, (n,).

        For a short window it reads about as few intervals as a look-up of who is online."""
        seconds = np.zeros(len(self))
        for shelf in self._shelves or ():
            for begin, stop, times in _within_period(start, end, shelf.period):
                near = slice(
                    np.searchsorted(shelf.seconds, _whole(begin - shelf.reach), "left"),
                    np.searchsorted(shelf.seconds, _whole(stop), "right"),
                )
                ends = np.minimum(shelf.ends[near], stop)
                overlap = np.maximum(0.0, ends - np.maximum(shelf.starts[near], begin))
                np.add.at(seconds, shelf.rows[near], times * overlap)
        return seconds

    def _online_until(self, time: float) -> np.ndarray:
        """Seconds for which each client is online from time 0 on, (n,), by search."""
        each = self._seconds_before
        first = each[self.offsets[:-1]]
        now = np.mod(time, self.periods)
        last = self._begun_last(now, self.offsets[:-1], self.offsets[1:])
        in_period = each[last + 1] - first
        begun = last >= self.offsets[:-1]
        # The interval that began last is counted whole so far; what of it is still to come is not.
        reached = np.minimum(self.ends[last[begun]], self.periods[begun])
        in_period[begun] -= np.maximum(0.0, reached - now[begun])
        return (time // self.periods) * (each[self.offsets[1:]] - first) + in_period

    @cached_property
    def _seconds_before(self) -> np.ndarray:
        """Seconds that all intervals before each one last, and at the end all of them, (m + 1,).

        An interval does not outlast its client's period."""
        reached = np.minimum(self.ends, np.repeat(self.periods, self.lengths))
        return np.append(0.0, np.cumsum(np.maximum(0.0, reached - self.starts)))

    def take(self, rows: np.ndarray) -> Availability:
        """The availability of `rows`, which may repeat."""
        lengths = self.lengths[rows]
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        picked = np.arange(offsets[-1]) + np.repeat(self.offsets[rows] - offsets[:-1], lengths)
        return Availability(self.starts[picked], self.ends[picked], offsets, self.periods[rows])

    def _online_by_search(self, time: float | np.ndarray, rows: np.ndarray | None) -> np.ndarray:
        periods = self.periods if rows is None else self.periods[rows]
        low = self.offsets[:-1] if rows is None else self.offsets[rows]
        high = self.offsets[1:] if rows is None else self.offsets[rows + 1]
        if not len(self.starts):
            return np.zeros(len(periods), bool)
        time = np.asarray(np.mod(time, periods))
        last = self._begun_last(time, low, high)
        return (last >= low) & (time <= self.ends[np.maximum(last, 0)])

    def _begun_last(self, time: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        """Of the intervals low to high - 1 of each client, the last that began by its time.

        It is low - 1 where none did. This is a binary search for all clients at once; it takes as
        many vector operations as the client with the most intervals needs steps."""
        for _ in range(int(np.max(high - low, initial=0)).bit_length()):
            middle = (low + high) >> 1
            started = (low < high) & (self.starts[np.minimum(middle, len(self.starts) - 1)] <= time)
            low = np.where(started, middle + 1, low)
            high = np.where(started, high, middle)
        return low - 1

    def _online_by_shelf(self, time: float) -> np.ndarray:
        """Whether each client is online at one time.

        It reads about twice as many intervals as there are clients online."""
        online = np.zeros(len(self), bool)
        for shelf in self._shelves or ():
            now = time % shelf.period
            near = slice(
                np.searchsorted(shelf.seconds, _whole(now - shelf.reach), "left"),
                np.searchsorted(shelf.seconds, _whole(now), "right"),
            )
            on = (shelf.starts[near] <= now) & (now <= shelf.ends[near])
            online[shelf.rows[near][on]] = True
        return online

    @cached_property
    def _shelves(self) -> tuple[_Shelf, ...] | None:
        """The shelves, sorted once; None where there are too many distinct periods."""
        periods, period_of = np.unique(self.periods, return_inverse=True)
        if len(periods) > _MOST_PERIODS:
            return None
        rows = np.repeat(np.arange(len(self), dtype=np.int32), self.lengths)
        # Intervals of similar length share a shelf: length < 2**doubling, where doubling is read
        # from the exponent bits of the float. All lengths below 2**10 s share one shelf, and no
        # trace is as long as 2**63 s, so that period and doubling fit in one code.
        doubling = np.clip(((self.ends - self.starts).view(np.int64) >> 52) - 1022, 10, 63)
        codes = period_of.astype(np.int16)[rows] * np.int16(64) + doubling.astype(np.int16)
        shelves = []
        for code in np.flatnonzero(np.bincount(codes)).tolist():
            picked = np.flatnonzero(codes == code)
            shelves.append(self._shelf(periods[code // 64], 2.0 ** (code % 64), picked, rows))
        return tuple(shelves)

    def _shelf(self, period: float, reach: float, picked: np.ndarray, rows: np.ndarray) -> _Shelf:
        # Sorting second and place as one integer is several times faster than argsort.
        seconds = _whole(self.starts[picked])
        order = np.sort((seconds << 32) | np.arange(len(picked))) & 0xFFFFFFFF
        picked = picked[order]
        return _Shelf(
            period=float(period),
            reach=reach,
            seconds=seconds[order],
            starts=self.starts[picked],
            ends=self.ends[picked],
            rows=rows[picked],
        )


def _within_period(start: float, end: float, period: float) -> list[tuple[float, float, float]]:
    """The time from start to end as parts (begin, stop, times) of a period that repeats.

    >>> _within_period(90.0, 130.0, 100.0), _within_period(10.0, 320.0, 100.0)
    ([(90.0, 100.0, 1.0), (0.0, 30.0, 1.0)], [(10.0, 20.0, 1.0), (0.0, 100.0, 3.0)])
    """
    times, rest = divmod(end - start, period)
    begin = start % period
    stop = begin + rest
    parts = [(begin, min(stop, period), 1.0)]
    if stop > period:
        parts.append((0.0, stop - period, 1.0))
    if times:
        parts.append((0.0, period, times))
    return parts


def _whole(seconds: np.ndarray | float) -> np.ndarray:
    """The whole second, clipped to 31 bits; clipping keeps the order."""
    return np.clip(np.floor(seconds), 0, 2**31 - 1).astype(np.int64)
