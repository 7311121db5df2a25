"""SAFA: clients that were not picked last time first, in the order in which they are done.

Paper: W. Wu, L. He, W. Lin, R. Mao, C. Maple, S. Jarvis. "SAFA: A Semi-Asynchronous Protocol for
    Fast Federated Learning With Low Overhead." IEEE Trans. Computers 70(5), 2021
    (arXiv:1910.01355). The paper was not at hand: the steps are those of the authors' code,
    github.com/wingter562/SAFA, semiAysnc_FedAvg.py.

Paper symbol -> name here
    tau -> lag_tolerance    C N, the quota -> k, num_participants    T_lim -> round_deadline
    CFCFM (compensatory first-come-first-merge) -> `select`, or `first_come` of the protocol
Departures
    `mode: selection` is the paper's order of merging alone, used to ask a fixed number of clients,
    as comparisons with synchronous methods mean it; in the paper everyone trains.
    There the expected duration stands for the arrival, and ties are broken at random.
    `mode: protocol` is the paper's, in engine/protocols/safa.py, with these departures:
    the quota is num_participants, in the paper ceil(C N);
    clients arrive when they are done, in the published code in the order of their known speed;
    those too slow for the limit deliver when they are done, in the code they are undrafted at once;
    when the quota is filled by clients picked last round too, the round lasts to the limit, as the
    server cannot know before who else will come;
    tolerated is a lag of up to tau, as in the code (its README says less than tau);
    there is no `keep_best`, and no epoch of everyone before the first round.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedsuv_plugin.params import Params, param
from fedsuv_plugin.selectors.base import (
    SAFA,
    SYNCHRONOUS,
    ClientTable,
    RoundOutcome,
    RoundView,
    Selector,
)


@dataclass(frozen=True, kw_only=True)
class SafaParams(Params):
    mode: str = param(
        "selection",
        "selection: ask as many clients as the job says; protocol: everyone online trains, and the "
        "first num_participants are merged",
        choices=("selection", "protocol"),
    )
    lag_tolerance: int = param(
        5,
        "tau, with mode protocol: rounds that a client may lag behind before what it works on is "
        "given up; 0: whoever did not deliver last round",
        low=0,
    )


class Safa(Selector):
    """Used as `sample_mode: safa`.

    >>> SafaParams().mode
    'selection'
    """

    name = "safa"
    paper = "Wu et al., SAFA: A Semi-Asynchronous Protocol, IEEE Trans. Computers 2021"
    Params = SafaParams
    state = ("picked",)

    def __init__(self, params: SafaParams, clients: ClientTable, rng: np.random.Generator):
        super().__init__(params, clients, rng)
        whole = params.mode == "protocol"
        self.free_cohort = whole
        self.protocol = SAFA if whole else SYNCHRONOUS
        self.picked = np.zeros(len(clients), bool)  # (n,) merged last round
        self._in_time = np.zeros(len(clients), bool)  # as expected at the last selection
        self._starved = 0

    def select(self, view: RoundView, k: int) -> np.ndarray:
        rows = view.online
        seconds = self.clients.expected_duration[rows]
        in_time = np.ones(len(rows), bool)
        if view.deadline is not None:
            in_time = seconds <= view.deadline
        self._in_time[:] = False
        self._in_time[rows] = in_time
        # The sort's last key comes first: in time, then not picked last round, then the fastest.
        order = np.lexsort((self.rng.random(len(rows)), seconds, self.picked[rows], ~in_time))
        chosen = rows if self.free_cohort else rows[order[:k]]
        self._starved = max(0, int(np.count_nonzero(in_time)) - 2 * k)
        return chosen

    def update(self, outcome: RoundOutcome) -> None:
        self.picked[:] = False
        self.picked[outcome.rows[outcome.valid]] = True

    def explain(self) -> dict[str, np.ndarray]:
        """Who was merged last round, and who of those online was expected to be in time."""
        return {"picked": self.picked, "in_time": self._in_time}

    def diagnostics(self) -> dict[str, Any]:
        """`starved`: clients in time that never have a turn.

        With more than 2 k clients in time the order by speed alternates between two cohorts."""
        return {"in_time": int(np.count_nonzero(self._in_time)), "starved": self._starved}
