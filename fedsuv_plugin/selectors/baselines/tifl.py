"""TiFL: cohorts of clients that are about equally fast, more often from tiers the model serves ill.

Paper: Z. Chai, A. Ali, S. Zawad, S. Truex, A. Anwar, N. Baracaldo, Y. Zhou, H. Ludwig, F. Yan,
    Y. Cheng. "TiFL: A Tier-based Federated Learning System." HPDC 2020. Algorithm 2, the adaptive
    policy. The paper was not at hand. Its steps are remembered, and compared with two copies by
    others: fltk (github.com/bacox/fltk, client_selection/tifl.py) and FLGo
    (github.com/WwZzz/easyFL, resources/algorithm/TiFL.py).

Paper symbol -> name here
    T -> tiers    Credits_t -> credits    Probs_t -> probability    currentTier -> current
    I -> interval    A_t^r -> accuracy, the mean OPINIONS of a tier's clients    |C| -> k
Departures
    Latencies are the client table's expected durations; nobody is profiled, and nobody dropped.
    Tiers are of equal size, but for one client. There are never more of them than clients.
    A tier has ceil(rounds / T) credits, as in fltk, unless a job says otherwise.
    New probabilities follow fltk's rule: of the n tiers that have credits the lowest accuracy has n
        shares, the next n - 1, and so on. The paper leaves its rule open.
    A tier's accuracy is that of its clients that are online and hold data out. Where nobody
        answers it stays; where nobody ever has, it is the mean of the other tiers'.
    A tier without anyone online is not drawn. Credits do not count where no other has any left.
    Seats that a tier cannot fill go to another tier, drawn likewise, at no cost in credits.
    Ties of latency and of accuracy are broken at random.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedsuv_plugin.params import Params, param
from fedsuv_plugin.selectors.base import (
    ClientTable,
    Probe,
    ProbeAnswer,
    RoundView,
    Selector,
    best,
    sample_by_weight,
)
from fedsuv_plugin.selectors.signals import OPINIONS

NOBODY = -1  # the current tier before the first selection


@dataclass(frozen=True, kw_only=True)
class TiFLParams(Params):
    tiers: int = param(5, "T, groups of clients by their speed; 1: a random selector", low=1)
    interval: int = param(
        10,
        "I, rounds after which everyone online is asked for an opinion and probabilities may "
        "change; 1: in every round",
        low=1,
        scales_with="rounds",
    )
    credits: int | None = param(
        None,
        "rounds that a tier may have; none: rounds / tiers, rounded up; all rounds: no limit",
        low=1,
        scales_with="rounds",
    )


class TiFL(Selector):
    """Used as `sample_mode: tifl`; every `interval` rounds it asks everyone online.

    >>> ranked(np.array([0.8, 0.6, 0.7]), np.random.default_rng(0)).round(3).tolist()
    [0.167, 0.5, 0.333]
    """

    name = "tifl"
    paper = "Chai et al., TiFL: A Tier-based Federated Learning System, HPDC 2020"
    probes = frozenset({OPINIONS})
    Params = TiFLParams
    state = ("tier", "credits", "probability", "accuracy", "known", "current", "asked")

    def __init__(self, params: TiFLParams, clients: ClientTable, rng: np.random.Generator):
        super().__init__(params, clients, rng)
        n = len(clients)
        tiers = min(params.tiers, max(n, 1))
        self.tier = np.empty(n, np.int64)  # (n,) 0 is the fastest
        order = np.lexsort((rng.random(n), clients.expected_duration))
        for number, rows in enumerate(np.array_split(order, tiers)):
            self.tier[rows] = number
        # (T,) rounds left to each tier; it depends on the job's rounds, which the first view tells
        self.credits = np.zeros(0, np.int64)
        self.probability = np.full(tiers, 1 / tiers)  # (T,)
        self.accuracy = np.zeros(tiers)  # (T,) the latest known
        self.known = np.zeros(tiers, bool)  # (T,) whether there is one
        self.current = NOBODY  # the tier of the latest cohort
        self.asked: int | None = None  # the round in which opinions were asked for

    # ---- probabilities

    def probe(self, view: RoundView) -> Probe | None:
        due = self.asked is None or view.round - self.asked >= self.params.interval
        return Probe(OPINIONS, view.online) if due and len(view.online) else None

    def _hear(self, answer: ProbeAnswer) -> None:
        """New probabilities, if the current tier is no better off than an interval ago."""
        compared = self.current != NOBODY and self.known[self.current]
        before = self.accuracy[self.current] if compared else np.nan
        tier = self.tier[answer.rows]
        count = np.bincount(tier, minlength=len(self.accuracy))
        total = np.bincount(tier, weights=answer.values, minlength=len(self.accuracy))
        told = count > 0
        self.accuracy[told] = total[told] / count[told]
        self.known |= told
        if self.current == NOBODY or not told[self.current]:
            return
        # Before there is an earlier accuracy, the comparison with NaN is false: nothing changes.
        if self.accuracy[self.current] <= before:
            self._change_probabilities()

    def _change_probabilities(self) -> None:
        """The lower a tier's accuracy the higher its probability; without credits it has none."""
        standing = np.flatnonzero(self.credits > 0)
        if not len(standing):
            standing = np.arange(len(self.credits))
        accuracy = np.where(self.known, self.accuracy, self.accuracy[self.known].mean())
        self.probability[:] = 0.0
        self.probability[standing] = ranked(accuracy[standing], self.rng)

    # ---- choosing

    def select(self, view: RoundView, k: int) -> np.ndarray:
        if not len(self.credits):
            each = math.ceil(view.total_rounds / len(self.probability))
            each = each if self.params.credits is None else self.params.credits
            self.credits = np.full(len(self.probability), each)
        if view.probe is not None:
            self.asked = view.round
            self._hear(view.probe)
        k = min(k, len(view.online))
        if not k:
            return view.online[:0]
        order = self._draw_tiers(np.unique(self.tier[view.online]))
        self.current = int(order[0])
        self.credits[self.current] = max(0, self.credits[self.current] - 1)
        place = np.empty(len(self.probability), np.int64)
        place[order] = np.arange(len(order))
        # The tiers in the order of the draw, each in random order.
        return view.online[best(-place[self.tier[view.online]].astype(float), k, self.rng)]

    def _draw_tiers(self, there: np.ndarray) -> np.ndarray:
        """The tiers that have someone online, in the order of a draw without replacement.

        Those without credits come after all others, and so do those of probability 0 after them."""
        paid = there[self.credits[there] > 0]
        free = there[self.credits[there] == 0]
        drawn = [rows[self._draw(rows)] for rows in (paid, free)]
        return np.concatenate(drawn)

    def _draw(self, tiers: np.ndarray) -> np.ndarray:
        return sample_by_weight(self.probability[tiers], len(tiers), self.rng)

    # ---- what it tells

    def explain(self) -> dict[str, np.ndarray]:
        """`probability` and `accuracy` are those of the client's tier; the latter may be NaN."""
        return {
            "tier": self.tier,
            "probability": self.probability[self.tier],
            "accuracy": np.where(self.known, self.accuracy, np.nan)[self.tier],
        }

    def diagnostics(self) -> dict[str, Any]:
        return {
            "tier": self.current,
            "credits": self.credits.tolist(),
            "probabilities": self.probability.tolist(),
            "accuracies": [
                accuracy if known else None
                for accuracy, known in zip(self.accuracy.tolist(), self.known.tolist(), strict=True)
            ],
        }


def ranked(accuracy: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Probabilities (n,) of n tiers: the lowest accuracy n shares, the next n - 1, and so on."""
    n = len(accuracy)
    shares = np.empty(n)
    shares[np.lexsort((rng.random(n), accuracy))] = np.arange(n, 0, -1)
    return shares / (n * (n + 1) / 2)
