"""Power-of-choice: of d clients drawn in proportion to their data, those with the largest loss.

Paper: Y. J. Cho, J. Wang, G. Joshi. "Towards Understanding Biased Client Selection in Federated Learning."
    AISTATS 2022. Section 3, pi_pow-d: steps 1 (sample the candidate set), 2 (estimate local losses), 3 (select).

Paper symbol -> name here
    d -> d    p_k -> clients.samples, divided by their sum    A -> candidates    F_k(w) -> loss    m -> k
Departures
    The paper fixes d by hand; by default it is twice the seats, the smallest of its experiments that is a choice.
    A candidate that does not answer is passed over. If fewer than k answer, or d < k, the seats left go to the other
    online clients by their last known loss, largest first, those of unknown loss before all others (as in the paper's
    pi_rpow-d, whose memory starts at infinity).
    Where nobody can be probed (FedScale's own aggregator) that memory is all there is: pi_rpow-d, with the training
    loss of a client's last participation.
    Ties are broken at random.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedsuv_plugin.params import Params, param
from fedsuv_plugin.selectors.base import (
    ClientTable,
    Probe,
    RoundOutcome,
    RoundView,
    Selector,
    best,
    sample_by_weight,
)
from fedsuv_plugin.selectors.signals import LOSS

CHOICE = 2  # candidates per seat, unless d says otherwise


@dataclass(frozen=True, kw_only=True)
class PowDParams(Params):
    d: int | None = param(
        None,
        "candidates asked for their loss; none: twice the seats; as many as seats: drawn by data alone; "
        "all clients: always the largest losses",
        low=1,
    )


class PowD(Selector):
    name = "pow_d"
    paper = "Cho et al., Towards Understanding Biased Client Selection in Federated Learning, AISTATS 2022"
    probes = frozenset({LOSS})
    Params = PowDParams
    state = ("loss", "known")

    def __init__(self, params: PowDParams, clients: ClientTable, rng: np.random.Generator):
        super().__init__(params, clients, rng)
        self.loss = np.zeros(len(clients))  # (n,) the latest known
        self.known = np.zeros(len(clients), bool)  # (n,)
        self.candidate = np.zeros(len(clients), bool)  # (n,) of the latest selection

    def probe(self, view: RoundView) -> Probe | None:
        self._choose_candidates(view, view.seats or 1)
        return Probe(LOSS, np.flatnonzero(self.candidate))

    def _choose_candidates(self, view: RoundView, k: int) -> None:
        d = CHOICE * k if self.params.d is None else self.params.d
        drawn = sample_by_weight(
            self.clients.samples[view.online].astype(float), min(d, len(view.online)), self.rng
        )
        self.candidate = np.zeros(len(self.clients), bool)
        self.candidate[view.online[drawn]] = True

    def select(self, view: RoundView, k: int) -> np.ndarray:
        if view.probe is None:
            self._choose_candidates(view, k)
            answered = self.candidate
        else:
            answered = np.zeros(len(self.clients), bool)
            answered[view.probe.rows] = True
            self._learn(view.probe.rows, view.probe.values)
        first = view.online[answered[view.online]]
        others = view.online[~answered[view.online]]
        chosen = first[best(self._score(first), k, self.rng)]
        more = others[best(self._score(others), k - len(chosen), self.rng)]
        return np.concatenate([chosen, more])

    def _score(self, rows: np.ndarray) -> np.ndarray:
        return np.where(self.known[rows], self.loss[rows], np.inf)

    def _learn(self, rows: np.ndarray, loss: np.ndarray) -> None:
        self.loss[rows], self.known[rows] = loss, True

    def update(self, outcome: RoundOutcome) -> None:
        """The loss a client met in training stands in where its loss is not known otherwise."""
        self._learn(outcome.rows[outcome.valid], outcome.loss[outcome.valid])

    def explain(self) -> dict[str, np.ndarray]:
        """`loss` is NaN where it is not known."""
        return {"candidate": self.candidate, "loss": np.where(self.known, self.loss, np.nan)}

    def diagnostics(self) -> dict[str, Any]:
        losses = self.loss[self.candidate & self.known]
        return {
            "candidates": int(np.count_nonzero(self.candidate)),
            "mean_candidate_loss": float(losses.mean()) if len(losses) else None,
        }
