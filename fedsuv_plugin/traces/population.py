"""A device population: speed, bandwidth, power and availability of each client."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

import numpy as np

from fedsuv_plugin.errors import UserError
from fedsuv_plugin.traces.availability import Availability

# The device of every client when the job names no trace.
UNIFORM_MS_PER_SAMPLE = 10.0
UNIFORM_KBPS = 10_000.0


class Column(NamedTuple):
    """A number that every device has, what it means, and which values are allowed."""

    name: str
    meaning: str
    expected: str
    allows: Callable[[np.ndarray], np.ndarray]


def _positive(values: np.ndarray) -> np.ndarray:
    return np.isfinite(values) & (values > 0)


def _not_negative(values: np.ndarray) -> np.ndarray:
    return np.isfinite(values) & (values >= 0)


def _at_least_one(values: np.ndarray) -> np.ndarray:
    return np.isfinite(values) & (values >= 1)


COLUMNS = (
    Column("ms_per_sample", "inference latency of one sample (ms)", "a number > 0", _positive),
    Column("kbps_up", "throughput from the device (kbit/s)", "a number > 0", _positive),
    Column("kbps_down", "throughput to the device (kbit/s)", "a number > 0", _positive),
    Column("cpu_gflops", "peak of the CPU (GFLOPS, single precision)", "a number > 0", _positive),
    Column("cores", "CPU cores", "a number >= 1", _at_least_one),
    Column("memory_gb", "main memory (GB)", "a number > 0", _positive),
    Column(
        "gpu_gflops", "peak of the GPU (GFLOPS, single precision)", "a number >= 0", _not_negative
    ),
    Column("gpus", "GPUs that can be computed on", "a number >= 0", _not_negative),
    Column("compute_w", "power while computing (W)", "a number >= 0", _not_negative),
    Column("radio_w", "power while sending or receiving (W)", "a number >= 0", _not_negative),
)
REQUIRED = ("ms_per_sample", "kbps_up", "kbps_down")  # the columns that every trace has
# The columns that a selector may know.
FEATURES = (
    "ms_per_sample",
    "kbps_up",
    "kbps_down",
    "cpu_gflops",
    "cores",
    "memory_gb",
    "gpu_gflops",
    "gpus",
)


@dataclass(frozen=True)
class Population:
    """The devices of n clients: row i is the device of client i + 1.

    A column that the trace does not have is None.

    >>> uniform(3).online(time=0.0).tolist()
    [True, True, True]
    """

    ms_per_sample: np.ndarray  # (n,) float64, inference latency
    kbps_up: np.ndarray  # (n,) float64
    kbps_down: np.ndarray  # (n,) float64
    availability: Availability | None  # None: always online
    cpu_gflops: np.ndarray | None = None  # (n,) float64
    cores: np.ndarray | None = None  # (n,) float64
    memory_gb: np.ndarray | None = None  # (n,) float64
    gpu_gflops: np.ndarray | None = None  # (n,) float64
    gpus: np.ndarray | None = None  # (n,) float64
    compute_w: np.ndarray | None = None  # (n,) float64, power while computing
    radio_w: np.ndarray | None = None  # (n,) float64, power while transferring
    position: np.ndarray | None = None  # (n, 2) float64, metres in a square of 1 km
    model: np.ndarray | None = None  # (n,) int64, index into model_names
    model_names: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.ms_per_sample)

    def column(self, name: str) -> np.ndarray | None:
        """A column by its name in COLUMNS."""
        values: np.ndarray | None = getattr(self, name)
        return values

    @property
    def columns(self) -> dict[str, np.ndarray]:
        """The columns this population has, by name."""
        found = {c.name: self.column(c.name) for c in COLUMNS}
        return {name: values for name, values in found.items() if values is not None}

    @property
    def one_bandwidth(self) -> bool:
        """Whether up and down are the same numbers, as in FedScale's traces."""
        return np.array_equal(self.kbps_up, self.kbps_down)

    @property
    def one_way_kbps(self) -> np.ndarray:
        """The one bandwidth, (n,), at which down- and uploading a model takes as long as at both.

        FedScale's files hold a single bandwidth."""
        both = 2.0 / (1.0 / self.kbps_up + 1.0 / self.kbps_down)
        # Where the two are the same, so is the result, without any rounding.
        return np.where(self.kbps_up == self.kbps_down, self.kbps_down, both)

    @property
    def features(self) -> tuple[tuple[str, ...], np.ndarray]:
        """The names of d columns that a selector may know, and their values (n, d).

        They are those of FEATURES that the trace has. Where up and down are the same numbers only
        kbps_down is given, because a column twice tells a selector nothing."""
        known = self.columns
        if self.one_bandwidth:
            del known["kbps_up"]
        names = tuple(name for name in FEATURES if name in known)
        return names, np.column_stack([known[name] for name in names])

    def online(self, time: float | np.ndarray, rows: np.ndarray | None = None) -> np.ndarray:
        """Whether each client, or each of `rows`, is online, (n,) bool.

        `time` is one time for all or one per client."""
        if self.availability is None:
            return np.ones(len(self) if rows is None else len(rows), bool)
        return self.availability.online(time, rows)

    def take(self, rows: np.ndarray) -> Population:
        """The devices of `rows`, which may repeat."""
        arrays = {
            f.name: getattr(self, f.name)
            for f in fields(self)
            if f.name not in ("availability", "model_names")
        }
        picked = {name: values[rows] for name, values in arrays.items() if values is not None}
        return replace(
            self,
            availability=None if self.availability is None else self.availability.take(rows),
            **picked,
        )


def uniform(n: int) -> Population:
    """A population of n equal devices that are always online."""
    kbps = np.full(n, UNIFORM_KBPS)
    return Population(np.full(n, UNIFORM_MS_PER_SAMPLE), kbps, kbps, None)


def load_population(n: int, conf_file: str | None, avail_file: str | None) -> Population:
    """The devices of n clients, from FedScale's two files or from our own format.

    Client c takes row c - 1 of a file's table; past the last row they start over. For FedScale's
    files this is FedScale's own mapping (see `fedscale_files`). Availability comes from
    `avail_file` only, even if `conf_file` holds some; one file may be named as both.

    Without `conf_file` the devices are uniform, and without `avail_file` they are always online.
    A file that is named but does not exist, or lacks what is expected of it, is an error."""
    from fedsuv_plugin.traces.files import read  # here: that module imports this one

    population = uniform(n)
    found = None
    if conf_file is not None:
        found = read(conf_file, "device_conf_file")
        devices = found.devices
        if devices is None:
            raise UserError(
                f"device_conf_file: {conf_file}: expected devices, got only availability; "
                f"name this file in device_avail_file"
            )
        population = devices if len(devices) == n else devices.take(np.arange(n) % len(devices))
    if avail_file is not None:
        if found is None or avail_file != conf_file:  # the same file named twice is read once
            found = read(avail_file, "device_avail_file")
        users = found.users
        if users is None:
            raise UserError(
                f"device_avail_file: {avail_file}: expected availability, got only devices; "
                f"name this file in device_conf_file"
            )
        availability = users.availability
        if len(users) != n:
            availability = availability.take(np.arange(n) % len(users))
        population = replace(population, availability=availability)
    return population
