"""The numbers of a comparison as tables: CSV for programs, aligned text for the terminal."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping
from pathlib import Path

from fedsuv_plugin.experiments.measures import MEASURES, Measure
from fedsuv_plugin.experiments.report.cells import cell, heading, known, not_reached, plain
from fedsuv_plugin.experiments.report.paths import relative, short_paths
from fedsuv_plugin.experiments.results import Keys, Results, RunResult, VariantResult, name_of
from fedsuv_plugin.experiments.statistics import Paired
from fedsuv_plugin.tables import columns

Row = Mapping[str, object]
NAN = float("nan")


def runs_csv(results: Results, folder: Path) -> str:
    """A row a run: what was varied, how it ended, and every measure as it was measured."""
    return _csv(_run_row(run, results, folder) for run in results.runs)


def _run_row(run: RunResult, results: Results, folder: Path) -> Row:
    return {
        **_varied(run.keys, results),
        "label": run.label,
        "seed": run.seed,
        "status": run.status,
        "reason": short_paths(run.reason),
        "path": relative(run.path, folder),
        **{measure.name: run.values.get(measure.name, NAN) for measure in MEASURES},
    }


def summary_csv(results: Results) -> str:
    """A row a variant: every measure over its seeds, and against the reference."""
    return _csv(_variant_row(variant, results) for variant in results.variants)


def _variant_row(variant: VariantResult, results: Results) -> Row:
    row: dict[str, object] = {
        "label": variant.label,
        **_varied(variant.keys, results),
        "seeds": len(variant.runs),
        "finished": len(variant.finished),
        "failed": len(variant.failed),
    }
    for measure in MEASURES:
        row |= _spread_columns(measure, variant, results.target is not None)
        if measure.better and any(v.against for v in results.variants):
            row |= _paired_columns(measure, variant.against.get(measure.name))
    return row


def _spread_columns(measure: Measure, variant: VariantResult, has_target: bool) -> Row:
    spread = variant.spreads[measure.name]
    found: dict[str, object] = {
        "mean": spread.mean,
        "sd": spread.deviation,
        "low": spread.low,
        "high": spread.high,
    }
    if measure.to_target:
        found["median"] = spread.median
        found["not_reached"] = not_reached(variant) if has_target else ""
    return {f"{measure.name}_{name}": value for name, value in found.items()}


def _paired_columns(measure: Measure, found: Paired | None) -> Row:
    """Empty in the row of the reference itself."""
    values = {
        "difference": found.difference if found else NAN,
        "difference_low": found.low if found else NAN,
        "difference_high": found.high if found else NAN,
        "wins": found.wins if found else "",
        "losses": found.losses if found else "",
        "ties": found.ties if found else "",
        "p": found.p if found else NAN,
        "p_adjusted": found.p_adjusted if found else NAN,
    }
    return {f"{measure.name}_{name}": value for name, value in values.items()}


def _varied(keys: Keys, results: Results) -> Row:
    return {key: plain(keys[key]) if key in keys else "" for key in results.by}


def _csv(rows: Iterable[Row]) -> str:
    """All rows have the same columns. Numbers are exact, and no number is an empty cell."""
    table = list(rows)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    if table:
        writer.writerow(table[0])
    writer.writerows([_exact(value) for value in row.values()] for row in table)
    return text.getvalue()


def _exact(value: object) -> str:
    if isinstance(value, float):
        return repr(float(value)) if math.isfinite(value) else ""
    return str(value)


def text_table(results: Results) -> str:
    """The short table, aligned for a terminal; what is under a condition is below its name."""
    shown = known(results, short=True)
    head = ["variant", "seeds", *(heading(measure) for measure in shown)]
    rows = []
    for condition, variants in results.conditions.items():
        if condition:
            rows.append([condition, *([""] * (len(head) - 1))])
        for v in variants:
            name = f"  {name_of(v.keys)}" if condition else v.label
            cells = [cell(measure, v, brief=True) for measure in shown]
            rows.append([name, str(len(v.finished)), *cells])
    return columns(head, rows)
