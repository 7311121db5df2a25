"""The pictures of a comparison for a paper: PDF and PNG, as wide as a column of text."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedsuv_plugin.atomic_file import replace_file
from fedsuv_plugin.experiments.report.series import Chart, Line
from fedsuv_plugin.experiments.report.styles import LIGHT, colour, dash

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTH = 3.5  # inches, a column of most conferences
HEIGHT = 2.3
FEW_POINTS = 12  # a line with no more has a dot at each
LEGEND_ROW = 0.15  # inches that a row of the legend takes below the axes
TEXT: dict[Any, Any] = {
    "font.size": 8,
    "axes.labelsize": 8,
    "axes.titlesize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "pdf.fonttype": 42,  # outlines that publishers accept
    "axes.spines.top": False,
    "axes.spines.right": False,
}
# Without dates the same comparison gives the same bytes.
METADATA: dict[str, dict[str, Any]] = {"pdf": {"CreationDate": None}, "png": {"Software": None}}


def write_figures(charts: Sequence[Chart], folder: Path) -> list[Path]:
    """A PDF and a PNG of every chart, by its name."""
    folder.mkdir(parents=True, exist_ok=True)
    return [path for chart in charts for path in _write(chart, folder)]


def figure_of(chart: Chart) -> Figure:
    """A chart as a figure of matplotlib's, to be shown or saved."""
    import matplotlib
    from matplotlib.figure import Figure

    parts = chart.parts
    wide = min(len(parts), 2)  # one column of text, or two
    high = -(-len(parts) // wide)
    columns, rows = _legend_shape({line.label for line in chart.lines}, WIDTH * wide)
    with matplotlib.rc_context(TEXT):
        size = (WIDTH * wide, HEIGHT * high + LEGEND_ROW * rows)
        figure = Figure(size, layout="constrained")
        axes = figure.subplots(high, wide, sharex=True, sharey=True, squeeze=False).ravel()
        named: dict[str, Any] = {}
        for ax, (condition, lines) in zip(axes, parts.items(), strict=False):
            named |= _draw(chart, lines, ax)
            ax.set_title(condition)
        for ax in axes[len(parts) :]:
            ax.remove()
        figure.legend(
            named.values(),
            named.keys(),
            loc="outside lower center",
            ncols=columns,
            frameon=False,
            handlelength=3.2,
        )
    return figure


def _write(chart: Chart, folder: Path) -> list[Path]:
    import matplotlib

    figure = figure_of(chart)
    written = []
    with matplotlib.rc_context(TEXT):
        for kind in METADATA:
            path = folder / f"{chart.name}.{kind}"
            replace_file(
                path,
                lambda f, kind=kind: figure.savefig(  # type: ignore[misc]
                    f, format=kind, dpi=300, metadata=METADATA[kind]
                ),
            )
            written.append(path)
    return written


def _legend_shape(labels: Collection[str], width: float) -> tuple[int, int]:
    """(columns, rows) of a legend that is no wider than a figure of this width."""
    widest = max(map(len, labels), default=1)
    columns = max(1, min(len(labels), int(16 * width) // (widest + 8)))
    return columns, -(-len(labels) // columns)


def _draw(chart: Chart, lines: Sequence[Line], ax: Any) -> dict[str, Any]:
    """Draw some lines of a chart; how each looks, by its label, for the legend."""
    from matplotlib.ticker import PercentFormatter

    looks = {line.label: _draw_line(line, ax) for line in lines}
    if chart.target is not None:
        ax.axhline(chart.target, color="0.35", linewidth=0.7, linestyle=(0, (1, 2)))
        ax.annotate(
            "target",
            (1.01, chart.target),
            xycoords=("axes fraction", "data"),
            va="center",
            fontsize=7,
            color="0.35",
        )
    ax.set(xlabel=chart.x_label, ylabel=f"{chart.y_label}, %", ylim=span(chart))
    ax.tick_params(labelbottom=True, labelleft=True)
    ax.yaxis.set_major_formatter(PercentFormatter(1.0, symbol=""))
    ax.grid(alpha=0.25, linewidth=0.5)
    ax.margins(x=0.02)
    return looks


def _draw_line(line: Line, ax: Any) -> Any:
    shade = LIGHT[colour(line.style)]
    strokes = dash(line.style)
    if np.any(line.high > line.low):
        ax.fill_between(line.x, line.low, line.high, color=shade, alpha=0.13, linewidth=0)
    (drawn,) = ax.plot(
        line.x,
        line.mean,
        color=shade,
        linewidth=1.2,
        linestyle=(0, strokes) if strokes else "-",
        marker="o" if len(line.x) <= FEW_POINTS else None,
        markersize=2.5,
    )
    return drawn


def span(chart: Chart) -> tuple[float, float]:
    """The lowest and highest share that a chart shows: its means, the target, a little air."""
    means = [line.mean[np.isfinite(line.mean)] for line in chart.lines]
    values = np.concatenate([*means, [] if chart.target is None else [chart.target]])
    if not len(values):
        return 0.0, 1.0
    low = float(values.min())
    high = float(values.max())
    air = 0.06 * (high - low) or 0.05
    return max(low - air, 0.0), min(high + air, 1.0) + 0.01 * (high >= 1.0)
