"""Trace files: both formats, exact round trips, and every kind of bad trace refused."""

from __future__ import annotations

import os
import pickle
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedsuv_plugin.atomic_file import replace_file
from fedsuv_plugin.errors import UserError
from fedsuv_plugin.traces import files
from fedsuv_plugin.traces.availability import Availability
from fedsuv_plugin.traces.build import build_population
from fedsuv_plugin.traces.catalogues import load_catalogues
from fedsuv_plugin.traces.population import (
    UNIFORM_KBPS,
    UNIFORM_MS_PER_SAMPLE,
    Population,
    load_population,
)
from fedsuv_plugin.traces.tables import Trace

needs_data = pytest.mark.skipif(
    "FEDSUV_DATA" not in os.environ, reason="set FEDSUV_DATA to the folder of real data"
)

CAPACITY = {
    1: {"computation": 162.0, "communication": 5648.109619499134},
    2: {"computation": 40, "communication": 2209.0},
    3: {"computation": 55.5, "communication": 100.25},
}
BEHAVIOUR = {
    3834: {
        "duration": 211625,
        "inactive": [65881, 133574, 208292],
        "finish_time": 518400,
        "active": [12788, 100044, 188992],
        "model": "CPH1801",
    },
    7: {
        "duration": 30,
        "inactive": [40],
        "finish_time": 86400,
        "active": [10],
        "model": "SM-G930V",
    },
}


def dump(path: Path, content: object) -> str:
    path.write_bytes(pickle.dumps(content))
    return str(path)


def load(path: Path) -> Any:
    return pickle.loads(path.read_bytes())


@pytest.fixture(scope="module")
def built() -> Population:
    return build_population(60, 3, load_catalogues())


def models(population: Population) -> list[str]:
    codes = [] if population.model is None else population.model.tolist()
    return [population.model_names[code] for code in codes]


def assert_same(a: Population, b: Population) -> None:
    assert models(a) == models(b)
    for f in fields(Population):
        if f.name in ("model", "model_names"):
            continue  # how the names are numbered does not matter
        left, right = getattr(a, f.name), getattr(b, f.name)
        if isinstance(left, Availability):
            for g in fields(Availability):
                np.testing.assert_array_equal(getattr(left, g.name), getattr(right, g.name))
        elif isinstance(left, np.ndarray):
            np.testing.assert_array_equal(left, right)
            assert left.dtype == right.dtype
        else:
            assert left == right


# ---- what a job gets


def test_without_files_devices_are_uniform_and_always_online() -> None:
    population = load_population(3, None, None)
    assert population.ms_per_sample.tolist() == [UNIFORM_MS_PER_SAMPLE] * 3
    assert population.kbps_up.tolist() == population.kbps_down.tolist() == [UNIFORM_KBPS] * 3
    assert population.online(123.0).all()
    assert population.online(1.0, np.array([2])).tolist() == [True]


def test_fedscale_files_are_dealt_out_as_fedscale_does(tmp_path: Path) -> None:
    # Client c has profile c, and of two users the one at place c % 2: client 1 the second of the
    # file, 2 the first.
    population = load_population(4, dump(tmp_path / "c", CAPACITY), dump(tmp_path / "b", BEHAVIOUR))
    assert population.ms_per_sample.tolist() == [162.0, 40.0, 55.5, 162.0]
    assert population.kbps_down.tolist() == [5648.109619499134, 2209.0, 100.25, 5648.109619499134]
    assert population.online(20.0).tolist() == [True, False, True, False]
    assert population.online(12788.0).tolist() == [False, True, False, True]


def test_profiles_from_zero_are_fedscales_too(tmp_path: Path) -> None:
    # FedScale looks client c up as c % n: with ids 0, 1, 2 client 3 has profile 0.
    shifted = {client - 1: profile for client, profile in CAPACITY.items()}
    population = load_population(3, dump(tmp_path / "c", shifted), None)
    assert population.ms_per_sample.tolist() == [40.0, 55.5, 162.0]


def test_one_npz_in_both_keys_is_one_population(tmp_path: Path, built: Population) -> None:
    path = str(tmp_path / "without-a-suffix")
    files.write(Trace.of(built), path)
    assert_same(load_population(60, path, path), built)
    again = load_population(150, path, path)
    assert_same(again, built.take(np.arange(150) % 60))
    # Availability comes only from the file named as device_avail_file.
    assert load_population(60, path, None).availability is None
    only = load_population(60, None, path)
    assert only.ms_per_sample[0] == UNIFORM_MS_PER_SAMPLE
    np.testing.assert_array_equal(only.online(5e4), built.online(5e4))


def test_features_are_the_columns_there_are(tmp_path: Path, built: Population) -> None:
    names, matrix = load_population(2, dump(tmp_path / "c", CAPACITY), None).features
    assert names == ("ms_per_sample", "kbps_down")
    assert matrix.tolist() == [[162.0, 5648.109619499134], [40.0, 2209.0]]
    names, matrix = built.features
    expected = "ms_per_sample kbps_up kbps_down cpu_gflops cores memory_gb gpu_gflops gpus"
    assert names == tuple(expected.split())
    assert matrix.shape == (60, 8) and matrix.dtype == np.float64


# ---- round trips


def exported(trace: Trace, folder: Path) -> Trace:
    """A trace written as FedScale's pickles and read again."""
    devices = users = None
    ids = trace.device_ids
    if trace.devices is not None:
        files.write_capacity(trace, folder / "capacity")
        found = files.read(folder / "capacity")
        devices, ids = found.devices, found.device_ids
    if trace.users is not None:
        files.write_behaviour(trace, folder / "behaviour")
        users = files.read(folder / "behaviour").users
    return Trace(devices, ids, users)


def test_fedscale_to_npz_to_fedscale_is_exact(tmp_path: Path) -> None:
    capacity = files.read(dump(tmp_path / "c", CAPACITY))
    behaviour = files.read(dump(tmp_path / "b", BEHAVIOUR))
    files.write(Trace(capacity.devices, capacity.device_ids, behaviour.users), tmp_path / "t.npz")
    trace = files.read(tmp_path / "t.npz")
    files.write_capacity(trace, tmp_path / "c2")
    files.write_behaviour(trace, tmp_path / "b2")
    assert load(tmp_path / "c2") == CAPACITY
    assert load(tmp_path / "b2") == BEHAVIOUR
    # FedScale gives users to clients by their order in the file.
    assert list(load(tmp_path / "b2")) == list(BEHAVIOUR)
    assert type(load(tmp_path / "b2")[7]["active"][0]) is int


def test_a_built_population_survives_fedscales_format(tmp_path: Path, built: Population) -> None:
    assert_same(exported(Trace.of(built), tmp_path).population(), built)


def test_fedscale_finds_every_client_of_an_export(tmp_path: Path, built: Population) -> None:
    # FedScale looks up profile c % n, and the user at place c % n.
    files.write_capacity(Trace.of(built), tmp_path / "c")
    files.write_behaviour(Trace.of(built), tmp_path / "b")
    profiles = load(tmp_path / "c")
    users = list(load(tmp_path / "b").values())
    assert built.availability is not None
    firsts = built.availability.starts[built.availability.offsets[:-1]]  # (n,) first session
    for client in (1, 2, 59, 60):
        assert profiles[client % 60]["computation"] == built.ms_per_sample[client - 1]
        assert users[client % 60]["active"][0] == firsts[client - 1]


def test_one_bandwidth_stands_for_two(tmp_path: Path) -> None:
    # 1000 up and 4000 down: as much each way takes 1/1000 + 1/4000 = 2/1600 s a kbit.
    population = Population(np.array([1.0]), np.array([1000.0]), np.array([4000.0]), None)
    files.write_capacity(Trace.of(population), tmp_path / "c")
    assert load(tmp_path / "c")[0]["communication"] == pytest.approx(1600.0)


@needs_data
def test_the_real_trace_round_trips(tmp_path: Path) -> None:
    source = Path(os.environ["FEDSUV_DATA"]) / "device_traces" / "client_behave_trace"
    trace = files.read(source)
    files.write(trace, tmp_path / "t.npz")
    files.write_behaviour(files.read(tmp_path / "t.npz"), tmp_path / "b")
    assert load(tmp_path / "b") == load(source)
    assert list(load(tmp_path / "b")) == list(load(source))


numbers = st.floats(1e-3, 1e9, allow_nan=False)
marks = st.lists(st.integers(0, 10**6), max_size=6)
trace_rows = st.tuples(numbers, numbers, marks, st.text(max_size=4))


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(trace_rows, min_size=1, max_size=5), st.booleans())
def test_any_trace_round_trips(
    tmp_path: Path, rows: list[tuple[float, float, list[int], str]], halves: bool
) -> None:
    unit = 0.5 if halves else 1
    capacity = {i: {"computation": a, "communication": b} for i, (a, b, _, _) in enumerate(rows)}
    behaviour = {}
    for i, (a, _, times, model) in enumerate(rows):
        marks = sorted(t * unit for t in times[: len(times) // 2 * 2])
        behaviour[10 - i] = {
            "active": marks[::2],
            "inactive": marks[1::2],
            "finish_time": 10**6,
            "duration": a,
            "model": model.replace("\0", ""),  # numpy's text drops trailing nulls
        }
    first = files.read(dump(tmp_path / "c", capacity))
    second = files.read(dump(tmp_path / "b", behaviour))
    files.write(Trace(first.devices, first.device_ids, second.users), tmp_path / "t.npz")
    trace = files.read(tmp_path / "t.npz")
    files.write_capacity(trace, tmp_path / "c2")
    files.write_behaviour(trace, tmp_path / "b2")
    assert load(tmp_path / "c2") == capacity and load(tmp_path / "b2") == behaviour


# ---- refusals: FedScale's pickles


def capacity_with(**changes: object) -> dict[Any, Any]:
    return {**CAPACITY, 2: {**CAPACITY[2], **changes}}


def behaviour_with(**changes: object) -> dict[Any, Any]:
    return {**BEHAVIOUR, 7: {**BEHAVIOUR[7], **changes}}


def without(content: dict[Any, Any], client: int, field: str) -> dict[Any, Any]:
    return {**content, client: {k: v for k, v in content[client].items() if k != field}}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (capacity_with(computation=0), r"client 2: computation: expected a number > 0, got 0\.0"),
        (capacity_with(computation=-3.0), "client 2: computation: expected a number > 0, got -3.0"),
        (
            capacity_with(communication=float("nan")),
            "client 2: communication: expected a number > 0, got nan",
        ),
        (
            capacity_with(communication=float("inf")),
            "client 2: communication: expected a number > 0, got inf",
        ),
        (
            capacity_with(communication="fast"),
            "client 2: communication: expected a number, got 'fast'",
        ),
        (
            capacity_with(communication=None),
            "client 2: communication: expected a number, got 'None'",
        ),
        (capacity_with(communication=[1.0]), "client 2: communication: expected a number"),
        (without(CAPACITY, 2, "communication"), "client 2: communication: missing"),
        ({**CAPACITY, 2: 17}, "client 2: expected a dictionary of its fields, got int"),
        (
            {1: CAPACITY[1], 3: CAPACITY[3]},
            "client 2: missing; expected every id from 1 to 2, as there are 2 profiles",
        ),
        ({5: CAPACITY[1], 6: CAPACITY[3]}, "client 1: missing"),
        (
            {"1": CAPACITY[1]},
            "client '1': expected a whole number as id, got str; make the keys int",
        ),
        (
            {k: {**v, "x": 1.0, "y": "left"} for k, v in CAPACITY.items()},
            "client 1: y: expected a number, got 'left'",
        ),
        (
            {k: {**v, "cores": 0} for k, v in CAPACITY.items()},
            "client 1: cores: expected a number >= 1, got 0.0",
        ),
        (
            behaviour_with(inactive=[5]),
            "client 7: inactive: expected a time not before its active, got 5.0; .*runs backw",
        ),
        (
            behaviour_with(active=[10, 30], inactive=[40, 50]),
            "client 7: active: expected a time not before the inactive of "
            "the interval before it, got 30.0; .*that inactive is 40.0",
        ),
        (
            behaviour_with(active=[50, 10], inactive=[60, 20]),
            "client 7: active: .*got 10.0; intervals must ascend",
        ),
        (
            behaviour_with(active=[10, 50]),
            "client 7: inactive: expected as many times as in active, got 1; active has 2",
        ),
        (behaviour_with(active=[float("nan")]), "client 7: active: expected seconds >= 0, got nan"),
        (
            behaviour_with(inactive=[float("inf")]),
            "client 7: inactive: expected seconds >= 0, got inf",
        ),
        (behaviour_with(active=[-5]), "client 7: active: expected seconds >= 0, got -5.0"),
        (behaviour_with(active=["ten"]), "client 7: active: expected a number, got 'ten'"),
        (behaviour_with(active=10), "client 7: active: expected a list of seconds, got '10'"),
        (behaviour_with(finish_time=0), "client 7: finish_time: expected a number > 0, got 0.0"),
        (
            behaviour_with(finish_time=float("nan")),
            "client 7: finish_time: expected a number > 0, got nan",
        ),
        (behaviour_with(model=None), "client 7: model: expected text, got None"),
        (without(BEHAVIOUR, 7, "inactive"), "client 7: inactive: missing"),
        (without(BEHAVIOUR, 7, "finish_time"), "client 7: finish_time: missing"),
        ({}, "not a device trace: .*got an empty dictionary"),
        ([1, 2], "not a device trace: .*got list"),
        ({1: {"speed": 3}}, "client 1: not a device trace"),
    ],
)
def test_bad_pickles_are_refused(tmp_path: Path, content: object, message: str) -> None:
    with pytest.raises(UserError, match=message) as refusal:
        files.read(dump(tmp_path / "trace", content), "device_conf_file")
    assert str(refusal.value).startswith(f"device_conf_file: {tmp_path / 'trace'}: ")
    assert "\n" not in str(refusal.value)


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return (os.system, ("exit 1",))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"PK\x03\x04 not a zip",
        b"computation,communication\n1,2\n",
        pickle.dumps({1: Evil()}),
        pickle.dumps(CAPACITY)[:-20],
    ],
)
def test_what_is_no_trace_at_all_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "x").write_bytes(data)
    with pytest.raises(UserError, match="x: not a "):
        files.read(tmp_path / "x")


def test_missing_and_misplaced_files(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="device_conf_file: no such file: nowhere"):
        load_population(1, "nowhere", None)
    with pytest.raises(UserError, match="device_avail_file: no such file: nowhere"):
        load_population(1, None, "nowhere")
    behaviour = dump(tmp_path / "b", BEHAVIOUR)
    with pytest.raises(UserError, match="device_conf_file: .*expected devices, got only avail"):
        load_population(1, behaviour, None)
    capacity = dump(tmp_path / "c", CAPACITY)
    with pytest.raises(UserError, match="device_avail_file: .*expected availability, got only de"):
        load_population(1, None, capacity)


# ---- refusals: our format


def arrays_of(path: Path) -> dict[str, np.ndarray]:
    with np.load(path, allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


def changed(array: np.ndarray, index: int, value: float) -> np.ndarray:
    array = array.astype(np.float64)
    array[index] = value
    return array


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (
            "device.ms_per_sample",
            lambda a: changed(a, 4, 0.0),
            "client 5: ms_per_sample: expected a number > 0, got 0.0",
        ),
        (
            "device.kbps_up",
            lambda a: changed(a, 4, -1.0),
            "client 5: kbps_up: expected a number > 0, got -1.0",
        ),
        (
            "device.kbps_down",
            lambda a: changed(a, 4, np.nan),
            "client 5: kbps_down: expected a number > 0, got nan",
        ),
        (
            "device.compute_w",
            lambda a: changed(a, 0, -2.0),
            "client 1: compute_w: expected a number >= 0, got -2.0",
        ),
        (
            "device.position",
            lambda a: changed(a, 2, np.nan),
            "client 3: position: expected two numbers",
        ),
        (
            "device.position",
            lambda a: a[:, :1],
            r"device.position: expected numbers of shape \(60, 2\)",
        ),
        (
            "device.kbps_up",
            lambda a: a[:-1],
            "device.kbps_up: expected 60 numbers, one per client, got float64 of shape",
        ),
        ("device.cores", lambda a: a.astype(str), "device.cores: expected 60 numbers"),
        ("device.model", lambda a: a + 1000, "device.model: expected indices into the"),
        ("device.id", lambda a: a * 0, "device.id: expected 60 distinct ids, got 1"),
        ("device.ms_per_sample", None, "device.ms_per_sample: missing"),
        ("user.offsets", None, "user.offsets: missing"),
        ("user.offsets", lambda a: a[::-1], "user.offsets: expected 61 ascending numbers from 0"),
        ("user.ends", lambda a: a[:-1], "user.ends: expected .* as many ends as starts"),
        (
            "user.ends",
            lambda a: changed(a, 0, -1.0),
            "client 1: ends: expected seconds >= 0, got -1.0",
        ),
        (
            "user.starts",
            lambda a: changed(a, 1, 0.0),
            "client 1: starts: expected a time not before the ends of the",
        ),
        (
            "user.periods",
            lambda a: changed(a, 6, 0.0),
            "client 7: periods: expected a number > 0, got 0.0",
        ),
        (
            "format",
            lambda a: np.array("fedsuv device traces 9"),
            "expected an .npz of 'fedsuv device traces 1', got 'fed",
        ),
        ("format", None, "not a device trace"),
        ("user.starts", lambda a: a.astype(object), "not a readable .npz of plain arrays"),
    ],
)
def test_bad_npz_are_refused(
    tmp_path: Path, built: Population, name: str, change: Any, message: str
) -> None:
    files.write(Trace.of(built), tmp_path / "good.npz")
    arrays = arrays_of(tmp_path / "good.npz")
    # Client 1 has two intervals that a change can spoil.
    assert built.availability is not None and built.availability.lengths[0] >= 2
    if change is None:
        del arrays[name]
    else:
        arrays[name] = change(arrays[name])
    np.savez(tmp_path / "bad.npz", **arrays)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=message) as refusal:
        files.read(tmp_path / "bad.npz")
    assert str(tmp_path / "bad.npz") in str(refusal.value)


def test_a_misspelt_array_is_refused(tmp_path: Path, built: Population) -> None:
    files.write(Trace.of(built), tmp_path / "good.npz")
    arrays = arrays_of(tmp_path / "good.npz")
    arrays["device.core"] = arrays.pop("device.cores")
    np.savez(tmp_path / "bad.npz", **arrays)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="unknown array 'device.core'; did you mean 'device.cores'"):
        files.read(tmp_path / "bad.npz")


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "out"
    target.write_text("old")

    def fail(_: object) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(UserError, match="cannot be written .No space left"):
        replace_file(target, fail)
    assert target.read_text() == "old" and [p.name for p in tmp_path.iterdir()] == ["out"]
    with pytest.raises(UserError, match="cannot be written .*does the folder exist"):
        replace_file(tmp_path / "no" / "out", fail)
