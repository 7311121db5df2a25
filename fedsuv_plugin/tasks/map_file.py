"""FedScale's `data_map_file`: a CSV that says who owns which training sample."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path

import numpy as np

from fedsuv_plugin.atomic_file import replace_file
from fedsuv_plugin.errors import UserError
from fedsuv_plugin.tasks.files import numbered
from fedsuv_plugin.tasks.partitions import Partition, by_owner


def from_map_file(path: str, labels: np.ndarray, n: int | None) -> Partition:
    """The partition in FedScale's `data_map_file`.

    It is a CSV with a header and one row per training sample in the data set's order; the first
    column names the client, the last the label. Clients are numbered as they appear, or as
    `to_map_file` named them; n keeps the first n of them."""
    file = Path(path).expanduser()
    if not file.is_file():
        raise UserError(f"data_map_file: no such file: {path}")
    try:
        with file.open(newline="") as f:
            rows = [(row[0], row[-1]) for row in list(csv.reader(f))[1:] if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"data_map_file: {path}: cannot be read as CSV ({error})") from None
    if not rows or len(rows) > len(labels):
        raise UserError(
            f"data_map_file: {path}: expected 1 to {len(labels)} rows, one per training sample, "
            f"got {len(rows)}"
        )
    for i, (_, label) in enumerate(rows):
        if label.isdigit() and int(label) != labels[i]:
            raise UserError(
                f"data_map_file: {path}: row {i + 2} says label {label}, the data set says "
                f"{labels[i]}; the map belongs to other data"
            )
    owner, there = _owners([client for client, _ in rows])
    n = there if n is None else n
    if n > there:
        raise UserError(f"num_clients: expected at most {there}, the clients of {path}, got {n}")
    return by_owner(np.where(owner < n, owner, -1), n)


# The names that `to_map_file` gives to clients: "7/100" is number 7 of 100.
NUMBERED = re.compile(r"([1-9]\d*|nobody)/(\d+)", re.ASCII)


def _owners(names: list[str]) -> tuple[np.ndarray, int]:
    """(the owner of each row, -1: nobody, and how many clients there are)."""
    ours = [NUMBERED.fullmatch(name) for name in names]
    if all(ours) and len({match[2] for match in ours if match}) == 1:
        clients = [match[1] for match in ours if match]
        owner = np.array([-1 if name == "nobody" else int(name) - 1 for name in clients])
        there = int(ours[0][2])  # type: ignore[index]
        if owner.max() < there:
            return owner, there
    owner = numbered(names)
    return owner, int(owner.max()) + 1


def to_map_file(path: str | Path, parts: Partition, labels: np.ndarray) -> None:
    """Write a partition so that `from_map_file` gives it back, and FedScale reads it.

    FedScale numbers clients as they appear and cannot leave a sample out, so a client's number is
    part of its name, "7/100", and samples without an owner belong to "nobody/100", which FedScale
    takes for one client more."""
    n = len(parts)
    owner = np.full(len(labels), -1)
    owner[parts.order] = np.repeat(np.arange(n), parts.sizes)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["client_id", "sample_path", "label_name", "label_id"])
    writer.writerows(
        [f"{'nobody' if client < 0 else client + 1}/{n}", sample, label, label]
        for sample, (client, label) in enumerate(zip(owner.tolist(), labels.tolist(), strict=True))
    )
    replace_file(path, lambda f: f.write(text.getvalue().encode()))
