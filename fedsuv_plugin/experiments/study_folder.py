"""The folder of a study: made, found again, and refused where it is another's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import yaml

from fedsuv_plugin.atomic_file import replace_file
from fedsuv_plugin.config.job import Job
from fedsuv_plugin.config.job_file import by_full_path, load_job, read_yaml
from fedsuv_plugin.errors import UserError, require
from fedsuv_plugin.experiments.comparison import shares_for_all
from fedsuv_plugin.experiments.results import SELECTOR
from fedsuv_plugin.experiments.study import JOB_FILE, STUDY_FILE, Study
from fedsuv_plugin.params import range_of, refuse_unknown


def make_study(
    job_file: str | Path,
    folder: str | Path,
    vary: Mapping[str, Sequence[object]],
    seeds: Sequence[int] = range(5),
    **settings: Any,
) -> Study:
    """A study of a job file in a new folder, or the one that is there, enlarged.

    `settings` are further fields of `Study`. Another study in that folder is refused."""
    folder = Path(folder)
    job = load_job(job_file)
    there = (folder / STUDY_FILE).is_file()
    if not there and folder.is_dir() and any(folder.iterdir()):
        raise UserError(
            f"{folder}: expected a new folder or that of a study, which has a study.yml"
        )
    study = Study(folder, {k: list(v) for k, v in vary.items()}, sorted(set(seeds)), **settings)
    _check_grid(study, job_file)
    study = replace(study, kept=_kept(study, job_file))
    if there:
        return _same_study(open_study(folder), study, job).enlarged(study.vary, study.seeds)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        _write_job(job, folder)
        study.check()
        study.save()
    except UserError:  # a study that is refused leaves nothing behind
        (folder / JOB_FILE).unlink(missing_ok=True)
        folder.rmdir()
        raise
    return study


def open_study(folder: str | Path) -> Study:
    """The study of a folder."""
    folder = Path(folder)
    file = folder / STUDY_FILE
    if not file.is_file():
        raise UserError(f"{folder}: not a study (it has no {STUDY_FILE})")
    content = study_settings(file)
    content.pop("job")
    return Study(folder, **content)


def study_settings(file: Path) -> dict[str, Any]:
    """What a study file says: the fields of `Study` and the job file, checked for their names."""
    try:
        content = read_yaml(file)
        if not isinstance(content, dict) or "job" not in content:
            raise UserError("expected a study file: job, vary, seeds and, if you like, target")
        refuse_unknown(content, ["job", *(f.name for f in fields(Study) if f.name != "folder")])
        return _checked(content)
    except UserError as error:
        raise UserError(f"{file}: {error}") from None


def _checked(content: dict[str, Any]) -> dict[str, Any]:
    vary = content.get("vary") or {}
    require(isinstance(vary, dict), "vary", "a map from keys to lists of values", vary)
    for key, values in vary.items():
        require(isinstance(values, list), f"vary {key}", "a list of values", values)
    target = content.get("target")
    require(
        target is None or (isinstance(target, int | float) and 0 < target <= 1),
        "target",
        "an accuracy > 0 and <= 1",
        target,
    )
    return {**content, "vary": vary, "seeds": parse_seeds(content.get("seeds", "0-4"))}


def parse_seeds(given: object) -> list[int]:
    """Seeds from a list of them, or from text.

    >>> parse_seeds("0-2,7")
    [0, 1, 2, 7]
    """
    parts = given if isinstance(given, list) else str(given).replace(" ", "").split(",")
    found: list[int] = []
    for part in parts:
        seeds = range_of(str(part))
        require(len(seeds) > 0, "seeds", "a list such as 0-4 or 1,2,5", given)
        found += seeds
    return sorted(set(found))


def _kept(study: Study, job_file: str | Path) -> dict[str, float]:
    """What any of the compared selectors needs, and those that may come later."""
    variants = list(study.variants.values())
    later = [{**variants[0], SELECTOR: name} for name in study.keep_for]
    return shares_for_all([load_job(job_file, {**study.set, **k}) for k in [*variants, *later]])


def _check_grid(study: Study, job_file: str | Path) -> None:
    require(bool(study.seeds), "seeds", "at least one", list(study.seeds))
    require("seed" not in {*study.vary, *study.set}, "vary", "seeds by --seeds", "seed")
    for key, values in study.vary.items():
        require(bool(values), f"vary {key}", "at least one value", values)
        require(key not in study.set, f"vary {key}", "a key that is not set for all", key)
        for value in values:  # a value that the key cannot have is refused by its name
            load_job(job_file, {**study.set, key: value})
    if study.early_stop:
        require(study.target is not None, "--early-stop", "a --target", study.target)


def _same_study(there: Study, here: Study, job: Job) -> Study:
    """The study that is there, if `here` only asks for more of it."""
    old = load_job(there.folder / JOB_FILE).flat()
    new = {key: by_full_path(key, value) for key, value in job.flat().items()}
    compared = [
        *((key, old.get(key), new.get(key)) for key in {**old, **new}),
        ("the varied keys", list(there.vary), list(here.vary)),
        *((key, there.set.get(key), here.set.get(key)) for key in {**there.set, **here.set}),
        ("scale", there.scale, here.scale),
        ("early_stop", there.early_stop, here.early_stop),
    ]
    if there.early_stop:
        compared.append(("target", there.target, here.target))
    for what, before, now in compared:
        if before != now:
            raise UserError(
                f"{there.folder}: another study is here: {what} is {before!r} there and {now!r} "
                "now; give this one a folder of its own with -o"
            )
    return replace(
        there,
        target=there.target if here.target is None else here.target,
        reference=there.reference if here.reference is None else here.reference,
    )


def _write_job(job: Job, folder: Path) -> None:
    """The job file, as it was when the study was made; files by their full path."""
    entries = [{key: by_full_path(key, value)} for key, value in job.flat().items()]
    text = yaml.safe_dump({**job.cluster, "job_conf": entries}, sort_keys=False)
    replace_file(folder / JOB_FILE, lambda file: file.write(text.encode()))
