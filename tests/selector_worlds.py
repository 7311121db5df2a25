"""Small worlds for selector tests: client tables, views and outcomes from a few numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fedsuv_plugin.selectors.base import (
    ClientTable,
    ProbeAnswer,
    RoundOutcome,
    RoundView,
    Selector,
)

Numbers = float | Sequence[float] | np.ndarray
Rows = Sequence[int] | np.ndarray | None  # none: everyone


def table(n: int, samples: Numbers = 40, duration: Numbers = 10.0) -> ClientTable:
    """n clients with ids 1..n; a single number stands for all of them."""
    sizes = np.broadcast_to(np.asarray(samples), n).astype(np.int64)
    seconds = np.broadcast_to(np.asarray(duration, float), n).copy()
    return ClientTable(
        ids=np.arange(1, n + 1),
        samples=sizes,
        round_samples=sizes.copy(),
        features=seconds[:, None].copy(),
        feature_names=("seconds",),
        expected_duration=seconds,
        energy=np.zeros(n),
        position=np.zeros((n, 2)),
    )


def look(clients: ClientTable, round_number: int = 1, online: Rows = None) -> RoundView:
    """The view of one round; everyone is online unless rows are given."""
    rows = np.arange(len(clients)) if online is None else np.sort(np.asarray(online, np.int64))
    return RoundView(round=round_number, total_rounds=100, clock=0.0, online=rows, clients=clients)


def answered(
    selector: Selector, view: RoundView, kind: str, values: np.ndarray, silent: Sequence[int] = ()
) -> RoundView:
    """The view of the selection, once those whom `probe` asks have told theirs of `values`."""
    question = selector.probe(view)
    if question is None:
        return view
    assert question.kind == kind
    rows = np.setdiff1d(question.rows, np.array(silent, np.int64))
    return replace(view, probe=ProbeAnswer(kind, rows, values[rows]))


def outcome(
    round_number: int,
    rows: Sequence[int] | np.ndarray,
    utility: Numbers = 1.0,
    valid: bool | Sequence[bool] | np.ndarray = True,
    duration: Numbers = 10.0,
) -> RoundOutcome:
    """What became of `rows`; those who missed the round report 0, as the adapter sees to."""
    asked = np.asarray(rows, np.int64)
    made_it = np.broadcast_to(np.asarray(valid, bool), asked.shape).copy()
    reported = np.where(made_it, np.broadcast_to(np.asarray(utility, float), asked.shape), 0.0)
    return RoundOutcome(
        round=round_number,
        rows=asked,
        valid=made_it,
        duration=np.broadcast_to(np.asarray(duration, float), asked.shape).copy(),
        loss=reported.copy(),
        utility=reported,
        samples=np.ones(len(asked), np.int64),
    )


def five_sigma(n: int, p: float) -> float:
    """Five standard deviations of Binomial(n, p).

    A fair count is further off once in two million times."""
    return 5 * float(np.sqrt(n * p * (1 - p)))
