"""The published experiments, to be run again: `fedsuv replay <paper>/<figure>`; one file each.

A replay is a function from its parameters to a report: tables, pictures and notes, with the
paper's numbers beside ours where the paper gives any. What a replay found, and how settings that a
paper leaves open were chosen, is in README.md. Here replays are found and reports are written.

Every replay is imported to be listed, so their files import nothing heavy: FedScale, torch and
matplotlib are imported in the functions that use them.
"""

from __future__ import annotations

import json
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from fedsuv_plugin.atomic_file import replace_file
from fedsuv_plugin.experiments.comparison import Say
from fedsuv_plugin.named import Catalogue
from fedsuv_plugin.params import NoParams
from fedsuv_plugin.params import Params as AnyParams
from fedsuv_plugin.tables import columns, markdown

CONFIGS = Path(__file__).parents[2] / "configs"  # the job files
RUNS = "runs"  # folder, beside a report, of the run directories behind it


@dataclass(frozen=True)
class Table:
    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Report:
    """What a replay found."""

    tables: Sequence[Table]
    notes: Sequence[str] = ()
    figures: Sequence[str] = ()  # PNGs in the output folder
    # Every number behind the tables, for results.json.
    data: dict[str, Any] = field(default_factory=dict)

    def text(self) -> str:
        tables = [f"{t.title}\n{columns(t.head, t.rows)}" for t in self.tables]
        return "\n\n".join([*tables, *self.notes])

    def save(self, folder: Path, title: str) -> None:
        """Write report.md and results.json beside the pictures."""
        parts = [
            f"# {title}",
            *(f"## {t.title}\n\n{markdown(t.head, t.rows)}" for t in self.tables),
            *self.notes,
            *(f"![{name}]({name})" for name in self.figures),
        ]
        report = "\n\n".join(parts) + "\n"
        results = json.dumps(self.data, indent=2) + "\n"
        replace_file(folder / "report.md", lambda f: f.write(report.encode()))
        replace_file(folder / "results.json", lambda f: f.write(results.encode()))


class Replay(ABC):
    """One experiment. `--set` changes its parameters; reports are quoted for their defaults."""

    name: ClassVar[str]  # <paper>/<figure or table>
    shows: ClassVar[str]  # one line
    Params: ClassVar[type[AnyParams]] = NoParams

    def __init__(self, params: AnyParams):
        self.params: Any = params

    @abstractmethod
    def run(self, folder: Path, say: Say) -> Report:
        """Do the experiment; pictures go to `folder`, run directories to `runs` in it."""


REPLAYS: Catalogue[type[Replay]] = Catalogue("replay")
REPLAYS.discover(sys.modules[__name__])  # last: the replays import what is defined above
