"""`fedsuv compare`: a job file over selectors, other keys and seeds, to a table."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from fedsuv_plugin.cli.options import add_job_options
from fedsuv_plugin.config.job_file import load_job, read_yaml
from fedsuv_plugin.errors import UserError, require
from fedsuv_plugin.params import parse_assignment

DESCRIPTION = """\
Compare selectors, or any values of any keys, on one job over several seeds.

examples:
  fedsuv compare configs/quickstart.yml --selectors random,oort,fedsuv --seeds 0-4 --target 0.95
  fedsuv compare configs/quickstart.yml --vary sample_mode=random,gpfl --vary partition_alpha=0.1,1
  fedsuv compare study.yml -o runs/mine       a study file: job, vary, seeds, target
  fedsuv compare runs/mine                    go on where it stopped
  fedsuv compare runs/mine --seeds 5-9 --selectors pow_d     add to it: only those are run

Every job is a run directory below <folder>/runs. Kill it at any point: the same command goes on.
With the same seed all variants have the same data, devices, luck and initial model, and all of
them keep the same shares of the data for opinions, interviews or a public set, whoever needs them.

At the end the folder has report.html (open it in a browser), report.md, table.tex, runs.csv,
summary.csv and figures/. Exit code 1: a job failed; the others ran to their end.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", help="a job file, a study file, or the folder of a study")
    parser.add_argument(
        "--selectors", metavar="A,B,...", help="what to compare; short for --vary sample_mode=A,B"
    )
    parser.add_argument(
        "--vary",
        action="append",
        default=[],
        metavar="KEY=V,V,...",
        help="values of a key; may be repeated: all combinations are run. A value with a comma "
        'needs a YAML list: --vary \'mlp_hidden=["64,30", "128"]\'',
    )
    parser.add_argument("--seeds", metavar="0-4", help="seeds, as 0-4 or 1,2,5 (0-4)")
    parser.add_argument(
        "--target", type=float, metavar="ACCURACY", help="the accuracy to be reached, such as 0.9"
    )
    parser.add_argument(
        "--reference",
        metavar="NAME",
        help="what the others are compared with: a selector, or a value of the first key varied "
        "(random, else the first)",
    )
    parser.add_argument(
        "--keep-for",
        metavar="A,B,...",
        help="selectors that may be added later: keep the data that they need from the beginning",
    )
    parser.add_argument(
        "--early-stop",
        action="store_true",
        help="a job ends when it has reached the target; the report says so",
    )
    add_job_options(parser)
    parser.add_argument("-j", "--jobs", type=int, metavar="N", help="jobs at a time (one per core)")
    parser.add_argument(
        "-o", "--output", metavar="DIR", help="folder of the study (runs/studies/<job_name>)"
    )
    parser.add_argument("--quiet", action="store_true", help="say nothing but errors")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from fedsuv_plugin.cli.grid_view import watch
    from fedsuv_plugin.experiments.report import text_table, write_report

    require(args.jobs is None or args.jobs >= 1, "--jobs", "an integer >= 1", args.jobs)
    study = chosen_study(args)
    if not args.quiet:
        _say_what_comes(study, args)
    try:
        watch(study, args.jobs or os.cpu_count() or 1, args.quiet)
    except KeyboardInterrupt:
        again = shlex.join(["fedsuv", "compare", str(study.folder)])
        print(f"\nstopped; go on with: {again}", file=sys.stderr)
        return 130
    results = study.results()
    write_report(results, study.folder)
    if not args.quiet:
        print(text_table(results))
        for note in results.notes:
            print(note)
        print(f"report: {study.folder / 'report.html'}")
    for place, reason in study.failures.items():
        print(f"fedsuv: {place}: {reason}", file=sys.stderr)
    return 1 if study.failures else 0


def _say_what_comes(study: Any, args: argparse.Namespace) -> None:
    cells = len(study.cells)
    there = cells - len(study.missing)
    already = f", {there} of them already there" if there else ""
    print(
        f"{study.folder}: {len(study.variants)} variants x {len(study.seeds)} seeds = {cells} jobs"
        f"{already}",
        file=sys.stderr,
    )
    for note in study.notes:
        print(note, file=sys.stderr)


# ---- which study


def chosen_study(args: argparse.Namespace) -> Any:
    """The study that a command line asks for: a new one, one to go on with, one to enlarge."""
    from fedsuv_plugin.experiments.study_folder import make_study, parse_seeds

    source = Path(args.source).expanduser()
    if source.is_dir():
        return _opened(source, args)
    settings: dict[str, Any] = {"vary": {}, "seeds": parse_seeds("0-4"), "set": {}}
    job_file = source
    if _is_study_file(source):
        from_file, job_file = _from_file(source)
        settings |= from_file
    asked = _asked(args)
    for nested in ("vary", "set"):  # options add to what the file has, and win
        settings[nested] = {**settings[nested], **asked.pop(nested)}
    settings |= asked
    if args.seeds is not None:
        settings["seeds"] = parse_seeds(args.seeds)
    name = load_job(job_file, settings["set"]).config.job_name
    folder = Path(args.output or f"runs/studies/{name}").expanduser()
    return make_study(job_file, folder, **settings)


def _opened(folder: Path, args: argparse.Namespace) -> Any:
    from fedsuv_plugin.experiments.study_folder import open_study, parse_seeds

    study = open_study(folder)
    fixed = {
        "--set": args.assignments,
        "--scale": args.scale != "full",
        "--stand-in": args.stand_in,
        "--keep-for": args.keep_for,
        "--early-stop": args.early_stop and not study.early_stop,
        "--output": args.output,
    }
    for option, is_given in fixed.items():
        if is_given:
            raise UserError(f"{option}: was fixed when the study {folder} was made; make another")
    if study.early_stop and args.target not in (None, study.target):
        raise UserError(f"--target: was fixed when the study {folder} was made; make another")
    given = _asked(args)
    study = replace(
        study,
        target=given.get("target", study.target),
        reference=given.get("reference", study.reference),
    )
    return study.enlarged(given["vary"], parse_seeds(args.seeds) if args.seeds else [])


def _asked(args: argparse.Namespace) -> dict[str, Any]:
    """The fields of a study that the options set."""
    common = dict(parse_assignment(text) for text in args.assignments)
    if args.stand_in:
        common["stand_in"] = True
    asked: dict[str, Any] = {"vary": _varied(args), "set": common}
    if args.scale != "full":
        asked["scale"] = args.scale
    if args.target is not None:
        require(0 < args.target <= 1, "--target", "an accuracy > 0 and <= 1", args.target)
        asked["target"] = args.target
    if args.reference is not None:
        asked["reference"] = yaml.safe_load(args.reference)
    if args.keep_for:
        asked["keep_for"] = _names(args.keep_for)
    if args.early_stop:
        asked["early_stop"] = True
    return asked


def _varied(args: argparse.Namespace) -> dict[str, list[object]]:
    texts = list(args.vary)
    if args.selectors is not None:
        texts.insert(0, f"sample_mode={args.selectors}")
    varied: dict[str, list[object]] = {}
    for text in texts:
        key, equals, values = text.partition("=")
        if not equals or not key.strip() or not values.strip():
            raise UserError(f"--vary {text}: expected KEY=V,V,... such as sample_mode=random,oort")
        if key.strip() in varied:
            raise UserError(f"--vary {key.strip()}: given twice (--selectors is sample_mode)")
        varied[key.strip()] = list(dict.fromkeys(_values(values)))
    return varied


def _values(text: str) -> list[object]:
    if text.strip().startswith("["):
        listed = parse_assignment(f"value={text}")[1]
        require(isinstance(listed, list), "--vary", "a YAML list", text)
        assert isinstance(listed, list)
        return listed
    return [parse_assignment(f"value={part}")[1] for part in text.split(",")]


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _is_study_file(path: Path) -> bool:
    if not path.is_file():
        raise UserError(f"no such job file, study file or folder: {path}")
    content = read_yaml(path)
    return isinstance(content, dict) and "job" in content


def _from_file(path: Path) -> tuple[dict[str, Any], Path]:
    """What a study file says, and its job file, which is looked for beside it."""
    from fedsuv_plugin.experiments.study_folder import study_settings

    settings = study_settings(path)
    settings.pop("kept", None)  # settled anew: it depends on the selectors
    return settings, path.parent / str(settings.pop("job"))
