"""Update directions of clients: how long one may be."""

from __future__ import annotations

import numpy as np

ABSURD = 10.0  # times the median length; a direction longer than that is shortened to it


def length(direction: np.ndarray) -> float:
    return float(np.linalg.norm(np.asarray(direction, np.float64)))


def longest_believed(lengths: np.ndarray) -> float:
    """Where a direction is cut off, given the lengths of all that were seen: one liar among many moves no median."""
    return ABSURD * float(np.median(lengths)) if len(lengths) else 0.0


def shortening(lengths: np.ndarray, limit: float) -> np.ndarray:
    """Factors that bring directions of these lengths, shape (m,), within the limit."""
    factors = np.ones(len(lengths))
    long = lengths > limit
    factors[long] = limit / lengths[long]
    return factors
