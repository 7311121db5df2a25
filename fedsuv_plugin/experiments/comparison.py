"""A comparison: one job file run with several variants of its keys and several seeds.

    comparison = Comparison(
        "configs/quickstart.yml",
        variants={"oort": {"sample_mode": "oort"}, "random": {"sample_mode": "random"}},
        seeds=range(3),
        common={"rounds": 100},
    )
    runs = comparison.run(Path("runs/oort_or_random"), say=print)
    runs["oort"][2].metrics[-1]["accuracy"]  # of the variant `oort`, seed 2

Every cell of the grid, a variant with a seed, is a job of its own and keeps its run directory. The
data that any of the selectors needs kept from training is kept by all. The same comparison run
again in the same folder runs only what is missing, and goes on with what was broken off.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from fedsuv_plugin.config.job import Job
from fedsuv_plugin.config.job_file import FILES, load_job
from fedsuv_plugin.config.resolved import ResolvedJob, open_shares, resolve
from fedsuv_plugin.config.scales import scaled
from fedsuv_plugin.errors import UserError, require
from fedsuv_plugin.experiments.workers import Done, Event, Failed, Tell, over_processes
from fedsuv_plugin.records import Run, read_run
from fedsuv_plugin.run_directory import RunDirectory
from fedsuv_plugin.selectors.signals import SHARES

Say = Callable[[str], None]  # hears of progress, a line at a time
Overrides = Mapping[str, object]  # flat keys of a job, which win over its job file
T = TypeVar("T")
R = TypeVar("R")

PLACE = ("job_name", "log_path")  # keys that say where a run is kept, not what it is


def silent(line: object) -> None:
    """A `Say` or a `Tell` that nobody listens to."""


@dataclass(frozen=True)
class Cell:
    """One job of a comparison, and where it is kept."""

    label: str
    seed: int
    job: ResolvedJob
    path: Path


@dataclass(frozen=True)
class Comparison:
    """A grid of jobs: a job file x variants x seeds. The module's header shows how it is used."""

    job_file: str | Path
    # By label, the keys that make a variant; a function of the seed where they depend on it.
    variants: Mapping[str, Overrides | Callable[[int], Overrides]]
    seeds: Sequence[int]
    common: Overrides = field(default_factory=dict)  # keys of every cell; a variant's win over them
    scale: str = "full"  # of every cell: see config/scales.py

    def __post_init__(self) -> None:
        folders = {folder_name(label): label for label in self.variants}
        for label in self.variants:
            other = folders[folder_name(label)]
            require(
                other == label, "variants", "labels that differ as folder names", [label, other]
            )

    def cells(self, folder: Path) -> list[Cell]:
        """All jobs of the grid, each checked. The variants of a seed follow one another."""
        kept = self._kept()
        return [
            self._cell(folder, label, seed, kept) for seed in self.seeds for label in self.variants
        ]

    def _kept(self) -> dict[str, float]:
        """The shares that all variants keep, by what those of the first seed need."""
        seeds = self.seeds[:1]
        overrides = [self._overrides(label, seed) for seed in seeds for label in self.variants]
        return shares_for_all([load_job(self.job_file, keys) for keys in overrides])

    def _overrides(self, label: str, seed: int) -> dict[str, object]:
        variant = self.variants[label]
        keys = variant(seed) if callable(variant) else variant
        return {**self.common, **keys, "seed": seed}

    def _cell(self, folder: Path, label: str, seed: int, kept: Overrides) -> Cell:
        overrides = {**kept, **self._overrides(label, seed)}
        job, _ = scaled(load_job(self.job_file, overrides), self.scale, overrides)
        return Cell(label, seed, resolve(job), folder / folder_name(label) / f"seed{seed}")

    def run(
        self, folder: Path, workers: int | None = None, say: Say = silent
    ) -> dict[str, dict[int, Run]]:
        """Label -> seed -> its run, in the order of the grid. Cells that are finished are kept.

        `workers` is the number of processes, one per core by default; no result depends on it.
        """
        cells = self.cells(folder)
        for cell in cells:
            refuse_another_job(cell)
        missing = [cell for cell in cells if not is_finished(cell)]
        if len(missing) < len(cells):
            say(f"{len(cells) - len(missing)} of {len(cells)} runs are already in {folder}")
        run_grid(_last_accuracy, missing, workers, say, about="accuracy {:.4f}".format)
        by_place = {(cell.label, cell.seed): read_run(cell.path) for cell in cells}
        return {
            label: {seed: by_place[label, seed] for seed in self.seeds} for label in self.variants
        }


def shares_for_all(jobs: Sequence[Job]) -> dict[str, float]:
    """Of the shares that all of these jobs leave open, what any of their selectors needs.

    All of them keep it, so that they train on the same data."""
    needs = [open_shares(job) for job in jobs]
    return {
        key: max(each[key] for each in needs)
        for key in SHARES
        if needs and all(key in each for each in needs)
    }


def summarise(
    grid: Mapping[str, Mapping[int, T]], summary: Callable[[T], R]
) -> dict[str, dict[int, R]]:
    """Label -> seed -> the summary of what a grid holds there."""
    return {
        label: {seed: summary(result) for seed, result in by_seed.items()}
        for label, by_seed in grid.items()
    }


def folder_name(label: str) -> str:
    """The label as the name of a folder: `filfl dgf, random` is kept in `filfl-dgf-random`."""
    return re.sub(r"[^\w.=+-]+", "-", label).strip("-.") or "variant"


# ---- run directories: only these functions know how they are written and read


class Progress(NamedTuple):
    """How far a cell is."""

    round: int
    accuracy: float | None  # of the model after this round, where it was evaluated


def run_cells(
    cells: Sequence[Cell], workers: int | None = None, log: Path | None = None
) -> Iterator[tuple[Cell, Event[None]]]:
    """Run cells over processes; each tells its `Progress`, and one that fails stops no other."""
    return over_processes(run_cell, cells, workers, log)


def run_cell(cell: Cell, tell: Tell = silent) -> None:
    """Run a cell to its end, from the beginning or from its last checkpoint."""
    from fedsuv_plugin.engine.launchers import run_job

    def on_round(record: Mapping[str, Any], metrics: Mapping[str, Any] | None) -> None:
        tell(Progress(record["round"], metrics["accuracy"] if metrics else None))

    began = time.monotonic()
    if _has_begun(cell.path):
        run = RunDirectory.open(cell.path)
    else:
        _remove_what_was_never_begun(cell.path)
        cell.path.mkdir(parents=True)
        run = RunDirectory.begin(cell.path, cell.job)
    if not run_job(run, on_round=on_round):
        raise KeyboardInterrupt  # Ctrl-C ended the job after a round, with a checkpoint
    earlier = read_run(cell.path).environment.get("wall_seconds", 0.0)
    run.note(wall_seconds=earlier + time.monotonic() - began)


def _last_accuracy(cell: Cell) -> float:
    """Run a cell; the accuracy it ends with."""
    run_cell(cell)
    return float(read_run(cell.path).metrics[-1]["accuracy"])


def _has_begun(path: Path) -> bool:
    """Whether a run directory is complete: environment.json is the last file that makes it one."""
    return (path / "config.yml").is_file() and (path / "environment.json").is_file()


def _remove_what_was_never_begun(path: Path) -> None:
    """A process that dies while it makes a run directory leaves one without all of its files."""
    for left in (path / "lock", path / "config.yml", *path.glob(".*.part")):
        left.unlink(missing_ok=True)
    if path.exists():
        try:
            path.rmdir()
        except OSError:
            raise UserError(f"{path}: expected a run directory, which has a config.yml") from None


def is_finished(cell: Cell) -> bool:
    """Whether its job has run to its end."""
    return _has_begun(cell.path) and read_run(cell.path).finished


def refuse_another_job(cell: Cell) -> None:
    """A folder of an earlier comparison may only be used again for the same jobs."""
    recorded = cell.path / "config.yml"
    if not recorded.is_file():
        return
    there = _what_counts(resolve(load_job(recorded)))
    here = _what_counts(cell.job)
    for key in {**here, **there}:
        old = _shown(there, key)
        new = _shown(here, key)
        if old != new:
            raise UserError(
                f"{cell.path}: this run is of another job: {key} is {old} there and {new} in "
                f"{cell.label}, seed {cell.seed}; use another folder, or remove that one"
            )


def _what_counts(job: ResolvedJob) -> dict[str, object]:
    """The keys that make a job what it is; files by their full path, wherever we are called."""
    keys = {key: value for key, value in job.flat().items() if key not in PLACE}
    named = [key for key in FILES if keys.get(key)]
    return keys | {key: str(Path(str(keys[key])).expanduser().resolve()) for key in named}


def _shown(keys: Mapping[str, object], key: str) -> str:
    return repr(keys[key]) if key in keys else "its default"


# ---- work over processes


class InGrid(Protocol):
    """What `run_grid` asks of a piece of work: its place in the grid."""

    @property
    def label(self) -> str: ...

    @property
    def seed(self) -> int: ...


C = TypeVar("C", bound=InGrid)


def run_grid(
    work: Callable[[C], R],
    cells: Sequence[C],
    workers: int | None = None,
    say: Say = silent,
    about: Callable[[R], str] | None = None,
) -> dict[str, dict[int, R]]:
    """Label -> seed -> work(cell), in the order of the cells; says when each is done.

    `about` puts a result into a few words for that line.
    """
    done: dict[tuple[str, int], R] = {}
    for cell, result in parallel(work, cells, workers):
        done[cell.label, cell.seed] = result
        what = f": {about(result)}" if about else ""
        say(f"{len(done)}/{len(cells)}  {cell.label}, seed {cell.seed}{what}")
    found: dict[str, dict[int, R]] = {}
    for cell in cells:
        found.setdefault(cell.label, {})[cell.seed] = done[cell.label, cell.seed]
    return found


def parallel(
    work: Callable[[T], R], items: Sequence[T], workers: int | None = None
) -> Iterator[tuple[T, R]]:
    """(item, work(item)) in the order in which they finish, over processes.

    The first error ends it: nothing new begins."""
    workers = min(workers or os.cpu_count() or 1, len(items))
    if workers <= 1:
        for item in items:
            yield item, work(item)
        return
    for item, event in over_processes(partial(_without_telling, work), items, workers):
        if isinstance(event, Failed):
            raise event.error
        if isinstance(event, Done):
            yield item, event.result


def _without_telling(work: Callable[[T], R], item: T, tell: Tell) -> R:
    return work(item)
