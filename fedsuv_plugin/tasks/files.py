"""Reading the files of data sets: folders, FedScale's client maps, LEAF's JSON; and a cache.

The cache keeps, beside the files, the arrays of a data set that is slow to read.
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
import sys
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from fedsuv_plugin.atomic_file import replace_file
from fedsuv_plugin.errors import UserError

CLIENT_MAP = "client_data_mapping/{part}.csv"  # FedScale's, below a data set's folder
LEAF_FILES = "data/{part}/*.json"  # LEAF's
CACHE = ".fedsuv"  # below a data set's folder
T = TypeVar("T")


def data_folder(data_dir: str | None, name: str) -> Path:
    """The folder a data set is read from: the job's `data_dir`, else <FEDSUV_DATA>/<name>."""
    if data_dir is not None:
        return Path(data_dir).expanduser()
    if root := os.environ.get("FEDSUV_DATA"):
        return Path(root).expanduser() / name
    raise UserError(
        "data_dir: this data set is read from disk; set data_dir to its folder, or the environment "
        f"variable FEDSUV_DATA to a folder that holds {name}/"
    )


def missing(what: Path | str) -> UserError:
    return UserError(
        f"data_dir: no such file: {what}; `fedsuv data` lists the data sets, "
        "`fedsuv data fetch <name>` gets one"
    )


@dataclass(frozen=True)
class ClientMap:
    """A FedScale client map: one entry per sample, in the file's order."""

    clients: list[str]
    paths: list[str]
    label_names: list[str]
    labels: np.ndarray  # (n,) int64


def read_client_map(file: Path, classes: int) -> ClientMap:
    """FedScale's CSV with a header: client_id, sample_path, label_name, label_id."""
    if not file.is_file():
        raise missing(file)
    with file.open(newline="") as f:
        rows = [row for row in csv.reader(f) if row][1:]
    for number, row in enumerate(rows, 2):
        if len(row) < 4 or not row[-1].isdigit() or int(row[-1]) >= classes:
            raise UserError(
                f"data_dir: {file}: row {number}: expected client, path, label name and a label "
                f"below {classes}, got {','.join(row)[:80]!r}"
            )
    if not rows:
        raise UserError(f"data_dir: {file}: expected a row per sample below a header, got none")
    return ClientMap(
        clients=[row[0] for row in rows],
        paths=[row[1] for row in rows],
        label_names=[row[-2] for row in rows],
        labels=np.array([int(row[-1]) for row in rows]),
    )


def read_leaf(root: Path, part: str, size: int) -> Iterator[tuple[str, list[Any], list[Any]]]:
    """LEAF's JSON files of one part, "train" or "test", user by user.

    A user is (name, inputs of `size` values each, labels)."""
    files = leaf_files(root, part)
    if not files:
        raise missing(root / LEAF_FILES.format(part=part))
    for file in progress(files, f"reading {root / 'data' / part}"):
        try:
            content = json.loads(file.read_bytes())
            users = [
                (str(user), content["user_data"][user]["x"], content["user_data"][user]["y"])
                for user in content["users"]
            ]
            wrong = [
                user
                for user, x, y in users
                if len(x) != len(y) or any(len(value) != size for value in x)
            ]
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"data_dir: {file}: not a complete LEAF file of users and user_data ({error!r})"
            ) from None
        if wrong:
            raise UserError(
                f"data_dir: {file}: user {wrong[0]}: expected inputs of {size} values and a label "
                "for each"
            )
        yield from users


def leaf_files(root: Path, part: str) -> list[Path]:
    return sorted(root.glob(LEAF_FILES.format(part=part)))


def numbered(names: Iterable[str]) -> np.ndarray:
    """Each name's number, (n,) int64: names are numbered as they first appear."""
    numbers: dict[str, int] = {}
    return np.array([numbers.setdefault(name, len(numbers)) for name in names], np.int64)


def cached(
    folder: Path, name: str, made_from: Iterable[object], make: Callable[[], dict[str, np.ndarray]]
) -> dict[str, np.ndarray]:
    """The arrays that `make` gives, kept below `folder` until `made_from` changes.

    Where nothing can be written, they are made again every time."""
    key = hashlib.sha256("\n".join(map(str, made_from)).encode()).hexdigest()
    file = folder / CACHE / f"{name}.npz"
    try:
        with np.load(file, allow_pickle=False) as archive:
            if str(archive["key"]) == key:
                return {entry: archive[entry] for entry in archive.files if entry != "key"}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        pass  # there is none yet, or it is damaged: it is made anew
    arrays = make()
    content: dict[str, Any] = {"key": np.array(key), **arrays}
    try:
        file.parent.mkdir(exist_ok=True)
        replace_file(file, lambda f: np.savez(f, **content))
    except (OSError, UserError) as error:
        print(f"{file}: not kept for next time ({error})", file=sys.stderr)
    return arrays


def state_of(files: Iterable[Path]) -> Iterator[str]:
    """By what a changed file is known: its name, size and time."""
    for file in files:
        stat = file.stat()
        yield f"{file.name} {stat.st_size} {stat.st_mtime_ns}"


def progress(items: list[T], what: str) -> Iterator[T]:
    """The items; on a terminal a live line says how many per cent of them have been taken."""
    live = sys.stderr.isatty()
    for i, item in enumerate(items):
        percent = i * 100 // len(items)
        if live and percent > (i - 1) * 100 // len(items):
            print(f"\r{what}: {percent} %\x1b[K", end="", file=sys.stderr, flush=True)
        yield item
    if live:
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)
