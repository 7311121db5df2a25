"""The command line: `fedsuv <command>`, one file per command.

A command's file is imported only when the command is given, so that `fedsuv --help` is quick. It
has a `DESCRIPTION`, which is its help text, and `add_arguments(parser)`, which adds its options
and sets `run`, the function that does the work.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from types import ModuleType

from fedsuv_plugin.errors import UserError

COMMANDS = {
    "run": "run a job",
    "compare": "compare selectors on a job, over seeds, to a table",
    "report": "tables and pictures from runs that are there",
    "submit": "run a job on a cluster",
    "selectors": "list the installed selectors, or explain one",
    "traces": "build, import, export and show device populations",
    "data": "list, fetch, check and share out data sets",
    "replay": "run a published experiment again",
}
DESCRIPTION = "Client selection for FedScale jobs: run them, swap the selector, compare selectors."


def main(argv: list[str] | None = None) -> int:
    words = sys.argv[1:] if argv is None else argv
    args = _parser(words).parse_args(words)
    try:
        return args.run(args) or 0
    except UserError as error:
        if args.debug:
            raise
        print(f"fedsuv: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nfedsuv: stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output has gone, e.g. `| head`
        sys.stderr.close()
        return 0


def _parser(words: list[str]) -> argparse.ArgumentParser:
    """The parser of all commands, with the options of the one that is given."""
    parser = argparse.ArgumentParser(prog="fedsuv", description=DESCRIPTION)
    parser.add_argument("--version", action=_Version, help="say which version this is and end")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    commands = parser.add_subparsers(required=True, metavar="command")
    given = next((word for word in words if word in COMMANDS), None)
    for name, summary in COMMANDS.items():
        if name == given:
            module = _module(name)
            command = commands.add_parser(
                name,
                help=summary,
                description=module.DESCRIPTION,
                formatter_class=argparse.RawDescriptionHelpFormatter,
            )
            module.add_arguments(command)
        else:
            commands.add_parser(name, help=summary)
    return parser


class _Version(argparse.Action):
    """Looks the version up only when it is asked for."""

    def __init__(self, option_strings: list[str], dest: str, help: str):
        super().__init__(option_strings, dest, nargs=0, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *given: object) -> None:
        from fedsuv_plugin import __version__

        print(f"fedsuv_plugin {__version__}")
        parser.exit()


def _module(command: str) -> ModuleType:
    return importlib.import_module(f"{__name__}.{command}")
