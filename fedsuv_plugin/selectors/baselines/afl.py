"""AFL: clients whose data fit the global model worst are drawn more often, some others at random.

Paper: J. Goetz, K. Malik, D. Bui, S. Moon, H. Liu, A. Kumar. "Active Federated Learning."
    arXiv:1909.12641, 2019. Algorithm 1. Neither the paper nor code by its authors was at hand. The
    steps are those of the AFL in FedCor's code (github.com/Yoruko-Tang/FedCor,
    src/federated_main.py), and have not been checked against the paper.

Paper symbol -> name here
    v_k = (1 / sqrt(n_k)) sum of the client's sample losses -> valuation, sqrt(samples) * mean loss
    n_k -> clients.samples    p_k -> probability    m -> k
    alpha_1, alpha_2, alpha_3 -> drop_share, softmax_factor, uniform_share
Departures
    With `utility: accuracy_energy`, as in PCZFL's paper, v_k is that utility, without sqrt(n_k):
        see accuracy_energy.py. It is within [0, 1], where the default alpha_2 makes probabilities
        differ by at most 1 %: nearly a uniform draw among those that are not dropped.
    Everyone is asked for the loss when first online, not all before the first round.
    A client whose answer was lost is asked again in every round until one arrives.
    Until then its valuation is the median of all known ones, online or not.
    alpha_1 and m count the online clients, not all.
    Seats that cannot be filled by value, as too few are left, go to the uniform draw.
    Ties at the boundary of the dropped are broken at random.
    Where updates come without the loss (FedScale's own aggregator), the training loss stands in.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import softmax

from fedsuv_plugin.params import Params as AnyParams
from fedsuv_plugin.params import param
from fedsuv_plugin.selectors.accuracy_energy import UtilityParams, mean_utility, signals_for
from fedsuv_plugin.selectors.base import ClientTable, Probe, RoundOutcome, RoundView, Selector, best
from fedsuv_plugin.selectors.signals import INTERVIEW_ACCURACY, LOSS

LARGEST = 1e30  # valuations are clipped to this size, so that no difference overflows
# 0.9 * 10 must not become 8 seats because a product comes out as 8.999...
ROUNDING = 1e-9


@dataclass(frozen=True, kw_only=True)
class AflParams(UtilityParams):
    drop_share: float = param(
        0.75,
        "alpha_1, share of the online clients, those of lowest value, that the draw by value "
        "leaves out; 0: nobody, 1: all, so that everyone is drawn uniformly",
        low=0,
        high=1,
    )
    softmax_factor: float = param(
        0.01,
        "alpha_2, by which valuations are multiplied before the softmax; 0: all alike, large: "
        "the highest valuations",
        low=0,
    )
    uniform_share: float = param(
        0.1, "alpha_3, share of the seats that are drawn uniformly; 1: all", low=0, high=1
    )


class Afl(Selector):
    """Used as `sample_mode: afl`.

    >>> [by_value(k, AflParams().uniform_share) for k in (5, 10, 20, 200)]
    [4, 9, 18, 180]
    """

    name = "afl"
    paper = "Goetz et al., Active Federated Learning, arXiv:1909.12641"
    needs = frozenset({LOSS, INTERVIEW_ACCURACY})
    probes = frozenset({LOSS, INTERVIEW_ACCURACY})
    Params = AflParams
    state = ("utility", "valuation", "known")

    def __init__(self, params: AflParams, clients: ClientTable, rng: np.random.Generator):
        super().__init__(params, clients, rng)
        self.utility = mean_utility(params, clients, rng)  # none: the valuation is the paper's own
        self.valuation = np.zeros(len(clients))  # (n,) the latest known
        self.known = np.zeros(len(clients), bool)  # (n,) whether there is one
        self._forget_selection()

    def _forget_selection(self) -> None:
        """Reset what `explain` and `diagnostics` say about the latest selection."""
        self.probability = np.full(len(self.clients), np.nan)
        self.dropped = np.zeros(len(self.clients), bool)
        self._parts = {"by_value": 0, "uniform": 0}

    @classmethod
    def required(cls, params: AnyParams) -> frozenset[str]:
        return signals_for(params, LOSS)

    @classmethod
    def may_ask(cls, params: AnyParams) -> frozenset[str]:
        return signals_for(params, LOSS)

    def probe(self, view: RoundView) -> Probe | None:
        if self.utility is not None:
            return self.utility.question(view)
        rows = view.online[~self.known[view.online]]
        return Probe(LOSS, rows) if len(rows) else None

    def update(self, outcome: RoundOutcome) -> None:
        """Renew the valuations of the cohort, under the model that it received."""
        if self.utility is not None:
            self.utility.learn(outcome)
            return
        loss = outcome.signals.get(LOSS, outcome.loss)
        self._learn(outcome.rows[outcome.valid], loss[outcome.valid])

    def _learn(self, rows: np.ndarray, loss: np.ndarray) -> None:
        value = np.sqrt(self.clients.samples[rows]) * np.clip(loss, -LARGEST, LARGEST)
        self.valuation[rows] = np.clip(value, -LARGEST, LARGEST)
        self.known[rows] = True

    def select(self, view: RoundView, k: int) -> np.ndarray:
        self._forget_selection()
        if self.utility is not None:
            self.utility.hear(view)
            self.valuation = self.utility.values
            self.known[:] = True
        elif view.probe is not None:
            self._learn(view.probe.rows, view.probe.values)
        online = view.online
        k = min(k, len(online))
        value = self._believed(online)
        kept = self._keep_highest(value)
        self.dropped[online] = ~kept
        self.probability[online] = 0.0
        candidates = np.flatnonzero(kept)
        if len(candidates):
            worth = self.params.softmax_factor * value[candidates]
            self.probability[online[candidates]] = softmax(worth)
        seats = by_value(k, self.params.uniform_share)
        drawn = candidates[self._draw(value[candidates], seats)]
        left = np.ones(len(online), bool)
        left[drawn] = False
        others = np.flatnonzero(left)
        more = others[best(np.zeros(len(others)), k - len(drawn), self.rng)]
        self._parts = {"by_value": len(drawn), "uniform": len(more)}
        return online[np.concatenate([drawn, more])]

    def _believed(self, rows: np.ndarray) -> np.ndarray:
        """The valuations of `rows`; the median of all known ones stands in for unknown ones."""
        middle = float(np.median(self.valuation[self.known])) if self.known.any() else 0.0
        return np.where(self.known[rows], self.valuation[rows], middle)

    def _keep_highest(self, value: np.ndarray) -> np.ndarray:
        """The mask of those that take part in the draw by value: all but the lowest alpha_1."""
        kept = np.ones(len(value), bool)
        drop = math.floor(self.params.drop_share * len(value) + ROUNDING)
        kept[best(-value, drop, self.rng)] = False
        return kept

    def _draw(self, value: np.ndarray, seats: int) -> np.ndarray:
        """Positions drawn without replacement, each next one in proportion to exp(alpha_2 v).

        log(weight) - log(Exp(1)) has the same order as weight / Exp(1), with which
        `sample_by_weight` draws. In logarithms no weight becomes 0, however high one value is."""
        clocks = self.rng.standard_exponential(len(value))
        return best(self.params.softmax_factor * value - np.log(clocks), seats, self.rng)

    def explain(self) -> dict[str, np.ndarray]:
        """`valuation` is NaN where it is not known, `probability` where a client was offline."""
        return {
            "valuation": np.where(self.known, self.valuation, np.nan),
            "probability": self.probability,
            "dropped": self.dropped,
        }

    def diagnostics(self) -> dict[str, Any]:
        known = self.valuation[self.known]
        return {
            "known": len(known),
            "median_valuation": float(np.median(known)) if len(known) else None,
            "dropped": int(np.count_nonzero(self.dropped)),
            **self._parts,
        }


def by_value(k: int, uniform_share: float) -> int:
    """The seats, of k, that are drawn by value."""
    return math.floor((1 - uniform_share) * k + ROUNDING)
