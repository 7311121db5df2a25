"""`fedsuv report`: tables, pictures and a page from runs that are there."""

from __future__ import annotations

import argparse
from pathlib import Path

import yaml

from fedsuv_plugin.errors import UserError, require

DESCRIPTION = """\
Write tables, pictures and a page (report.html) about runs that are there, finished by whatever way.

examples:
  fedsuv report runs/studies/quickstart              a study, again
  fedsuv report runs/studies/quickstart --target 0.9 with another target
  fedsuv report runs/one runs/another -o runs/both   two studies of one job together
  fedsuv report runs/quickstart --by sample_mode     the runs of `fedsuv run`

Runs may differ in the seed, the keys named with --by (sample_mode) and the selector's own
parameters. If they differ in anything else they are of different jobs, and are refused.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("paths", nargs="+", help="studies, run directories or folders of them")
    parser.add_argument("--by", metavar="KEY,KEY", default="", help="the keys that are compared")
    parser.add_argument("--target", type=float, metavar="ACCURACY", help="accuracy to be reached")
    parser.add_argument("--reference", metavar="NAME", help="what the others are compared with")
    parser.add_argument(
        "-o", "--output", metavar="DIR", help="folder for the report (a study's own; runs/report)"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from fedsuv_plugin.experiments.collecting import collect
    from fedsuv_plugin.experiments.report import text_table, write_report
    from fedsuv_plugin.experiments.study import STUDY_FILE

    target = args.target
    require(target is None or 0 < target <= 1, "--target", "an accuracy > 0 and <= 1", target)
    by = [key.strip() for key in args.by.split(",") if key.strip()]
    reference = None if args.reference is None else yaml.safe_load(args.reference)
    results = collect(args.paths, by, target, reference)
    alone = len(args.paths) == 1 and (Path(args.paths[0]) / STUDY_FILE).is_file()
    folder = Path(args.output or (args.paths[0] if alone else "runs/report")).expanduser()
    if not alone or args.output:
        _refuse_to_overwrite(folder)
    folder.mkdir(parents=True, exist_ok=True)
    write_report(results, folder)
    print(text_table(results))
    for note in results.notes:
        print(note)
    print(f"report: {folder / 'report.html'}")
    return 0


def _refuse_to_overwrite(folder: Path) -> None:
    """A report goes into a new folder, or into one that has nothing but an earlier report."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise UserError(f"{folder}: expected a folder")
    is_report = (folder / "summary.csv").is_file() and not (folder / "study.yml").exists()
    if any(folder.iterdir()) and not is_report:
        raise UserError(f"{folder}: expected a new folder, or one with an earlier report; use -o")
