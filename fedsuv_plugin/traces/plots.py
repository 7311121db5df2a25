"""One picture of a population: latency, bandwidth, availability, deadlines.

matplotlib takes a while to import, so this module is imported only where a plot is asked for.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib
import numpy as np

matplotlib.use("Agg")  # no window: the picture goes to a file

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, PercentFormatter

from fedsuv_plugin.atomic_file import replace_file
from fedsuv_plugin.pictures import picture_kind
from fedsuv_plugin.tables import short_number
from fedsuv_plugin.traces.deadlines import Participations
from fedsuv_plugin.traces.population import Population

BLUE = "#2a6f97"
ORANGE = "#e07a3f"
GREY = "#666666"
HALF_HOURS = np.arange(0.0, 7 * 86_400.0, 1800.0)  # of a week


def plot_population(
    population: Population,
    title: str,
    path: str | Path,
    job: str = "",
    asked: Participations | None = None,
    deadline: float | None = None,
) -> None:
    """Save four panels: latency, bandwidth, a week online, and one more.

    With a job (`asked`) the fourth is the curve of its deadlines, otherwise the length of sessions.
    """
    picture, axes = plt.subplots(2, 2, figsize=(12, 8), layout="constrained")
    picture.suptitle(title, fontsize=13)
    _plot_latency(axes[0, 0], population)
    _plot_bandwidth(axes[0, 1], population)
    _plot_week(axes[1, 0], population)
    if asked is not None:
        _plot_deadlines(axes[1, 1], asked, job, deadline)
    else:
        _plot_sessions(axes[1, 1], population)
    for ax in axes.flat:
        ax.spines[["top", "right"]].set_visible(False)
        ax.grid(alpha=0.25)
        ax.set_axisbelow(True)
    kind = picture_kind(path)
    replace_file(path, lambda f: picture.savefig(f, format=kind, dpi=110))
    plt.close(picture)


def _plot_log_histogram(ax: Axes, values: np.ndarray, colour: str, label: str) -> None:
    low, high = np.percentile(values, (0.1, 99.9))
    edges = np.geomspace(low / 1.05, high * 1.05, 50).tolist()
    ax.hist(
        values,
        edges,
        weights=np.full(len(values), 1 / len(values)),
        color=colour,
        alpha=0.55,
        label=label,
    )
    ax.axvline(float(np.median(values)), color=colour, linewidth=1.5, linestyle="--")
    _set_scales(ax)


def _set_scales(ax: Axes) -> None:
    """A logarithmic x-axis labelled with plain numbers, and a y-axis in per cent."""
    ax.set_xscale("log")
    low, high = ax.get_xlim()
    ticks_per_decade = (1.0, 2.0, 5.0) if high / low < 1000 else (1.0,)
    ax.xaxis.set_major_locator(LogLocator(subs=ticks_per_decade, numticks=20))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))


def _plot_latency(ax: Axes, population: Population) -> None:
    values = population.ms_per_sample
    _plot_log_histogram(ax, values, BLUE, f"median {np.median(values):,.0f} ms")
    ax.set(title="Latency", xlabel="ms per sample (inference)", ylabel="clients")
    ax.legend(frameon=False)


def _plot_bandwidth(ax: Axes, population: Population) -> None:
    shown = [("down", population.kbps_down, BLUE)]
    if not population.one_bandwidth:
        shown.append(("up", population.kbps_up, ORANGE))
    for name, kbps, colour in shown:
        label = f"{name}, median {np.median(kbps) / 1000:.1f} Mbit/s"
        _plot_log_histogram(ax, kbps / 1000, colour, label)
    ax.set(title="Bandwidth", xlabel="Mbit/s", ylabel="clients")
    ax.legend(frameon=False)


def _plot_week(ax: Axes, population: Population) -> None:
    share = np.array([population.online(time).mean() for time in HALF_HOURS])
    ax.fill_between(HALF_HOURS / 86_400, share, color=BLUE, alpha=0.25)
    ax.plot(HALF_HOURS / 86_400, share, color=BLUE, linewidth=1.2)
    ax.set(
        title=f"Clients online over a week ({share.mean():.1%} on average)",
        xlabel="day of the trace",
        ylabel="clients online",
        xlim=(0, 7),
        ylim=(0, min(1.0, 1.25 * share.max() + 1e-3)),
    )
    ax.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))


def _plot_sessions(ax: Axes, population: Population) -> None:
    ax.set(title="Sessions", xlabel="minutes online at a stretch", ylabel="sessions")
    if population.availability is None or not len(population.availability.starts):
        ax.text(
            0.5,
            0.5,
            "always online:\nthis trace has no availability",
            ha="center",
            va="center",
            color=GREY,
            transform=ax.transAxes,
        )
        return
    minutes = np.maximum(population.availability.ends - population.availability.starts, 1.0) / 60
    _plot_log_histogram(ax, minutes, BLUE, f"median {np.median(minutes):.1f} minutes")
    ax.legend(frameon=False)


def _plot_deadlines(ax: Axes, asked: Participations, job: str, deadline: float | None) -> None:
    low, high = np.percentile(asked.seconds, (0.2, 99.5)) if len(asked.seconds) else (1.0, 10.0)
    high = max(high, 1.2 * (deadline or 0.0))
    grid = np.geomspace(min(low, deadline or low) / 1.2, high * 1.2, 400)
    ax.plot(grid, asked.share_valid(grid), color=BLUE, linewidth=2)
    for share in (0.5, 0.9):
        at = float(asked.deadline_for(np.array([share]))[0])
        if np.isfinite(at):
            ax.plot([at, at], [0, share], color=GREY, linewidth=0.8, linestyle=":")
            ax.annotate(
                f"{share:.0%} by {short_number(at)} s",
                (at, share),
                xytext=(6, -12),
                textcoords="offset points",
                color=GREY,
            )
    if deadline is not None:
        valid = float(asked.share_valid(np.array([deadline]))[0])
        ax.axvline(
            deadline,
            color=ORANGE,
            linewidth=1.5,
            label=f"round_deadline {deadline:g} s: {valid:.0%} valid",
        )
        ax.legend(frameon=False, loc="lower right")
    ax.set(
        title=f"Valid by the deadline: {job}",
        xlabel="round_deadline (s)",
        ylabel="of those asked",
        ylim=(0, 1.02),
        xlim=(grid[0], grid[-1]),
    )
    _set_scales(ax)
