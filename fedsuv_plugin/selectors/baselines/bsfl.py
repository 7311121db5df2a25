"""BSFL: a bandit that learns who is fast, and sees to it that everyone takes part about as often.

Paper: D. Ben Ami, K. Cohen, Q. Zhao. "Client Selection for Generalization in Accelerated Federated
    Learning: A Multi-Armed Bandit Approach." arXiv:2303.10373, 2023. The paper was not at hand. The
    steps are those of a public Python file of unknown author, whose class BSFL sits beside cs_ucb
    and RBCS_F, and have not been checked against the paper.

Paper symbol -> name here
    mu_k -> rate, the mean of tau_min / duration    n_k -> count    t -> rounds    m -> k
    mu_k + sqrt((m + 1) ln t / n_k) -> index    g_k -> need, sign(d) |d|^beta, d = m / N - n_k / t
    alpha, beta, tau_min -> alpha, beta, tau_min
Departures
    The set with the largest min index + alpha * mean need is found exactly, by sorting; the file
        looks for it by simulated annealing.
    tau_min is the smallest expected duration of all clients, so that rates reach up to 1; in the
        file it is 0.1. Who is faster still has rate 1.
    The file's other form, in which d follows the amount and the quality of data, is left out.
    Everyone asked counts, with the time that it takes, whether it was valid or not.
    t counts the rounds in which somebody was asked.
    Clients that were never asked come first whenever they are online, at random; seats that they
        leave go to the best set of the others.
    Ties are broken at random.

Everyone is asked once first. With many clients a job ends before that, and the selection is random.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedsuv_plugin.params import Params, param
from fedsuv_plugin.selectors.base import ClientTable, RoundOutcome, RoundView, Selector, best

BLOCK = 4096  # clients that are looked at together in the search for the best set


@dataclass(frozen=True, kw_only=True)
class BSFLParams(Params):
    alpha: float = param(
        1.0, "weight of equal participation; 0: speed alone, very large: everyone in turn", low=0
    )
    beta: float = param(
        5.0,
        "exponent of how far a client's participation is off; large: small gaps do not count",
        above=0,
    )
    tau_min: float | None = param(
        None, "seconds that count as rate 1; none: the smallest expected of all clients", above=0
    )


class BSFL(Selector):
    """Used as `sample_mode: bsfl`.

    >>> best_set(np.array([0.9, 0.8, 0.1]), np.array([0.0, 0.1, 0.9]), 2, 1.0)
    array([0, 1])
    >>> best_set(np.array([0.9, 0.8, 0.1]), np.array([0.0, 0.1, 0.9]), 2, 9.0)
    array([1, 2])
    """

    name = "bsfl"
    paper = (
        "Ben Ami et al., Client Selection for Generalization in Accelerated FL: A Multi-Armed "
        "Bandit Approach, arXiv:2303.10373"
    )
    Params = BSFLParams
    state = ("rate", "count", "rounds")

    def __init__(self, params: BSFLParams, clients: ClientTable, rng: np.random.Generator):
        super().__init__(params, clients, rng)
        n = len(clients)
        smallest = float(clients.expected_duration.min(initial=math.inf))
        self._tau_min = smallest if params.tau_min is None else params.tau_min
        self.rate = np.zeros(n)  # (n,) mean over the client's participations
        self.count = np.zeros(n, np.int64)  # (n,)
        self.rounds = 0
        self._forget_selection()

    def _forget_selection(self) -> None:
        """Reset what `explain` and `diagnostics` say about the latest selection."""
        self.index = np.full(len(self.clients), np.nan)
        self.need = np.full(len(self.clients), np.nan)
        self._parts: dict[str, Any] = {"explored": 0, "lowest_index": None, "mean_need": None}

    def update(self, outcome: RoundOutcome) -> None:
        self.rounds += 1
        rows = outcome.rows
        # Written so that a duration of 0 does not divide.
        seconds = np.maximum(outcome.duration, self._tau_min)
        told = np.divide(self._tau_min, seconds, out=np.ones(len(rows)), where=seconds > 0)
        self.count[rows] += 1
        self.rate[rows] += (told - self.rate[rows]) / self.count[rows]

    def select(self, view: RoundView, k: int) -> np.ndarray:
        self._forget_selection()
        k = min(k, len(view.online))
        seen = self.count[view.online] > 0
        new = view.online[~seen]
        new = new[best(np.zeros(len(new)), k, self.rng)]
        rows = self.rng.permutation(view.online[seen])  # so that ties are broken at random
        if not len(rows):
            self._parts["explored"] = len(new)
            return new
        count = self.count[rows]
        self.index[rows] = self.rate[rows] + np.sqrt((k + 1) * math.log(self.rounds) / count)
        off = k / len(self.clients) - count / self.rounds
        self.need[rows] = np.sign(off) * np.abs(off) ** self.params.beta
        seats = k - len(new)
        chosen = rows[best_set(self.index[rows], self.need[rows], seats, self.params.alpha)]
        self._parts = {
            "explored": len(new),
            "lowest_index": float(self.index[chosen].min()) if seats else None,
            "mean_need": float(self.need[chosen].mean()) if seats else None,
        }
        return np.concatenate([new, chosen])

    def explain(self) -> dict[str, np.ndarray]:
        """`rate` is NaN where a client was never asked, `index` and `need` also where offline."""
        return {
            "rate": np.where(self.count > 0, self.rate, np.nan),
            "count": self.count,
            "index": self.index,
            "need": self.need,
        }

    def diagnostics(self) -> dict[str, Any]:
        return {"unexplored": int(np.count_nonzero(self.count == 0)), **self._parts}


def best_set(index: np.ndarray, need: np.ndarray, m: int, alpha: float) -> np.ndarray:
    """Positions of the m with the largest min index + alpha * mean need, highest index first.

    Whichever has the lowest index of the best set, the others are those of largest need among the
    clients whose index is not lower. So clients are taken by descending index, and of those taken
    the m of largest need are kept. Only a client that comes to be kept can make a better set.
    Expected time O(n log n)."""
    if m >= len(index):
        return np.argsort(-index, kind="stable")
    if m <= 0:
        return np.empty(0, np.int64)
    order = np.argsort(-index, kind="stable")
    most = float(np.partition(need, len(need) - m)[len(need) - m :].mean())  # of any set
    kept = need[order[:m]].tolist()
    heapq.heapify(kept)
    total = sum(kept)
    value = float(index[order[m - 1]]) + alpha * total / m
    end = m  # the best set is the m of largest need among so many of highest index
    for start in range(m, len(order), BLOCK):
        block = order[start : start + BLOCK]
        if float(index[block[0]]) + alpha * most < value:
            break
        for step in np.flatnonzero(need[block] > kept[0]).tolist():
            new = float(need[block[step]])
            if new <= kept[0]:
                continue
            total += new - heapq.heapreplace(kept, new)
            now = float(index[block[step]]) + alpha * total / m
            if now > value:
                value = now
                end = start + step + 1
    taken = order[:end]
    return taken[np.sort(np.argsort(-need[taken], kind="stable")[:m])]
