"""Round robin: whoever has waited longest goes next.

Paper: H. H. Yang, Z. Liu, T. Q. S. Quek, H. V. Poor. "Scheduling Policies for Federated Learning
    in Wireless Networks." IEEE Trans. Communications 68(1), 2020. Section III-B, policy "RR".

Paper symbol -> name here
    none: the paper describes the policy in words
Departures
    The paper's fixed groups would break up when clients go offline; a queue gives equal turns.
    The order of the first pass is random.
"""

from __future__ import annotations

import numpy as np

from fedsuv_plugin.params import Params
from fedsuv_plugin.selectors.base import ClientTable, RoundView, Selector, best


class RoundRobin(Selector):
    """A queue: the online clients nearest to its front are chosen and go to its end."""

    name = "round_robin"
    paper = (
        "Yang et al., Scheduling Policies for Federated Learning in Wireless Networks, "
        "IEEE TCOM 2020"
    )
    state = ("ticket", "issued")

    def __init__(self, params: Params, clients: ClientTable, rng: np.random.Generator):
        super().__init__(params, clients, rng)
        # (n,) place in the queue, lowest first; 0: never asked
        self.ticket = np.zeros(len(clients), np.int64)
        self.issued = 0  # tickets so far

    def select(self, view: RoundView, k: int) -> np.ndarray:
        rows = view.online[best(-self.ticket[view.online], k, self.rng)]
        self.ticket[rows] = self.issued + 1 + np.arange(len(rows))
        self.issued += len(rows)
        return rows

    def explain(self) -> dict[str, np.ndarray]:
        return {"ticket": self.ticket}
