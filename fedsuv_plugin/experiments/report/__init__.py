"""A comparison written down: tables, pictures and one page, all from the same `Results`."""

from __future__ import annotations

from pathlib import Path

from fedsuv_plugin.atomic_file import replace_file
from fedsuv_plugin.experiments.report.documents import report_md, table_tex
from fedsuv_plugin.experiments.report.tables import runs_csv, summary_csv, text_table
from fedsuv_plugin.experiments.results import Results

__all__ = ["text_table", "write_report"]


def write_report(results: Results, folder: Path) -> list[Path]:
    """Write everything into the folder; what was written."""
    texts = {
        "runs.csv": runs_csv(results, folder),
        "summary.csv": summary_csv(results),
        "report.md": report_md(results, [], folder),
        "table.tex": table_tex(results),
    }
    written = []
    for name, text in texts.items():
        content = text.encode()
        replace_file(folder / name, lambda file, content=content: file.write(content))
        written.append(folder / name)
    return written
