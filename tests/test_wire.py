"""The encoding of messages and checkpoints: exact, copied once, and refused in one line."""

from __future__ import annotations

import json
import pickle
import struct
import tracemalloc
from collections import OrderedDict, deque
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from fedsuv_plugin import wire
from fedsuv_plugin.wire import WireError, decode, encode


def by_hand(header: str, blocks: bytes = b"") -> bytes:
    """The bytes of a header and what stands behind it, as the module describes them."""
    padded = header.encode() + b" " * (-len(header) % 16)
    return b"fedsuv\x001" + struct.pack("<Q", len(padded)) + padded + blocks


def same(one: Any, other: Any) -> bool:
    """Whether two values are the same to the last bit: types, shapes, layouts, signs of zeros."""
    if type(one) is not type(other):
        return False
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, np.ndarray | np.generic):
        kinds = (one.dtype, one.shape, one.flags.fnc) == (other.dtype, other.shape, other.flags.fnc)
        return bool(kinds and one.tobytes() == other.tobytes())
    if isinstance(one, float):
        return struct.pack("<d", one) == struct.pack("<d", other)
    return bool(one == other)


# ---- what is encoded comes back


def test_the_bytes_of_a_small_value_worked_by_hand() -> None:
    value = {"a": [1, None], 7: (np.array([1, 2], np.int16), b"xyz")}
    expected = by_hand(
        '{"dict":["a",[1,null],7,{"tuple":[{"array":["<i2",[2],"C"]},{"bytes":3}]}]}',
        b"\x01\x00\x02\x00" + bytes(12) + b"xyz" + bytes(13),
    )
    assert encode(value) == expected
    assert same(decode(expected), value)


PLAIN = (
    st.none()
    | st.booleans()
    | st.integers(-(2**200), 2**200)
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=()))  # lone surrogates included
    | st.binary()
)
NUMBERS = st.sampled_from(sorted(wire.DTYPES)).map(np.dtype)
ARRAYS = NUMBERS.flatmap(
    lambda dtype: arrays.arrays(dtype, arrays.array_shapes(min_dims=0, min_side=0, max_side=4))
)
COLUMNS = ARRAYS.map(lambda array: np.array(array, order="F"))
SCALARS = ARRAYS.filter(lambda array: array.size > 0).map(lambda array: array.reshape(-1)[0])
KEYS = st.text() | st.integers(-(2**63), 2**63 - 1)
VALUES = st.recursive(
    PLAIN | ARRAYS | COLUMNS | SCALARS,
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(KEYS, inner),
)


@given(VALUES)
@example(np.random.default_rng(3).bit_generator.state)  # its integers have 128 bits
@example([0.0, -0.0, 1e-320, float("inf"), -float("inf"), float("nan")])
@example(np.array([0.0, -0.0, np.inf, np.nan]))
def test_whatever_is_plain_comes_back_to_the_last_bit(value: object) -> None:
    assert same(decode(encode(value)), value)


def test_an_ordered_dictionary_comes_back_as_a_dictionary() -> None:
    assert same(decode(encode(OrderedDict(b=1, a=2))), {"b": 1, "a": 2})


def test_an_array_of_any_strides_comes_back_in_its_order() -> None:
    a = np.arange(24.0).reshape(4, 6)
    for array in (a[::2, ::-1], a.T, a[1:, 2:4], np.broadcast_to(a[0], (3, 6))):
        np.testing.assert_array_equal(decode(encode(array)), array)
    # LAPACK may give other last bits for another layout, and jobs must resume exactly.
    assert decode(encode(a.T)).flags.f_contiguous


def test_arrays_can_be_written_to_if_they_come_in_a_bytearray() -> None:
    data = encode([np.zeros(3)])
    (fixed,) = decode(data)
    with pytest.raises(ValueError, match="read-only"):
        fixed[0] = 1
    (writable,) = decode(bytearray(data))
    writable[0] = 1
    assert writable.flags.aligned


def test_an_array_is_copied_once_when_encoded_and_not_when_decoded() -> None:
    def most(work: Any) -> int:
        tracemalloc.start()
        work()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak

    weights = [np.ones(2**20), np.ones((2**10, 2**10), order="F")]  # 8 MB each
    data = encode(weights)
    assert most(lambda: encode(weights)) < 1.01 * len(data)
    assert most(lambda: decode(data)) < 0.01 * len(data)


# ---- what is not plain


class Own(dict[str, int]):
    """A dictionary of somebody's own."""


@pytest.mark.parametrize(
    ("value", "got"),
    [
        (print, "got builtin_function_or_method"),
        ({1, 2}, "got set"),
        (deque([1]), "got deque"),
        (1j, "got complex"),
        (Own(), "got Own"),
        (np.array([None]), "got array of object"),
        (np.array(["a"]), "got array of <U1"),
        (np.array(["2020"], "M8[s]"), r"got array of datetime64\[s\]"),
        (np.zeros(2, "f4,i4"), "got array of"),
        (np.ma.masked_equal([1, 2], 2), "got array of int64"),
        ({(1, 2): 3}, r"text or an integer as key, got \(1, 2\)"),
        ({np.int64(1): 3}, r"text or an integer as key, got np.int64\(1\)"),
        ({2**63: 3}, "text or an integer as key, got 9223372036854775808"),
        ({True: 3}, "text or an integer as key, got True"),
    ],
)
def test_what_is_not_plain_is_refused_with_its_place(value: object, got: str) -> None:
    with pytest.raises(WireError, match=rf"^state\.selector\[1\]: expected .*{got}"):
        encode({"selector": [0, value]}, "state")


def test_what_is_nested_without_end_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(WireError, match="expected at most 64 containers within each other"):
        encode(endless)


def test_integers_of_thousands_of_digits_are_refused() -> None:
    with pytest.raises(WireError, match="^value: "):
        encode([10**5000])


def test_a_header_that_no_reader_would_take_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "LONGEST_HEADER", 64)
    assert decode(encode(np.zeros(1000))).shape == (1000,)
    with pytest.raises(WireError, match="put long lists into arrays"):
        encode([0] * 1000)


# ---- what is no encoding


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"garbage",
        pickle.dumps({"size": [1, 2]}),
        encode([1, 2])[:-1],
        encode([1, 2]) + b"\0",
        encode(np.arange(3))[:-1],
        b"fedsuv\x001" + bytes(4),
        b"fedsuv\x001" + struct.pack("<Q", 2**63),
        by_hand("[" * 100_000 + "]" * 100_000),
        by_hand("[" * 100 + "]" * 100),
        by_hand('{"tuple":[' * 100 + "]}" * 100),
        by_hand("[1, 2"),
        by_hand("9" * 5000),
        by_hand("[1, 2] []"),
        by_hand("\xff"),
        by_hand("{}"),
        by_hand('{"code":"os.system"}'),
        by_hand('{"tuple":[],"dict":[]}'),
        by_hand('{"tuple":7}'),
        by_hand('{"dict":7}'),
        by_hand('{"dict":["a"]}'),
        by_hand('{"dict":[1.5,0]}'),
        by_hand('{"dict":[[],0]}'),
        by_hand('{"dict":["a",0,"a",1]}'),
        by_hand('{"dict":[9223372036854775808,0]}'),
        by_hand('{"bytes":-1}'),
        by_hand('{"bytes":17}', bytes(16)),
        by_hand('{"bytes":1.0}', bytes(16)),
        by_hand('{"bytes":4}', b"abcd"),  # no padding
        by_hand('{"scalar":"|O8"}', bytes(16)),
        by_hand('{"scalar":["<f8"]}', bytes(16)),
        by_hand('{"array":["|O",[4],"C"]}', b"A" * 32),
        by_hand('{"array":["<U1",[4],"C"]}', bytes(16)),
        by_hand('{"array":["<f8",[2]]}', bytes(16)),
        by_hand('{"array":["<f8",2,"C"]}', bytes(16)),
        by_hand('{"array":["<f8",[true],"C"]}', bytes(16)),
        by_hand('{"array":["<f8",[2],"A"]}', bytes(16)),
        by_hand('{"array":["<f8",[2],[]]}', bytes(16)),
        by_hand('{"array":["<f8",[-2],"C"]}', bytes(16)),
        by_hand('{"array":["<f8",[-1,-2],"C"]}', bytes(16)),
        by_hand('{"array":["<f8",[3],"C"]}', bytes(16)),
        by_hand('{"array":["<f8",[4611686018427387904,4],"C"]}', bytes(16)),
        by_hand('{"array":["<f8",[0,4611686018427387904],"C"]}'),
        by_hand('{"array":["<f8",' + json.dumps([0] * 100) + ',"C"]}'),
    ],
)
def test_what_is_no_encoding_is_refused_in_one_line(data: bytes) -> None:
    for given_as in (data, bytearray(data)):
        with pytest.raises(WireError) as error:
            decode(given_as)
        assert len(str(error.value).splitlines()) == 1
        assert len(str(error.value)) < 200


@given(st.data())
def test_damaged_bytes_are_refused_or_give_plain_data(data: st.DataObject) -> None:
    sound = encode({"a": [1, (2.5, np.arange(5))], "b": {3: b"xyz", 4: np.float32(1)}})
    at = data.draw(st.integers(0, len(sound) - 1))
    cut = data.draw(st.integers(0, 20))
    damaged = sound[:at] + data.draw(st.binary(max_size=20)) + sound[at + cut :]
    try:
        value = decode(damaged)
    except WireError:
        return
    encode(value)  # nothing came out that could not have been sent


def test_no_more_is_allocated_than_the_data_is_long() -> None:
    """Whatever sizes are declared."""
    declared = ["<f8", [2**27], "C"]  # a gigabyte
    tracemalloc.start()
    with pytest.raises(WireError):
        decode(by_hand(json.dumps({"array": declared}), bytes(16)))
    with pytest.raises(WireError):
        decode(by_hand(json.dumps({"bytes": 2**30}), bytes(16)))
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()
