"""What a trace file holds, and the checks that stand between a bad file and a job."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fedsuv_plugin.errors import UserError
from fedsuv_plugin.traces.availability import Availability
from fedsuv_plugin.traces.population import COLUMNS, Population, uniform


@dataclass(frozen=True)
class Users:
    """When m users are online, with what FedScale's file says of them besides; row i is the user of client i + 1."""

    availability: Availability
    ids: np.ndarray  # (m,) int64
    durations: np.ndarray | None = None  # (m,) float64, seconds online in all; None: not told
    models: np.ndarray | None = None  # (m,) int64, index into model_names; None: not told
    model_names: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.availability)


@dataclass(frozen=True)
class Trace:
    """A table of devices, a table of users, or both. They may differ in length: FedScale's two files do."""

    devices: Population | None  # with availability None: that is the users'
    device_ids: np.ndarray | None  # (n,) int64, with the devices
    users: Users | None

    @classmethod
    def of(cls, population: Population) -> Trace:
        """A population as tables. FedScale looks client c up as c % n, so client n gets id 0."""
        ids = np.arange(1, len(population) + 1) % len(population)
        users = None
        if population.availability is not None:
            users = Users(
                population.availability, ids, None, population.model, population.model_names
            )
        return cls(replace(population, availability=None), ids, users)

    def population(self) -> Population:
        """One client per device, online when its user is; without devices one client per user, on uniform devices."""
        devices = uniform(len(self.users or ())) if self.devices is None else self.devices
        if self.users is None:
            return devices
        return replace(
            devices,
            availability=self.users.availability.take(np.arange(len(devices)) % len(self.users)),
        )


def check_devices(where: str, devices: Population, ids: np.ndarray) -> None:
    """Refuse the first device with a number that is none, or that no device has."""
    for column in COLUMNS:
        values = devices.column(column.name)
        if values is not None:
            refuse(where, ids, ~column.allows(values), column.name, column.expected, values)
    if devices.position is not None:
        refuse(
            where,
            ids,
            ~np.isfinite(devices.position).all(axis=1),
            "position",
            "two numbers, in metres",
            devices.position,
        )


def check_users(where: str, users: Users, names: tuple[str, str, str]) -> None:
    """Refuse the first user whose intervals are no intervals; `names` are those of starts, ends and periods."""
    start, end, period = names
    trace = users.availability
    refuse(
        where,
        users.ids,
        ~(np.isfinite(trace.periods) & (trace.periods > 0)),
        period,
        "a number > 0",
        trace.periods,
    )
    owners = np.repeat(users.ids, trace.lengths)  # (intervals,)
    for name, values in ((start, trace.starts), (end, trace.ends)):
        refuse(where, owners, ~(np.isfinite(values) & (values >= 0)), name, "seconds >= 0", values)
    backwards = trace.ends < trace.starts
    refuse(
        where,
        owners,
        backwards,
        end,
        f"a time not before its {start}",
        trace.ends,
        f"the interval runs backwards: {start} is {{}}",
        trace.starts,
    )
    overlaps = np.zeros(len(owners), bool)
    overlaps[1:] = (trace.starts[1:] < trace.ends[:-1]) & (owners[1:] == owners[:-1])
    refuse(
        where,
        owners,
        overlaps,
        start,
        f"a time not before the {end} of the interval before it",
        trace.starts,
        f"intervals must ascend without overlap: that {end} is {{}}",
        np.roll(trace.ends, 1),
    )


def refuse(
    where: str,
    ids: np.ndarray,
    bad: np.ndarray,
    field: str,
    expected: str,
    values: np.ndarray,
    more: str = "",
    more_values: np.ndarray | None = None,
) -> None:
    """A UserError that names the first client for whom `bad` holds; `more` may quote a second value."""
    if not bad.any():
        return
    first = int(np.argmax(bad))
    text = (
        f"{where}: client {ids[first]}: {field}: expected {expected}, got {values[first].tolist()}"
    )
    if more:
        text += "; " + more.format(None if more_values is None else more_values[first].item())
    raise UserError(text)
