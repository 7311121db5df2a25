"""How far a comparison is: the grid on a terminal, a line a job elsewhere."""

from __future__ import annotations

import sys
import time
from contextlib import AbstractContextManager, nullcontext

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from fedsuv_plugin.cli.progress import minutes
from fedsuv_plugin.experiments.comparison import Cell, Progress
from fedsuv_plugin.experiments.study import Study, effort
from fedsuv_plugin.experiments.workers import Begun, Done, Event, Failed, Told
from fedsuv_plugin.records import read_run

WAITING = "·"


def watch(study: Study, workers: int, quiet: bool) -> None:
    """Run what is missing of a study and show how far it is."""
    grid = Grid(study, workers)
    console = Console(stderr=True)
    live = console.is_terminal and not quiet
    show = Live(get_renderable=grid.view, console=console, refresh_per_second=4, transient=True)
    shown: AbstractContextManager[object] = show if live else nullcontext()
    lines = not (live or quiet)
    with shown:
        for cell, event in study.run(workers):
            grid.hear(cell, event)
            if lines and isinstance(event, Done | Failed):
                print(grid.line(cell, event), file=sys.stderr, flush=True)


class Grid:
    """What is known of every job of a study."""

    def __init__(self, study: Study, workers: int):
        self._study = study
        self._workers = workers
        self._began = time.monotonic()
        waiting = {(cell.label, cell.seed): cell for cell in study.missing}
        self._total = sum(effort(cell) for cell in waiting.values())
        self._done = 0.0  # effort of the jobs that are over
        self._over = 0
        self._jobs = len(waiting)
        self._running: dict[tuple[str, int], tuple[Cell, Progress | None, float | None]] = {}
        self._texts = {  # what stands in each field of the grid
            (cell.label, cell.seed): WAITING
            if (cell.label, cell.seed) in waiting
            else _accuracy(cell)
            for cell in study.cells
        }

    def hear(self, cell: Cell, event: Event[None]) -> None:
        place = (cell.label, cell.seed)
        if isinstance(event, Begun):
            self._running[place] = (cell, None, None)
        elif isinstance(event, Told):
            known = self._running[place][2]
            accuracy = event.what.accuracy
            self._running[place] = (cell, event.what, known if accuracy is None else accuracy)
        else:
            del self._running[place]
            self._over += 1
            self._done += effort(cell)
            self._texts[place] = "failed" if isinstance(event, Failed) else _accuracy(cell)

    def line(self, cell: Cell, event: Event[None]) -> str:
        """One line about a job that is over."""
        what = f"failed: {event.error}" if isinstance(event, Failed) else _accuracy(cell)
        return (
            f"{self._over}/{self._jobs}  {cell.label}, seed {cell.seed}: {what}, "
            f"{minutes(self.seconds_left())} left"
        )

    def seconds_left(self) -> float:
        """As long as the rest takes at the pace so far."""
        halfway = sum(
            effort(cell) * told.round / cell.job.config.rounds
            for cell, told, _ in self._running.values()
            if told is not None
        )
        done = self._done + halfway
        elapsed = time.monotonic() - self._began
        return elapsed * (self._total - done) / done if done else float("nan")

    # ---- on a terminal

    def view(self) -> Group:
        table = Table(box=None, pad_edge=False)
        table.add_column("")
        for seed in self._study.seeds:
            table.add_column(f"s{seed}", justify="right")
        for label in self._study.variants:
            table.add_row(label, *(self._field(label, seed) for seed in self._study.seeds))
        left = self.seconds_left()
        about = f", about {minutes(left)} left" if left == left else ""
        head = Text(f"{self._over} of {self._jobs} jobs{about}", style="bold")
        return Group(head, table, *(self._job(place) for place in self._running))

    def _field(self, label: str, seed: int) -> Text:
        running = self._running.get((label, seed))
        if running is not None:
            cell, told, _ = running
            share = 0 if told is None else told.round / cell.job.config.rounds
            return Text(f"{share:.0%}", style="cyan")
        text = self._texts[label, seed]
        style = {"failed": "red", WAITING: "dim"}.get(text, "green")
        return Text(text, style=style)

    def _job(self, place: tuple[str, int]) -> Text:
        cell, told, accuracy = self._running[place]
        if told is None:
            return Text(f"  {cell.label}, seed {cell.seed}: starting", style="dim")
        known = "" if accuracy is None else f", accuracy {accuracy:.4f}"
        rounds = cell.job.config.rounds
        return Text(f"  {cell.label}, seed {cell.seed}: round {told.round}/{rounds}{known}")


def _accuracy(cell: Cell) -> str:
    return f"{read_run(cell.path).metrics[-1]['accuracy']:.4f}"
