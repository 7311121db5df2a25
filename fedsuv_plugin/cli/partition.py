"""`fedsuv data partition`: who gets which samples in a job: numbers, a picture, a map file.

Data sets bring torch along and pictures matplotlib, so both are imported where the command runs.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedsuv_plugin.cli.options import add_command, add_job_options, chosen_job
from fedsuv_plugin.config.resolved import resolve
from fedsuv_plugin.traces.summary import quantile_table

if TYPE_CHECKING:
    from fedsuv_plugin.tasks.partitions import Partition

DESCRIPTION = """\
Show how a job's training samples are shared out among its clients, without running it. The same job
file and seed give the same shares. What a selector keeps for the server's public set
(public_fraction) is left out; what clients hold out of their own samples (holdout_fraction) is not.

--export writes a CSV in FedScale's format. Set as data_map_file in the same job it gives the same
clients the same samples; FedScale reads it too, as clients in the order in which they appear, and
samples without an owner as one client more.

examples:
  fedsuv data partition configs/quickstart.yml
  fedsuv data partition configs/quickstart.yml --set partition=shards --plot clients.png
  fedsuv data partition configs/quickstart.yml --set partition=dirichlet_qp --export map.csv
"""
BARS = 60  # up to so many clients become stacked bars, more a heat map


def add_partition_command(commands: Any) -> None:
    """Add `partition` to the sub-commands of `fedsuv data`."""
    help = "show, plot and export who gets which samples"
    parser = add_command(commands, "partition", help, DESCRIPTION)
    parser.add_argument("config", help="the job file")
    add_job_options(parser)
    parser.add_argument("--plot", metavar="FILE", help="plot clients x labels; png, pdf or svg")
    parser.add_argument(
        "--export", metavar="CSV", help="write the partition as a FedScale map file"
    )
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> None:
    from fedsuv_plugin.tasks.federated_data import describe_partition
    from fedsuv_plugin.tasks.map_file import to_map_file

    job = chosen_job(args)
    parts, labels = describe_partition(resolve(job).config)
    counts = label_counts(parts, labels)
    how = job.config.data_map_file or job.config.partition
    print(
        f"{args.config}: {job.config.data_set}, {how}: {len(parts):,} clients share "
        f"{len(parts.order):,} of {len(labels):,} samples, {counts.shape[1]} labels\n"
    )
    not_empty = counts[parts.sizes > 0]
    commonest = not_empty.max(axis=1) / not_empty.sum(axis=1)
    print(
        quantile_table(
            [
                ("samples per client", parts.sizes),
                ("labels per client", (counts > 0).sum(axis=1)),
                ("share of a client's commonest label", commonest),
                ("clients per label", (counts > 0).sum(axis=0)),
            ]
        )
    )
    if args.plot is not None:
        title = f"{job.config.data_set}, {Path(how).name}: {len(parts):,} clients"
        plot_partition(counts, title, args.plot)
        print(f"\n{args.plot}: plotted")
    if args.export is not None:
        to_map_file(args.export, parts, labels)
        print(f"\n{args.export}: written; use it with --set data_map_file={args.export}")


def label_counts(parts: Partition, labels: np.ndarray) -> np.ndarray:
    """How many samples of each label each client has, (clients, labels)."""
    classes = int(labels.max(initial=0)) + 1
    owner = np.repeat(np.arange(len(parts)), parts.sizes)
    cells = owner * classes + labels[parts.order]
    return np.bincount(cells, minlength=len(parts) * classes).reshape(-1, classes)


def plot_partition(counts: np.ndarray, title: str, path: str) -> None:
    """A picture of clients x labels: stacked bars of few clients, a heat map of many."""
    from matplotlib.ticker import MaxNLocator

    from fedsuv_plugin.pictures import picture

    with picture(Path(path).expanduser(), size=(11, 5.5)) as (figure, (ax,)):
        if len(counts) <= BARS:
            _plot_bars(ax, counts)
        else:
            _plot_heat_map(figure, ax, counts)
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        ax.yaxis.set_major_locator(MaxNLocator(integer=True))
        ax.set_title(title)
        ax.spines[["top", "right"]].set_visible(False)


def _plot_bars(ax: Any, counts: np.ndarray) -> None:
    from matplotlib import colormaps

    clients, classes = counts.shape
    colours = colormaps["turbo"](np.linspace(0.05, 0.95, classes))
    x = np.arange(1, clients + 1)
    below = np.zeros(clients)
    for label in range(classes):
        own = counts[:, label]
        ax.bar(x, own, bottom=below, color=colours[label], width=0.9, label=str(label))
        below += own
    ax.set(xlabel="client", ylabel="samples")
    ax.set(xlim=(0.3, clients + 0.7), ylim=(0, 1.05 * max(below.max(), 1)))
    ax.legend(
        title="label",
        loc="center left",
        bbox_to_anchor=(1.01, 0.5),
        frameon=False,
        ncols=-(-classes // 20),  # at most 20 labels below each other
    )
    ax.grid(axis="y", alpha=0.25)
    ax.set_axisbelow(True)


def _plot_heat_map(figure: Any, ax: Any, counts: np.ndarray) -> None:
    order = np.lexsort((-counts.max(axis=1), counts.argmax(axis=1)))
    image = ax.imshow(
        np.ma.masked_equal(counts[order].T, 0),
        aspect="auto",
        interpolation="nearest",
        cmap="viridis_r",
        norm="log",
        origin="lower",
    )
    ax.set(xlabel="clients, sorted by their commonest label", ylabel="label")
    figure.colorbar(image, ax=ax, label="samples (white: none)")
