"""Trace files: our .npz of columns and FedScale's pickles, told apart by their content, not name.

Our format is described in device_traces/README.md. No array in it is a pickled object.
"""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedsuv_plugin import safe_pickle
from fedsuv_plugin.atomic_file import replace_file
from fedsuv_plugin.errors import UserError
from fedsuv_plugin.params import refuse_unknown
from fedsuv_plugin.traces.availability import Availability
from fedsuv_plugin.traces.fedscale_files import behaviour_of, capacity_of, trace_from
from fedsuv_plugin.traces.population import COLUMNS, REQUIRED, Population
from fedsuv_plugin.traces.tables import Trace, Users, check_devices, check_users

FORMAT = "fedsuv device traces 1"
_DEVICE = (
    *(f"device.{c.name}" for c in COLUMNS),
    "device.id",
    "device.position",
    "device.model",
    "device.model_names",
)
_USER = ("user.starts", "user.ends", "user.offsets", "user.periods")
_USER_EXTRA = ("user.id", "user.duration", "user.model", "user.model_names")
# What np.load raises for a damaged file, or one that holds pickled objects.
_UNREADABLE = (
    ValueError,
    zipfile.BadZipFile,
    OSError,
    EOFError,
    KeyError,
    NotImplementedError,
)


def read(path: str | Path, key: str | None = None) -> Trace:
    """A trace in either format; `key` is the job's key that names it, for messages."""
    file = Path(path).expanduser()
    prefix = "" if key is None else f"{key}: "
    if not file.is_file():
        raise UserError(f"{prefix}no such file: {path}")
    where = f"{prefix}{path}"
    with file.open("rb") as f:
        if f.read(4) == b"PK\x03\x04":
            return _read_npz(where, file)
        f.seek(0)
        try:
            content = safe_pickle.load(f)
        except safe_pickle.UnsafePickle as error:
            raise UserError(
                f"{where}: not a device trace: neither our .npz nor one of FedScale's pickles "
                f"({error})"
            ) from None
    return trace_from(where, content)


def write(trace: Trace, path: str | Path) -> None:
    """Write a trace in our format."""
    arrays: dict[str, Any] = {
        "format": np.array(FORMAT),
        **_device_arrays(trace),
        **_user_arrays(trace),
    }
    replace_file(path, lambda f: np.savez_compressed(f, **arrays))


def write_capacity(trace: Trace, path: str | Path) -> None:
    """Write the devices as FedScale's client_device_capacity."""
    if trace.devices is None or trace.device_ids is None:
        raise UserError(f"{path}: the trace holds no devices to export; leave out --capacity")
    content = capacity_of(trace.devices, trace.device_ids)
    replace_file(path, lambda f: pickle.dump(content, f))


def write_behaviour(trace: Trace, path: str | Path) -> None:
    """Write the users as FedScale's client_behave_trace."""
    if trace.users is None:
        raise UserError(
            f"{path}: the trace holds no availability to export; leave out --availability"
        )
    content = behaviour_of(trace.users)
    replace_file(path, lambda f: pickle.dump(content, f))


def _device_arrays(trace: Trace) -> dict[str, np.ndarray]:
    devices = trace.devices
    if devices is None or trace.device_ids is None:
        return {}
    arrays = {f"device.{name}": narrow(values) for name, values in devices.columns.items()}
    arrays["device.id"] = trace.device_ids
    if devices.position is not None:
        arrays["device.position"] = devices.position
    if devices.model is not None:
        arrays["device.model"] = narrow(devices.model)
        arrays["device.model_names"] = np.array(devices.model_names)
    return arrays


def _user_arrays(trace: Trace) -> dict[str, np.ndarray]:
    users = trace.users
    if users is None:
        return {}
    times = users.availability
    arrays = {
        "user.starts": narrow(times.starts),
        "user.ends": narrow(times.ends),
        "user.offsets": times.offsets,
        "user.periods": narrow(times.periods),
        "user.id": users.ids,
    }
    if users.durations is not None:
        arrays["user.duration"] = narrow(users.durations)
    if users.models is not None:
        arrays["user.model"] = narrow(users.models)
        arrays["user.model_names"] = np.array(users.model_names)
    return arrays


def narrow(values: np.ndarray) -> np.ndarray:
    """The values as int32, half the size, if all are whole numbers that fit; otherwise as they are.

    Reading makes them float64 again."""
    small = values.astype(np.int32) if len(values) == 0 or np.abs(values).max() < 2**31 else values
    return small if np.array_equal(small, values) else values


def _read_npz(where: str, file: Path) -> Trace:
    try:
        with np.load(file, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except _UNREADABLE as error:
        raise UserError(
            f"{where}: not a readable .npz of plain arrays ({error}); build or import it again"
        ) from None
    found = str(arrays.pop("format", "no `format`"))
    if found != FORMAT:
        raise UserError(
            f"{where}: not a device trace: expected an .npz of {FORMAT!r}, got {found!r}"
        )
    try:
        refuse_unknown(arrays, (*_DEVICE, *_USER, *_USER_EXTRA), "array")
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
    devices = ids = users = None
    if any(name.startswith("device.") for name in arrays):
        devices, ids = _devices(where, arrays)
    if any(name.startswith("user.") for name in arrays):
        users = _users(where, arrays)
    if devices is None and users is None:
        raise UserError(f"{where}: holds neither devices nor availability")
    return Trace(devices, ids, users)


def _devices(where: str, arrays: Mapping[str, np.ndarray]) -> tuple[Population, np.ndarray]:
    _require(where, arrays, [f"device.{name}" for name in REQUIRED])
    n = len(_vector(where, arrays, "device.ms_per_sample"))
    if n == 0:
        raise UserError(f"{where}: device.ms_per_sample: expected at least one device, got none")
    columns: dict[str, Any] = {
        c.name: _vector(where, arrays, f"device.{c.name}", n)
        for c in COLUMNS
        if f"device.{c.name}" in arrays
    }
    ids = _ids_of(where, arrays, "device.id", n)
    if "device.position" in arrays:
        position = arrays["device.position"]
        if position.shape != (n, 2) or position.dtype.kind not in "iuf":
            raise UserError(
                f"{where}: device.position: expected numbers of shape ({n}, 2), "
                f"got {_shape(position)}"
            )
        columns["position"] = position.astype(np.float64)
    model, names = _models(where, arrays, "device.model", n)
    devices = Population(**columns, availability=None, model=model, model_names=names)
    check_devices(where, devices, np.arange(1, n + 1))
    return devices, ids


def _users(where: str, arrays: Mapping[str, np.ndarray]) -> Users:
    _require(where, arrays, _USER)
    starts = _vector(where, arrays, "user.starts")
    ends = _vector(where, arrays, "user.ends")
    periods = _vector(where, arrays, "user.periods")
    offsets = arrays["user.offsets"].astype(np.int64)
    n = len(periods)
    if n == 0 or len(starts) != len(ends):
        raise UserError(
            f"{where}: user.ends: expected at least one user and as many ends as starts, "
            f"got {n} users, {len(starts)} starts and {len(ends)} ends"
        )
    fits = offsets.shape == (n + 1,) and offsets[0] == 0 and offsets[-1] == len(starts)
    if not fits or (np.diff(offsets) < 0).any():
        raise UserError(
            f"{where}: user.offsets: expected {n + 1} ascending numbers from 0 to {len(starts)}"
        )
    ids = _ids_of(where, arrays, "user.id", n)
    models, names = _models(where, arrays, "user.model", n)
    durations = _vector(where, arrays, "user.duration", n) if "user.duration" in arrays else None
    availability = Availability(starts, ends, offsets, periods)
    check_users(where, Users(availability, np.arange(1, n + 1)), ("starts", "ends", "periods"))
    return Users(availability, ids, durations, models, names)


def _require(
    where: str, arrays: Mapping[str, np.ndarray], names: list[str] | tuple[str, ...]
) -> None:
    for name in names:
        if name not in arrays:
            raise UserError(f"{where}: {name}: missing; build or import the file again")


def _vector(
    where: str, arrays: Mapping[str, np.ndarray], name: str, length: int | None = None
) -> np.ndarray:
    """A column of numbers as float64, of the given length."""
    values = arrays[name]
    is_column = values.ndim == 1 and values.dtype.kind in "iuf"
    if not is_column or (length is not None and len(values) != length):
        expected = "a column of numbers" if length is None else f"{length} numbers, one per client"
        raise UserError(f"{where}: {name}: expected {expected}, got {_shape(values)}")
    return values.astype(np.float64, copy=False)


def _ids_of(where: str, arrays: Mapping[str, np.ndarray], name: str, n: int) -> np.ndarray:
    """The ids in FedScale's files, (n,); where there are none, client c has id c % n."""
    if name not in arrays:
        return np.arange(1, n + 1) % n
    ids = _vector(where, arrays, name, n).astype(np.int64)
    if len(np.unique(ids)) != n:
        raise UserError(f"{where}: {name}: expected {n} distinct ids, got {len(np.unique(ids))}")
    return ids


def _models(
    where: str, arrays: Mapping[str, np.ndarray], name: str, n: int
) -> tuple[np.ndarray | None, tuple[str, ...]]:
    """The model of each row as an index into the names, and the names."""
    if name not in arrays:
        return None, ()
    _require(where, arrays, [f"{name}_names"])
    names = arrays[f"{name}_names"]
    codes = _vector(where, arrays, name, n).astype(np.int64)
    if names.dtype.kind != "U" or codes.min() < 0 or codes.max() >= len(names):
        raise UserError(
            f"{where}: {name}: expected indices into the {len(names)} texts of {name}_names"
        )
    return codes, tuple(names.tolist())


def _shape(values: np.ndarray) -> str:
    return f"{values.dtype} of shape {values.shape}"
