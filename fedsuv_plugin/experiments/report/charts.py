"""The charts and maps of the page, drawn from the same series as the figures for a paper."""

from __future__ import annotations

import json
from html import escape

import numpy as np

from fedsuv_plugin.experiments.report.figures import FEW_POINTS, span
from fedsuv_plugin.experiments.report.maps import CohortMap
from fedsuv_plugin.experiments.report.series import Chart, Line
from fedsuv_plugin.experiments.report.styles import DARK, LIGHT, colour, dash
from fedsuv_plugin.experiments.report.svg import BOTTOM, LEFT, RIGHT, TOP, Axis, Plot

MOST_SEED_POINTS = 20_000  # of thin lines in a chart; of very many seeds every second or third


def palette() -> str:
    """The colours and line styles of the variants as CSS; those of a dark page too."""
    dark = "".join(f"--c{i}:{value};" for i, value in enumerate(DARK))
    light = "".join(f"--c{i}:{value};" for i, value in enumerate(LIGHT))
    return f":root{{{light}}}@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}"


def css_of(style: int) -> str:
    """The colour and the strokes of a variant as an attribute."""
    strokes = " ".join(f"{length:g}" for length in dash(style)) or "none"
    return f"--c:var(--c{colour(style)});--d:{strokes}"


def draw_chart(chart: Chart, clip: str) -> dict[str, str]:
    """A chart as SVG, one by condition, all to the same scale.

    Every variant is a group, which the legend of the page can hide."""
    plot, area = _plot(chart)
    drawn = sum(len(x) for line in chart.lines for x, _ in line.seeds)
    every = -(-drawn // MOST_SEED_POINTS) or 1
    target = "" if chart.target is None else plot.level(chart.target, "target")
    cursor = f'<path class="cursor" d="M0 {TOP}V{plot.height - BOTTOM}" visibility="hidden"/>'
    found = {}
    for i, (condition, lines) in enumerate(chart.parts.items()):
        groups = "".join(_variant(plot, line, every) for line in lines)
        content = plot.frame() + target + plot.clipped(groups, f"{clip}-{i}") + cursor
        title = f"{chart.y_label} {chart.title}{', ' if condition else ''}{condition}"
        found[condition] = plot.svg(
            content, title, f' class="chart" data-area="{escape(json.dumps(area))}"'
        )
    return found


def _plot(chart: Chart) -> tuple[Plot, dict[str, object]]:
    """The drawing area of a chart, and the same for the script that reads values off."""
    low, high = span(chart)
    begin = min((float(line.x[0]) for line in chart.lines), default=0.0)
    end = max((float(line.x[-1]) for line in chart.lines), default=1.0)
    for line in chart.lines:
        end = max([end, *(float(x[-1]) for x, _ in line.seeds)])
    plot = Plot(
        Axis(0.0 if begin < 0.3 * end else begin, end, chart.x_label),
        Axis(low, high, f"{chart.y_label}, %", percent=True),
        margin=RIGHT if chart.target is None else 70,
    )
    area = {
        "box": [LEFT, TOP, plot.right, plot.height - BOTTOM],
        "x": [plot.x_axis.low, plot.x_axis.high],
        "y": [100 * low, 100 * high],
        "label": chart.x_label,
    }
    return plot, area


def _variant(plot: Plot, line: Line, every: int) -> str:
    parts = []
    if np.any(line.high > line.low):
        parts.append(plot.band(line.x, line.low, line.high, "band"))
    if len(line.seeds) > 1:
        parts += [plot.line(x[::every], y[::every], "seed") for x, y in line.seeds]
    parts.append(plot.line(line.x, line.mean, "mean"))
    if len(line.x) <= FEW_POINTS:
        parts.append(plot.dots(line.x, line.mean, "dot"))
    return (
        f'<g data-variant="{line.style}" data-label="{escape(line.label)}" '
        f'style="{css_of(line.style)}">{"".join(parts)}</g>'
    )


def line_sample(style: int) -> str:
    """A piece of a variant's line, for the legend."""
    return (
        f'<svg class="sample" viewBox="0 0 36 10" aria-hidden="true" style="{css_of(style)}">'
        '<polyline class="mean" points="1,5 35,5"/></svg>'
    )


def draw_map(found: CohortMap, title: str) -> str:
    """A map of cohorts with its axes; client 1 is at the top."""
    plot = Plot(
        Axis(0.5, found.rounds + 0.5, "round"),
        Axis(found.clients + 0.5, 0.5, "client"),
        width=420,
        height=320,
    )
    return plot.svg(plot.image(found.png()) + plot.frame(grid=False), title, ' class="map"')
