"""A model of every client on the server, and their weighted sum: what SAFA calls the cache.

Most clients have not sent a model of their own lately. Theirs is the global model of some round,
of which one copy serves all of them, so that memory grows with what differs from global models.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fedsuv_plugin.selectors.maths.vector_store import VectorStore

OWN = -1  # in place of the number of a global model: the client's own


class ClientModels:
    """Models as vectors of one length; clients are rows 0, 1, ... n - 1.

    >>> models = ClientModels(np.array([0.25, 0.75]), np.array([4.0]), budget_mb=1)
    >>> models.put(0, np.array([8.0]))
    >>> models.sum.tolist()
    [5.0]
    """

    def __init__(self, shares: np.ndarray, initial: np.ndarray, budget_mb: int):
        """`shares` (n,) are the clients' weights in the sum; all begin with the model `initial`."""
        self._shares = shares
        self._number = np.zeros(len(shares), np.int64)  # (n,) of the global model, or OWN
        self._globals = {0: np.asarray(initial, np.float32)}  # by number
        self._own = VectorStore(budget_mb)
        self.sum = shares.sum() * np.asarray(initial, np.float64)

    def __getitem__(self, row: int) -> np.ndarray:
        number = int(self._number[row])
        return self._own[row] if number == OWN else self._globals[number]

    def put(self, row: int, model: np.ndarray) -> None:
        """The client's model is its own from now on."""
        self.sum += self._shares[row] * (np.asarray(model, np.float64) - self[row])
        self._own[row] = model
        self._number[row] = OWN

    def reset(self, rows: np.ndarray, number: int, model: np.ndarray) -> None:
        """The clients' models are the global one of that number from now on."""
        if not len(rows):
            return
        for row in rows[self._number[rows] == OWN].tolist():
            self.sum -= self._shares[row] * self._own.pop(row).astype(np.float64)
        for old, shared in self._globals.items():
            left = rows[self._number[rows] == old]
            self.sum -= self._shares[left].sum() * shared.astype(np.float64)
        self._globals[number] = np.asarray(model, np.float32)
        self._number[rows] = number
        self.sum += self._shares[rows].sum() * np.asarray(model, np.float64)
        used = set(np.unique(self._number).tolist())
        self._globals = {n: shared for n, shared in self._globals.items() if n in used}

    def state_dict(self) -> dict[str, Any]:
        return {
            "sum": self.sum,
            "number": self._number,
            "globals": self._globals,
            "own": dict(self._own),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.sum = np.array(state["sum"])
        self._number = np.array(state["number"])
        self._globals = dict(state["globals"])
        self._own.clear()
        self._own.update(state["own"])
