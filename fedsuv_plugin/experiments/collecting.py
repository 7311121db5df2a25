"""Results from run directories, wherever they come from: studies, single runs, folders of runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from fedsuv_plugin.errors import UserError, require
from fedsuv_plugin.experiments.comparison import PLACE
from fedsuv_plugin.experiments.results import (
    SELECTOR,
    Results,
    RunResult,
    label_of,
    reference_of,
    results_of,
    run_result,
)
from fedsuv_plugin.experiments.study import STUDY_FILE
from fedsuv_plugin.experiments.study_folder import open_study
from fedsuv_plugin.records import Run, read_run


def collect(
    paths: Sequence[str | Path],
    by: Sequence[str] = (),
    target: float | None = None,
    reference: object = None,
) -> Results:
    """What is in these folders, together. A study alone is reported as it was made.

    Runs may differ in the keys `by`, by default those that studies vary and else the selector, in
    the selector's own parameters and in the seed. Runs that differ in anything else are of
    different jobs and are refused."""
    folders = [Path(path) for path in paths]
    studies = [open_study(folder) for folder in folders if (folder / STUDY_FILE).is_file()]
    if target is None:
        target = next((study.target for study in studies if study.target is not None), None)
    if len(studies) == len(folders) == 1 and not by:
        wanted = studies[0].reference if reference is None else reference
        return replace(studies[0], target=target, reference=wanted).results()
    varied = dict.fromkeys(key for study in studies for key in study.vary)
    keys = list(by) or list(varied) or [SELECTOR]
    runs = [read_run(path) for folder in folders for path in run_directories(folder)]
    _refuse_different_jobs(runs, keys)
    results = [_result(run, keys, target) for run in runs]
    _refuse_twice(results)
    results.sort(key=lambda run: run.seed)
    values = {key: list(dict.fromkeys(run.keys[key] for run in results)) for key in keys}
    compared_with = reference_of(values, reference)
    if compared_with is not None and reference is not None:
        known = values[compared_with[0]]
        require(reference in known, "reference", f"one of {', '.join(map(str, known))}", reference)
    title = str(runs[0].settings["job_name"])
    return results_of(title, results, keys, compared_with, target)


def run_directories(folder: Path) -> Iterator[Path]:
    """A run directory itself, or all that are below a folder."""
    if (folder / "config.yml").is_file():
        yield folder
        return
    found = sorted(file.parent for file in folder.rglob("config.yml"))
    if not found:
        raise UserError(f"{folder}: no run directory is here (they have a config.yml)")
    yield from found


def _result(run: Run, by: Sequence[str], target: float | None) -> RunResult:
    for key in by:
        require(key in run.settings, "--by", "a key of the job", key)
    keys = {key: run.settings[key] for key in by}
    return run_result(label_of(keys), keys, run.settings["seed"], run.path, target, None)


def _refuse_different_jobs(runs: Sequence[Run], by: Sequence[str]) -> None:
    first = runs[0]
    for run in runs[1:]:
        for key in {**first.settings, **run.settings}:
            if key in (*by, *PLACE, "seed") or _is_of_another_selector(key, first, run):
                continue
            old = first.settings.get(key)
            new = run.settings.get(key)
            if old != new:
                raise UserError(
                    f"runs of different jobs: {key} is {old!r} in {first.path} and {new!r} in "
                    f"{run.path}; leave one out, or compare along it with --by "
                    f"{','.join([*by, key])}"
                )


def _is_of_another_selector(key: str, one: Run, other: Run) -> bool:
    """Whether a key is a parameter of a selector which only one of the two runs has chosen."""
    return "." in key and one.settings[SELECTOR] != other.settings[SELECTOR]


def _refuse_twice(runs: Sequence[RunResult]) -> None:
    seen: dict[tuple[str, int], RunResult] = {}
    for run in runs:
        other = seen.setdefault((run.label, run.seed), run)
        if other is not run:
            raise UserError(
                f"two runs of {run.label} with seed {run.seed}: {other.path} and {run.path}; "
                "leave one out"
            )
