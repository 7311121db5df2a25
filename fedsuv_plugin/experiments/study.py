"""A study: a grid of jobs in a folder of its own, which can be stopped, gone on with and enlarged.

    study.yml          the grid: see `Study`
    job.yml            the job file as it was when the study was made
    runs/              a run directory for every variant and seed
    workers.log        what the processes that ran them printed
    report.html, ...   what came out: see `report/`

    study = make_study("configs/quickstart.yml", "runs/mine", {"sample_mode": ["oort", "random"]})
    for cell, event in study.run():
        ...
    write_report(study.results(), study.folder)

What is kept from training for opinions, interviews or a public set is what any of the compared
selectors needs, for all of them, and is fixed when the study is made.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from fedsuv_plugin.atomic_file import replace_file
from fedsuv_plugin.config.job_file import load_job
from fedsuv_plugin.config.resolved import open_shares
from fedsuv_plugin.errors import UserError, require
from fedsuv_plugin.experiments.comparison import (
    Cell,
    Comparison,
    is_finished,
    refuse_another_job,
    run_cells,
)
from fedsuv_plugin.experiments.results import (
    Results,
    label_of,
    reference_of,
    results_of,
    run_result,
)
from fedsuv_plugin.experiments.workers import Event, Failed
from fedsuv_plugin.selectors.signals import SHARES, SIGNALS

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

STUDY_FILE = "study.yml"
JOB_FILE = "job.yml"
FAILURES = "failures.json"
HEADER = "# A comparison of jobs; `fedsuv compare <this folder>` goes on with it.\n"


@dataclass(frozen=True)
class Study:
    """What is compared, as study.yml says it. `study_folder.py` makes one."""

    folder: Path
    vary: Mapping[str, Sequence[object]]  # key of the job -> its values; all combinations are run
    seeds: Sequence[int]
    set: Mapping[str, object] = field(default_factory=dict)  # keys of every job
    scale: str = "full"
    target: float | None = None  # the accuracy to be reached
    early_stop: bool = False  # a job ends when it has reached the target
    reference: object = None  # the value of the first varied key with which others are compared
    # Selectors that may be added later, for whose sake data is kept.
    keep_for: Sequence[str] = field(default_factory=list)
    kept: Mapping[str, float] = field(default_factory=dict)  # shares of the data that are kept

    # ---- the grid

    @property
    def variants(self) -> dict[str, dict[str, object]]:
        """Label -> the keys that make the variant."""
        grid = itertools.product(*self.vary.values())
        combinations = [dict(zip(self.vary, values, strict=True)) for values in grid]
        return {label_of(keys): keys for keys in combinations}

    @cached_property
    def cells(self) -> list[Cell]:
        """Every job of the study, checked; those of one seed follow one another."""
        keys = {**self.set, **self.kept}
        if self.early_stop:
            keys["stop_at_accuracy"] = self.target
        variants = dict(self.variants)
        comparison = Comparison(self.folder / JOB_FILE, variants, self.seeds, keys, self.scale)
        return comparison.cells(self.folder / "runs")

    @property
    def missing(self) -> list[Cell]:
        """The jobs that have not run to their end, those that take longest first.

        Else the last one to begin would keep one core busy while the others have nothing to do."""
        missing = [cell for cell in self.cells if not is_finished(cell)]
        return sorted(missing, key=lambda cell: -effort(cell))

    # ---- running it

    def run(self, workers: int | None = None) -> Iterator[tuple[Cell, Event[None]]]:
        """Run what is missing; what happens to each job, as it happens.

        A job that fails is remembered and stops no other."""
        self.save()
        failures: dict[str, str] = {}
        self._note(failures)
        for cell, event in run_cells(self.missing, workers, self.folder / "workers.log"):
            if isinstance(event, Failed):
                failures[_place(cell)] = _reason(event.error)
                self._note(failures)
            yield cell, event

    def _note(self, failures: Mapping[str, str]) -> None:
        text = json.dumps(failures, indent=2) + "\n"
        replace_file(self.folder / FAILURES, lambda file: file.write(text.encode()))

    @property
    def failures(self) -> dict[str, str]:
        """Why jobs failed when the study was last run, by label and seed."""
        file = self.folder / FAILURES
        found: dict[str, str] = json.loads(file.read_text()) if file.is_file() else {}
        return found

    # ---- what came out

    def results(self) -> Results:
        """The runs as they are now, finished or not."""
        variants = self.variants
        failures = self.failures
        runs = [
            run_result(
                cell.label,
                variants[cell.label],
                cell.seed,
                cell.path,
                self.target,
                failures.get(_place(cell)),
            )
            for cell in self.cells
        ]
        title = self.cells[0].job.config.job_name
        return results_of(
            title, runs, list(self.vary), self._compared_with, self.target, self.notes
        )

    def table(self) -> pd.DataFrame:
        """What came out, as a data frame: a row a variant."""
        from fedsuv_plugin.experiments.frames import table_of

        return table_of(self.results())

    def plot(self, by: str = "round") -> Figure:
        """The accuracy of every variant by `round`, `time`, `energy` or `client_seconds`."""
        from fedsuv_plugin.experiments.report import accuracy_figure

        return accuracy_figure(self.results(), by)

    @property
    def _compared_with(self) -> tuple[str, object] | None:
        return reference_of(self.vary, self.reference)

    @property
    def notes(self) -> list[str]:
        """What a reader must know of how it was done."""
        kept = [f"{share:g} {SHARES[key].kept}" for key, share in self.kept.items() if share]
        said = [f"Kept from training or testing, the same for all: {', '.join(kept)}."] * bool(kept)
        if self.scale != "full":
            said.append(f"The job at scale {self.scale}: the published one is larger.")
        if self.cells[0].job.config.stand_in:
            said.append("Made-up samples stand in for the data set: these results mean nothing.")
        return said

    # ---- the folder

    def save(self) -> None:
        content = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "folder"}
        plain = json.loads(json.dumps({"job": JOB_FILE, **content}))  # lists, not tuples
        text = HEADER + yaml.safe_dump(plain, sort_keys=False)
        replace_file(self.folder / STUDY_FILE, lambda file: file.write(text.encode()))

    def enlarged(self, vary: Mapping[str, Sequence[object]], seeds: Sequence[int]) -> Study:
        """The study with more values of its keys and more seeds.

        Refused if a selector needs data that this study does not keep."""
        for key in vary:
            require(
                key in self.vary,
                f"{self.folder}: vary",
                f"a key that this study varies ({', '.join(self.vary) or 'none'})",
                key,
            )
        merged = {
            key: list(dict.fromkeys([*values, *vary.get(key, ())]))
            for key, values in self.vary.items()
        }
        larger = replace(self, vary=merged, seeds=sorted({*self.seeds, *seeds}))
        larger.check()
        return larger

    def check(self) -> None:
        """Refuse what cannot run, before anything is written or run."""
        compared_with = self._compared_with
        if compared_with is not None:
            key, value = compared_with
            values = self.vary[key]
            require(value in values, "reference", f"one of {', '.join(map(str, values))}", value)
        self._refuse_unkept()
        for cell in self.cells:
            refuse_another_job(cell)

    def _refuse_unkept(self) -> None:
        for keys in self.variants.values():
            job = load_job(self.folder / JOB_FILE, {**self.set, **keys})
            for share, needed in open_shares(job).items():
                if needed and not self.kept.get(share, needed):
                    name = job.config.sample_mode
                    raise UserError(
                        f"{self.folder}: {name} needs {SHARES[share].name}, for which this study "
                        f"keeps no data ({share} is 0 in all its runs); start another study with "
                        f"it, or reserve the data next time with --keep-for {name}"
                    )


def _place(cell: Cell) -> str:
    return f"{cell.label}, seed {cell.seed}"


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"


def effort(cell: Cell) -> float:
    """How long a job will take, roughly: its rounds, those who train, and probes that train."""
    config = cell.job.config
    steps = config.local_steps * config.batch_size * config.num_participants
    probing = any(SIGNALS[name].trains for name in cell.job.needs)
    return float(config.rounds) * steps * (2 if probing else 1)
