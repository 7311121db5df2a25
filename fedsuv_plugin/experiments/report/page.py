"""report.html: a comparison as one file that opens from the disk and fetches nothing."""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined

from fedsuv_plugin.experiments.measures import Measure
from fedsuv_plugin.experiments.report.cells import (
    against,
    against_title,
    best,
    bold,
    cell,
    compared,
    explanation,
    heading,
    introduction,
    known,
    seed_cell,
    settings,
)
from fedsuv_plugin.experiments.report.charts import draw_chart, draw_map, line_sample, palette
from fedsuv_plugin.experiments.report.material import Material
from fedsuv_plugin.experiments.report.paths import relative, short_paths
from fedsuv_plugin.experiments.report.series import Chart
from fedsuv_plugin.experiments.results import Results, RunResult, VariantResult


@dataclass(frozen=True)
class Column:
    """A heading of a sortable table."""

    heading: str
    meaning: str = ""
    descending: bool = False  # what the first click sorts by: the best comes first
    css: str = ""


@dataclass(frozen=True)
class Cell:
    """What stands in a table, and the number it is sorted by; an empty key comes last."""

    text: str
    key: str | None = None  # none: it is sorted by its text
    css: str = ""
    seeds: str = ""  # each seed's value, shown as a tooltip
    link: str = ""
    folds: bool = False


@dataclass(frozen=True)
class Group:
    """A row, and the rows of its seeds, which it unfolds."""

    cells: Sequence[Cell]
    seeds: Sequence[Sequence[str]] = ()


@dataclass(frozen=True)
class Table:
    name: str
    columns: Sequence[Column]
    groups: Sequence[Group]


@dataclass(frozen=True)
class Panel:
    """What a tab shows."""

    id: str
    title: str
    content: object  # a Table, or SVG by condition


def page_html(results: Results, material: Material, folder: Path) -> str:
    """The page as text. Names and reasons come from users and are escaped by Jinja."""
    jinja = Environment(
        loader=PackageLoader("fedsuv_plugin.experiments", "report"),
        autoescape=True,
        undefined=StrictUndefined,
        keep_trailing_newline=True,
    )
    assert jinja.loader is not None
    script = jinja.loader.get_source(jinja, "page.js")[0]
    panels = [_against(measure, results) for measure in compared(results)]
    contents = [
        ("results", "Results"),
        *([("reference", against_title(results))] if panels else []),
        *([("curves", "Accuracy"), ("validity", "Whose work counted")] if material.curves else []),
        *([("cohorts", "Who was asked")] if material.maps else []),
        ("measures", "Measures"),
        ("runs", "Runs"),
        ("settings", "Settings"),
    ]
    return jinja.get_template("page.html").render(
        results=results,
        policy=_policy(script),
        palette=palette(),
        script=script,
        introduction=introduction(results),
        explanation=f"{explanation(results)} {bold(results)}",
        against_title=against_title(results),
        contents=contents,
        short=_variants_table("results", known(results, short=True), results),
        complete=_variants_table("all measures", known(results), results),
        against=panels,
        curves=_drawn(material.curves),
        validity=_drawn(material.validity),
        by_deadline=_drawn(material.by_deadline),
        deadline=_deadline(results),
        variants=_legend(material.curves),
        deadline_variants=_legend(material.by_deadline),
        maps=[
            {"label": each.label, "seed": each.seed, "content": draw_map(found, each.label)}
            for each, found in material.maps.items()
        ],
        map_seeds=sorted({run.seed for run in material.maps}),
        binned=any(found.binned for found in material.maps.values()),
        measures=known(results),
        runs=_runs_table(results, folder),
        settings=settings(results),
        environment=list(_environment(results)),
    )


def _policy(script: str) -> str:
    """Nothing may be fetched, and no script may run but the page's own."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


# ---- tables


def _column(measure: Measure, css: str = "") -> Column:
    return Column(heading(measure), measure.meaning, measure.better > 0, css)


def _variants_table(name: str, measures: Sequence[Measure], results: Results) -> Table:
    best_of = {measure.name: best(measure, results) for measure in measures}
    groups = []
    for variant in results.variants:
        cells = [Cell(variant.label, folds=True), Cell(str(len(variant.finished)))]
        for measure in measures:
            spread = variant.spreads[measure.name]
            order = spread.mean if math.isfinite(spread.mean) else spread.median
            cells.append(
                Cell(
                    cell(measure, variant),
                    key=_key(order),
                    css="best" if variant.label in best_of[measure.name] else "",
                    seeds=_each_seed(measure, variant),
                )
            )
        seeds = [
            [f"seed {run.seed}", "", *(seed_cell(measure, run) for measure in measures)]
            for run in variant.runs
        ]
        groups.append(Group(cells, seeds))
    columns = [Column("variant", css="left"), Column("seeds", "finished runs", descending=True)]
    return Table(name, [*columns, *map(_column, measures)], groups)


def _each_seed(measure: Measure, variant: VariantResult) -> str:
    return "\n".join(f"seed {run.seed}: {seed_cell(measure, run)}" for run in variant.runs)


def _key(value: float) -> str:
    return repr(float(value)) if math.isfinite(value) else ""


def _against(measure: Measure, results: Results) -> Panel:
    groups = []
    for variant in results.variants:
        paired = variant.against.get(measure.name)
        if paired is None:
            continue
        difference, interval, seeds, p, words = against(measure, paired)
        groups.append(
            Group(
                [
                    Cell(variant.label),
                    Cell(difference, _key(paired.difference)),
                    Cell(interval, _key(paired.low)),
                    Cell(seeds, str(paired.wins - paired.losses)),
                    Cell(p, _key(paired.p_adjusted)),
                    Cell(words, css="words"),
                ]
            )
        )
    unit = ", points" if measure.share else ""
    columns = [
        Column("variant", css="left"),
        Column(f"difference{unit}", descending=measure.better > 0),
        Column(f"95 % interval{unit}", descending=measure.better > 0),
        Column("won, lost, tied", descending=True),
        Column("p, adjusted"),
        Column("in words", css="left"),
    ]
    name = f"{measure.heading} against the reference"
    return Panel(f"against-{measure.name}", measure.heading, Table(name, columns, groups))


def _runs_table(results: Results, folder: Path) -> Table:
    """On paper it has only the measures of the short tables, or it would be too wide."""
    css = {measure: "" if measure.short else "screen" for measure in known(results)}

    def show(run: RunResult, measure: Measure) -> Cell:
        text = seed_cell(measure, run) if run.finished else "–"
        return Cell(text, _key(_value(run, measure)), css[measure])

    groups = [
        Group(
            [
                Cell(run.label, link=_link(run, folder)),
                Cell(str(run.seed)),
                Cell(": ".join(filter(None, [run.status, short_paths(run.reason)])), css="left"),
                *(show(run, measure) for measure in css),
            ]
        )
        for run in results.runs
    ]
    columns = [Column("variant", css="left"), Column("seed"), Column("status", css="left")]
    return Table("runs", [*columns, *(_column(m, css[m]) for m in css)], groups)


def _value(run: RunResult, measure: Measure) -> float:
    return run.values.get(measure.name, math.nan)


def _link(run: RunResult, folder: Path) -> str:
    """Where the run is; nothing where it left no directory."""
    return quote(relative(run.path, folder)) + "/" if run.path.is_dir() else ""


# ---- pictures and facts


def _drawn(charts: Sequence[Chart]) -> list[Panel]:
    """`validity` is the name of two charts, so the title is part of the id."""
    ids = [f"{chart.name}-{chart.title}".replace(" ", "-") for chart in charts]
    return [
        Panel(id, chart.title, draw_chart(chart, f"clip-{id}"))
        for id, chart in zip(ids, charts, strict=True)
    ]


def _legend(charts: Sequence[Chart]) -> list[dict[str, object]]:
    labels = {line.style: line.label for chart in charts[:1] for line in chart.lines}
    return [
        {"label": label, "style": style, "sample": line_sample(style)}
        for style, label in sorted(labels.items())
    ]


def _deadline(results: Results) -> str:
    if "round_deadline" in results.by or "round_deadline" not in results.settings:
        return ""
    seconds = results.settings["round_deadline"]
    return "Rounds had no deadline." if seconds is None else f"A round had {seconds:g} s."


def _environment(results: Results) -> Iterator[tuple[str, str]]:
    """What the runs ran with; where they differ, every value that there was."""
    found: dict[str, list[str]] = {}
    for run in (run for run in results.runs if run.finished):
        facts = run.run.environment
        packages = facts.get("packages", {})
        known_facts = {
            "fedsuv_plugin": packages.get("fedsuv_plugin"),
            "revision": facts.get("git_revision"),
            "command": " ".join(map(short_paths, facts.get("command", []))),
            "python": facts.get("python"),
            "platform": facts.get("platform"),
            **{name: version for name, version in packages.items() if name != "fedsuv_plugin"},
        }
        for name, value in known_facts.items():
            values = found.setdefault(name, [])
            if value and str(value) not in values:
                values.append(str(value))
    for name, values in found.items():
        if name == "command" and len(values) > 1:
            values = [f"{values[0]} (of the first run; the others differ)"]
        yield name, " | ".join(values)
