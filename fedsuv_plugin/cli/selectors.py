"""`fedsuv selectors`: what is installed, and what each takes."""

from __future__ import annotations

import argparse
import inspect
import json
import sys
from typing import Any

from fedsuv_plugin import named
from fedsuv_plugin.cli.options import print_params
from fedsuv_plugin.params import parameter_rows
from fedsuv_plugin.tables import columns

DESCRIPTION = """\
List every installed selector with its paper, or explain one: its paper, its departures from it,
its parameters. A parameter is set in the job file, or with --set, as <selector>.<parameter>.

examples:
  fedsuv selectors
  fedsuv selectors oort
  fedsuv selectors oort --json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", help="the selector to explain")
    parser.add_argument("--json", action="store_true", help="the same for programs")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    names = list(named.installed()) if args.name is None else [args.name]
    entries = [_describe(name) for name in names]
    if args.json:
        print(json.dumps(entries if args.name is None else entries[0], indent=2))
    elif args.name is None:
        _print_all(entries)
    else:
        _print_one(entries[0])


def _describe(name: str) -> dict[str, Any]:
    manager = named.client_manager_class(name)
    selector = named.selector_class(name)
    module = sys.modules[(selector or manager).__module__]
    rows = parameter_rows(named.params_class(name))
    return {
        "name": name,
        "paper": getattr(selector, "paper", ""),
        "class": f"{manager.__module__}:{manager.__name__}",
        "about": inspect.getdoc(module) or "",
        "needs": sorted(getattr(selector, "needs", ())),
        "probes": sorted(getattr(selector, "probes", ())),
        "parameters": [
            dict(zip(("name", "default", "allowed", "help"), row, strict=True)) for row in rows
        ],
    }


def _print_all(entries: list[dict[str, Any]]) -> None:
    rows = [
        [entry["name"], entry["paper"], ", ".join(p["name"] for p in entry["parameters"])]
        for entry in entries
    ]
    print(columns(["name", "paper", "parameters"], rows, left=3))
    print(
        "\nUse one with `sample_mode: <name>` in the job file; `fedsuv selectors <name>` "
        "explains it."
    )


def _print_one(entry: dict[str, Any]) -> None:
    name = entry["name"]
    print(f"{name}: {entry['paper']}\n{entry['class']}\n\n{entry['about']}\n")
    print_params(parameter_rows(named.params_class(name), f"{name}."))
