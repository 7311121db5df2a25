"""Updates that are on the way: asked for in one round, to be merged in a later one."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from fedsuv_plugin.engine.rounds import OnTheWay, Spent
from fedsuv_plugin.selectors.maths.vector_store import VectorStore


@dataclass(frozen=True)
class PendingUpdate:
    """An update on the way, without its vector."""

    client: int
    asked_in: int  # the round
    arrival: float  # on the virtual clock
    spent: Spent


class Pending:
    """The updates on the way, at most one a client."""

    def __init__(self, budget_mb: int):
        self._updates: dict[int, PendingUpdate] = {}
        self._vectors = VectorStore(budget_mb)

    @property
    def clients(self) -> list[int]:
        """Whose updates they are, ascending."""
        return sorted(self._updates)

    @property
    def spent(self) -> Spent:
        """What they have cost their clients."""
        return sum((self._updates[client].spent for client in self.clients), Spent())

    def on_the_way(self, clock: float) -> OnTheWay:
        clients = self.clients
        seconds = [self._updates[client].arrival - clock for client in clients]
        return OnTheWay(np.array(clients, np.int64), np.array(seconds))

    def arrived_by(self, clock: float) -> np.ndarray:
        """Whose updates are there by then, in the order of arrival."""
        there = [u for u in self._updates.values() if u.arrival <= clock]
        there.sort(key=lambda update: (update.arrival, update.client))
        return np.array([update.client for update in there], np.int64)

    def add(self, update: PendingUpdate, vector: np.ndarray) -> None:
        self._updates[update.client] = update
        self._vectors[update.client] = vector

    def pop(self, client: int) -> tuple[PendingUpdate, np.ndarray]:
        """The update of a client, which is on the way no longer."""
        vector = np.array(self._vectors.pop(client))  # its place may be taken by another
        return self._updates.pop(client), vector

    def drop(self, client: int) -> Spent:
        """Give an update up; what it had cost."""
        del self._vectors[client]
        return self._updates.pop(client).spent

    def state_dict(self) -> dict[str, Any]:
        return {
            "updates": [asdict(update) for update in self._updates.values()],
            "vectors": [self._vectors[client] for client in self._updates],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._updates.clear()
        self._vectors.clear()
        for each, vector in zip(state["updates"], state["vectors"], strict=True):
            self.add(PendingUpdate(**{**each, "spent": Spent(**each["spent"])}), vector)
