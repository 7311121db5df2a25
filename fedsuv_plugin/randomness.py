"""One seed per job, and independent random streams derived from it by name.

A stream depends only on the seed, its name and its numbers (a client, a round), never on what was
drawn before. Swapping the selector therefore leaves the data, the traces and the clients' batches
as they were.
"""

from __future__ import annotations

import zlib

import numpy as np


def stream(seed: int, name: str, *numbers: int) -> np.random.Generator:
    """The random stream of that name and those numbers.

    >>> bool(stream(1, "batches", 7).random() == stream(1, "batches", 7).random())
    True
    """
    return np.random.default_rng([seed, zlib.crc32(name.encode()), *numbers])


def torch_seed(seed: int, name: str, *numbers: int) -> int:
    """A seed for `torch.manual_seed`, named in the same way as a stream."""
    return int(stream(seed, name, *numbers).integers(2**63 - 1))


def _mix(x: np.ndarray) -> np.ndarray:
    """SplitMix64's output function: neighbouring integers come out unrelated."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def hashes(seed: int, name: str, keys: np.ndarray, *numbers: int) -> np.ndarray:
    """64 random bits for each key, as uint64: a function of (seed, name, key, numbers) alone.

    A stream per key would be too slow for a million of them. Different keys have different bits."""
    start = stream(seed, name, *numbers).integers(2**64 - 1, dtype=np.uint64)
    with np.errstate(over="ignore"):
        return _mix(_mix(keys.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + start))


def uniforms(seed: int, name: str, clients: np.ndarray, number: int) -> np.ndarray:
    """A number between 0 and 1 for each client, a function of (seed, name, client, number) alone.

    It is made of 53 bits of the client's hash."""
    bits = hashes(seed, name, clients, number)
    return ((bits >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53


def normals(seed: int, name: str, clients: np.ndarray, number: int) -> np.ndarray:
    """A standard normal for each client, a function of (seed, name, client, number) alone."""
    from scipy.special import ndtri  # here: slow to import, and most commands need none

    return ndtri(uniforms(seed, name, clients, number))
