"""NeuralUCB: a network predicts rewards, and its gradients say how far off it may be.

Paper: D. Zhou, L. Li, Q. Gu. "Neural Contextual Bandits with UCB-based Exploration." ICML 2020.
    Algorithms 1 and 2, and the authors' code (github.com/uclaml/NeuralUCB, learner_diag.py).

Paper symbol -> name here
    theta = (W_1, W_2) -> first, last    theta_0 -> start_first, start_last
    m -> width    lambda -> lam    eta, J -> rate, steps of `fit`
    f(x) = sqrt(width) last . relu(first x) -> predicted    g(x), its gradient in theta
    Z -> z_first, z_last; of theta's shape, as it is diagonal
    U = f + gamma sqrt(lam sum_j g_j^2 / (width Z_j)) -> upper

The square of a gradient's entry, divided by the width, is last_j^2 x_i^2 for the weight of input i
in an active unit j, and relu(first x)_j^2 for the entries of `last`; the slope of relu at 0 is 0.

The paper writes every context twice, so that f can be 0 for all of them at the start. Here it is
given once, and `copies` says how often it is meant. The weights of all copies move alike and have
the same Z, so that it is enough to keep their sum, and one Z.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

# NeuralUCB's code ends its training once the mean squared error of an epoch is no more than this.
GOOD_ENOUGH = 1e-3


class NeuralBandit:
    """One hidden layer of relu units, and the diagonal Z of all that it has seen.

    It begins with f(x) = 0 for all contexts.

    >>> bandit = NeuralBandit(features=2, width=6, lam=0.001, rng=np.random.default_rng(0))
    >>> context = np.array([[0.5, 0.5]])
    >>> _ = bandit.fit(context, np.array([0.8]), np.zeros(1, int), 1, steps=1000, rate=0.01)
    >>> bandit.bounds(context, gamma=1.0)[0].round(1).tolist()
    [0.8]
    """

    copies = 2  # how often a context is meant to be written

    def __init__(self, features: int, width: int, lam: float, rng: np.random.Generator):
        """`width` is even: its first half sees the first copy of a context, its second the other.

        Both have the same weights, so that with opposite signs in `last` they cancel out."""
        half = rng.normal(0, math.sqrt(4 / width), (width // 2, features))
        out = rng.normal(0, math.sqrt(2 / width), width // 2)
        self._lam = lam
        self.start_first = np.concatenate([half, half])  # (w, d)
        self.start_last = np.concatenate([out, -out])  # (w,)
        self.first = self.start_first.copy()
        self.last = self.start_last.copy()
        self.z_first = np.full_like(self.first, lam)
        self.z_last = np.full_like(self.last, lam)

    def bounds(self, contexts: np.ndarray, gamma: float) -> tuple[np.ndarray, np.ndarray]:
        """f and U of each of the contexts (n, d), both (n,)."""
        hidden = contexts @ self.first.T  # (n, w)
        active = hidden > 0
        hidden *= active
        predicted = math.sqrt(len(self.last)) * (hidden @ self.last)
        inputs = contexts**2 @ (self.copies / self.z_first).T  # (n, w)
        inputs *= active
        hidden *= hidden
        spread = inputs @ self.last**2 + hidden @ (1 / self.z_last)
        return predicted, predicted + gamma * np.sqrt(self._lam * spread)

    def observe(self, contexts: np.ndarray) -> None:
        """Z grows by g g' / width of contexts (m, d) that were chosen."""
        hidden = np.maximum(contexts @ self.first.T, 0.0)
        slopes = np.where(hidden > 0, self.last, 0.0)  # of hidden
        self.z_first += (slopes**2).T @ contexts**2
        self.z_last += (hidden**2).sum(axis=0)

    def fit(
        self,
        contexts: np.ndarray,
        rewards: np.ndarray,
        order: np.ndarray,
        pairs: int,
        steps: int,
        rate: float,
    ) -> float:
        """Descend on sum (f - r)^2 / 2 + width lam |theta - theta_0|^2 / 2, a pair at a time.

        Pair i of `order`, which may be part of all `pairs`, has contexts[i] and rewards[i]. They
        are gone through in this order, again and again, for so many steps. Returns the mean squared
        error that the last of these epochs met, each pair before its step."""
        root = math.sqrt(len(self.last))
        pull = len(self.last) * self._lam / pairs
        at_start = contexts @ self.start_first.T
        moved = self.first - self.start_first
        change = np.empty_like(moved)
        lengths = self.copies * (contexts**2).sum(axis=1)
        met = math.inf
        while steps > 0 and met > GOOD_ENOUGH:
            epoch = order[:steps].tolist()
            squares = 0.0
            for i in epoch:
                hidden = at_start[i] + moved @ contexts[i]
                active = hidden > 0
                hidden *= active
                slope = self.last * active
                error = root * float(self.last @ hidden) - float(rewards[i])
                squares += error**2
                # A step of 1 / steepness brings the error to 0, and a longer one overshoots.
                steepness = root**2 * float(hidden @ hidden + (slope @ slope) * lengths[i]) + pull
                step = 1 / max(steepness, 1 / rate)
                moved *= 1 - step * pull
                push = -step * root * error
                np.multiply.outer(self.copies * push * slope, contexts[i], out=change)
                moved += change
                kept = (1 - step * pull) * (self.last - self.start_last)
                self.last = self.start_last + kept + push * hidden
            steps -= len(epoch)
            met = squares / len(epoch)
        self.first = self.start_first + moved
        return met

    def state_dict(self) -> dict[str, Any]:
        return {
            "start_first": self.start_first,
            "start_last": self.start_last,
            "first": self.first,
            "last": self.last,
            "z_first": self.z_first,
            "z_last": self.z_last,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            setattr(self, name, value.copy())
