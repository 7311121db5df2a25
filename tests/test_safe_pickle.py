"""Pickles that may be read, and those that are refused, before they do or allocate anything."""

from __future__ import annotations

import io
import pickle
import pickletools
import re
import subprocess
import sys
import tracemalloc
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from fedsuv_plugin import safe_pickle, wire
from fedsuv_plugin.config.job import Job
from fedsuv_plugin.safe_pickle import UnsafePickle

PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)


def load(data: bytes) -> Any:
    return safe_pickle.load(io.BytesIO(data))


# ---- what is plain is read, whatever wrote it

PLAIN = (
    st.none()
    | st.booleans()
    | st.integers(-(2**200), 2**200)
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
)
VALUES = st.recursive(
    PLAIN,
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(st.text() | st.integers(-(2**63), 2**63 - 1) | st.floats(), inner)
    ),
    max_leaves=20,
)


@given(VALUES, st.sampled_from(PROTOCOLS), st.booleans())
def test_plain_values_are_read_as_pickle_reads_them(
    value: object, protocol: int, optimised: bool
) -> None:
    data = pickle.dumps(value, protocol)
    if optimised:
        data = pickletools.optimize(data)
    got = load(data)
    assert repr(got) == repr(pickle.loads(data))  # tells 1 from 1.0 and True, and 0.0 from -0.0


@given(
    st.sampled_from(sorted(wire.DTYPES)).flatmap(
        lambda name: arrays.arrays(name, arrays.array_shapes(min_dims=0, min_side=0, max_side=4))
    ),
    st.sampled_from(PROTOCOLS),
)
def test_arrays_are_read_as_pickle_reads_them(array: np.ndarray, protocol: int) -> None:
    sent: dict[str, Any] = {"a": array, "again": array, "columns": np.array(array, order="F")}
    sent["numbers"] = [array.reshape(-1)[i] for i in range(array.size)]
    data = pickle.dumps(sent, protocol)
    got = load(data)
    expected = pickle.loads(data)
    for one, other in [
        (got["a"], expected["a"]),
        (got["columns"], expected["columns"]),
        *zip(got["numbers"], expected["numbers"], strict=True),
    ]:
        assert type(one) is type(other)
        assert one.shape == other.shape
        # numpy turns some arrays to the byte order of the machine, and others not
        native = other.dtype.newbyteorder("=")
        assert one.dtype.newbyteorder("=") == native
        assert one.astype(native).tobytes() == other.astype(native).tobytes()
    assert got["columns"].flags.f_contiguous
    assert got["a"] is got["again"]


@pytest.mark.parametrize("core", [b"numpy.core", b"numpy._core"])
def test_arrays_of_numpy_1_and_2(core: bytes) -> None:
    for protocol in PROTOCOLS:
        data = pickle.dumps([np.arange(3), np.float32(1.5)], protocol)
        ours = b"numpy._core" if b"numpy._core" in data else b"numpy.core"
        if protocol < 4:  # names end in a line break, so they may have any length
            data = data.replace(ours, core)
        array, number = load(data)
        assert array.tolist() == [0, 1, 2]
        assert number == np.float32(1.5)


def test_a_value_may_be_used_again() -> None:
    profile = {"computation": 1.0, "communication": 2.0}
    got = load(pickle.dumps(dict.fromkeys(range(1, 1001), profile)))
    assert len(got) == 1000
    assert all(each == profile for each in got.values())


# ---- what is not plain is refused before anything is called


class Reduces:
    """Is pickled as a call."""

    def __init__(self, function: Any, *arguments: Any, state: Any = None):
        self.reduced = (function, arguments) if state is None else (function, arguments, state)

    def __repr__(self) -> str:
        return f"Reduces{self.reduced}"

    def __reduce__(self) -> Any:
        return self.reduced


@pytest.mark.parametrize(
    "value",
    [
        print,
        subprocess.Popen,
        eval,
        Path("x"),
        np.random.default_rng,
        np.zeros,
        torch.load,
        torch.arange(4),
        Job,
        {1, 2},
        OrderedDict(a=1),
        bytearray(b"x"),
        1j,
        np.array([None]),
        np.array(["text"]),
        np.array([(1, 2.0)], "i4,f4"),
        np.datetime64("2020-01-01"),
        np.dtype("f8"),
        Reduces(bytearray, 1_900_000_000),
        Reduces(np.ndarray, (4,), np.dtype("O"), b"A" * 32),  # pointers out of thin air
        Reduces(np.ndarray, (2**31,)),
        Reduces(np.dtype, "f8", state=7),
    ],
    ids=lambda value: re.sub(" at 0x[0-9a-f]+", "", repr(value)),
)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_everything_else_is_refused_in_one_line(value: object, protocol: int) -> None:
    tracemalloc.start()
    with pytest.raises(UnsafePickle) as error:
        load(pickle.dumps([value], protocol))
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()
    assert len(str(error.value).splitlines()) == 1


def test_what_is_refused_is_named() -> None:
    with pytest.raises(UnsafePickle, match=r"refused subprocess\.Popen: only numbers, text"):
        load(pickle.dumps(subprocess.Popen))
    with pytest.raises(UnsafePickle, match=r"refused a\\x1b\[31m\\nb\.c: "):  # shown escaped
        load(b"\x8c\x08a\x1b[31m\nb\x8c\x01c\x93.")
    with pytest.raises(UnsafePickle, match="refused the instruction NEWOBJ"):
        load(b"))\x81.")


def announced(*state: bytes) -> bytes:
    """An array that numpy announces, in protocol 0, and its state, which ends in BUILD."""
    start = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\0tU\x01btR"
    return start + b"(" + b"".join(state) + b"tb."


def dtype(code: bytes, order: bytes = b"<") -> bytes:
    made = b"cnumpy\ndtype\n(U" + bytes([len(code)]) + code + b"I00\nI01\ntR"
    return made + b"(K\x03U\x01" + order + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\0tb"


def test_a_small_array_written_by_hand() -> None:
    got = load(announced(b"K\x01", b"(K\x02t", dtype(b"i2"), b"I00\n", b"U\x04\x01\0\x02\0"))
    assert got.tolist() == [1, 2]
    assert got.dtype == np.int16


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b".",
        b"garbage",
        b"(.",
        b"N",
        b"e.",
        b"K",
        b"G\0\0.",
        b"t.",
        b"0.",  # instructions that no pickler needs for plain data
        b"N2.",
        b"\x8d\xff\xff\xff\xff\xff\xff\xff\x7fx.",  # lengths beyond the file
        b"\x8e\0\0\0\0\1\0\0\0x.",
        b"\x96\0\0\0\0\1\0\0\0x.",
        b"T\xff\xff\xff\xffx.",
        b"X\xff\xff\xff\x7fx.",
        b"j\xff\xff\xff\xff.",  # values that are not there
        b"h\x05.",
        b"g-1\n.",
        b"Ix\n.",
        b"F\xff\n.",
        b"Vx",
        b"X\x01\0\0\0\xff.",
        b"NNa.",
        b"NNNs.",
        b"}(NNNu.",
        b"}]Ns.",  # keys that have no hash, or one that is aimed at
        b"}(((((tttttNs.",
        b"}\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\x7fNs.",
        b"NR.",
        b"NNR.",
        b"U\x0bnumpy.dtype(tR.",  # text is no name
        b"NNb.",
        b"]q\0h\0a.",  # holds itself
        b"}q\0K\1h\0s.",
        b"(" * 100_000 + b".",
        b"]" * 20 + b"a" * 19 + b".",
        announced(),
        b"cnumpy\nndarray\n.",
        b"cnumpy\nndarray\n)R.",
        b"cnumpy\ndtype\n)R.",
        dtype(b"i4") + b".",
        announced(b"K\x01", b"(K\x02t", b"N", b"I00\n", b"U\x04\x01\0\x02\0"),
        announced(b"K\x01", b"(K\x02t", dtype(b"O8", b"|"), b"I00\n", b"U\x10" + b"A" * 16),
        announced(b"K\x01", b"(K\x02t", dtype(b"i2"), b"I00\n", b"]"),
        announced(b"K\x01", b"(K\x02t", dtype(b"i2"), b"I00\n", b"U\x03\x01\0\x02"),
        announced(b"K\x01", b"(K\x02t", dtype(b"i2"), b"I00\n", b"U\x06\x01\0\x02\0\0\0"),
        announced(b"K\x01", b"(J\xff\xff\xff\xfft", dtype(b"i2"), b"I00\n", b"U\0"),
        announced(b"K\x01", b"(I01\nt", dtype(b"u1", b"|"), b"I00\n", b"U\x01a"),
        announced(b"K\x01", b"(J\xff\xff\xff\x7ft", dtype(b"f8"), b"I00\n", b"U\0"),
        announced(b"K\x01", b"(K\x01t", dtype(b"i2", b"="), b"I00\n", b"U\x02\0\0"),
        b"c_codecs\nencode\n(X\x01\0\0\0aX\x06\0\0\0rot-13tR.",
        b"c_codecs\nencode\n(X\x01\0\0\0aX\x06\0\0\0latin1NtR.",
    ],
)
def test_what_is_no_pickle_of_plain_data_is_refused_in_one_line(data: bytes) -> None:
    with pytest.raises(UnsafePickle) as error:
        load(data)
    assert len(str(error.value).splitlines()) == 1
    assert len(str(error.value)) < 250


def test_an_array_that_was_announced_and_never_came_is_refused() -> None:
    start = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\0tU\x01btR"
    with pytest.raises(UnsafePickle, match="a value that is not complete"):
        load(start + b".")
    with pytest.raises(UnsafePickle, match="a value that is not complete"):
        load(b"](" + start + b"q\0h\0e.")


def test_a_few_bytes_do_not_stand_for_billions_of_values() -> None:

    def lists(levels: int) -> bytes:
        """Each list holds the one before ten times."""
        data = b"]"
        for place in map(bytes, zip(range(levels))):
            data += b"q" + place + b"](" + (b"h" + place) * 10 + b"e"
        return data + b"."

    assert np.shape(load(lists(5))) == (10, 10, 10, 10, 10, 0)
    with pytest.raises(UnsafePickle, match="values that are used again too often"):
        load(lists(9))


def test_a_large_number_for_a_value_takes_no_memory() -> None:
    """Python's own unpickler makes a table of that many entries."""
    tracemalloc.start()
    assert load(b"Nr\xff\xff\xff\xff.") is None
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()


def mutated(sound: bytes, data: st.DataObject) -> bytes:
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(sound)))
        cut = data.draw(st.integers(0, 6))
        sound = sound[:at] + data.draw(st.binary(max_size=6)) + sound[at + cut :]
    return sound


@given(st.data(), st.sampled_from(PROTOCOLS))
def test_damaged_pickles_are_refused_or_give_plain_data(data: st.DataObject, protocol: int) -> None:
    value = {1: {"a": [1, 2.5, 70_000], "b": np.arange(3)}, 2: {"a": "x", "b": np.float64(1)}}
    try:
        got = load(mutated(pickle.dumps(value, protocol), data))
    except UnsafePickle:
        return
    assert is_plain(got)


def is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(map(is_plain, value)) and all(map(is_plain, value.values()))
    if isinstance(value, list | tuple):
        return all(map(is_plain, value))
    numbers = isinstance(value, np.ndarray | np.generic) and value.dtype.str in wire.DTYPES
    return numbers or value is None or type(value) in (bool, int, float, str, bytes)


def test_this_python_reads_what_it_refuses() -> None:
    """The standard unpickler runs what is refused here: the tests above are not about nothing."""
    evil = pickle.dumps(Reduces(np.ndarray, (4,), np.dtype("O"), b"A" * 32))
    script = f"import pickle; print(pickle.loads({evil!r}))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True)
    assert done.returncode < 0  # killed by a signal
