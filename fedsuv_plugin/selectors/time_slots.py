"""Time slots: one cohort for several rounds, and the clients' opinions of the model when they are over.

Paper: J. Tong, Z. Chen, L. Fu, J. Zhang, Z. Han. "From Learning to Analytics: Improving Model Efficacy with
    Goal-Directed Client Selection." Section III: the closed loop that `quick_init_ucb`, `ucb` and `bp_ucb` share.

Paper symbol -> name here
    t -> slot    L -> slot_rounds    K^t -> cohort    r_{t,n} -> the answers to an OPINIONS probe
Departures
    In the paper everyone is always there. Here a member that goes offline is skipped until it is back, opinions are
    those of the clients online when the slot ends, and while no more than K clients are online all of them play and no
    slot begins: there is nothing to choose and nothing to learn about choosing.
    In the paper's experiments every slot trains anew: its table I has the optimal set at 0.7683, 0.7843, 0.8217 and
    0.8515 after 6, 7, 11 and 19 slots, which is t/(t + 1) times 0.8963, each time the same. That is `slot_start:
    restart`. The default, `carry`, trains one model throughout, which is what a job is for.
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
        "carry: a slot goes on with the last one's model; restart: each begins at the initial model, as in "
        "the paper's experiments",
        choices=("carry", "restart"),
    )


class TimeSlotSelector(Selector):
    """Carries cohorts through their slots. Subclasses write `choose`, which begins a slot, and `learn`, which ends
    it; for opinions before the first slot they set `opinions_first`."""

    time_slots = True
    probes = frozenset({OPINIONS})
    state: ClassVar[tuple[str, ...]] = ("slot", "cohort", "rounds_played", "took_part", "heard")
    opinions_first = False

    def __init__(self, params: Params, clients: ClientTable, rng: np.random.Generator):
        super().__init__(params, clients, rng)
        self.slot = 0  # slots begun, the current one included
        self.cohort = np.empty(0, np.int64)  # rows of the current slot; none: no slot is under way
        self.rounds_played = 0  # rounds of the current slot
        self.took_part = np.zeros(len(clients), bool)  # (n,) asked in the current slot
        self.heard = False  # opinions have arrived

    @abstractmethod
    def choose(self, online: np.ndarray, k: int) -> np.ndarray:
        """The cohort of slot number `self.slot`; there are more than k rows online."""

    @abstractmethod
    def learn(self, opinions: ProbeAnswer) -> None:
        """What the slot that is over was worth: `self.slot`, `self.cohort`, `self.took_part`."""

    def hear_first(self, opinions: ProbeAnswer) -> None:
        """The opinions of the untrained model, where `opinions_first`."""

    def probe(self, view: RoundView) -> Probe | None:
        over = len(self.cohort) > 0 and self._over()
        first = self.opinions_first and self.slot == 0 and not self.heard
        return Probe(OPINIONS, view.online) if (over or first) and len(view.online) else None

    def restart_model(self, view: RoundView) -> bool:
        return self.params.slot_start == "restart" and self._begins(view)

    def _begins(self, view: RoundView) -> bool:
        """Whether a slot that is not the job's first round begins now."""
        return view.round > 1 and self._over() and len(view.online) > (view.seats or 0)

    def _over(self) -> bool:
        """Whether no slot is under way: none has begun, or the last has had its rounds."""
        return self.rounds_played == 0 or self.rounds_played >= self.params.slot_rounds

    def select(self, view: RoundView, k: int) -> np.ndarray:
        if not len(
            view.online
        ):  # then there are no opinions either: a slot that is over waits for them
            return view.online.copy()
        if self._over():
            self._close(view.probe)
            if len(view.online) <= k:
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
            (self.learn if len(self.cohort) else self.hear_first)(answer)
        self.cohort, self.rounds_played = np.empty(0, np.int64), 0
        self.took_part = np.zeros(len(self.clients), bool)

    def diagnostics(self) -> dict[str, Any]:
        return {"slot": self.slot, "slot_round": self.rounds_played}
