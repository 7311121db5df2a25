"""`fedsuv data`: list, fetch and check data sets; `fedsuv data partition` is in partition.py.

Data sets bring torch along, so they are imported where a command runs.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedsuv_plugin.cli.options import add_command
from fedsuv_plugin.cli.partition import add_partition_command
from fedsuv_plugin.config.keys import JobConfig
from fedsuv_plugin.errors import UserError
from fedsuv_plugin.tables import columns, short_number

if TYPE_CHECKING:
    from fedsuv_plugin.tasks.datasets import DataSet, Splits

DESCRIPTION = """\
The data sets a job can name as data_set: where they come from, who their natural clients are,
whether they are here. A data set is read from data_dir or, if the job does not say, from its folder
below $FEDSUV_DATA.

examples:
  fedsuv data
  fedsuv data fetch cifar10 --dir ~/data/cifar10
  fedsuv data check cifar10 --dir ~/data/cifar10
  fedsuv data partition configs/quickstart.yml --plot clients.png
"""
FETCH = """\
Download a data set from its official source and check it against the published checksums. A
download that broke off goes on where it was; a file that is there and right is left alone. Where
there is no file to download, this says what to run instead.

examples:
  fedsuv data fetch Mnist                  into $FEDSUV_DATA/mnist
  fedsuv data fetch google_speech --dir /data/speech_commands
"""
CHECK = """\
Read a data set as a job would, compare its files with the published checksums where there are any,
and describe it: samples, classes, natural clients. It ends with code 2 if the data set cannot be
read.

example:
  fedsuv data check shakespeare --dir ~/data/shakespeare
"""
SHARES = (0, 5, 25, 50, 75, 95, 100)  # per cent


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The sub-commands of `data`; each sets `run`, and without one the data sets are listed."""
    parser.set_defaults(run=_list)
    commands = parser.add_subparsers(metavar="command")

    fetch = add_command(commands, "fetch", "download a data set", FETCH)
    _name_and_folder(fetch)
    fetch.set_defaults(run=_fetch)

    check = add_command(commands, "check", "read and describe a data set", CHECK)
    _name_and_folder(check)
    check.set_defaults(run=_check)

    add_partition_command(commands)


def _name_and_folder(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", help="the data set, as `fedsuv data` lists it")
    parser.add_argument("--dir", metavar="DIR", help="its folder ($FEDSUV_DATA/<its folder>)")


def _list(args: argparse.Namespace) -> None:
    from fedsuv_plugin.tasks.datasets import DATASETS

    rows = []
    for name in DATASETS.names():
        spec = _data_set(name, None)
        source = spec.source.about if spec.source else "made in memory"
        rows.append([name, str(spec.classes), spec.clients or "-", _whereabouts(spec), source])
    print(columns(["data_set", "classes", "natural clients", "found", "source"], rows, left=5))


def _whereabouts(spec: DataSet) -> str:
    if not spec.folder:
        return "always"
    root = os.environ.get("FEDSUV_DATA")
    if not root:
        return "FEDSUV_DATA is not set"
    folder = Path(root).expanduser() / spec.folder
    return f"{folder}" if folder.is_dir() else "no"


def _data_set(name: str, folder: Path | None) -> DataSet:
    """A data set as a job that wants its natural clients sees it; not loaded."""
    from fedsuv_plugin.tasks.datasets import DATASETS

    data_dir = None if folder is None else str(folder)
    return DATASETS[name](JobConfig(data_set=name, data_dir=data_dir, partition="natural"))


def _folder(spec: DataSet, args: argparse.Namespace) -> Path:
    if args.dir is None and not os.environ.get("FEDSUV_DATA"):
        raise UserError(
            f"--dir: expected the folder of {args.name}, or the environment variable FEDSUV_DATA "
            f"set to a folder for {spec.folder}/"
        )
    return Path(args.dir).expanduser() if args.dir is not None else spec.root()


# ---- fetch


def _fetch(args: argparse.Namespace) -> None:
    from fedsuv_plugin.tasks.sources import fetch

    spec = _data_set(args.name, None)
    if spec.source is None:
        print(f"{args.name}: nothing to fetch, it is made in memory")
        return
    folder = _folder(spec, args)
    try:
        fetch(spec.source, folder)
    except UserError as error:
        raise UserError(f"{args.name}: {error}") from None
    where = "" if args.dir is None else f" --dir {args.dir}"
    print(f"look at it with: fedsuv data check {args.name}{where}")


# ---- check


def _check(args: argparse.Namespace) -> None:
    spec = _data_set(args.name, None)
    folder = _folder(spec, args) if spec.folder else None
    spec = _data_set(args.name, folder)
    splits = spec.load()
    _check_samples(args.name, spec, splits)
    if folder is None:
        print(f"{args.name}: made in memory")
    else:
        print(f"{args.name}: {folder}")
        print(f"checksums: {_checksums(spec, folder)}")
    dtype = str(spec.dtype).removeprefix("torch.")
    print(
        f"samples: {len(splits.train_y):,} for training, {len(splits.test_y):,} for testing; "
        f"inputs of shape {spec.shape}, {dtype}"
    )
    counts = np.bincount(splits.train_y)
    print(
        f"classes: {spec.classes}, {np.count_nonzero(counts)} of them here, with "
        f"{counts[counts > 0].min():,} to {counts.max():,} training samples each"
    )
    print(f"natural clients: {_natural_clients(spec, splits)}")


def _natural_clients(spec: DataSet, splits: Splits) -> str:
    """How many there are, and a table of how many samples and classes they have."""
    if splits.owner is None:
        return "none"
    samples = np.bincount(splits.owner)
    # Each pair of a client and a class that it has, once.
    pairs = np.unique(splits.owner * spec.classes + splits.train_y.numpy())
    classes = np.bincount(pairs // spec.classes)
    head = ["per client, quantiles", *(f"{share} %" for share in SHARES)]
    rows = [
        [name, *(short_number(value) for value in np.percentile(values, SHARES))]
        for name, values in (("samples", samples), ("classes", classes))
    ]
    return f"{len(samples):,} {spec.clients}\n{columns(head, rows)}"


def _check_samples(name: str, spec: DataSet, splits: Splits) -> None:
    """Refuses samples that no job could train on, whatever files they come from."""
    for part, x, y in (
        ("training", splits.train_x, splits.train_y),
        ("test", splits.test_x, splits.test_y),
    ):
        if len(x) != len(y) or not len(y):
            raise UserError(
                f"{name}: expected as many {part} inputs as labels and at least one, got {len(x)} "
                f"and {len(y)}"
            )
        if int(y.min()) < 0 or int(y.max()) >= spec.classes:
            raise UserError(
                f"{name}: expected {part} labels from 0 to {spec.classes - 1}, got {int(y.min())} "
                f"to {int(y.max())}"
            )
        some = spec.prepare(x[:100])
        as_declared = some.shape[1:] == spec.shape and some.dtype == spec.dtype
        if not as_declared or not bool(some.isfinite().all()):
            raise UserError(
                f"{name}: expected finite {part} inputs of shape {spec.shape}, "
                f"got {tuple(some.shape[1:])}"
            )


def _checksums(spec: DataSet, folder: Path) -> str:
    from fedsuv_plugin.tasks.sources import matches

    official = spec.source.official() if spec.source else {}
    there = [path for path in official if (folder / path).is_file()]
    if not official:
        return "none published for these files; checked by what is in them"
    if not there:
        return "none of the files that have one is here (" + ", ".join(official) + ")"
    wrong = [path for path in there if not matches(folder / path, official[path])]
    text = f"{len(there) - len(wrong)} of {len(official)} files are the official ones"
    return text + (f"; not the official bytes: {', '.join(wrong)}" if wrong else "")
