"""`fedsuv data`: the data sets and how they are shared out."""
from __future__ import annotations

import argparse

from fedsuv_plugin.tasks.partition_command import add_partition_command


def register(subparsers: argparse._SubParsersAction) -> None:  # type: ignore[type-arg]
    """Add `data` to the command line; every sub-command sets `run`."""
    data = subparsers.add_parser("data", help="see how a job's samples are shared out",
                                 description="The data of a job: how its samples are shared out among the clients.")
    commands = data.add_subparsers(required=True, metavar="command")
    add_partition_command(commands)
