"""What can be said of several seeds: spreads, paired differences and their tests, by scipy.stats.

Seeds are paired: with the same seed every variant has the same data, devices, luck and initial
model. So two variants are compared by the differences of each seed, not by their means.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from scipy import stats

CONFIDENCE = 0.95
ENOUGH_SEEDS = 5  # with fewer, an interval of Student's t is so wide that it says little
NAN = float("nan")


@dataclass(frozen=True)
class Spread:
    """One number over the seeds."""

    values: Mapping[int, float]  # by seed; NaN: the run does not have it
    mean: float  # of all seeds; NaN if a seed does not have it, which is never averaged away
    deviation: float  # standard deviation of the sample
    low: float  # 95 % interval of the mean
    high: float
    median: float  # a seed that does not have it counts as worse than any

    @property
    def n(self) -> int:
        return len(self.values)

    @property
    def missing(self) -> int:
        """Seeds that do not have it: for a target, those that did not reach it."""
        return int(np.isnan(list(self.values.values())).sum())


def spread(values: Mapping[int, float], better: int = -1) -> Spread:
    """Mean, standard deviation and 95 % interval by Student's t.

    >>> found = spread({0: 1.0, 1: 2.0, 2: 3.0})
    >>> found.mean, found.deviation, round(found.low, 3), round(found.high, 3)
    (2.0, 1.0, -0.484, 4.484)
    """
    each = np.array(list(values.values()), float)
    complete = len(each) > 0 and not np.isnan(each).any()
    mean = float(each.mean()) if complete else NAN
    deviation = float(each.std(ddof=1)) if complete and len(each) > 1 else NAN
    low, high = _interval(each) if complete else (NAN, NAN)
    return Spread(dict(values), mean, deviation, low, high, _median(each, better))


def half_width(values: np.ndarray) -> np.ndarray:
    """Half of the 95 % interval of the mean over the first axis; NaN if that has fewer than two."""
    if len(values) < 2:
        return np.full(values.shape[1:], NAN)
    quantile = stats.t.ppf((1 + CONFIDENCE) / 2, len(values) - 1)
    return np.asarray(quantile * stats.sem(values, axis=0))


def _interval(each: np.ndarray) -> tuple[float, float]:
    half = float(half_width(each))
    return float(each.mean()) - half, float(each.mean()) + half


def _median(each: np.ndarray, better: int) -> float:
    """NaN if it falls on a seed that does not have the number."""
    if not len(each):
        return NAN
    worst = -np.inf if better > 0 else np.inf
    with np.errstate(invalid="ignore"):
        middle = float(np.median(np.where(np.isnan(each), worst, each)))
    return middle if np.isfinite(middle) else NAN


@dataclass(frozen=True)
class Paired:
    """One number of a variant against the reference, seed by seed."""

    n: int  # seeds that both have run
    better: int  # 1: higher is better, -1: lower is better
    wins: int  # seeds in which the variant is better
    losses: int
    difference: float  # mean of variant - reference; NaN if a seed of either does not have it
    low: float  # 95 % interval of it
    high: float
    p: float  # paired t-test, two-sided; NaN if it says nothing
    p_adjusted: float  # after the correction for the number of variants compared

    @property
    def ties(self) -> int:
        return self.n - self.wins - self.losses


def paired(variant: Mapping[int, float], reference: Mapping[int, float], better: int) -> Paired:
    """The variant against the reference over the seeds that both have; not yet adjusted.

    A seed in which only one of them has the number is a win for that one."""
    seeds = [seed for seed in variant if seed in reference]
    a = np.array([variant[seed] for seed in seeds], float)
    b = np.array([reference[seed] for seed in seeds], float)
    worst = -np.inf if better > 0 else np.inf
    with np.errstate(invalid="ignore"):
        ahead = better * (np.where(np.isnan(a), worst, a) - np.where(np.isnan(b), worst, b))
    ahead = np.nan_to_num(ahead, nan=0.0)  # neither has it: a tie
    wins = int((ahead > 0).sum())
    losses = int((ahead < 0).sum())
    differences = a - b
    if not len(seeds) or np.isnan(differences).any():
        return Paired(len(seeds), better, wins, losses, NAN, NAN, NAN, NAN, NAN)
    low, high = _interval(differences)
    p = _paired_test(a, b)
    return Paired(len(seeds), better, wins, losses, float(differences.mean()), low, high, p, p)


def _paired_test(a: np.ndarray, b: np.ndarray) -> float:
    """The p-value of the paired t-test; NaN where the differences do not vary: it cannot tell."""
    if len(a) < 2 or np.ptp(a - b) == 0:
        return NAN
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # differences that hardly vary
        return float(stats.ttest_rel(a, b).pvalue)


def adjusted(found: Mapping[str, Paired]) -> dict[str, Paired]:
    """The comparisons with one reference, by label, their p-values corrected for their number.

    By Benjamini and Hochberg, which bounds the share of false findings among the findings."""
    tested = [label for label, each in found.items() if np.isfinite(each.p)]
    corrected = (
        stats.false_discovery_control([found[label].p for label in tested]) if tested else []
    )
    by_label = dict(zip(tested, corrected, strict=True))
    return {
        label: replace(each, p_adjusted=float(by_label.get(label, NAN)))
        for label, each in found.items()
    }


def in_words(found: Paired) -> str:
    """What the comparison of a variant with the reference says, in plain words."""
    if not found.n:
        return "no seed that both have finished"
    if found.n < 2:
        return "one seed says nothing about another"
    if found.wins == found.losses == 0:
        return "the same in every seed"
    if not np.isfinite(found.difference):
        return (
            f"better in {found.wins} of {found.n} seeds, worse in {found.losses}; not all got there"
        )
    if found.n < ENOUGH_SEEDS:
        return (
            f"better in {found.wins} of {found.n} seeds, worse in {found.losses}; "
            f"{found.n} seeds are too few to tell"
        )
    if np.isfinite(found.p_adjusted) and found.p_adjusted < 1 - CONFIDENCE:
        return f"{'ahead' if found.better * found.difference > 0 else 'behind'}, beyond chance"
    return f"better in {found.wins} of {found.n} seeds, worse in {found.losses}; may be chance"
