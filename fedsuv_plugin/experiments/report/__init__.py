"""A comparison written down: tables, pictures and one page, all from the same `Results`.

runs.csv summary.csv      every run; every variant over its seeds, and against the reference
report.md table.tex       for a repository and for a paper
figures/*.pdf *.png       for a paper
report.html               everything on one page, which opens from the disk
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fedsuv_plugin.atomic_file import replace_file
from fedsuv_plugin.errors import UserError
from fedsuv_plugin.experiments.report.documents import report_md, table_tex
from fedsuv_plugin.experiments.report.figures import figure_of, write_figures
from fedsuv_plugin.experiments.report.material import gather
from fedsuv_plugin.experiments.report.page import page_html
from fedsuv_plugin.experiments.report.series import accuracy_charts
from fedsuv_plugin.experiments.report.tables import runs_csv, summary_csv, text_table
from fedsuv_plugin.experiments.results import Results

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["accuracy_figure", "text_table", "write_report"]

BY = "accuracy_by_"


def write_report(results: Results, folder: Path) -> list[Path]:
    """Write the whole report into a folder, which is made; the files that were written.

    The same results give the same bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    material = gather(results)
    figures = write_figures(material.figures, folder / "figures")
    files = {
        "report.html": page_html(results, material, folder),
        "report.md": report_md(results, figures, folder),
        "runs.csv": runs_csv(results, folder),
        "summary.csv": summary_csv(results),
        "table.tex": table_tex(results),
    }
    for name, text in files.items():
        content = text.encode()
        replace_file(folder / name, lambda file, content=content: file.write(content))  # type: ignore[misc]
    return [*(folder / name for name in files), *figures]


def accuracy_figure(results: Results, by: str) -> Figure:
    """The accuracy of every variant by what it cost: rounds, time, energy or client time."""
    charts = {chart.name.removeprefix(BY): chart for chart in accuracy_charts(results)}
    if by not in charts:
        raise UserError(f"plot: expected one of {', '.join(charts)}, got {by!r}")
    return figure_of(charts[by])
