"""What a report shows beyond its numbers, gathered in one walk over the records of all runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedsuv_plugin.experiments.report.cohorts import CohortMap, cohort_map
from fedsuv_plugin.experiments.report.series import (
    Chart,
    accuracy_charts,
    is_flat,
    valid_by_tenth,
    validity_by_deadline,
    validity_by_round,
)
from fedsuv_plugin.experiments.results import Results, RunResult
from fedsuv_plugin.records import Records

MOST_MAPS = 30  # a page with a map of every run of a large comparison would be too large


@dataclass(frozen=True, eq=False)
class Material:
    """Charts and maps; without a finished run there are none."""

    curves: Sequence[Chart]
    validity: Sequence[Chart]  # over the rounds; none where it is the same for all throughout
    by_deadline: Sequence[Chart]  # one if the deadline is varied, else none
    maps: Mapping[RunResult, CohortMap]

    @property
    def figures(self) -> list[Chart]:
        """The charts that a paper can use."""
        shown = [chart for chart in self.curves if chart.name != "accuracy_by_client_seconds"]
        return [*shown, *(self.by_deadline or self.validity)]


def gather(results: Results) -> Material:
    """The records of every finished run are read once and not kept."""
    done = [run for run in results.runs if run.finished]
    if not done:
        return Material([], [], [], {})
    mapped = set(_mapped(done))
    tenths: dict[RunResult, np.ndarray] = {}
    maps: dict[RunResult, CohortMap] = {}
    for run in done:
        rounds = run.run.rounds
        last = run.run.settings["rounds"]
        tenths[run] = valid_by_tenth(rounds, last)
        if run in mapped:
            maps[run] = cohort_map(rounds, _clients(run, rounds), last)
    deadline = validity_by_deadline(results) if "round_deadline" in results.by else None
    validity = validity_by_round(results, tenths)
    return Material(
        accuracy_charts(results),
        [] if is_flat(validity) else [validity],
        [deadline] if deadline and deadline.lines else [],
        maps,
    )


def _mapped(done: Sequence[RunResult]) -> list[RunResult]:
    """All runs if they are few, else those of the first seed."""
    if len(done) <= MOST_MAPS:
        return list(done)
    first = min(run.seed for run in done)
    return [run for run in done if run.seed == first]


def _clients(run: RunResult, rounds: Records) -> int:
    """How many clients there were; of old records, the highest id that was asked."""
    highest = max((max(r["asked"], default=1) for r in rounds), default=1)
    return max(int(run.run.environment.get("clients", 0)), highest)
