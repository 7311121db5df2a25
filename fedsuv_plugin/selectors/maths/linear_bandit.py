"""Ridge regression with confidence widths: the estimate behind LinUCB.

L. Li, W. Chu, J. Langford, R. Schapire. "A Contextual-Bandit Approach to Personalized News Article Recommendation."
WWW 2010. One weight vector for all arms: H = ridge I + sum x x', b = sum r x, theta = H^-1 b.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.linalg import cho_solve, cholesky, solve_triangular


class LinearBandit:
    """Learns a linear reward from (context, reward) pairs; H and b are sums, so a round costs O(m d^2)."""

    def __init__(self, features: int, ridge: float):
        self.H = ridge * np.eye(features)  # (d, d)
        self.b = np.zeros(features)  # (d,)

    def update(self, contexts: np.ndarray, rewards: np.ndarray) -> None:
        """Contexts (m, d) and what they gave (m,)."""
        self.H += contexts.T @ contexts
        self.b += contexts.T @ rewards

    @property
    def theta(self) -> np.ndarray:
        """H^-1 b, (d,)."""
        return cho_solve((cholesky(self.H, lower=True), True), self.b)

    def norms(self, contexts: np.ndarray) -> np.ndarray:
        """||x||_{H^-1} = sqrt(x' H^-1 x) of each row, (n,): with H = L L', the length of L^-1 x."""
        lower = cholesky(self.H, lower=True)
        whitened = contexts @ solve_triangular(lower, np.eye(len(lower)), lower=True).T
        return np.sqrt(np.einsum("nd,nd->n", whitened, whitened))

    def state_dict(self) -> dict[str, Any]:
        return {"H": self.H, "b": self.b}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.H, self.b = state["H"].copy(), state["b"].copy()
