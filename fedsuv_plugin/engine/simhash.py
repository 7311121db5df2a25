"""A client's data as 64 bits, of which more agree the more alike the data of two clients are.

Tokens: eq. (6) and (7) of H. Cao, Q. Pan, Y. Zhu, J. Liu, "Birds of a Feather Help: Context-aware
    Client Selection for Efficient Federated Learning", the preprint of what `lsh` and `nccb` are.
Hyperplanes: M. Charikar. "Similarity Estimation Techniques from Rounding Algorithms." STOC 2002.
    Two vectors at an angle a differ in a share a / pi of the bits.

Which bits stand for what depends on the job's seed alone, so that all clients agree on it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fedsuv_plugin.randomness import hashes, stream
from fedsuv_plugin.selectors.signals import FINGERPRINT_BITS
from fedsuv_plugin.tasks.federated_data import FederatedData, Samples

NAME = "fingerprint"  # of its random streams
GRAM = 3  # characters of a token
RADIX = np.uint64(2**21)  # so that the characters' numbers stand side by side in a key of 64 bits


def simhash(data: FederatedData) -> Callable[[Samples], np.ndarray]:
    """What makes a client's bits (64,) of its samples: of texts by tokens, else by hyperplanes."""
    if data.dtype.is_floating_point:
        return Hyperplanes(data.config.seed, data.mean_input, data.classes)
    return Tokens(data.config.seed)


class Hyperplanes:
    """On which side of 64 random planes lies z: the mean input, centred, and the label shares.

    Inputs are centred by the mean input of the whole data set, label shares not at all."""

    def __init__(self, seed: int, centre: np.ndarray, classes: int):
        self._centre = centre  # (d,)
        self._classes = classes
        shape = (FINGERPRINT_BITS, len(centre) + classes)
        self._normals = stream(seed, NAME).standard_normal(shape)

    def __call__(self, samples: Samples) -> np.ndarray:
        inputs = samples.x.cpu().numpy().reshape(len(samples), -1)
        labels = np.bincount(samples.y.cpu().numpy(), minlength=self._classes)
        z = np.concatenate(
            [inputs.mean(axis=0, dtype=np.float64) - self._centre, labels / len(samples)]
        )
        return (self._normals @ z > 0).astype(np.uint8)


class Tokens:
    """Whether more tokens have a 1 than a 0 in each bit of their hash; a token is 3 characters."""

    def __init__(self, seed: int):
        self._seed = seed

    def __call__(self, samples: Samples) -> np.ndarray:
        texts = samples.x.cpu().numpy().reshape(len(samples), -1).astype(np.uint64)
        tokens, weights = np.unique(grams(texts), return_counts=True)
        return token_bits(hashes(self._seed, NAME, tokens), weights)


def grams(texts: np.ndarray) -> np.ndarray:
    """A key for each run of GRAM characters, of texts (n, length) of character numbers, flat.

    A text that is shorter is one token."""
    length = min(GRAM, texts.shape[1])
    runs = texts.shape[1] - length + 1
    keys = np.zeros((len(texts), runs), np.uint64)
    for place in range(length):
        keys = keys * RADIX + texts[:, place : place + runs]
    return keys.reshape(-1)


def token_bits(hashed: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The sign of each bit's sum over all tokens: + weight where it is 1, - weight where it is 0.

    A sum of 0 gives 0. `hashed` (t,) uint64, `weights` (t,); the lowest bit comes first.

    >>> bits = token_bits(np.array([0b1001, 0b0111, 0b1100], np.uint64), np.array([2, 1, 3]))
    >>> bits[:4][::-1].tolist()  # sums 4, 2, -4, 0
    [1, 1, 0, 0]
    """
    total = weights.sum()
    bits = np.empty(FINGERPRINT_BITS, np.uint8)
    for place in range(FINGERPRINT_BITS):
        is_one = (hashed >> np.uint64(place)) & np.uint64(1) == 1
        bits[place] = 2 * weights[is_one].sum() > total
    return bits
