"""The published experiments, to be run again: `fedsuv replay <paper>/<figure>`; one file each.

A replay is a function from its parameters to a report: tables, pictures and notes, with the paper's numbers beside
ours where the paper gives any. The mechanism here finds replays, writes reports and spreads work over cores.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from fedsuv_plugin.atomic_file import replace_file
from fedsuv_plugin.named import Catalogue
from fedsuv_plugin.params import NoParams
from fedsuv_plugin.params import Params as AnyParams
from fedsuv_plugin.tables import columns, markdown

Say = Callable[[str], None]  # progress, a line at a time
T = TypeVar("T")
R = TypeVar("R")


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
    data: dict[str, Any] = field(
        default_factory=dict
    )  # every number behind the tables, for results.json

    def text(self) -> str:
        return "\n\n".join(
            [*(f"{t.title}\n{columns(t.head, t.rows)}" for t in self.tables), *self.notes]
        )

    def save(self, folder: Path, title: str) -> None:
        """report.md and results.json beside the pictures."""
        parts = [
            f"# {title}",
            *(f"## {t.title}\n\n{markdown(t.head, t.rows)}" for t in self.tables),
            *self.notes,
            *(f"![{name}]({name})" for name in self.figures),
        ]
        replace_file(folder / "report.md", lambda f: f.write(("\n\n".join(parts) + "\n").encode()))
        replace_file(
            folder / "results.json",
            lambda f: f.write((json.dumps(self.data, indent=2) + "\n").encode()),
        )


class Replay(ABC):
    """One experiment. Its parameters can be set with --set; their defaults are what the report is quoted for."""

    name: ClassVar[str]  # <paper>/<figure or table>
    shows: ClassVar[str]  # one line
    Params: ClassVar[type[AnyParams]] = NoParams

    def __init__(self, params: AnyParams):
        self.params: Any = params

    @abstractmethod
    def run(self, folder: Path, say: Say) -> Report:
        """Do the experiment; pictures go to `folder`."""


REPLAYS: Catalogue[type[Replay]] = Catalogue("replay")


def parallel(
    work: Callable[[T], R], items: Sequence[T], workers: int | None = None
) -> Iterator[tuple[T, R]]:
    """(item, work(item)) as they finish, over processes; one torch thread each, or the cores fight."""
    workers = min(workers or os.cpu_count() or 1, len(items))
    if workers <= 1:
        for item in items:
            yield item, work(item)
        return
    context = multiprocessing.get_context(
        "spawn"
    )  # torch does not survive a fork once it has threads
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_one_thread) as pool:
        futures = {pool.submit(work, item): item for item in items}
        for future in as_completed(futures):
            yield futures[future], future.result()


def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)


REPLAYS.discover(sys.modules[__name__])  # last: they use all of the above
