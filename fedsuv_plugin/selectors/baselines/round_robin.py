"""Round robin: whoever has waited longest goes next.

Paper: H. H. Yang, Z. Liu, T. Q. S. Quek, H. V. Poor. "Scheduling Policies for Federated Learning in Wireless
    Networks." IEEE Trans. Communications 68(1), 2020. Section III-B, policy "RR".

Departures
    The paper cuts the clients into fixed groups and every client is always there. Here the groups form as the job
    runs, at random in the first pass, so that clients that come and go still take equal turns.
"""
from __future__ import annotations

import numpy as np

from fedsuv_plugin.params import Params
from fedsuv_plugin.selectors.base import ClientTable, RoundView, Selector, best


class RoundRobin(Selector):
    name = "round_robin"
    paper = "Yang et al., Scheduling Policies for Federated Learning in Wireless Networks, IEEE TCOM 2020"
    state = ("last_asked",)

    def __init__(self, params: Params, clients: ClientTable, rng: np.random.Generator):
        super().__init__(params, clients, rng)
        self.last_asked = np.zeros(len(clients), np.int64)  # 0 = never; rounds count from 1

    def select(self, view: RoundView, k: int) -> np.ndarray:
        rows = view.online[best(-self.last_asked[view.online], k, self.rng)]
        self.last_asked[rows] = view.round
        return rows

    def explain(self) -> dict[str, np.ndarray]:
        return {"last_asked": self.last_asked}
