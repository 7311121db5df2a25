"""Who was asked in every round of a run, and whose update was merged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from fedsuv_plugin.records import Records


@dataclass(frozen=True, eq=False)
class Clients:
    """Some clients of every round, one after the other; the arrays are aligned."""

    rounds: np.ndarray  # in which round, from 1
    ids: np.ndarray  # FedScale's, from 1

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, eq=False)
class Cohorts:
    """A run without what each round cost: small enough to be kept for all runs of a study.

    >>> cohorts = cohorts_of([{"round": 1, "asked": [3, 7], "valid": [7]}])
    >>> cohorts.asked.ids.tolist(), cohorts.valid.rounds.tolist()
    ([3, 7], [1])
    """

    asked: Clients
    valid: Clients


def cohorts_of(rounds: Records) -> Cohorts:
    numbers = np.array([r["round"] for r in rounds], np.int32)

    def clients(ids: Sequence[Sequence[int]]) -> Clients:
        flat = np.fromiter(chain.from_iterable(ids), np.int32)
        return Clients(np.repeat(numbers, [len(each) for each in ids]), flat)

    return Cohorts(clients([r["asked"] for r in rounds]), clients([r["valid"] for r in rounds]))
