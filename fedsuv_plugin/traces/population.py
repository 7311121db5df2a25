"""A device population: how fast each client computes and communicates, and when it is online."""
from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedsuv_plugin import safe_pickle
from fedsuv_plugin.errors import UserError
from fedsuv_plugin.traces.availability import Availability

UNIFORM_MS_PER_SAMPLE, UNIFORM_KBPS = 10.0, 10_000.0  # the device of every client when the job names no trace


@dataclass(frozen=True)
class Population:
    """Row i is the device of client i + 1."""

    ms_per_sample: np.ndarray           # (n,) float64, inference latency
    kbps_up: np.ndarray                 # (n,) float64
    kbps_down: np.ndarray               # (n,) float64
    availability: Availability | None   # None: always online

    def __len__(self) -> int:
        return len(self.ms_per_sample)

    @property
    def features(self) -> tuple[tuple[str, ...], np.ndarray]:
        """Column names and the (n, d) matrix of what a selector may know of a device."""
        return ("ms_per_sample", "kbps"), np.column_stack([self.ms_per_sample, self.kbps_down])

    def online(self, time: float | np.ndarray, rows: np.ndarray | None = None) -> np.ndarray:
        if self.availability is None:
            return np.ones(len(self) if rows is None else len(rows), bool)
        return self.availability.online(time, rows)


def load_population(n: int, conf_file: str | None, avail_file: str | None) -> Population:
    """The devices of n clients, from FedScale's two files; a file the job does not name means uniform devices that
    are always online, a file it names and that is not there is an error."""
    ms, kbps = np.full(n, UNIFORM_MS_PER_SAMPLE), np.full(n, UNIFORM_KBPS)
    if conf_file is not None:
        ms, kbps = _capacity(n, conf_file)
    return Population(ms, kbps, kbps, None if avail_file is None else _behaviour(n, avail_file))


def _read(key: str, path: str) -> dict[Any, Any]:
    file = Path(path).expanduser()
    if not file.is_file():
        raise UserError(f"{key}: no such file: {path}")
    with file.open("rb") as f:
        try:
            content = safe_pickle.load(f)
        except safe_pickle.UnsafePickle as error:
            raise UserError(f"{key}: {path}: {error}") from None
    if not isinstance(content, dict) or not content:
        raise UserError(f"{key}: {path}: expected FedScale's dictionary of clients, got {type(content).__name__}")
    return content


def _capacity(n: int, path: str) -> tuple[np.ndarray, np.ndarray]:
    """Client c has profile c; past the last one they start over. (FedScale looks up profile 0 once in every pass,
    does not find it, and gives that client the default device.)"""
    profiles = _read("device_conf_file", path)
    try:
        table = np.array([[profiles[c]["computation"], profiles[c]["communication"]] for c in sorted(profiles)], float)
    except (TypeError, KeyError, ValueError) as error:
        raise UserError(f"device_conf_file: {path}: expected {{client: {{'computation': ms per sample, "
                        f"'communication': kbit/s}}}} ({type(error).__name__}: {error})") from None
    table = table[np.arange(n) % len(table)]
    return table[:, 0], table[:, 1]


def _behaviour(n: int, path: str) -> Availability:
    """Client c follows the user at place c, counted from 0, in the file's own order, as in FedScale."""
    users = list(_read("device_avail_file", path).values())
    try:
        lengths = [len(u["active"]) for u in users]
        everyone = Availability(
            np.array([t for u in users for t in u["active"]], float),
            np.array([t for u in users for t in u["inactive"]], float),
            np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
            np.array([u["finish_time"] for u in users], float))
    except (TypeError, KeyError, ValueError) as error:
        raise UserError(f"device_avail_file: {path}: expected {{client: {{'active': [...], 'inactive': [...], "
                        f"'finish_time': s}}}} ({type(error).__name__}: {error})") from None
    return everyone.take(np.arange(1, n + 1) % len(users))
