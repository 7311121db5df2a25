"""`fedsuv replay`: the published experiments, run again."""

from __future__ import annotations

import argparse
import sys
import textwrap
from pathlib import Path

from fedsuv_plugin.cli.options import add_set_option
from fedsuv_plugin.errors import UserError
from fedsuv_plugin.params import parameter_rows, parse_assignment

DESCRIPTION = """\
Run a published experiment again and write report.md, results.json and its pictures.

examples:
  fedsuv replay                          what there is, and its parameters
  fedsuv replay fedsuv/fig6
  fedsuv replay fedsuv/fig6 --set seeds=1 --set settings=default -o /tmp/fig6
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", help="the experiment; none: list them")
    add_set_option(parser, "set a parameter of the experiment; may be repeated")
    parser.add_argument(
        "-o", "--output", metavar="DIR", help="folder for the report (runs/replays/<name>)"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    from fedsuv_plugin.replays import REPLAYS

    if args.name is None:
        _print_all()
        return
    replay_class = REPLAYS[args.name]
    given = dict(parse_assignment(text) for text in args.assignments)
    params = replay_class.Params.from_mapping(given)
    folder = Path(args.output or f"runs/replays/{args.name}").expanduser()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"-o: cannot make the folder {folder} ({error.strerror})") from None
    report = replay_class(params).run(folder, _say)
    report.save(folder, f"{args.name}: {replay_class.shows}")
    print(f"{report.text()}\n\nreport: {folder / 'report.md'}")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _print_all() -> None:
    from fedsuv_plugin.replays import REPLAYS

    for name in REPLAYS.names():
        print(f"{name}: {REPLAYS[name].shows}")
        rows = parameter_rows(REPLAYS[name].Params)
        text = "\n".join(f"{key}={default}  {meaning}" for key, default, _, meaning in rows)
        print(textwrap.indent(text, "    "))
