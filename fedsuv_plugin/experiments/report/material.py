"""What a report shows beyond its numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedsuv_plugin.experiments.report.maps import CohortMap, cohort_map
from fedsuv_plugin.experiments.report.series import (
    Chart,
    accuracy_charts,
    is_flat,
    validity_by_deadline,
    validity_by_round,
)
from fedsuv_plugin.experiments.results import Results, RunResult

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
    done = [run for run in results.runs if run.finished]
    if not done:
        return Material([], [], [], {})
    validity = validity_by_round(results)
    deadline = validity_by_deadline(results) if "round_deadline" in results.by else None
    return Material(
        accuracy_charts(results),
        [] if is_flat(validity) else [validity],
        [deadline] if deadline and deadline.lines else [],
        {run: _map(run) for run in _mapped(done)},
    )


def _mapped(done: Sequence[RunResult]) -> list[RunResult]:
    """All runs if they are few, else those of the first seed."""
    if len(done) <= MOST_MAPS:
        return list(done)
    first = min(run.seed for run in done)
    return [run for run in done if run.seed == first]


def _map(run: RunResult) -> CohortMap:
    """The map of a run; old records do not say how many clients there were."""
    highest = int(run.cohorts.asked.ids.max(initial=1))
    clients = max(int(run.run.environment.get("clients", 0)), highest)
    return cohort_map(run.cohorts, clients, run.run.settings["rounds"])
