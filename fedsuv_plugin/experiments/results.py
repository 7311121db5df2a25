"""What came out of a comparison: every run in numbers, and what its seeds say together.

`results_of` makes it from runs; `report/` writes it down as tables, pictures and a page.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedsuv_plugin.experiments.cohorts import Cohorts
from fedsuv_plugin.experiments.curves import Curve
from fedsuv_plugin.experiments.measures import MEASURES, Measured, measure
from fedsuv_plugin.experiments.statistics import Paired, Spread, adjusted, paired, spread
from fedsuv_plugin.records import Run, read_run

Keys = Mapping[str, object]  # the keys that make a variant, and their values
SELECTOR = "sample_mode"  # the key that is varied most


@dataclass(frozen=True, eq=False)
class RunResult:
    """One run of a comparison: a variant with a seed."""

    label: str
    keys: Keys
    seed: int
    path: Path
    status: str  # finished, unfinished, failed or missing
    reason: str = ""  # why it failed
    done: Measured | None = None  # what came out, if it is finished

    @property
    def finished(self) -> bool:
        return self.done is not None

    @property
    def values(self) -> Mapping[str, float]:
        """The number of every measure; nothing of a run that is not finished."""
        return self.done.values if self.done else {}

    @property
    def run(self) -> Run:
        assert self.done is not None
        return self.done.run

    @property
    def curve(self) -> Curve:
        assert self.done is not None
        return self.done.curve

    @property
    def cohorts(self) -> Cohorts:
        assert self.done is not None
        return self.done.cohorts

    @property
    def stopped_early(self) -> bool:
        """Whether it ended when it had reached its target, before its last round."""
        return self.finished and self.curve.round[-1] < self.run.settings["rounds"]


@dataclass(frozen=True, eq=False)
class VariantResult:
    """A row of the tables: one variant over its seeds."""

    label: str
    keys: Keys
    runs: Sequence[RunResult]
    spreads: Mapping[str, Spread]  # by measure, over the finished runs
    reference: str | None = None  # the label of the variant it is compared with; none: it is one
    against: Mapping[str, Paired] = field(default_factory=dict)  # by measure

    @property
    def finished(self) -> list[RunResult]:
        return [run for run in self.runs if run.finished]

    @property
    def failed(self) -> list[RunResult]:
        return [run for run in self.runs if run.status == "failed"]


@dataclass(frozen=True, eq=False)
class Results:
    """A whole comparison."""

    title: str  # the job's name
    variants: Sequence[VariantResult]  # in the order of the grid, by condition
    by: Sequence[str]  # the keys that are varied
    settings: Mapping[str, Any]  # the keys that all runs have in common
    target: float | None = None
    notes: Sequence[str] = ()  # what a reader must know, a sentence each

    @property
    def runs(self) -> list[RunResult]:
        return [run for variant in self.variants for run in variant.runs]

    @property
    def seeds(self) -> list[int]:
        return sorted({run.seed for run in self.runs})

    def variant(self, label: str) -> VariantResult:
        return next(each for each in self.variants if each.label == label)

    @property
    def conditions(self) -> dict[str, list[VariantResult]]:
        """The variants under each condition: they differ only in the key that is compared."""
        found: dict[str, list[VariantResult]] = {}
        for variant in self.variants:
            found.setdefault(condition_of(variant.keys), []).append(variant)
        return found

    @property
    def names(self) -> list[str]:
        """What is compared under each condition, such as the selectors."""
        return list(dict.fromkeys(name_of(variant.keys) for variant in self.variants))


def label_of(keys: Keys) -> str:
    """A variant's name: the selector's alone, if nothing else is varied.

    >>> label_of({"sample_mode": "oort", "partition_alpha": 0.1})
    'oort, partition_alpha=0.1'
    """
    return _joined(keys) or "job"


def _joined(keys: Keys) -> str:
    return ", ".join(str(v) if key == SELECTOR else f"{key}={v}" for key, v in keys.items())


def compared_key(keys: Iterable[str]) -> str | None:
    """Of the varied keys, the one that is compared; the others are the conditions.

    It is the selector, if that is varied, else the first."""
    keys = list(keys)
    return SELECTOR if SELECTOR in keys else next(iter(keys), None)


def name_of(keys: Keys) -> str:
    """A variant's name among those under the same condition.

    >>> name_of({"sample_mode": "oort", "partition_alpha": 0.1})
    'oort'
    """
    key = compared_key(keys)
    return label_of({} if key is None else {key: keys[key]})


def condition_of(keys: Keys) -> str:
    """What a variant has in common with those it is compared with; nothing if one key is varied.

    >>> condition_of({"sample_mode": "oort", "partition_alpha": 0.1})
    'partition_alpha=0.1'
    """
    compared = compared_key(keys)
    return _joined({key: value for key, value in keys.items() if key != compared})


def reference_of(
    vary: Mapping[str, Sequence[object]], wanted: object = None
) -> tuple[str, object] | None:
    """The key that is compared, and its value in the reference.

    Unless one is wanted, it is the selector `random` or, without that, the first value."""
    key = compared_key(vary)
    if key is None:
        return None
    values = list(vary[key])
    if wanted is not None:
        return key, wanted
    return key, "random" if key == SELECTOR and "random" in values else values[0]


def run_result(
    label: str, keys: Keys, seed: int, path: Path, target: float | None, failure: str | None
) -> RunResult:
    """What is in a run directory, measured if the job is finished."""
    if failure is not None:
        return RunResult(label, keys, seed, path, "failed", failure)
    if not (path / "config.yml").is_file():
        return RunResult(label, keys, seed, path, "missing")
    run = read_run(path)
    if not run.finished:
        return RunResult(label, keys, seed, path, "unfinished")
    return RunResult(label, keys, seed, path, "finished", done=measure(run, target))


def results_of(
    title: str,
    runs: Iterable[RunResult],
    by: Sequence[str],
    reference: tuple[str, object] | None,
    target: float | None,
    notes: Sequence[str] = (),
) -> Results:
    """The runs by variant, each variant against its reference.

    `reference` is a varied key and its value: a variant is compared with the one that has this
    value and otherwise the same keys. Variants under the same condition follow one another."""
    rows: dict[str, list[RunResult]] = {}
    for run in runs:
        rows.setdefault(run.label, []).append(run)
    variants = {label: _variant(label, found) for label, found in rows.items()}
    conditions = list(dict.fromkeys(condition_of(each.keys) for each in variants.values()))
    compared = _against_references(variants, reference)
    compared.sort(key=lambda variant: conditions.index(condition_of(variant.keys)))
    measured = [run.run.settings for found in rows.values() for run in found if run.finished]
    return Results(title, compared, by, _in_common(measured), target, _notes(compared, notes))


def _variant(label: str, runs: list[RunResult]) -> VariantResult:
    done = {run.seed: run.values for run in sorted(runs, key=lambda run: run.seed) if run.finished}
    spreads = {
        m.name: spread({seed: values[m.name] for seed, values in done.items()}, m.better)
        for m in MEASURES
    }
    return VariantResult(label, runs[0].keys, runs, spreads)


def _against_references(
    variants: Mapping[str, VariantResult], reference: tuple[str, object] | None
) -> list[VariantResult]:
    """Every variant with its paired comparisons; p-values are adjusted over all of them."""
    references = {
        label: _reference_of(each, variants, reference) for label, each in variants.items()
    }
    against: dict[str, dict[str, Paired]] = {label: {} for label in variants}
    for m in MEASURES:
        if not m.better:
            continue
        found = {
            label: paired(
                variants[label].spreads[m.name].values,
                variants[other].spreads[m.name].values,
                m.better,
            )
            for label, other in references.items()
            if other is not None
        }
        for label, each in adjusted(found).items():
            against[label][m.name] = each
    return [
        VariantResult(v.label, v.keys, v.runs, v.spreads, references[label], against[label])
        for label, v in variants.items()
    ]


def _reference_of(
    variant: VariantResult,
    variants: Mapping[str, VariantResult],
    reference: tuple[str, object] | None,
) -> str | None:
    if reference is None:
        return None
    key, value = reference
    wanted = {**variant.keys, key: value}
    for label, other in variants.items():
        if other is not variant and dict(other.keys) == wanted:
            return label
    return None


def _in_common(settings: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    if not settings:
        return {}
    first, *others = settings
    return {
        key: value
        for key, value in first.items()
        if all(key in other and other[key] == value for other in others)
    }


def _notes(variants: Sequence[VariantResult], notes: Sequence[str]) -> list[str]:
    """What the numbers themselves oblige one to say."""
    said = list(notes)
    for variant in variants:
        for status in ("failed", "unfinished", "missing"):
            seeds = [str(run.seed) for run in variant.runs if run.status == status]
            if seeds:
                said.append(f"{variant.label}: {status} with seed {', '.join(seeds)}; left out.")
    early = [run for variant in variants for run in variant.finished if run.stopped_early]
    if early:
        said.append(
            f"{len(early)} runs ended when they had reached the target: their final accuracy is "
            "that of this point, and their totals are those up to it."
        )
    return said
