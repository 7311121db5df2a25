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
same comparison run again in the same folder runs only what is missing, and goes on with what was
broken off.
"""

from __future__ import annotations

import multiprocessing
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Protocol, TypeVar

from fedsuv_plugin.config.job_file import FILES, load_job
from fedsuv_plugin.config.resolved import ResolvedJob, resolve
from fedsuv_plugin.errors import UserError, require
from fedsuv_plugin.records import Run, RunDirectory, read_run

Say = Callable[[str], None]  # hears of progress, a line at a time
Overrides = Mapping[str, object]  # flat keys of a job, which win over its job file
T = TypeVar("T")
R = TypeVar("R")

PLACE = ("job_name", "log_path")  # keys that say where a run is kept, not what it is


def silent(line: str) -> None:
    """A `Say` that nobody listens to."""


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

    def __post_init__(self) -> None:
        folders = {folder_name(label): label for label in self.variants}
        for label in self.variants:
            other = folders[folder_name(label)]
            require(
                other == label, "variants", "labels that differ as folder names", [label, other]
            )

    def cells(self, folder: Path) -> list[Cell]:
        """All jobs of the grid, each checked. The variants of a seed follow one another."""
        return [self._cell(folder, label, seed) for seed in self.seeds for label in self.variants]

    def _cell(self, folder: Path, label: str, seed: int) -> Cell:
        variant = self.variants[label]
        keys = variant(seed) if callable(variant) else variant
        job = resolve(load_job(self.job_file, {**self.common, **keys, "seed": seed}))
        return Cell(label, seed, job, folder / folder_name(label) / f"seed{seed}")

    def run(
        self, folder: Path, workers: int | None = None, say: Say = silent
    ) -> dict[str, dict[int, Run]]:
        """Label -> seed -> its run, in the order of the grid. Cells that are finished are kept.

        `workers` is the number of processes, one per core by default; no result depends on it.
        """
        cells = self.cells(folder)
        for cell in cells:
            _refuse_another_job(cell)
        missing = [cell for cell in cells if not _finished(cell)]
        if len(missing) < len(cells):
            say(f"{len(cells) - len(missing)} of {len(cells)} runs are already in {folder}")
        run_grid(_run_cell, missing, workers, say, about="accuracy {:.4f}".format)
        by_place = {(cell.label, cell.seed): read_run(cell.path) for cell in cells}
        return {
            label: {seed: by_place[label, seed] for seed in self.seeds} for label in self.variants
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


def _run_cell(cell: Cell) -> float:
    """Run a cell to its end, from the beginning or from its last checkpoint; its last accuracy."""
    from fedsuv_plugin.engine.launchers import run_job

    if (cell.path / "config.yml").is_file():
        run = RunDirectory.open(cell.path)
    else:
        _remove_what_was_never_begun(cell.path)
        cell.path.mkdir(parents=True)
        run = RunDirectory.begin(cell.path, cell.job)
    if not run_job(run):
        raise KeyboardInterrupt  # Ctrl-C ended the job after a round, with a checkpoint
    return float(read_run(cell.path).metrics[-1]["accuracy"])


def _remove_what_was_never_begun(path: Path) -> None:
    """A process that dies while it makes a run directory leaves one without a config.yml."""
    for left in (path / "lock", *path.glob(".config.yml.*.part")):
        left.unlink(missing_ok=True)
    if path.exists():
        try:
            path.rmdir()
        except OSError:
            raise UserError(f"{path}: expected a run directory, which has a config.yml") from None


def _finished(cell: Cell) -> bool:
    """Whether the last round is recorded; its evaluation is written before it."""
    if not (cell.path / "config.yml").is_file():
        return False
    rounds = read_run(cell.path).rounds
    return bool(rounds) and rounds[-1]["round"] == cell.job.config.rounds


def _refuse_another_job(cell: Cell) -> None:
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

    Each process has one torch thread: with more of them than cores, they would fight.
    """
    workers = min(workers or os.cpu_count() or 1, len(items))
    if workers <= 1:
        for item in items:
            yield item, work(item)
        return
    # torch does not survive a fork once it has threads, so processes are spawned.
    context = multiprocessing.get_context("spawn")
    rest = iter(items)
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_one_thread) as pool:
        running = {pool.submit(work, item): item for item in islice(rest, workers)}
        while running:
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                item = running.pop(future)
                result = future.result()
                # Work is handed out as it is done: after an error or Ctrl-C nothing new begins.
                for following in islice(rest, 1):
                    running[pool.submit(work, following)] = following
                yield item, result


def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)
