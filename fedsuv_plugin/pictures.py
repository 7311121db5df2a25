"""Pictures, made off screen and saved whole. matplotlib is imported only where one is made."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from fedsuv_plugin.atomic_file import replace_file
from fedsuv_plugin.errors import require

KINDS = ("png", "pdf", "svg")
# Okabe and Ito's colours, which colour-blind readers can tell apart, and a line for each.
Style = tuple[str, Any]  # a colour and a line style of matplotlib's
STYLES: tuple[Style, ...] = (
    ("#0072B2", "-"),
    ("#D55E00", "--"),
    ("#595959", ":"),
    ("#009E73", "-."),
    ("#CC79A7", (0, (5, 1))),
)


def picture_kind(path: str | Path) -> str:
    """What a picture is saved as, by the ending of its name."""
    kind = Path(path).suffix.lower().lstrip(".")
    require(kind in KINDS, "--plot", f"a file that ends in .{', .'.join(KINDS)}", str(path))
    return kind


@contextmanager
def picture(
    path: Path, columns: int = 1, size: tuple[float, float] = (8, 5)
) -> Iterator[tuple[Any, list[Any]]]:
    """(the figure, its axes side by side), to plot on; saved at the end of the block.

    The file's ending says as what: png, pdf or svg."""
    kind = picture_kind(path)
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, columns, figsize=size, layout="constrained", squeeze=False)
    try:
        yield figure, list(axes[0])
        replace_file(path, lambda f: figure.savefig(f, format=kind, dpi=110))
    finally:
        plt.close(figure)


def mean_and_range(
    ax: Any, x: np.ndarray, curves: np.ndarray, label: str, style: Style | None = None
) -> None:
    """A line for the mean of the curves (seeds, points), and a band from lowest to highest."""
    colour, line = style or (None, "-")
    (mean,) = ax.plot(x, curves.mean(axis=0), label=label, color=colour, linestyle=line)
    low = curves.min(axis=0)
    high = curves.max(axis=0)
    ax.fill_between(x, low, high, alpha=0.15, color=mean.get_color(), linewidth=0)


def finish(ax: Any, legend: str = "lower right", **labels: Any) -> None:
    """Title and axis labels, a grid and the legend."""
    ax.set(**labels)
    ax.grid(alpha=0.3)
    ax.legend(loc=legend)
