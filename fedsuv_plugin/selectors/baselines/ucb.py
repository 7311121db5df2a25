"""UCB over sets of clients: every set is an arm, and sets never played come first.

Paper: P. Auer, N. Cesa-Bianchi, P. Fischer. "Finite-time Analysis of the Multiarmed Bandit
    Problem." Machine Learning 47, 2002. UCB1, as the baseline of J. Tong et al.,
    "From Learning to Analytics: Improving Model Efficacy with Goal-Directed Client Selection",
    Section VI-A, where its arms are the sets of K clients.

Paper symbol -> name here
    r-bar_{t,a} -> table.mean    Pi_{t,a} -> table.count    mu -> mu    t -> slot
Departures
    While most sets are new, a set is drawn at random until one is new; the arms are not listed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from fedsuv_plugin.params import param
from fedsuv_plugin.selectors.base import ClientTable, ProbeAnswer, best
from fedsuv_plugin.selectors.maths.set_table import SetTable
from fedsuv_plugin.selectors.time_slots import SlotParams, TimeSlotSelector


@dataclass(frozen=True, kw_only=True)
class UCBParams(SlotParams):
    mu: float = param(
        1.0, "width of the confidence bound; 0: always the set with the best mean", low=0
    )


class UCB(TimeSlotSelector):
    """UCB1 whose arms are the sets of k online clients."""

    name = "ucb"
    paper = (
        "Auer et al., Finite-time Analysis of the Multiarmed Bandit Problem, Machine Learning 2002"
    )
    Params = UCBParams
    state = (*TimeSlotSelector.state, "times_played")

    def __init__(self, params: UCBParams, clients: ClientTable, rng: np.random.Generator):
        super().__init__(params, clients, rng)
        self.times_played = np.zeros(len(clients), np.int64)  # (n,) slots asked in
        self.table = SetTable()
        self._index: float | None = None  # of the set chosen last; None: it was new

    def choose(self, online: np.ndarray, k: int) -> np.ndarray:
        mask = np.zeros(len(self.clients), bool)
        mask[online] = True
        played = self.table.within(mask)
        self._index = None
        chosen = self._new_set(online, k, len(played))
        if chosen is None:
            bounds = self.table.upper_bounds(played, self.params.mu, self.slot)
            place = int(best(bounds, 1, self.rng)[0])
            self._index = float(bounds[place])
            chosen = self.table.sets[played[place]]
        self.times_played[chosen] += 1
        return chosen

    def _new_set(self, online: np.ndarray, k: int, played: int) -> np.ndarray | None:
        """A set of online clients not played yet, each as likely as any other, or None."""
        sets = math.comb(len(online), k)
        if 2 * played < sets:  # in integers: a float cannot hold the number of sets
            drawn = self.rng.choice(online, k, replace=False)
            while drawn in self.table:
                drawn = self.rng.choice(online, k, replace=False)
            return drawn
        if played >= sets:
            return None
        listed = map(np.array, combinations(online.tolist(), k))
        new = [rows for rows in listed if rows not in self.table]
        return new[int(self.rng.integers(len(new)))] if new else None

    def learn(self, opinions: ProbeAnswer) -> None:
        self.table.add(self.cohort, float(opinions.values.mean()))

    def explain(self) -> dict[str, np.ndarray]:
        return {"times_played": self.times_played}

    def diagnostics(self) -> dict[str, Any]:
        return {
            **super().diagnostics(),
            "chosen_index": self._index,
            "sets_played": len(self.table),
        }

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "table": self.table.state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.table = SetTable(**state["table"])
