"""A run in numbers: what a comparison reports of each job.

Every number is declared once, in `MEASURES`: its name in the CSV files, its heading, its unit and
which direction is better. A number that a run does not have is NaN: a target that was not reached,
joules where the trace has no power, what an older version did not record.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedsuv_plugin.experiments.cohorts import Cohorts, cohorts_of
from fedsuv_plugin.experiments.curves import Curve, curve_of
from fedsuv_plugin.records import Records, Run

NAN = float("nan")
LAST_PART = 10  # the final accuracy is the mean of the evaluations in the last tenth of the rounds


@dataclass(frozen=True)
class Measure:
    """A number of a run, and how it is shown."""

    name: str
    heading: str
    meaning: str
    better: int  # 1: higher is better, -1: lower is better, 0: neither
    digits: int = 0  # decimals, after a percentage has been made of a share
    share: bool = False  # shown in percent
    to_target: bool = False  # what it took to reach the target; NaN: it was not reached
    short: bool = False  # stands in the short tables too

    @property
    def wall(self) -> bool:
        """Whether it is of this machine's clock and so differs from run to run."""
        return self.name.startswith("wall_")

    def show(self, value: float) -> str:
        """The number as text; a dash where there is none.

        >>> Measure("valid_share", "valid", "", 1, digits=1, share=True).show(0.5)
        '50.0 %'
        """
        if not np.isfinite(value):
            return "–"
        return f"{100 * value:,.{self.digits}f} %" if self.share else f"{value:,.{self.digits}f}"


MEASURES = (
    Measure(
        "final_accuracy",
        "final accuracy",
        "test accuracy, mean of the evaluations in the last tenth of the rounds",
        better=1,
        digits=2,
        share=True,
        short=True,
    ),
    Measure(
        "best_accuracy",
        "best accuracy",
        "highest test accuracy of any evaluation",
        better=1,
        digits=2,
        share=True,
    ),
    Measure(
        "rounds_to_target",
        "rounds to target",
        "rounds until an evaluation reached the target accuracy",
        better=-1,
        digits=1,
        to_target=True,
        short=True,
    ),
    Measure(
        "seconds_to_target",
        "virtual s to target",
        "virtual seconds until then",
        better=-1,
        to_target=True,
        short=True,
    ),
    Measure(
        "client_seconds_to_target",
        "client-s to target",
        "seconds that clients worked until then, probing included",
        better=-1,
        to_target=True,
    ),
    Measure(
        "joules_to_target",
        "J to target",
        "joules that clients spent until then, probing included",
        better=-1,
        to_target=True,
    ),
    Measure(
        "megabytes_to_target",
        "MB to target",
        "megabytes to and from clients until then, probing included",
        better=-1,
        to_target=True,
        digits=1,
    ),
    Measure("virtual_seconds", "virtual s", "virtual seconds of the whole run", better=-1),
    Measure(
        "client_seconds",
        "client-s",
        "seconds that clients worked in the whole run, probing included",
        better=-1,
    ),
    Measure(
        "joules", "J", "joules that clients spent in the whole run, probing included", better=-1
    ),
    Measure(
        "megabytes",
        "MB",
        "megabytes to and from clients in the whole run, probing included",
        better=-1,
        digits=1,
    ),
    Measure(
        "probing_share",
        "probing",
        "share of these client-seconds that went into probes and signals",
        better=-1,
        digits=1,
        share=True,
    ),
    Measure(
        "valid_share",
        "valid / asked",
        "share of those asked whose update was merged in the same round",
        better=1,
        digits=1,
        share=True,
        short=True,
    ),
    Measure(
        "late_share",
        "late / asked",
        "share of those asked whose update was merged in a later round",
        better=0,
        digits=1,
        share=True,
    ),
    Measure(
        "wasted_share",
        "wasted",
        "share of the client-seconds of those asked that led to no merged update",
        better=-1,
        digits=1,
        share=True,
    ),
    Measure(
        "asked_share",
        "clients asked",
        "share of all clients that were ever asked",
        better=0,
        digits=1,
        share=True,
    ),
    Measure(
        "jain",
        "Jain's index",
        "fairness of how often clients were asked: 1 is all equally often",
        better=0,
        digits=3,
    ),
    Measure(
        "worst_tenth",
        "worst tenth",
        "accuracy on the held-out samples of the tenth of the clients for whom it is lowest, mean "
        "over the last tenth of the rounds",
        better=1,
        digits=2,
        share=True,
    ),
    Measure(
        "wall_select_ms",
        "ms / selection",
        "wall time of one selection, milliseconds",
        better=-1,
        digits=1,
        short=True,
    ),
    Measure("wall_seconds", "wall s", "wall time of the run", better=-1, digits=1),
)
BY_NAME = {measure.name: measure for measure in MEASURES}


@dataclass(frozen=True, eq=False)
class Measured:
    """A run that has at least one evaluation, in numbers."""

    run: Run
    values: Mapping[str, float]  # by the names of `MEASURES`
    curve: Curve
    cohorts: Cohorts


def measure(run: Run, target: float | None) -> Measured:
    """Every number of a run; its records are read once, which takes most of the time."""
    rounds = run.rounds
    metrics = run.metrics
    curve = curve_of(rounds, metrics)
    cohorts = cohorts_of(rounds)
    n_asked = len(cohorts.asked)
    times_asked = np.bincount(cohorts.asked.ids)
    clients = int(run.environment.get("clients", np.count_nonzero(times_asked)))
    probing = _total(rounds, lambda r: r["probing"]["client_time"])
    worked = _total(rounds, lambda r: r["client_time"])
    found = {
        "final_accuracy": _end(metrics, "accuracy", run.settings["rounds"]),
        "best_accuracy": float(curve.accuracy.max()),
        "virtual_seconds": float(curve.seconds[-1]),
        "client_seconds": float(curve.client_seconds[-1]),
        "joules": float(curve.joules[-1]) or NAN,  # without power in the trace none are known
        "megabytes": float(curve.megabytes[-1]),
        "probing_share": _ratio(probing, worked + probing),
        "valid_share": _ratio(len(cohorts.valid), n_asked),
        "late_share": _ratio(_total(rounds, lambda r: len(r["late"])), n_asked),
        "wasted_share": _ratio(_total(rounds, lambda r: r["wasted"]["client_time"]), worked),
        "asked_share": _ratio(int(np.count_nonzero(times_asked)), clients),
        "jain": _ratio(
            float(n_asked) ** 2, clients * float((times_asked.astype(float) ** 2).sum())
        ),
        "worst_tenth": _end(metrics, "clients_worst_tenth", run.settings["rounds"]),
        "wall_select_ms": 1000 * _mean([r["select_seconds"] for r in rounds]),
        "wall_seconds": float(run.environment.get("wall_seconds", NAN)),
    }
    found |= _to_target(curve, target)
    return Measured(run, {m.name: found[m.name] for m in MEASURES}, curve, cohorts)


def _to_target(curve: Curve, target: float | None) -> dict[str, float]:
    reached = np.flatnonzero(curve.accuracy >= (np.inf if target is None else target))
    costs = {
        "rounds": curve.round,
        "seconds": curve.seconds,
        "client_seconds": curve.client_seconds,
        "joules": curve.joules,
        "megabytes": curve.megabytes,
    }
    at = {
        name: float(values[reached[0]]) if len(reached) else NAN for name, values in costs.items()
    }
    if not curve.joules[-1]:
        at["joules"] = NAN  # without power in the trace none are known
    return {f"{name}_to_target": value for name, value in at.items()}


def _end(metrics: Records, key: str, rounds: int) -> float:
    """The mean of the evaluations in the last tenth of the rounds; of a run that ended early, of
    the rounds it had."""
    last = min(metrics[-1]["round"], rounds)
    late = [m for m in metrics if m["round"] > last - last / LAST_PART] or metrics[-1:]
    return _mean([m[key] for m in late if key in m])


def _total(rounds: Records, of: Any) -> float:
    try:
        return float(sum(of(r) for r in rounds))
    except KeyError:  # recorded by a version that did not count it
        return NAN


def _mean(values: list[float]) -> float:
    return float(np.mean(values)) if values else NAN


def _ratio(part: float, whole: float) -> float:
    return float(part) / float(whole) if whole else NAN
