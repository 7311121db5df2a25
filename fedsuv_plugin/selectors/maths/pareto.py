"""Steps of a Pareto selection between candidates of which only bounds are known.

Each candidate is a row with a rectangle: an interval [low, high] for each of two objectives.
"""

from __future__ import annotations

import numpy as np

from fedsuv_plugin.selectors.base import best


def surely_worse(
    low: np.ndarray, high: np.ndarray, most: int, rng: np.random.Generator
) -> np.ndarray:
    """Positions whose upper bound (n,) is not above the largest lower bound (n,).

    If there are more than `most`, those with the lowest upper bounds."""
    worse = np.flatnonzero(high <= low.max()) if most > 0 else np.empty(0, np.int64)
    return worse if len(worse) <= most else worse[best(-high[worse], most, rng)]


def dominated(low: np.ndarray, high: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Mask (n,) of the rows that can be taken out one by one, each dominated by a row that is left.

    low, high: (2, n) with low <= high. Row y dominates x if low(y) >= high(x) on both axes. Then
    high(y) >= low(y) >= high(x), so that whoever dominates y dominates x as well. A row that loses
    one dominator therefore keeps another, and the answer does not depend on the order.

    The one exception are rows whose rectangles have shrunk to the same single point. They dominate
    each other, so one of them, drawn at random, stays unless another row dominates it."""
    mask = (high[0] <= low[0].max(initial=-np.inf)) & (high[1] <= low[1].max(initial=-np.inf))
    maybe = np.flatnonzero(mask)
    if not len(maybe):
        return mask
    able_to_dominate = (low[0] >= high[0, maybe].min()) & (low[1] >= high[1, maybe].min())
    steps = _staircase(low[:, able_to_dominate])
    mask[maybe] = _second_reached(steps, high[0, maybe], "left") >= high[1, maybe]
    single = maybe[mask[maybe] & (low[:, maybe] == high[:, maybe]).all(axis=0)]
    if len(single):  # each of these dominates itself, which does not count
        mask[_sole_points(low, high, single, steps, rng)] = False
    return mask


def _staircase(low: np.ndarray) -> np.ndarray:
    """The lows (2, s) that no other low reaches on both axes.

    They ascend on the first axis, and therefore descend on the second."""
    order = np.lexsort((-low[1], -low[0]))
    second = low[1, order]
    record = np.ones(len(second), bool)
    record[1:] = second[1:] > np.maximum.accumulate(second)[:-1]
    return low[:, order[record][::-1]]


def _second_reached(steps: np.ndarray, first: np.ndarray, side: str) -> np.ndarray:
    """The largest second coordinate among the steps far enough along the first axis, else -inf.

    Far enough is >= `first` (n,) where side is "left", and > `first` where it is "right"."""
    place = np.searchsorted(steps[0], first, side=side)  # type: ignore[call-overload]
    return np.r_[steps[1], -np.inf][place]


def _sole_points(
    low: np.ndarray,
    high: np.ndarray,
    single: np.ndarray,
    steps: np.ndarray,
    rng: np.random.Generator,
) -> np.ndarray:
    """Of the single-point rows, one for each point that only rows at this same point dominate."""
    point = low[:, single]
    # Beaten by a row that is further along the first axis, or along the second.
    beaten = _second_reached(steps, point[0], "right") >= point[1]
    beaten |= _second_reached(steps, point[0], "left") > point[1]
    left = rng.permutation(single[~beaten])
    survivors: dict[tuple[float, float], int] = {
        (float(low[0, i]), float(low[1, i])): int(i) for i in left
    }
    # A rectangle with this very point as its lower corner dominates it, too.
    wide = low[:, (low != high).any(axis=0)]
    sole = [row for (a, b), row in survivors.items() if not ((wide[0] == a) & (wide[1] == b)).any()]
    return np.array(sole, np.int64)


def take_out_dominated(
    low: np.ndarray, high: np.ndarray, keep: int, rng: np.random.Generator
) -> np.ndarray:
    """Positions of dominated rows to take out, so that at least `keep` rows are left.

    If not all may go, those with the lowest upper bound of the second objective."""
    out = np.flatnonzero(dominated(low, high, rng))
    most = max(low.shape[1] - keep, 0)
    return out if len(out) <= most else out[best(-high[1, out], most, rng)]


def diagonals(low: np.ndarray, high: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Length of each rectangle's diagonal, (n,), where axis i is measured in units of scale[i]."""
    return np.hypot((high[0] - low[0]) / scale[0], (high[1] - low[1]) / scale[1])
