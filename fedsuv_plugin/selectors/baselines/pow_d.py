"""Power-of-choice: of d clients drawn in proportion to their data, those with the largest loss.

Paper: Y. J. Cho, J. Wang, G. Joshi. "Towards Understanding Biased Client Selection in Federated
    Learning." AISTATS 2022. Section 3, pi_pow-d: steps 1 (sample the candidate set), 2 (estimate
    local losses), 3 (select).

Paper symbol -> name here
    d -> d    p_k -> clients.samples, divided by their sum    A -> candidates
    F_k(w) -> loss    m -> k
Departures
    d is twice the seats by default, the smallest of the paper's experiments that leaves a choice.
    A candidate that does not answer is passed over.
    Seats left then (or with d < k) go to other online clients, by the largest loss last known.
    A client of unknown loss comes before those of known loss, as in the paper's pi_rpow-d.
    With `utility: accuracy_energy`, as in PCZFL's paper, the candidates of largest utility are
        chosen, where the original takes the largest losses: see accuracy_energy.py.
    Without probes (FedScale's own aggregator) it is pi_rpow-d, with each client's last known loss.
    Ties are broken at random.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedsuv_plugin.params import Params as AnyParams
from fedsuv_plugin.params import param
from fedsuv_plugin.selectors.accuracy_energy import UtilityParams, mean_utility, signals_for
from fedsuv_plugin.selectors.base import (
    ClientTable,
    Probe,
    RoundOutcome,
    RoundView,
    Selector,
    best,
    sample_by_weight,
)
from fedsuv_plugin.selectors.signals import INTERVIEW_ACCURACY, LOSS

CHOICE = 2  # candidates per seat, unless d says otherwise


@dataclass(frozen=True, kw_only=True)
class PowDParams(UtilityParams):
    d: int | None = param(
        None,
        "candidates asked for their loss; none: twice the seats; "
        "as many as seats: drawn by data alone; all clients: always the largest losses",
        low=1,
    )


class PowD(Selector):
    """Asks candidates for their loss and chooses those with the largest."""

    name = "pow_d"
    paper = (
        "Cho et al., Towards Understanding Biased Client Selection in Federated Learning, "
        "AISTATS 2022"
    )
    needs = frozenset({INTERVIEW_ACCURACY})
    probes = frozenset({LOSS, INTERVIEW_ACCURACY})
    Params = PowDParams
    state = ("utility", "loss", "known")

    def __init__(self, params: PowDParams, clients: ClientTable, rng: np.random.Generator):
        super().__init__(params, clients, rng)
        self.utility = mean_utility(params, clients, rng)  # none: chosen by the loss
        self.loss = np.zeros(len(clients))  # (n,) the latest known
        self.known = np.zeros(len(clients), bool)  # (n,) whether any loss is known
        self.candidate = np.zeros(len(clients), bool)  # (n,) in the latest selection

    @classmethod
    def required(cls, params: AnyParams) -> frozenset[str]:
        return signals_for(params, LOSS) & cls.needs

    @classmethod
    def may_ask(cls, params: AnyParams) -> frozenset[str]:
        return signals_for(params, LOSS)

    def probe(self, view: RoundView) -> Probe | None:
        if self.utility is not None:
            return self.utility.question(view)
        self._choose_candidates(view, view.seats or 1)
        return Probe(LOSS, np.flatnonzero(self.candidate))

    def _choose_candidates(self, view: RoundView, k: int) -> None:
        """Step 1: d online clients, drawn in proportion to their data."""
        d = CHOICE * k if self.params.d is None else self.params.d
        weights = self.clients.samples[view.online].astype(float)
        drawn = sample_by_weight(weights, min(d, len(view.online)), self.rng)
        self.candidate = np.zeros(len(self.clients), bool)
        self.candidate[view.online[drawn]] = True

    def select(self, view: RoundView, k: int) -> np.ndarray:
        if self.utility is not None:
            self.utility.hear(view)
        if self.utility is not None or view.probe is None:
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
        """The last known loss; infinity where none is known, so that those clients come first.

        The mean utility, where the job says so."""
        if self.utility is not None:
            return self.utility.values[rows]
        return np.where(self.known[rows], self.loss[rows], np.inf)

    def _learn(self, rows: np.ndarray, loss: np.ndarray) -> None:
        self.loss[rows] = loss
        self.known[rows] = True

    def update(self, outcome: RoundOutcome) -> None:
        """Remember the clients' training losses, for rounds in which they do not answer a probe."""
        if self.utility is not None:
            self.utility.learn(outcome)
        self._learn(outcome.rows[outcome.valid], outcome.loss[outcome.valid])

    def explain(self) -> dict[str, np.ndarray]:
        """`loss` is NaN where it is not known; where it plays no part, `utility` stands there."""
        if self.utility is not None:
            return {"candidate": self.candidate, "utility": self.utility.values}
        return {"candidate": self.candidate, "loss": np.where(self.known, self.loss, np.nan)}

    def diagnostics(self) -> dict[str, Any]:
        if self.utility is not None:
            worth = self.utility.values[self.candidate]
            return {
                "candidates": len(worth),
                "mean_candidate_utility": float(worth.mean()) if len(worth) else None,
            }
        losses = self.loss[self.candidate & self.known]
        return {
            "candidates": int(np.count_nonzero(self.candidate)),
            "mean_candidate_loss": float(losses.mean()) if len(losses) else None,
        }
