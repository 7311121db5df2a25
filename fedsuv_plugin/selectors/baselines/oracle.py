"""Oracle: the job file says whom to ask, one set for the whole job or several that take turns.

Paper: J. Tong, Z. Chen, L. Fu, J. Zhang, Z. Han. "From Learning to Analytics: Improving Model
    Efficacy with Goal-Directed Client Selection." Section VI-A: the "optimal solution" is a set
    known beforehand, and its round robin plays predefined sets one after the other.

Paper symbol -> name here
    none: the paper describes both in words
Departures
    Members of a set that are offline are skipped.
    The whole set is asked, whatever `num_participants` says.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedsuv_plugin.errors import UserError, require
from fedsuv_plugin.params import param
from fedsuv_plugin.selectors.base import ClientTable, RoundView, Selector
from fedsuv_plugin.selectors.time_slots import SlotParams


@dataclass(frozen=True, kw_only=True)
class OracleParams(SlotParams):
    clients: str | None = param(
        None,
        "ids such as '1,2,3'; several sets, such as '1,2;3,4', take turns, a time slot each; "
        "none: everyone",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        parse_sets(self.clients)


class Oracle(Selector):
    """Plays the sets of the job file in turn, a time slot each."""

    name = "oracle"
    paper = (
        "the optimal solution of Tong et al., From Learning to Analytics: "
        "Goal-Directed Client Selection"
    )
    Params = OracleParams
    time_slots = True
    free_cohort = True

    def __init__(self, params: OracleParams, clients: ClientTable, rng: np.random.Generator):
        super().__init__(params, clients, rng)
        given = parse_sets(params.clients)
        self._sets = [self._rows(ids) for ids in given] if given else [np.arange(len(clients))]

    def _rows(self, ids: list[int]) -> np.ndarray:
        unknown = sorted(set(ids) - set(self.clients.ids.tolist()))
        if unknown:
            raise UserError(f"oracle.clients: client {unknown[0]} takes no part in this job")
        return np.searchsorted(self.clients.ids, ids)

    def restart_model(self, view: RoundView) -> bool:
        begins = view.round > 1 and (view.round - 1) % self.params.slot_rounds == 0
        return begins and self.params.slot_start == "restart"

    def select(self, view: RoundView, k: int) -> np.ndarray:
        rows = self._sets[(view.round - 1) // self.params.slot_rounds % len(self._sets)]
        return rows[np.isin(rows, view.online)]


def parse_sets(text: str | None) -> list[list[int]]:
    """The sets that a text names, none for None.

    >>> parse_sets("1,2;3,4")
    [[1, 2], [3, 4]]
    """
    parts = [] if text is None else text.split(";")
    try:
        sets = [[int(i) for i in part.split(",")] for part in parts]
    except ValueError:
        sets = [[]]  # an empty set is refused below
    require(
        all(ids and len(set(ids)) == len(ids) for ids in sets),
        "clients",
        "distinct ids such as '1,2,3', sets joined by ';', or none",
        text,
    )
    return sets
