"""How the numbers of a comparison read in a table, the same in every kind of report.

A cell is `mean ± half of the 95 % interval of the mean`. A target that some seeds did not reach
has no mean: the cell then says in how many seeds, and the median where that is a number.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import numpy as np

from fedsuv_plugin.experiments.comparison import PLACE
from fedsuv_plugin.experiments.measures import BY_NAME, MEASURES, Measure
from fedsuv_plugin.experiments.report.paths import short_path
from fedsuv_plugin.experiments.results import (
    Results,
    RunResult,
    VariantResult,
    compared_key,
    name_of,
)
from fedsuv_plugin.experiments.statistics import Paired, in_words

REACHED = "rounds_to_target"  # a run that does not have this number did not reach the target
NOT_REACHED = "not reached"
NONE = "–"


def known(results: Results, short: bool = False) -> list[Measure]:
    """The measures that say something of some variant; of the short tables only, if asked."""
    return [
        measure
        for measure in MEASURES
        if (measure.short or not short) and _says_something(results, measure)
    ]


def compared(results: Results) -> list[Measure]:
    """The measures of the short tables by which variants are compared with their reference."""
    return [
        measure
        for measure in known(results, short=True)
        if any(measure.name in variant.against for variant in results.variants)
    ]


def _says_something(results: Results, measure: Measure) -> bool:
    """Whether a run has this number. That none reached the target is shown, not left out."""
    if measure.name == REACHED and results.target is not None:
        return any(run.finished for run in results.runs)
    return any(np.isfinite(run.values.get(measure.name, np.nan)) for run in results.runs)


def heading(measure: Measure) -> str:
    """What stands above a column; the cells leave the percent sign to it."""
    return f"{measure.heading}, %" if measure.share else measure.heading


def number(measure: Measure, value: float) -> str:
    """The number without its unit, which the heading has."""
    return measure.show(value).removesuffix(" %")


def cell(measure: Measure, variant: VariantResult, brief: bool = False) -> str:
    """One measure of one variant over its seeds: `97.22 ± 0.31`, or what there is instead.

    Where width is scarce, only the rounds to the target say in how many seeds it was missed."""
    spread = variant.spreads[measure.name]
    if np.isfinite(spread.mean):
        half = (spread.high - spread.low) / 2
        mean = number(measure, spread.mean)
        return f"{mean} ± {number(measure, half)}" if np.isfinite(half) else mean
    missed = not_reached(variant) if measure.to_target else 0
    if missed < spread.missing or not spread.n:
        return NONE  # not known, whether or not the target was reached
    words = [f"median {number(measure, spread.median)}"] if _has_median(variant) else []
    if measure.name == REACHED or not brief:
        words.append(f"{NOT_REACHED} in {missed} of {spread.n}")
    return "; ".join(words) or NONE


def _has_median(variant: VariantResult) -> bool:
    return bool(np.isfinite(variant.spreads[REACHED].median))


def not_reached(variant: VariantResult) -> int:
    """The seeds in which the variant did not reach the target."""
    return variant.spreads[REACHED].missing


def seed_cell(measure: Measure, run: RunResult) -> str:
    """One measure of one run, or why there is none."""
    if not run.finished:
        return run.status
    value = run.values[measure.name]
    if measure.to_target and np.isnan(value) and np.isnan(run.values[REACHED]):
        return NOT_REACHED
    return number(measure, value)


def best(measure: Measure, results: Results) -> set[str]:
    """The labels of those whose mean is best under their condition."""
    found = [_best(measure, variants) for variants in results.conditions.values()]
    return set().union(*found)


def _best(measure: Measure, variants: Sequence[VariantResult]) -> set[str]:
    """The labels of those whose mean is best as it is shown; none if nothing is to be told apart.

    A variant with a seed that did not reach the target has no mean, and so is never the best."""
    means = {v.label: v.spreads[measure.name].mean for v in variants}
    means = {label: mean for label, mean in means.items() if np.isfinite(mean)}
    if not measure.better or not means or len(variants) < 2:
        return set()
    top = number(measure, max(means.values(), key=lambda mean: measure.better * mean))
    found = {label for label, mean in means.items() if number(measure, mean) == top}
    return found if len(found) < len(means) or len(means) == 1 else set()


# ---- against the reference


def difference(measure: Measure, paired: Paired) -> str:
    """The mean difference with its sign; of shares, in percentage points."""
    return _signed(measure, paired.difference)


def interval(measure: Measure, paired: Paired) -> str:
    if not np.isfinite(paired.low):
        return NONE
    return f"{_signed(measure, paired.low)} to {_signed(measure, paired.high)}"


def _signed(measure: Measure, value: float) -> str:
    shown = number(measure, abs(value))
    if not np.isfinite(value) or not any(digit in shown for digit in "123456789"):
        return shown
    return f"+{shown}" if value > 0 else f"−{shown}"


def record(paired: Paired) -> str:
    """Seeds won, lost and tied.

    >>> record(Paired(5, 1, 3, 1, 0.1, 0.0, 0.2, 0.03, 0.04))
    '3–1–1'
    """
    return f"{paired.wins}–{paired.losses}–{paired.ties}"


def probability(p: float) -> str:
    """A p-value, no more exact than it means.

    >>> probability(0.0312), probability(0.00002), probability(float("nan"))
    ('0.031', '< 0.001', '–')
    """
    if not np.isfinite(p):
        return NONE
    return "< 0.001" if p < 0.001 else f"{p:.2g}"


def against(measure: Measure, paired: Paired) -> list[str]:
    """A variant beside its reference: the difference, its interval, seeds, p and words."""
    return [
        difference(measure, paired),
        interval(measure, paired),
        record(paired),
        probability(paired.p_adjusted),
        in_words(paired),
    ]


# ---- sentences that stand in every report


def plural(n: int, word: str) -> str:
    return f"{n} {word}" if n == 1 else f"{n} {word}s"


def reference(results: Results) -> str:
    """The name of what others are compared with; nothing if it is not the same for all."""
    labels = {v.reference for v in results.variants if v.reference is not None}
    names = {name_of(v.keys) for v in results.variants if v.label in labels}
    return names.pop() if len(names) == 1 else ""


def introduction(results: Results) -> str:
    """What was compared, in a paragraph."""
    seeds = results.seeds
    text = f"A comparison of {plural(len(results.variants), 'variant')} of the job {results.title}"
    if results.by:
        text += f", which differ in {_listed(results.by)}"
    text += f", with {plural(len(seeds), 'seed')} ({', '.join(map(str, seeds))})"
    text += f": {sum(run.finished for run in results.runs)} of {len(results.runs)} runs finished. "
    text += (
        "Seeds are paired: with the same seed every variant has the same data, devices, luck and "
        "initial model. "
    )
    if results.target is None:
        text += "No target accuracy was set."
    else:
        text += f"The target is a test accuracy of {target(results)}."
    if named := reference(results):
        text += f" The reference is {' '.join(filter(None, [named, _conditions(results)]))}."
    return text


def _conditions(results: Results) -> str:
    """What variants that are compared have in common, in words."""
    if len(results.conditions) < 2:
        return ""
    return f"with the same {_listed([k for k in results.by if k != compared_key(results.by)])}"


def against_title(results: Results) -> str:
    return f"Against {reference(results) or 'the reference'}"


def bold(results: Results) -> str:
    """What bold numbers are."""
    those = _conditions(results)
    return f"Bold: the best mean of a column{' among variants ' if those else ''}{those}."


def _listed(words: Sequence[str]) -> str:
    """
    >>> _listed(["a", "b", "c"])
    'a, b and c'
    """
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def target(results: Results) -> str:
    """The target as text."""
    digits = BY_NAME["final_accuracy"].digits
    return "" if results.target is None else f"{round(100 * results.target, digits):g} %"


def explanation(results: Results) -> str:
    """What the cells of a table are, for its caption."""
    n = plural(len(results.seeds), "seed")
    text = f"Mean ± half of the 95 % interval of the mean (Student's t) over {n}"
    if results.target is not None and any(map(not_reached, results.variants)):
        text += "; where seeds did not reach the target there is no mean"
    return text + "."


def settings(results: Results) -> list[tuple[str, str]]:
    """The keys that all finished runs have in common, as a reader elsewhere wants them."""
    return [
        (key, short_path(plain(value)))
        for key, value in results.settings.items()
        if key not in PLACE
    ]


def plain(value: object) -> str:
    """A value as a job file would have it."""
    return value if isinstance(value, str) else json.dumps(value, default=str)


def escaped(text: str, by: Callable[[str], str]) -> str:
    """The text with every character replaced as `by` says."""
    return "".join(by(character) for character in text)
