"""k-modes of bits: k-means under Hamming distance, a centre being the majority of its members.

Z. Huang. "Extensions to the k-Means Algorithm for Clustering Large Data Sets with Categorical
Values." Data Mining and Knowledge Discovery 2, 1998. The first centres are those of k-means++:
D. Arthur, S. Vassilvitskii. "k-means++: The Advantages of Careful Seeding." SODA 2007; between bits
the squared distance in which it draws them is the Hamming distance.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

ROUNDS = 100  # at most, of the assignment to centres
BLOCK = 65_536  # rows whose distances are computed at once


def k_modes(
    bits: np.ndarray, clusters: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """The centres (c, b) and each row's cluster (n,) of bits (n, b); zeros and ones in uint8.

    There are fewer clusters than asked for where there are fewer different rows.

    >>> bits = np.array([[0, 0, 0], [0, 0, 1], [0, 0, 0], [1, 1, 1]], np.uint8)
    >>> centres, labels = k_modes(bits, 2, np.random.default_rng(0))
    >>> sorted(centres.tolist()), bool(labels[0] == labels[1] == labels[2] != labels[3])
    ([[0, 0, 0], [1, 1, 1]], True)
    """
    return refined(bits, spread_out(bits, clusters, rng))


def refined(bits: np.ndarray, centres: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The centres and labels once majorities and nearest centres agree, from given centres."""
    labels = nearest(bits, centres)
    for _ in range(ROUNDS):
        centres = majorities(bits, labels, centres)
        renewed = nearest(bits, centres)
        if np.array_equal(renewed, labels):
            break
        labels = renewed
    return centres, labels


def spread_out(bits: np.ndarray, clusters: int, rng: np.random.Generator) -> np.ndarray:
    """k-means++: each further centre is a row, with a chance in proportion to its distance."""
    chosen = [int(rng.integers(len(bits)))]
    to_nearest = distances(bits, bits[chosen])[:, 0]
    while len(chosen) < clusters and to_nearest.any():
        place = int(rng.choice(len(bits), p=to_nearest / to_nearest.sum()))
        chosen.append(place)
        to_nearest = np.minimum(to_nearest, distances(bits, bits[[place]])[:, 0])
    return bits[chosen]


def majorities(bits: np.ndarray, labels: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """The majority bits of each cluster, ties to 0; a cluster without members keeps its centre."""
    sums = np.zeros(centres.shape)
    for part in _blocks(len(bits)):
        members = labels[part] == np.arange(len(centres))[:, None]  # (c, block)
        sums += members.astype(np.float32) @ bits[part].astype(np.float32)
    sizes = np.bincount(labels, minlength=len(centres))[:, None]
    return np.where(sizes > 0, 2 * sums > sizes, centres).astype(np.uint8)


def nearest(bits: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """The nearest centre of each row, (n,), the first of those that are level."""
    return distances(bits, centres).argmin(axis=1)


def distances(bits: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """Hamming distances (n, c): the sum over a centre's bits c of x + c - 2 x c = c + (1 - 2 c) x.

    Whole numbers of this size are exact in float32."""
    ones = centres.astype(np.float32)
    apart = np.empty((len(bits), len(centres)), np.float32)
    for part in _blocks(len(bits)):
        apart[part] = bits[part].astype(np.float32) @ (1 - 2 * ones).T
    return apart + ones.sum(axis=1)


def _blocks(n: int) -> Iterator[slice]:
    for start in range(0, n, BLOCK):
        yield slice(start, start + BLOCK)
