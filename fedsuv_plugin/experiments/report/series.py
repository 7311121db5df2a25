"""What the pictures of a comparison show: for every variant a mean over its seeds, with its band.

Seeds are measured at different times, so each is read off at common points, straight between its
evaluations; the mean ends where the first seed ends. The band is the 95 % interval of the mean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from fedsuv_plugin.experiments.cohorts import Clients, Cohorts
from fedsuv_plugin.experiments.curves import Curve
from fedsuv_plugin.experiments.results import (
    Keys,
    Results,
    VariantResult,
    condition_of,
    label_of,
    name_of,
)
from fedsuv_plugin.experiments.statistics import half_width

POINTS = 200  # of a line; more cannot be seen
DEADLINE = "round_deadline"
TENTHS = 10  # the share of valid clients is smoothed over tenths of the run
Points = tuple[np.ndarray, np.ndarray]  # x, y


@dataclass(frozen=True, eq=False)
class Line:
    """A variant in a chart; x, mean, low and high are aligned, and NaN where nothing is known."""

    label: str
    style: int  # the number of its name, by which it looks the same in every chart
    x: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    seeds: Sequence[Points] = ()
    condition: str = ""  # lines under another condition are drawn beside it, to the same scale


@dataclass(frozen=True, eq=False)
class Chart:
    """Lines over a common axis. All y are shares."""

    name: str  # of its file
    title: str  # of its tab
    x_label: str
    y_label: str
    lines: Sequence[Line]
    target: float | None = None

    @property
    def parts(self) -> dict[str, list[Line]]:
        """The lines under each condition."""
        found: dict[str, list[Line]] = {}
        for line in self.lines:
            found.setdefault(line.condition, []).append(line)
        return found


def accuracy_charts(results: Results) -> list[Chart]:
    """The test accuracy by what it cost; a cost that was not recorded has no chart."""
    axes: list[tuple[str, str, Callable[[Curve], np.ndarray], Units]] = [
        ("round", "round", lambda curve: curve.round, ((0, 1, "round"),)),
        ("time", "virtual time", lambda curve: curve.seconds, hours("virtual time")),
        ("energy", "energy", lambda curve: curve.joules, JOULES),
        (
            "client_seconds",
            "client time",
            lambda curve: curve.client_seconds,
            hours("time that clients worked"),
        ),
    ]
    charts = []
    for name, title, cost, units in axes:
        curves = {v.label: _curves(v, cost) for v in results.variants}
        largest = max((x[-1] for found in curves.values() for x, _ in found), default=0.0)
        if not largest > 0:
            continue
        divisor, label = unit_of(largest, units)
        lines = [
            line_of(name, style, [(x / divisor, y) for x, y in curves[v.label]], condition)
            for v, name, style, condition in _styled(results)
            if curves[v.label]
        ]
        charts.append(
            Chart(
                f"accuracy_by_{name}", f"by {title}", label, "test accuracy", lines, results.target
            )
        )
    return charts


def _styled(results: Results) -> Iterator[tuple[VariantResult, str, int, str]]:
    """Every variant with the name and the style of its lines, and its condition."""
    names = results.names
    for variant in results.variants:
        name = name_of(variant.keys)
        yield variant, name, names.index(name), condition_of(variant.keys)


Units = Sequence[tuple[float, float, str]]  # from this value on, divided by this, labelled so
JOULES: Units = ((0, 1, "energy, J"), (1e4, 1e3, "energy, kJ"), (1e7, 1e6, "energy, MJ"))


def hours(what: str) -> Units:
    return ((0, 1, f"{what}, s"), (7200, 3600, f"{what}, h"))


def unit_of(largest: float, units: Units) -> tuple[float, str]:
    """The unit in which the largest value is read most easily.

    >>> unit_of(86400, hours("virtual time"))
    (3600, 'virtual time, h')
    """
    return [(divisor, label) for least, divisor, label in units if largest >= least][-1]


def _curves(variant: VariantResult, cost: Callable[[Curve], np.ndarray]) -> list[Points]:
    """The runs whose cost is known, at most at `POINTS` evaluations each."""
    found = []
    for run in variant.finished:
        x = np.asarray(cost(run.curve), float)
        if np.isfinite(x).all() and x[-1] > 0:
            found.append(_thinned(x, run.curve.accuracy))
    return found


def _thinned(x: np.ndarray, y: np.ndarray) -> Points:
    if len(x) <= POINTS:
        return x, y
    at = np.linspace(0, len(x) - 1, POINTS).round().astype(int)
    return x[at], y[at]


def line_of(label: str, style: int, seeds: Sequence[Points], condition: str = "") -> Line:
    """The mean of some curves, at their own points where they share them.

    >>> line = line_of("", 0, [(np.arange(2.0), np.zeros(2)), (np.arange(2.0), np.ones(2))])
    >>> line.mean.tolist()
    [0.5, 0.5]
    """
    first = seeds[0][0]
    if all(np.array_equal(first, x) for x, _ in seeds):
        grid = first
    else:
        begin = max(x[0] for x, _ in seeds)
        grid = np.linspace(begin, min(x[-1] for x, _ in seeds), POINTS)
    values = np.array([np.interp(grid, x, y) for x, y in seeds])
    return Line(label, style, grid, *mean_and_band(values), seeds, condition)


def mean_and_band(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean and 95 % interval of (seeds, points); the mean alone has no width."""
    mean = values.mean(axis=0)
    if len(values) < 2:
        return mean, mean, mean
    half = half_width(values)
    return mean, mean - half, mean + half


# ---- the share of those asked whose update was merged


def valid_by_tenth(cohorts: Cohorts, last: int) -> np.ndarray:
    """(10,) the share in every tenth of a run of `last` rounds; NaN where nobody was asked."""

    def count(clients: Clients) -> np.ndarray:
        tenths = np.minimum((clients.rounds - 1) * TENTHS // last, TENTHS - 1)
        return np.bincount(tenths, minlength=TENTHS)

    with np.errstate(invalid="ignore"):
        share: np.ndarray = count(cohorts.valid) / count(cohorts.asked)
    return share


def validity_by_round(results: Results) -> Chart:
    """The share over the rounds."""
    lines = []
    for variant, name, style, condition in _styled(results):
        if not variant.finished:
            continue
        last = variant.finished[0].run.settings["rounds"]
        x = (np.arange(TENTHS) + 0.5) * last / TENTHS
        shares = np.array([valid_by_tenth(run.cohorts, last) for run in variant.finished])
        seeds = [(x, share) for share in shares]
        lines.append(Line(name, style, x, *mean_and_band(shares), seeds, condition))
    return Chart("validity", "by round", "round", "valid / asked", lines)


def is_flat(chart: Chart) -> bool:
    """Whether all lines and all seeds have one value, so that there is nothing to see."""
    values = np.concatenate([y for line in chart.lines for _, y in line.seeds])
    return len(np.unique(values[np.isfinite(values)])) <= 1


def validity_by_deadline(results: Results) -> Chart:
    """The share of whole runs against the deadline of their rounds; one line for all variants
    that differ in nothing else."""
    lines = []
    for keys, variants in _by_deadline(results):
        x = np.array([float(str(v.keys[DEADLINE])) for v in variants])
        spreads = [v.spreads["valid_share"] for v in variants]
        mean = np.array([each.mean for each in spreads])
        low = np.array([each.low if np.isfinite(each.low) else each.mean for each in spreads])
        high = np.array([each.high if np.isfinite(each.high) else each.mean for each in spreads])
        name = name_of(keys) if keys else "valid / asked"
        style = results.names.index(name) if name in results.names else 0
        lines.append(Line(name, style, x, mean, low, high, condition=condition_of(keys)))
    return Chart("validity", "by deadline", "deadline of a round, s", "valid / asked", lines)


def _by_deadline(results: Results) -> Iterator[tuple[Keys, list[VariantResult]]]:
    """The other keys of variants that differ in their deadline alone, and these in its order."""
    groups: dict[str, list[VariantResult]] = {}
    for variant in results.variants:
        if variant.finished and variant.keys.get(DEADLINE) is not None:
            groups.setdefault(label_of(_without_deadline(variant.keys)), []).append(variant)
    for variants in groups.values():
        variants.sort(key=lambda v: float(str(v.keys[DEADLINE])))
        yield _without_deadline(variants[0].keys), variants


def _without_deadline(keys: Keys) -> Keys:
    return {key: value for key, value in keys.items() if key != DEADLINE}
