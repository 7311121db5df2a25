"""The lengths of clients' update directions, and a limit on them."""

from __future__ import annotations

import numpy as np

ABSURD = 10.0  # times the median length: a direction longer than that is shortened to it


def length(direction: np.ndarray) -> float:
    return float(np.linalg.norm(np.asarray(direction, np.float64)))


def longest_believed(lengths: np.ndarray) -> float:
    """The length to which longer directions are shortened, given the lengths of all that were seen.

    It is a multiple of the median, which a single false report among many does not move."""
    return ABSURD * float(np.median(lengths)) if len(lengths) else 0.0


def shortening(lengths: np.ndarray, limit: float) -> np.ndarray:
    """Factors that bring directions of these lengths, shape (m,), within the limit."""
    factors = np.ones(len(lengths))
    long = lengths > limit
    factors[long] = limit / lengths[long]
    return factors
