"""Arrays and plain data <-> bytes: what passes between processes and stands in checkpoints.

    8 bytes   `MAGIC`
    8 bytes   the length of the header, little-endian
    header    JSON: the value, in which an array stands as its type, shape and layout
    arrays    the bytes of each, in the order in which the header names them, padded to `ALIGNMENT`

Nothing in it names code or points anywhere, and a reader allocates no more than the data is long,
besides the header, which is bounded. In the header None, bool, int, float, str and lists are
themselves. Everything else is an object with one key:

    {"dict": [key, value, ...]}     {"tuple": [...]}     {"bytes": length}
    {"array": [type, shape, layout]}                     {"scalar": type}

It is not safetensors, because that holds a flat table of arrays, copies each twice, and knows
neither scalars nor nesting: the JSON beside it would be what this is.
"""

from __future__ import annotations

import json
import math
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

import numpy as np

from fedsuv_plugin.errors import UserError

MAGIC = b"fedsuv\x001"
ALIGNMENT = 16
DEEPEST = 64  # containers within containers
LONGEST_HEADER = 2**26  # bytes; as Python objects it may take twenty times that
_HEADER_AT = 16
_PLAIN = frozenset({type(None), bool, int, float, str})
_KEYS = frozenset({int, str})
_KEY_RANGE = range(-(2**63), 2**63)  # larger ones can be made to have the same hash
# Bools, integers, floats and complex numbers of a fixed width, in both byte orders.
_NUMBERS = "i2 i4 i8 u2 u4 u8 f2 f4 f8 c8 c16".split()
DTYPES = {
    name: np.dtype(name)
    for name in ("|b1", "|i1", "|u1", *(order + number for order in "<>" for number in _NUMBERS))
}


class WireError(UserError):
    """Not plain data, or no bytes that `encode` made."""


def encode(value: object, name: str = "value") -> bytes:
    """The bytes of a value, called `name` in messages; `decode` makes the same value of them.

    Arrays keep their type, shape, and order in memory (C or Fortran). Each is copied once.

    >>> decode(encode({"round": 3, "weights": [np.arange(2.0)]}))
    {'round': 3, 'weights': [array([0., 1.])]}
    """
    writer = _Writer()
    tree = writer.tree(value, name, 0)
    try:
        header = json.dumps(tree, separators=(",", ":")).encode("ascii")
    except ValueError as error:  # an integer of thousands of digits
        raise WireError(f"{name}: {error}") from None
    header += b" " * (-len(header) % ALIGNMENT)
    if len(header) > LONGEST_HEADER:
        raise WireError(
            f"{name}: expected at most {LONGEST_HEADER} bytes beside its arrays, got "
            f"{len(header)}; put long lists into arrays"
        )
    return b"".join([MAGIC, len(header).to_bytes(8, "little"), header, *writer.parts])


def decode(data: bytes | bytearray) -> Any:
    """The value of which `encode` made these bytes.

    Its arrays are views of `data`: they can be written to if it is a bytearray."""
    if data[:8] != MAGIC:
        raise WireError("expected fedsuv's encoding of arrays and plain data, got something else")
    length = int.from_bytes(data[8:_HEADER_AT], "little")
    start = _HEADER_AT + length
    if length > LONGEST_HEADER or start > len(data):
        raise WireError(f"damaged: a header of {length} bytes in {len(data)} bytes")
    try:
        tree = json.loads(data[_HEADER_AT:start].decode("ascii"))
    except (ValueError, RecursionError) as error:
        raise WireError(f"damaged: its header is no JSON ({error})") from None
    reader = _Reader(data, start)
    value = reader.value(tree, 0)
    if reader.at != len(data):
        raise WireError(f"damaged: {len(data)} bytes, of which its header names {reader.at}")
    return value


def view(data: bytes | bytearray, at: int, dtype: Any, shape: Any, layout: Any) -> Any:
    """The array of this type, shape and layout ("C" or "F") that begins at byte `at` of the data.

    Whatever does not fit into the data is refused before anything is made."""
    known = DTYPES.get(dtype) if isinstance(dtype, str) else None
    if known is None:
        raise WireError(f"an array of {repr(dtype)[:20]}; only numbers are taken")
    counts = isinstance(shape, list | tuple) and all(type(n) is int and n >= 0 for n in shape)
    if not (counts and layout in ("C", "F")):
        raise WireError("damaged: an array without a shape")
    if at + math.prod(shape) * known.itemsize > len(data):
        raise WireError(f"damaged: an array of shape {str(shape)[:40]} is longer than the data")
    try:
        return np.ndarray(shape, known, data, at, order=layout)
    except ValueError:  # too many dimensions, or one too long beside one of length 0
        raise WireError(f"damaged: no array has the shape {str(shape)[:40]}") from None


class _Writer:
    """Turns a value into the tree of the header, and collects the bytes of its arrays."""

    def __init__(self) -> None:
        self.parts: list[Any] = []  # what `bytes.join` takes: bytes and contiguous arrays

    def tree(self, value: Any, where: str, depth: int) -> Any:
        """`where` the value is, is for the message if it is not plain."""
        kind = type(value)
        if kind in _PLAIN:
            return value
        if depth > DEEPEST:
            raise WireError(f"{where}: expected at most {DEEPEST} containers within each other")
        if kind is list:
            return self._items(value, where, depth)
        if kind is tuple:
            return {"tuple": self._items(value, where, depth)}
        if kind in (dict, OrderedDict):
            return {"dict": list(self._pairs(value, where, depth))}
        if kind is bytes:
            self._append(value, len(value))
            return {"bytes": len(value)}
        if kind in (np.ndarray, np.memmap) and value.dtype.str in DTYPES:
            return {"array": self._array(value)}
        if isinstance(value, np.generic) and value.dtype.str in DTYPES:
            self._append(np.asarray(value), value.nbytes)
            return {"scalar": value.dtype.str}
        what = f"array of {value.dtype}" if isinstance(value, np.ndarray) else kind.__name__
        raise WireError(f"{where}: expected plain data or an array of numbers, got {what}")

    def _items(self, items: Any, where: str, depth: int) -> Any:
        if _PLAIN.issuperset(map(type, items)):
            return items
        return [self.tree(item, f"{where}[{i}]", depth + 1) for i, item in enumerate(items)]

    def _pairs(self, value: dict[Any, Any], where: str, depth: int) -> Iterable[Any]:
        for key, item in value.items():
            if not is_key(key):
                raise WireError(f"{where}: expected text or an integer as key, got {key!r}")
            yield key
            yield self.tree(item, f"{where}.{key}", depth + 1)

    def _array(self, array: np.ndarray) -> list[Any]:
        layout = "F" if array.flags.fnc else "C"
        self._append(array.T if layout == "F" else np.asarray(array, order="C"), array.nbytes)
        return [array.dtype.str, list(array.shape), layout]

    def _append(self, part: bytes | np.ndarray, length: int) -> None:
        self.parts += [part, bytes(-length % ALIGNMENT)]


class _Reader:
    """Turns the tree of a header into a value, whose arrays come one after the other."""

    def __init__(self, data: bytes | bytearray, at: int):
        self.at = at  # where the next array begins
        self._data = data

    def value(self, node: Any, depth: int) -> Any:
        if type(node) is list:
            return self._items(node, depth)
        if type(node) is not dict:
            return node
        if depth > DEEPEST:
            raise WireError(f"damaged: more than {DEEPEST} containers within each other")
        tag, content = next(iter(node.items())) if len(node) == 1 else (None, None)
        if tag == "array" and type(content) is list and len(content) == 3:
            return self._array(*content)
        if tag == "scalar":
            return self._array(content, [], "C")[()]
        if tag == "bytes":
            return self._array("|u1", [content], "C").tobytes()
        if tag == "tuple" and type(content) is list:
            return tuple(self._items(content, depth))
        if tag == "dict" and type(content) is list:
            return self._dict(content, depth)
        raise WireError(f"damaged: {str(tag)[:20]!r} is no kind of value")

    def _items(self, items: list[Any], depth: int) -> list[Any]:
        if _PLAIN.issuperset(map(type, items)):
            return items
        if depth > DEEPEST:
            raise WireError(f"damaged: more than {DEEPEST} containers within each other")
        return [self.value(item, depth + 1) for item in items]

    def _dict(self, items: list[Any], depth: int) -> dict[Any, Any]:
        keys = items[::2]
        if len(items) % 2 or not all(map(is_key, keys)):
            raise WireError("damaged: a dictionary with keys that are none")
        found = dict(zip(keys, self._items(items[1::2], depth), strict=True))
        if len(found) != len(keys):
            raise WireError("damaged: a dictionary with a key twice")
        return found

    def _array(self, dtype: Any, shape: Any, layout: Any) -> Any:
        array = view(self._data, self.at, dtype, shape, layout)
        self.at += array.nbytes + -array.nbytes % ALIGNMENT
        return array


def is_key(key: object) -> bool:
    """Whether it may be a dictionary's key: text, or an integer whose hash cannot be aimed at."""
    return type(key) is str or (type(key) is int and key in _KEY_RANGE)
