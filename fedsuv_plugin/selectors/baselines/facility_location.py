"""Facility location by greedy: points that all points are near to, picked one after the other.

Each pick is the candidate with the largest gain, which is by how much it reduces the sum of the
points' distances to the nearest of the chosen. `distances` and `_gains` say in float64 what a gain
is, and they alone decide. Where the distances are many, most gains are never computed (`Race`),
because an upper bound shows that the candidate cannot win. From cheap to dear, the bounds are
    the bound at an earlier pick, since gains only fall;
    the gain in float32 with lower bounds of the distances: from a `DistanceTable`, which is kept
        from one selection to the next, or from `DistanceBlocks`, which need little memory.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from fedsuv_plugin.selectors.base import best

BLOCK = 256  # rows or columns of distances that are computed at a time
FEW = 2**25  # with up to so many multiplications a pick, bounds cost more than they save
SETTLED = 32  # columns of distances that are computed at a time where rounding decides
NOISE = 1e-9  # of the greatest length, for each point: how far rounding may move a gain
HALF_ULP = 2.0**-24  # the largest relative error of rounding to float32


def distances(
    points: np.ndarray, others: np.ndarray, squares: np.ndarray | None = None
) -> np.ndarray:
    """Euclidean distances, (m, width) and (b, width) -> (m, b).

    `squares` are the squared lengths of the points, where they are at hand."""
    if squares is None:
        squares = squared_lengths(points)
    apart = squares[:, None] + squared_lengths(others)
    apart -= points @ (2 * others).T
    return np.sqrt(np.maximum(apart, 0.0, out=apart), out=apart)


def squared_lengths(points: np.ndarray) -> np.ndarray:
    """(m, width) -> (m,); in blocks, because the squares take as much room as the points."""
    found = np.empty(len(points))
    for start in range(0, len(points), BLOCK):
        found[start : start + BLOCK] = (points[start : start + BLOCK] ** 2).sum(axis=1)
    return found


def _far(squares: np.ndarray) -> np.ndarray:
    """The distance each point starts with before anybody is chosen, (m,).

    It is at least as large as any distance between two points, so that the first pick brings
    everyone nearer."""
    return np.full(len(squares), 2 * np.sqrt(squares.max(initial=0.0)))


def _gains(nearest: np.ndarray, apart: np.ndarray) -> np.ndarray:
    """By how much each candidate would reduce the sum of distances, (m,) and (m, b) -> (b,)."""
    return np.maximum(nearest[:, None] - apart, 0.0).sum(axis=0)


# ---- greedy


class GainBounds(Protocol):
    """Something that knows upper bounds of gains."""

    def upper_gains(self, candidates: np.ndarray, nearest: np.ndarray) -> np.ndarray:
        """Of these positions, (b,); `nearest` (m,) are the distances to the nearest chosen."""
        ...


# Bounds are made only where they save work.
MakeBounds = Callable[[], GainBounds]


def _few(m: int, columns: int, width: int) -> bool:
    """Whether so many distances are computed, and kept in memory, more easily than bounds."""
    return m * columns * max(width, 64) <= FEW


def stochastic_facility_location(
    points: np.ndarray,
    k: int,
    epsilon: float,
    rng: np.random.Generator,
    make_bounds: MakeBounds | None = None,
) -> np.ndarray:
    """Positions of min(k, m) points, each the best of a random sample.

    This is stochastic greedy: B. Mirzasoleiman et al., "Lazier Than Lazy Greedy", AAAI 2015."""
    m, width = points.shape
    k = min(k, m)
    size = max(math.ceil(m / k * math.log(1 / epsilon)), 1) if k else 0
    race: PlainRace | Race
    if _few(m, size, width):
        race = PlainRace(points)
    else:
        race = Race(points, make_bounds() if make_bounds else DistanceBlocks(points))
    left = np.arange(m)
    chosen = np.empty(0, np.int64)
    while len(chosen) < k:
        sample = rng.choice(left, min(size, len(left)), replace=False)
        winner = int(best(race.settled_gains(sample), 1, rng)[0])
        race.choose(sample, winner)
        chosen = np.append(chosen, sample[winner])
        left = left[left != sample[winner]]
    return chosen


def facility_location(
    points: np.ndarray, k: int, rng: np.random.Generator, make_bounds: MakeBounds | None = None
) -> np.ndarray:
    """Positions of min(k, m) points, each the best of all that are left."""
    m, width = points.shape
    tie = rng.permutation(m)
    if _few(m, m, width):
        return _lazy_greedy(points, k, tie)
    race = Race(points, make_bounds() if make_bounds else DistanceBlocks(points))
    left = np.arange(m)
    chosen: list[int] = []
    while len(chosen) < min(k, m):
        gains = race.gains(left) if chosen else race.settled_gains(left)
        winner = int(np.lexsort((tie[left], -gains))[0])
        race.choose(left, winner)
        chosen.append(int(left[winner]))
        left = np.delete(left, winner)
    return np.array(chosen, np.int64)


def _lazy_greedy(points: np.ndarray, k: int, tie: np.ndarray) -> np.ndarray:
    """Greedy in which only the candidate with the largest old gain needs a second look.

    Gains only fall as more are chosen, so that an old gain is an upper bound."""
    m = len(points)
    squares = squared_lengths(points)
    nearest = _far(squares)  # (m,) distance of each point to the nearest of the chosen
    # (-gain, tie, position, how many were chosen when the gain was computed)
    queue: list[tuple[float, int, int, int]] = []
    for start in range(0, m, BLOCK):
        gains = _gains(nearest, distances(points, points[start : start + BLOCK], squares))
        for j, gain in enumerate(gains.tolist(), start):
            queue.append((-gain, int(tie[j]), j, 0))
    heapq.heapify(queue)
    chosen: list[int] = []
    while len(chosen) < min(k, m):
        _, order, j, picks = heapq.heappop(queue)
        apart = distances(points, points[j : j + 1], squares)
        if picks == len(chosen):
            chosen.append(j)
            nearest = np.minimum(nearest, apart[:, 0])
        else:
            heapq.heappush(queue, (-float(_gains(nearest, apart)[0]), order, j, len(chosen)))
    return np.array(chosen, np.int64)


class PlainRace:
    """The gains of all candidates at every pick."""

    def __init__(self, points: np.ndarray):
        self._points = points
        self._squares = squared_lengths(points)
        self._nearest = _far(self._squares)  # (m,) distance to the nearest of the chosen
        self._apart = np.empty((len(points), 0))  # distances to the latest candidates

    def settled_gains(self, candidates: np.ndarray) -> np.ndarray:
        self._apart = distances(self._points, self._points[candidates], self._squares)
        return _gains(self._nearest, self._apart)

    def choose(self, candidates: np.ndarray, winner: int) -> None:
        """The winner is a place in the candidates of the latest call of `settled_gains`."""
        self._nearest = np.minimum(self._nearest, self._apart[:, winner])


class Race:
    """The gains of those candidates alone that can be the largest.

    Rounding depends on how many columns of distances are computed at a time. A gain is therefore
    computed from a single column, and where gains are equal but for rounding, from columns in
    blocks of one size: no gain depends on which others were computed. The bounds decide on how
    many gains that is, and on nothing else."""

    def __init__(self, points: np.ndarray, bounds: GainBounds):
        self._points = points
        self._bounds = bounds
        self._squares = squared_lengths(points)
        far = _far(self._squares)
        self._nearest = far  # (m,) distance of each point to the nearest of the chosen
        self._noise = NOISE * float(far.sum()) / 2
        self._upper = np.full(len(points), np.inf)  # (m,) bounds of the gains, perhaps old
        self._kind = first_of_equals(points, self._squares)
        self._taken = np.zeros(len(points), bool)  # (m,) whether one of this kind is chosen
        self._latest = (-1, np.empty((0, 1)))  # position and column of the latest leader
        self._settled_nearest = far  # as `nearest`, but from blocks
        self._unsettled: list[int] = []  # the chosen that are missing there

    def gains(self, candidates: np.ndarray, within: float = 0.0) -> np.ndarray:
        """The candidates' gains; -inf where one is less than the largest by more than `within`."""
        kind = self._kind[candidates]
        upper = self._upper[candidates]
        renewed = np.zeros(len(candidates), bool)
        gains = np.where(self._taken[kind], 0.0, -np.inf)
        while True:
            can_win = np.flatnonzero(np.isneginf(gains) & (upper >= gains.max() - within))
            if not len(can_win):
                break
            front = can_win[np.argsort(-upper[can_win], kind="stable")[:BLOCK]]
            if renewed[front[0]]:
                leader = kind[front[0]]
                gains[kind == leader] = _gains(self._nearest, self._column(leader))[0]
            else:
                front = front[~renewed[front]]
                upper[front] = self._bounds.upper_gains(candidates[front], self._nearest)
                renewed[front] = True
        self._upper[candidates] = upper
        gains[gains < gains.max() - within] = -np.inf
        return gains

    def settled_gains(self, candidates: np.ndarray) -> np.ndarray:
        """As `gains`, but what differs by rounding alone is computed once more, in blocks."""
        gains = self.gains(candidates, self._noise)
        leaders = np.flatnonzero(np.isfinite(gains))
        kinds, kind = np.unique(self._kind[candidates[leaders]], return_inverse=True)
        open_kinds = np.flatnonzero(~self._taken[kinds])
        if len(kinds) > 1 and len(open_kinds):
            found = np.zeros(len(kinds))
            found[open_kinds] = self._gains_in_blocks(kinds[open_kinds])
            gains[leaders] = found[kind]
        return gains

    def _gains_in_blocks(self, candidates: np.ndarray) -> np.ndarray:
        """The gains of these candidates, from `SETTLED` columns of distances at a time."""
        missing = len(self._unsettled)
        columns = np.concatenate([self._unsettled, candidates]).astype(np.int64)
        gains = np.empty(len(columns))
        for start in range(0, len(columns), SETTLED):
            block = columns[start : start + SETTLED]
            filled = self._points[np.resize(block, SETTLED)]
            apart = distances(self._points, filled, self._squares)
            chosen = apart[:, : max(missing - start, 0)]
            nearest = chosen.min(axis=1, initial=np.inf)
            self._settled_nearest = np.minimum(self._settled_nearest, nearest)
            gains[start : start + SETTLED] = _gains(self._settled_nearest, apart)[: len(block)]
        self._unsettled.clear()
        return gains[missing:]

    def choose(self, candidates: np.ndarray, winner: int) -> None:
        """The winner is a place in the candidates."""
        chosen = int(candidates[winner])
        kind = self._kind[chosen]
        self._taken[kind] = True
        self._unsettled.append(chosen)
        self._nearest = np.minimum(self._nearest, self._column(kind)[:, 0])

    def _column(self, position: int) -> np.ndarray:
        """The distances to this point, (m, 1)."""
        if self._latest[0] != position:
            point = self._points[position : position + 1]
            self._latest = (position, distances(self._points, point, self._squares))
        return self._latest[1]


def first_of_equals(points: np.ndarray, squares: np.ndarray) -> np.ndarray:
    """The position of the first point that equals each point, (m,)."""
    first = np.arange(len(points))
    _, kind, count = np.unique(squares, return_inverse=True, return_counts=True)
    seen: dict[bytes, int] = {}
    for i in np.flatnonzero(count[kind] > 1):  # points of different lengths are not equal
        first[i] = seen.setdefault(points[i].tobytes(), int(i))
    return first


# ---- bounds


@dataclass(frozen=True)
class Centred:
    """Points in float32, from which lower bounds of their distances are computed.

    Lengths are in units of `unit`, so that no square overflows; the points are moved so that one
    point is at 0, because rounding costs the less the shorter they are."""

    points: np.ndarray  # (m, width) float32
    squares: np.ndarray  # (m,) float32: squared lengths, less what rounding can amount to
    unit: float

    @classmethod
    def of(
        cls, m: int, width: int, block: Callable[[slice], np.ndarray], longest: float
    ) -> Centred:
        """From m points of at most this length, of which `block` returns some in float64."""
        unit = longest or 1.0
        centre = block(slice(None, None, m // BLOCK + 1)).mean(axis=0)
        points = np.empty((m, width), np.float32)
        squares = np.empty(m)
        for start in range(0, m, BLOCK):
            part = slice(start, start + BLOCK)
            points[part] = (block(part) - centre) / unit
            squares[part] = np.einsum("ij,ij->i", points[part], points[part], dtype=np.float64)
        # A squared distance |x|^2 + |y|^2 - 2 x.y in float32 is off by at most this share of
        # |x|^2 + |y|^2: `width` roundings in the product, less than 16 elsewhere, as many in the
        # points and the root. The last term covers the float64 of `distances`.
        share = (width + 32) * HALF_ULP
        squares -= share * squares + (width + 32) * 2.0**-52
        return cls(points, squares.astype(np.float32), unit)

    def lower_distances(self, some: slice | np.ndarray, others: slice) -> np.ndarray:
        """Lower bounds of the distances between some points and others, float32."""
        apart = self.points[some] @ self.points[others].T
        apart *= -2
        apart += self.squares[some, None]
        apart += self.squares[others]
        np.maximum(apart, 0, out=apart)
        np.sqrt(apart, out=apart)
        apart *= np.float32(self.unit)
        return apart


def _upper_gain(nearest: np.ndarray, lower: np.ndarray, room: np.ndarray) -> float:
    """An upper bound of a gain, from lower bounds of the distances; all are (m,) float32."""
    np.subtract(nearest, lower, out=room)
    np.maximum(room, 0, out=room)
    return float(np.add.reduce(room)) * (1 + 64 * HALF_ULP)


def _rounded_up(values: np.ndarray) -> np.ndarray:
    return (values * (1 + 4 * HALF_ULP)).astype(np.float32)


class DistanceBlocks:
    """Bounds from distances that are computed anew whenever they are needed."""

    def __init__(self, points: np.ndarray):
        longest = float(np.sqrt(squared_lengths(points).max(initial=0.0)))
        m, width = points.shape
        self._centred = Centred.of(m, width, points.__getitem__, longest)

    def upper_gains(self, candidates: np.ndarray, nearest: np.ndarray) -> np.ndarray:
        near = _rounded_up(nearest)
        room = np.empty_like(near)
        lower = self._centred.lower_distances(candidates, slice(None))
        return np.array([_upper_gain(near, row, room) for row in lower])


class DistanceTable:
    """Lower bounds of the distances between all clients, kept from one selection to the next.

    Computing costs (clients whose point has changed) x (clients in the table)."""

    def __init__(self, n: int):
        self._apart = np.empty((n, n), np.float32)
        # (n,) what the client's direction was multiplied by; NaN: the client is not in the table
        self._factors = np.full(n, np.nan)
        self._lengths = np.zeros(n)  # (n,) of the points

    @staticmethod
    def megabytes(n: int) -> float:
        return 4 * n * n / 2**20

    def forget(self, rows: int | np.ndarray) -> None:
        """The directions of these clients have changed."""
        self._factors[rows] = np.nan

    def renew(
        self, directions: np.ndarray, rows: np.ndarray, factors: np.ndarray, lengths: np.ndarray
    ) -> KnownDistances:
        """Bounds of the distances between these clients.

        A client's point is its direction (row of `directions`) times its factor, and it has this
        length. Clients that are not asked for stay in the table as they are."""
        stale = rows[self._factors[rows] != factors]
        self._factors[rows] = factors
        self._lengths[rows] = lengths
        if len(stale):
            others = np.setdiff1d(np.flatnonzero(np.isfinite(self._factors)), stale)
            self._compute(directions, np.concatenate([stale, others]), len(stale))
        return KnownDistances(self._apart, rows)

    def _compute(self, directions: np.ndarray, rows: np.ndarray, stale: int) -> None:
        """The distances between the first `stale` of these clients and all of them."""

        def block(part: slice) -> np.ndarray:
            some = rows[part]
            return directions[some].astype(np.float64) * self._factors[some, None]

        longest = float(self._lengths[rows].max())
        centred = Centred.of(len(rows), directions.shape[1], block, longest)
        for start in range(0, stale, BLOCK):
            some = slice(start, min(start + BLOCK, stale))
            for left in range(start, len(rows), 8 * BLOCK):
                others = slice(left, left + 8 * BLOCK)
                lower = centred.lower_distances(some, others)
                self._apart[rows[some, None], rows[others]] = lower
                self._apart[rows[others, None], rows[some]] = lower.T


class KnownDistances:
    """Bounds from a table of distances."""

    def __init__(self, apart: np.ndarray, rows: np.ndarray):
        self._apart = apart  # (n, n) float32
        self._rows = rows  # (m,) who is at which position
        self._everyone = len(rows) == len(apart)

    def upper_gains(self, candidates: np.ndarray, nearest: np.ndarray) -> np.ndarray:
        near = _rounded_up(nearest)
        room = np.empty_like(near)
        found = []
        for row in self._rows[candidates]:
            lower = self._apart[row] if self._everyone else self._apart[row].take(self._rows)
            found.append(_upper_gain(near, lower, room))
        return np.array(found)
