"""What the commands of `fedsuv` share: their help, and the options that change a job file."""

from __future__ import annotations

import argparse
import sys
import textwrap
from typing import Any

from fedsuv_plugin.config.job import Job
from fedsuv_plugin.config.job_file import load_job
from fedsuv_plugin.config.scales import RULES, scaled
from fedsuv_plugin.params import parse_assignment


def add_command(commands: Any, name: str, help: str, description: str) -> argparse.ArgumentParser:
    """A sub-command whose help shows its description line by line, as it is written."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=help,
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    return parser


def add_set_option(
    parser: argparse.ArgumentParser, help: str = "override a key of the job file; may be repeated"
) -> None:
    """`--set KEY=VALUE`, as often as one likes."""
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        dest="assignments",
        help=help,
    )


def add_job_options(parser: argparse.ArgumentParser) -> None:
    """The options of every command that takes a job file and may change it."""
    add_set_option(parser)
    parser.add_argument(
        "--scale",
        choices=tuple(RULES),
        default="full",
        help="the same job smaller: mini ends in minutes on two cores, smoke in seconds (full)",
    )
    parser.add_argument(
        "--stand-in",
        action="store_true",
        help="made-up samples in place of a data set that is not here; same as --set stand_in=true",
    )


def chosen_job(args: argparse.Namespace, quiet: bool = False) -> Job:
    """The job that a command line asks for: its file, its `--set`s, its scale.

    What the scale changed is said on stderr."""
    return job_at(args.config, args.scale, args, quiet)


def job_at(path: str, scale: str, args: argparse.Namespace, quiet: bool = False) -> Job:
    """A job file at a scale, with the other options of a command line."""
    overrides = dict(parse_assignment(text) for text in args.assignments)
    if args.stand_in:
        overrides["stand_in"] = True
    job, changes = scaled(load_job(path, overrides), scale, overrides)
    if not quiet:
        for line in changes:
            print(f"scale {scale}: {line}", file=sys.stderr)
        if job.config.stand_in:
            print(
                f"stand-in data: made-up samples in place of {job.config.data_set}; "
                "the results say nothing of it",
                file=sys.stderr,
            )
    return job


def print_params(rows: list[tuple[str, str, str, str]]) -> None:
    """Parameters as `params.parameter_rows` gives them, one after the other."""
    if not rows:
        print("It has no parameters.")
    for name, default, allowed, meaning in rows:
        print(f"{name}: {default}")
        text = f"{meaning} ({allowed})"
        print(textwrap.fill(text, 100, initial_indent="    ", subsequent_indent="    "))
