"""What a trace file holds, and the checks that refuse a bad file before a job uses it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fedsuv_plugin.errors import UserError
from fedsuv_plugin.traces.availability import Availability
from fedsuv_plugin.traces.population import COLUMNS, Population, uniform


@dataclass(frozen=True)
class Users:
    """When m users are online, and what else FedScale's file says of them.

    Row i is the user of client i + 1."""

    availability: Availability
    ids: np.ndarray  # (m,) int64, in FedScale's file
    durations: np.ndarray | None = None  # (m,) float64, seconds online in all; None: not known
    models: np.ndarray | None = None  # (m,) int64, index into model_names; None: not known
    model_names: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.availability)


@dataclass(frozen=True)
class Trace:
    """A table of devices, a table of users, or both.

    The two may differ in length, because FedScale's two files do."""

    devices: Population | None  # without availability, which belongs to the users
    device_ids: np.ndarray | None  # (n,) int64, in FedScale's file; None without devices
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
        """One client per device, online when its user is.

        Without a table of devices, one client per user, on uniform devices."""
        devices = uniform(len(self.users or ())) if self.devices is None else self.devices
        if self.users is None:
            return devices
        return replace(
            devices,
            availability=self.users.availability.take(np.arange(len(devices)) % len(self.users)),
        )


def check_devices(where: str, devices: Population, ids: np.ndarray) -> None:
    """Refuse a table in which some device has a value that its column does not allow."""
    for column in COLUMNS:
        values = devices.column(column.name)
        if values is not None:
            refuse(where, ids, ~column.allows(values), column.name, column.expected, values)
    if devices.position is not None:
        refuse(
            where,
            ids,
            bad=~np.isfinite(devices.position).all(axis=1),
            field="position",
            expected="two numbers, in metres",
            values=devices.position,
        )


def check_users(where: str, users: Users, names: tuple[str, str, str]) -> None:
    """Refuse a table in which some user's intervals run backwards, overlap or are not numbers.

    `names` are what the file calls starts, ends and periods."""
    start, end, period = names
    trace = users.availability
    refuse(
        where,
        users.ids,
        bad=~(np.isfinite(trace.periods) & (trace.periods > 0)),
        field=period,
        expected="a number > 0",
        values=trace.periods,
    )
    owners = np.repeat(users.ids, trace.lengths)  # (intervals,)
    for name, values in ((start, trace.starts), (end, trace.ends)):
        refuse(where, owners, ~(np.isfinite(values) & (values >= 0)), name, "seconds >= 0", values)
    refuse(
        where,
        owners,
        bad=trace.ends < trace.starts,
        field=end,
        expected=f"a time not before its {start}",
        values=trace.ends,
        more=f"the interval runs backwards: {start} is {{}}",
        more_values=trace.starts,
    )
    overlaps = np.zeros(len(owners), bool)
    overlaps[1:] = (trace.starts[1:] < trace.ends[:-1]) & (owners[1:] == owners[:-1])
    refuse(
        where,
        owners,
        bad=overlaps,
        field=start,
        expected=f"a time not before the {end} of the interval before it",
        values=trace.starts,
        more=f"intervals must ascend without overlap: that {end} is {{}}",
        more_values=np.roll(trace.ends, 1),
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
    """Raise a UserError about the first client for whom `bad` holds, if there is one.

    `ids`, `bad` and the values are aligned; the text `more` may quote one of `more_values`."""
    if not bad.any():
        return
    first = int(np.argmax(bad))
    text = (
        f"{where}: client {ids[first]}: {field}: expected {expected}, got {values[first].tolist()}"
    )
    if more:
        text += "; " + more.format(None if more_values is None else more_values[first].item())
    raise UserError(text)
