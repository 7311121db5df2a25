"""Ridge regression with confidence widths: the estimate behind LinUCB.

L. Li, W. Chu, J. Langford, R. Schapire. "A Contextual-Bandit Approach to Personalized News Article
Recommendation." WWW 2010. One weight vector serves all arms:
H = ridge I + sum x x', b = sum r x, theta = H^-1 b.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.linalg import cho_solve, cholesky, solve_triangular


class LinearBandit:
    """A linear reward, learned from pairs of context and reward.

    H and b are sums over all pairs, so that a round of m pairs costs O(m d^2).

    >>> bandit = LinearBandit(features=2, ridge=1.0)
    >>> bandit.update(contexts=np.array([[1.0, 0.0]]), rewards=np.array([4.0]))
    >>> bandit.theta.round(6).tolist()  # one pair, and a ridge as strong as it: half of the reward
    [2.0, 0.0]
    """

    def __init__(self, features: int, ridge: float):
        self.H = ridge * np.eye(features)  # (d, d)
        self.b = np.zeros(features)  # (d,)

    def update(self, contexts: np.ndarray, rewards: np.ndarray) -> None:
        """Learn from contexts (m, d) and their rewards (m,)."""
        self.H += contexts.T @ contexts
        self.b += contexts.T @ rewards

    @property
    def theta(self) -> np.ndarray:
        """H^-1 b, (d,)."""
        return cho_solve((cholesky(self.H, lower=True), True), self.b)

    def norms(self, contexts: np.ndarray) -> np.ndarray:
        """||x||_{H^-1} = sqrt(x' H^-1 x) of each row x, (n,).

        With H = L L' that is the length of L^-1 x."""
        lower = cholesky(self.H, lower=True)
        whitened = contexts @ solve_triangular(lower, np.eye(len(lower)), lower=True).T
        return np.sqrt(np.einsum("nd,nd->n", whitened, whitened))

    def state_dict(self) -> dict[str, Any]:
        return {"H": self.H, "b": self.b}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.H = state["H"].copy()
        self.b = state["b"].copy()
