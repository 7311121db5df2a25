"""FedCS: of some clients drawn at random, as many as can be done before the deadline.

Paper: T. Nishio, R. Yonetani. "Client Selection for Federated Learning with Heterogeneous
    Resources in Mobile Edge." ICC 2019. Algorithms 2 and 3. The paper was not at hand. Its steps
    are those of SelecEval's `fedcs.py` (github.com/jsincn/SelecEval), for `schedule: sequential`,
    and of `FedCS_Nishio.py` in SAFA's code (github.com/wingter562/SAFA), for `parallel`.

Paper symbol -> name here
    C -> candidates    K' -> candidate    S -> the rows that are returned    T_round -> deadline
    t_UD -> computing    t_UL -> upload    T^d_S -> slowest    Theta -> elapsed
Departures
    Nobody is asked for its resources: the server knows what the client table says.
    C counts the online clients, and there are at least as many candidates as seats.
    At most k clients are chosen; the paper has no other limit than T_round.
    Without a deadline everyone is in time.
    T_cs and T_agg, the server's own seconds, are 0, as on FedScale's clock.
    Ties are broken at random.
    Where the clients' uploads do not wait for each other (`parallel`, as on FedScale's clock), the
        k fastest are chosen of the candidates that are done by the deadline.

`sequential` is the paper's own schedule: everyone downloads at once, then the uploads follow one
another while the others compute. A job's clock does not make uploads wait, so that its rounds are
shorter than this schedule expects and fewer clients are asked than would be in time.

Fewer than k clients are chosen, or none, where fewer candidates are done by the deadline.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedsuv_plugin.errors import require
from fedsuv_plugin.params import Params, param
from fedsuv_plugin.selectors.base import ClientTable, RoundView, Selector, best

ROUNDING = 1e-9  # 0.07 * 100 must not become 8 candidates because it comes out as 7.000...01


@dataclass(frozen=True, kw_only=True)
class FedCSParams(Params):
    candidates: float = param(
        0.1,
        "C, share of the online clients that are considered, but never fewer than there are "
        "seats; 1: all, so that the fastest are chosen every time",
        above=0,
        high=1,
    )
    schedule: str = param(
        "parallel",
        "parallel: all upload when they are done, as on the job's clock; sequential: one after the "
        "other, as in the paper",
        choices=("parallel", "sequential"),
    )


class FedCS(Selector):
    """Used as `sample_mode: fedcs`, with a `round_deadline`.

    >>> FedCSParams(schedule="sequential")
    FedCSParams(candidates=0.1, schedule='sequential')
    """

    name = "fedcs"
    paper = (
        "Nishio and Yonetani, Client Selection for FL with Heterogeneous Resources in Mobile Edge, "
        "ICC 2019"
    )
    Params = FedCSParams

    def __init__(self, params: FedCSParams, clients: ClientTable, rng: np.random.Generator):
        super().__init__(params, clients, rng)
        known = clients.download is not None and clients.upload is not None
        expected = "parallel, where the seconds of transfers are not known apart from computing"
        ok = known or params.schedule == "parallel"
        require(ok, "fedcs.schedule", expected, params.schedule)
        self._forget_selection()

    def _forget_selection(self) -> None:
        """Reset what `explain` and `diagnostics` say about the latest selection."""
        self.candidate = np.zeros(len(self.clients), bool)
        self.done_at = np.full(len(self.clients), np.nan)

    def select(self, view: RoundView, k: int) -> np.ndarray:
        self._forget_selection()
        k = min(k, len(view.online))
        share = math.ceil(self.params.candidates * len(view.online) - ROUNDING)
        candidates = self.rng.choice(view.online, max(k, share), replace=False)
        self.candidate[candidates] = True
        deadline = math.inf if view.deadline is None else view.deadline
        if self.params.schedule == "parallel":
            return self._fastest(candidates, k, deadline)
        return self._one_after_the_other(candidates, k, deadline)

    def _fastest(self, rows: np.ndarray, k: int, deadline: float) -> np.ndarray:
        seconds = self.clients.expected_duration[rows]
        rows = rows[seconds <= deadline]
        chosen = rows[best(-self.clients.expected_duration[rows], k, self.rng)]
        self.done_at[chosen] = self.clients.expected_duration[chosen]
        return chosen

    def _one_after_the_other(self, rows: np.ndarray, k: int, deadline: float) -> np.ndarray:
        """Algorithm 3: always the client that delays the uploads least, while there is time."""
        assert self.clients.download is not None
        assert self.clients.upload is not None
        download = self.clients.download[rows]
        upload = self.clients.upload[rows]
        computing = self.clients.expected_duration[rows] - download - upload
        elapsed = 0.0  # until the last upload has ended, the download not counted
        slowest = 0.0  # download of those chosen
        chosen: list[int] = []
        left = np.ones(len(rows), bool)
        while len(chosen) < k:
            longest = np.maximum(slowest, download)
            ends = upload + np.maximum(elapsed, computing)
            # Who is late now would also be late after more clients.
            left &= longest + ends < deadline
            places = np.flatnonzero(left)
            if not len(places):
                break
            delay = (longest - slowest + ends - elapsed)[places]
            place = int(places[best(-delay, 1, self.rng)[0]])
            left[place] = False
            chosen.append(place)
            slowest = float(longest[place])
            elapsed = float(ends[place])
            self.done_at[rows[place]] = elapsed
        self.done_at += slowest  # uploads begin when the slowest has the model
        return rows[chosen]

    def explain(self) -> dict[str, np.ndarray]:
        """`done_at` is the second of the round in which the server expects each of the chosen."""
        return {"candidate": self.candidate, "done_at": self.done_at}

    def diagnostics(self) -> dict[str, Any]:
        chosen = np.isfinite(self.done_at)
        return {
            "candidates": int(np.count_nonzero(self.candidate)),
            "chosen": int(np.count_nonzero(chosen)),
            "expected_round": float(self.done_at[chosen].max()) if chosen.any() else None,
        }
