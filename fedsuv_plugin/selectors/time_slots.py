"""Time slots: one cohort for several rounds, then the clients' opinions of the model.

Paper: J. Tong, Z. Chen, L. Fu, J. Zhang, Z. Han. "From Learning to Analytics: Improving Model
    Efficacy with Goal-Directed Client Selection." Section III: the closed loop that
    `quick_init_ucb`, `ucb` and `bp_ucb` share.

Paper symbol -> name here
    t -> slot    L -> slot_rounds    K^t -> cohort    r_{t,n} -> the answers to an OPINIONS probe
Departures
    - A member that goes offline is skipped until it is back; in the paper everyone is always there.
    - Opinions are those of the clients online when the slot ends.
    - While no more than K clients are online all of them play and no slot begins, because there is
      nothing to choose and nothing to learn about choosing.
    - One model is trained throughout (`slot_start: carry`), which is what a job is for; in the
      paper's experiments every slot trains anew (`slot_start: restart`).
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fedsuv_plugin.params import Params, param
from fedsuv_plugin.selectors.base import ClientTable, Probe, ProbeAnswer, RoundView, Selector
from fedsuv_plugin.selectors.signals import OPINIONS


@dataclass(frozen=True, kw_only=True)
class SlotParams(Params):
    slot_rounds: int = param(
        15, "rounds of a time slot, all with the same cohort; 1: a new cohort every round", low=1
    )
    slot_start: str = param(
        "carry",
        "carry: a slot goes on with the last one's model; restart: each begins at the initial "
        "model, as in the paper's experiments",
        choices=("carry", "restart"),
    )


class TimeSlotSelector(Selector):
    """Keeps a cohort for the rounds of its slot and asks for opinions when they are over.

    Subclasses write `choose`, which begins a slot, and `learn`, which ends it. Those whose
    `opinions_before` says so also get opinions where no slot has ended, in `hear_before`."""

    time_slots = True
    probes = frozenset({OPINIONS})
    state: ClassVar[tuple[str, ...]] = ("slot", "cohort", "rounds_played", "took_part", "heard")

    def __init__(self, params: Params, clients: ClientTable, rng: np.random.Generator):
        super().__init__(params, clients, rng)
        self.slot = 0  # slots begun, the current one included
        self.cohort = np.empty(0, np.int64)  # rows of the current slot; empty where there is none
        self.rounds_played = 0  # rounds of the current slot
        self.took_part = np.zeros(len(clients), bool)  # (n,) asked in the current slot
        self.heard = False  # whether any opinions have arrived

    @abstractmethod
    def choose(self, online: np.ndarray, k: int) -> np.ndarray:
        """The cohort of slot number `self.slot`; there are more than k rows online."""

    @abstractmethod
    def learn(self, opinions: ProbeAnswer) -> None:
        """Learn what the slot that is over (`slot`, `cohort`, `took_part`) was worth."""

    def opinions_before(self, view: RoundView) -> bool:
        """Whether opinions are wanted now although no slot has ended."""
        return False

    def hear_before(self, opinions: ProbeAnswer) -> None:
        """Learn the opinions that `opinions_before` wanted."""

    def everyone_plays(self) -> None:
        """A round of everyone online, which is part of no slot, is about to train the model."""

    def probe(self, view: RoundView) -> Probe | None:
        over = len(self.cohort) > 0 and self._over()
        asks = over or self.opinions_before(view)
        return Probe(OPINIONS, view.online) if asks and len(view.online) else None

    def restart_model(self, view: RoundView) -> bool:
        return self.params.slot_start == "restart" and self._begins_trained(view)

    def _begins(self, view: RoundView) -> bool:
        """Whether a slot begins now: none is under way, and there is a choice."""
        return self._over() and len(view.online) > (view.seats or 0)

    def _begins_trained(self, view: RoundView) -> bool:
        """Whether a slot begins now with a model that is no longer the initial one."""
        return view.round > 1 and self._begins(view)

    def _over(self) -> bool:
        """Whether no slot is under way: none has begun, or the last has had its rounds."""
        return self.rounds_played == 0 or self.rounds_played >= self.params.slot_rounds

    def select(self, view: RoundView, k: int) -> np.ndarray:
        if not len(view.online):
            # Nobody can give an opinion either, so a slot that is over stays open for them.
            return view.online.copy()
        if self._over():
            self._close(view.probe)
            if len(view.online) <= k:
                self.everyone_plays()
                return self.rng.permutation(view.online)
            self.slot += 1
            self.cohort = self.choose(view.online, k)
        self.rounds_played += 1
        rows = self.cohort[np.isin(self.cohort, view.online)]
        self.took_part[rows] = True
        return rows

    def _close(self, answer: ProbeAnswer | None) -> None:
        """Learn from the slot that is over, if anyone said anything about it."""
        if answer is not None and answer.kind == OPINIONS and len(answer.rows):
            self.heard = True
            if len(self.cohort):
                self.learn(answer)
            else:
                self.hear_before(answer)
        self.cohort = np.empty(0, np.int64)
        self.rounds_played = 0
        self.took_part = np.zeros(len(self.clients), bool)

    def diagnostics(self) -> dict[str, Any]:
        return {"slot": self.slot, "slot_round": self.rounds_played}
