"""FedScale's two pickles, read into tables and written from them.

    client_device_capacity   {client: {'computation': ms per sample, 'communication': kbit/s}}
    client_behave_trace      {user: {'active': [s], 'inactive': [s], 'finish_time': s,
                                     'duration': s, 'model': text}}

FedScale gives client c (counted from 1) the profile with id c % n, and the user at place c % m of
the file, where places count from 0. In the tables row c - 1 belongs to client c in both; writing
restores the order of the file. FedScale reads only the keys above, so that the profiles can hold
further columns under their own names.
"""

from __future__ import annotations

from itertools import chain
from typing import Any, NoReturn

import numpy as np

from fedsuv_plugin.errors import UserError
from fedsuv_plugin.traces.availability import Availability
from fedsuv_plugin.traces.population import COLUMNS, Population
from fedsuv_plugin.traces.tables import Trace, Users, check_devices, check_users, refuse

CAPACITY = "{client: {'computation': ms per sample, 'communication': kbit/s}}"
BEHAVIOUR = "{client: {'active': [...], 'inactive': [...], 'finish_time': s}}"
# The columns that FedScale's 'computation' and 'communication' hold.
_COMPUTED = ("ms_per_sample", "kbps_up", "kbps_down")


def trace_from(where: str, content: object) -> Trace:
    """The tables of an unpickled file; its first entry shows which of the two files it is."""
    if not isinstance(content, dict) or not content:
        raise UserError(
            f"{where}: not a device trace: expected FedScale's {CAPACITY} or {BEHAVIOUR}, "
            f"got {'an empty dictionary' if content == {} else type(content).__name__}"
        )
    first = next(iter(content.values()))
    if isinstance(first, dict) and ("computation" in first or "communication" in first):
        devices, ids = _devices(where, content)
        return Trace(devices, ids, None)
    if isinstance(first, dict) and ("active" in first or "inactive" in first):
        return Trace(None, None, _users(where, content))
    raise UserError(
        f"{where}: client {next(iter(content))!r}: not a device trace: "
        f"expected FedScale's {CAPACITY} or {BEHAVIOUR}, got {str(first)[:60]}"
    )


def _devices(where: str, content: dict[Any, Any]) -> tuple[Population, np.ndarray]:
    """The devices and their ids, row c - 1 for client c."""
    ids = _ids(where, content)
    order = np.argsort(ids, kind="stable")
    _refuse_gaps(where, ids[order])
    if ids[order[0]] == 0:
        order = np.roll(order, -1)  # client n has profile 0, so that one goes last
    ids = ids[order]
    ms = _numbers(where, content, "computation")[order]
    kbps = _numbers(where, content, "communication")[order]
    for field, values in (("computation", ms), ("communication", kbps)):
        refuse(where, ids, ~(np.isfinite(values) & (values > 0)), field, "a number > 0", values)
    known = next(iter(content.values()))
    columns: dict[str, Any] = {"ms_per_sample": ms, "kbps_up": kbps, "kbps_down": kbps}
    columns |= {c.name: _numbers(where, content, c.name)[order] for c in COLUMNS if c.name in known}
    if "x" in known:
        axes = [_numbers(where, content, axis)[order] for axis in ("x", "y")]
        columns["position"] = np.column_stack(axes)
    model, names = _texts(where, content, "model") if "model" in known else (None, ())
    devices = Population(
        **columns,
        availability=None,
        model=None if model is None else model[order],
        model_names=names,
    )
    check_devices(where, devices, ids)
    return devices, ids


def _users(where: str, content: dict[Any, Any]) -> Users:
    """The users, row c - 1 for client c."""
    ids = _ids(where, content)
    active = _field(where, content, "active")
    inactive = _field(where, content, "inactive")
    lengths = _lengths(where, ids, "active", active)
    others = _lengths(where, ids, "inactive", inactive)
    refuse(
        where,
        ids,
        bad=others != lengths,
        field="inactive",
        expected="as many times as in active",
        values=others,
        more="active has {}",
        more_values=lengths,
    )
    owners = np.repeat(ids, lengths)
    availability = Availability(
        starts=_array(where, owners, "active", list(chain.from_iterable(active))),
        ends=_array(where, owners, "inactive", list(chain.from_iterable(inactive))),
        offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        periods=_numbers(where, content, "finish_time"),
    )
    known = next(iter(content.values()))
    durations = _numbers(where, content, "duration") if "duration" in known else None
    models, names = _texts(where, content, "model") if "model" in known else (None, ())
    check_users(where, Users(availability, ids), ("active", "inactive", "finish_time"))
    # Client c has the user at place c of the file, and client m the one at place 0.
    order = np.roll(np.arange(len(ids)), -1)
    return Users(
        availability=availability.take(order),
        ids=ids[order],
        durations=None if durations is None else durations[order],
        models=None if models is None else models[order],
        model_names=names,
    )


def capacity_of(devices: Population, ids: np.ndarray) -> dict[int, dict[str, Any]]:
    """FedScale's profiles by id; columns it does not know are added under their own names."""
    columns = {"computation": devices.ms_per_sample, "communication": devices.one_way_kbps}
    if not devices.one_bandwidth:
        columns |= {"kbps_up": devices.kbps_up, "kbps_down": devices.kbps_down}
    columns |= {name: values for name, values in devices.columns.items() if name not in _COMPUTED}
    if devices.position is not None:
        columns |= {"x": devices.position[:, 0], "y": devices.position[:, 1]}
    lists: dict[str, list[Any]] = {name: values.tolist() for name, values in columns.items()}
    if devices.model is not None:
        lists["model"] = [devices.model_names[code] for code in devices.model.tolist()]
    rows = zip(*lists.values(), strict=True)
    profiles = [dict(zip(lists, row, strict=True)) for row in rows]
    return dict(sorted(zip(ids.tolist(), profiles, strict=True)))


def behaviour_of(users: Users) -> dict[int, dict[str, Any]]:
    """FedScale's users by id, in the order in which FedScale gives them to the same clients."""
    trace = users.availability
    durations = users.durations
    if durations is None:
        sums = np.concatenate([[0.0], np.cumsum(trace.ends - trace.starts)])
        durations = sums[trace.offsets[1:]] - sums[trace.offsets[:-1]]
    models = ["unknown"] * len(users)
    if users.models is not None:
        models = [users.model_names[code] for code in users.models.tolist()]
    starts = _seconds(trace.starts)
    ends = _seconds(trace.ends)
    bounds = trace.offsets.tolist()
    each = zip(
        bounds[:-1], bounds[1:], _seconds(durations), _seconds(trace.periods), models, strict=True
    )
    entries = [
        {
            "duration": duration,
            "inactive": ends[low:high],
            "finish_time": period,
            "active": starts[low:high],
            "model": model,
        }
        for low, high, duration, period, model in each
    ]
    pairs = list(zip(users.ids.tolist(), entries, strict=True))
    return dict(pairs[-1:] + pairs[:-1])  # the last client has the user at place 0


def _seconds(values: np.ndarray) -> list[Any]:
    """The values as int, as FedScale has them, if all are whole seconds; otherwise as they are."""
    whole = (values == np.floor(values)).all()
    return (values.astype(np.int64) if whole else values).tolist()


def _refuse_gaps(where: str, ids: np.ndarray) -> None:
    """Refuse ids that do not count from 0 or 1 without a gap.

    FedScale would silently give a default device to the clients whose number it does not find."""
    first = min(max(int(ids[0]), 0), 1)
    expected = np.arange(first, first + len(ids))
    if not np.array_equal(ids, expected):
        missing = int(expected[np.argmax(ids != expected)])
        raise UserError(
            f"{where}: client {missing}: missing; expected every id from {first} to "
            f"{first + len(ids) - 1}, as there are {len(ids)} profiles; number them without gaps"
        )


def _ids(where: str, content: dict[Any, Any]) -> np.ndarray:
    for key in content:
        if not isinstance(key, int | np.integer) or isinstance(key, bool):
            raise UserError(
                f"{where}: client {key!r}: expected a whole number as id, "
                f"got {type(key).__name__}; make the keys int"
            )
    return np.fromiter(content, np.int64, len(content))


def _field(where: str, content: dict[Any, Any], field: str) -> list[Any]:
    """One field of every entry."""
    try:
        return [entry[field] for entry in content.values()]
    except (TypeError, KeyError, IndexError):
        _blame(where, content, field)


def _blame(where: str, content: dict[Any, Any], field: str) -> NoReturn:
    """A UserError that names the first client of which the field cannot be read."""
    for client, entry in content.items():
        if not isinstance(entry, dict):
            raise UserError(
                f"{where}: client {client}: expected a dictionary of its fields, "
                f"got {type(entry).__name__}"
            )
        if field not in entry:
            raise UserError(f"{where}: client {client}: {field}: missing")
    raise UserError(f"{where}: {field}: cannot be read")


def _numbers(where: str, content: dict[Any, Any], field: str) -> np.ndarray:
    """A field that is one number in every entry, (n,) float64."""
    return _array(where, list(content), field, _field(where, content, field))


def _array(where: str, clients: Any, field: str, values: list[Any]) -> np.ndarray:
    """The values as float64, or a UserError that names the client whose value is no number."""
    try:
        array = np.asarray(values)
    except ValueError:  # numbers and lists mixed
        array = np.empty(0, object)
    if array.dtype.kind in "iuf" and array.shape == (len(values),):
        return array.astype(np.float64)
    for client, value in zip(clients, values, strict=True):
        if not isinstance(value, int | float | np.integer | np.floating) or isinstance(value, bool):
            raise UserError(
                f"{where}: client {client}: {field}: expected a number, got {str(value)[:40]!r}"
            )
    raise UserError(f"{where}: {field}: expected numbers of ordinary size")


def _lengths(where: str, ids: np.ndarray, field: str, values: list[Any]) -> np.ndarray:
    """The length of each client's list, (n,)."""
    for client, value in zip(ids, values, strict=True):
        if not isinstance(value, list | tuple | np.ndarray):
            raise UserError(
                f"{where}: client {client}: {field}: expected a list of seconds, "
                f"got {str(value)[:40]!r}"
            )
    return np.fromiter(map(len, values), np.int64, len(values))


def _texts(where: str, content: dict[Any, Any], field: str) -> tuple[np.ndarray, tuple[str, ...]]:
    """A field that is text, as codes and the distinct texts, in order of appearance."""
    values = _field(where, content, field)
    for client, value in zip(content, values, strict=True):
        if not isinstance(value, str):
            raise UserError(f"{where}: client {client}: {field}: expected text, got {value!r}")
    codes = {name: code for code, name in enumerate(dict.fromkeys(values))}
    return np.fromiter((codes[value] for value in values), np.int64, len(values)), tuple(codes)
