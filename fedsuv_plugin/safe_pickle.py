"""Pickles read without pickle: numbers, text, bytes, lists, tuples, dictionaries, numpy arrays.

FedScale's traces and some data sets are pickles. A pickle is a program for a small machine, which
can call whatever it names. The machine here has the instructions that build plain data, of every
protocol. It names nothing but what numpy writes arrays with, and does that work itself, from a
checked type, shape and number of bytes; everything else is refused, by name, before it is run. What
it builds is no larger than a multiple of the file.
"""

from __future__ import annotations

import io
import pickletools
import struct
from collections.abc import Callable
from typing import Any, BinaryIO, NoReturn

import numpy as np

from fedsuv_plugin import wire
from fedsuv_plugin.errors import UserError

DEEPEST = 16  # containers within containers
# How many values there may be for each byte of the file, and in any file. A value that is used
# again counts again: a few lists within lists could otherwise stand for billions.
VALUES_PER_BYTE = 16
VALUES_IN_ANY = 10**6
_PLAIN = frozenset({type(None), bool, int, float, str, bytes})


class UnsafePickle(UserError):
    """The pickle holds something else, or is no pickle at all."""


def load(file: BinaryIO) -> Any:
    """The value pickled in a file. Texts of Python 2, which are bytes, are read as latin1."""
    data = file.read()
    try:
        value = _Machine(data).run()
    except UnsafePickle:
        raise
    # Something is not there, or a number, a text or an array is malformed.
    except (LookupError, ValueError, struct.error, wire.WireError) as error:
        raise UnsafePickle(f"not a readable pickle ({type(error).__name__}: {error})") from None
    _Census(VALUES_PER_BYTE * len(data) + VALUES_IN_ANY).count(value, 0)
    return value


def _refuse(what: object) -> NoReturn:
    shown = str(what)[:80].encode("unicode_escape").decode()
    raise UnsafePickle(
        f"refused {shown}: only numbers, text, lists, dictionaries and arrays of numbers are read"
    )


class _Census:
    """Counts what came out, and refuses what is too much or no plain data."""

    def __init__(self, most: int):
        self._left = most

    def count(self, value: Any, depth: int) -> None:
        kind = type(value)
        if kind in _PLAIN or isinstance(value, np.generic | np.ndarray):
            return
        if kind not in (list, tuple, dict):
            _refuse("a value that is not complete")
        if depth > DEEPEST:
            _refuse(f"more than {DEEPEST} containers within each other")
        self._left -= len(value)
        if self._left < 0:
            _refuse("values that are used again too often")
        items = value.values() if kind is dict else value
        if not _PLAIN.issuperset(map(type, items)):
            for item in items:
                self.count(item, depth + 1)


# ---- what a pickle may name: how numpy writes arrays


class _Name(str):
    """Something that a pickle named, and may call next."""


class _Type:
    """The type of an array: its letter and size are given first, its byte order later."""

    def __init__(self, code: str):
        self.code = code
        self.order = "|"  # of single bytes


class _Array:
    """An array that is announced first, and given its content later."""

    made: np.ndarray | None = None


def _array(raw: Any, dtype: Any, shape: Any, order: str) -> np.ndarray:
    if isinstance(raw, str):  # bytes of Python 2
        raw = raw.encode("latin1")
    if not isinstance(raw, bytes | bytearray) or not isinstance(dtype, _Type):
        _refuse("an array that is not made of bytes")
    array: np.ndarray = wire.view(raw, 0, dtype.order + dtype.code, shape, order)
    if array.nbytes != len(raw):
        raise ValueError(f"an array of {array.nbytes} bytes with {len(raw)}")
    return array


def _type(code: Any, align: Any, copy: Any) -> _Type:
    return _Type(code if isinstance(code, str) else "?")


def _bytes(text: Any, codec: Any) -> bytes:
    """Bytes, which protocols 0 to 2 write as text and its codec; no bytes, as `bytes()`."""
    if not isinstance(text, str) or codec != "latin1":
        _refuse(f"the codec {codec!r}")
    return text.encode("latin1")


_NDARRAY = "numpy.ndarray"  # an argument of _reconstruct, never called
# What may be called: how many arguments it takes, and what is called in its place.
_CALLS: dict[str, tuple[int, Callable[..., Any]]] = {
    "__builtin__.bytes": (0, bytes),
    "_codecs.encode": (2, _bytes),
    "numpy.dtype": (3, _type),
}
for _core in ("numpy.core", "numpy._core"):  # NumPy 1's name, and NumPy 2's
    _CALLS[f"{_core}.multiarray._reconstruct"] = (3, lambda kind, shape, letter: _Array())
    _CALLS[f"{_core}.multiarray.scalar"] = (2, lambda dtype, raw: _array(raw, dtype, (), "C")[()])
    _CALLS[f"{_core}.numeric._frombuffer"] = (4, _array)


# ---- the machine


class _Machine:
    """A stack, a memory of values by number, and a place in the data."""

    def __init__(self, data: bytes):
        self._data = data
        self._file = io.BytesIO(data)
        self.stack: list[Any] = []
        self._below: list[list[Any]] = []  # the stacks under each mark
        self.memory: dict[int, Any] = {}

    def run(self) -> Any:
        """Every instruction up to the last; the value that is on top of the stack then."""
        data = self._data
        at = 0
        while (code := data[at]) != _STOP:
            at += 1
            if code in _NUMBERS:  # these two are most of a trace, so they take no detour
                unpack, size = _NUMBERS[code]
                self.stack.extend(unpack(data, at))
                at += size
            elif code == _BINGET:
                self.get(data[at])
                at += 1
            elif code in _STEPS:
                read, step = _STEPS[code]
                if read is None:
                    step(self)
                else:
                    self._file.seek(at)
                    step(self, read(self._file))
                    at = self._file.tell()
            else:
                _refuse(f"the instruction {_INSTRUCTIONS.get(code, hex(code))}")
        return self.stack[-1]

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def pop(self, count: int) -> list[Any]:
        if len(self.stack) < count:
            raise IndexError("it takes from an empty stack")
        items = self.stack[len(self.stack) - count :]
        del self.stack[len(self.stack) - count :]
        return items

    def mark(self) -> None:
        self._below.append(self.stack)
        self.stack = []

    def since_mark(self) -> list[Any]:
        items = self.stack
        self.stack = self._below.pop()
        return items

    def extend(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if type(target) is not list:
            _refuse(f"to append to {type(target).__name__}")
        target.extend(items)

    def update(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if type(target) is not dict:
            _refuse(f"to set items of {type(target).__name__}")
        target.update(_dictionary(items))

    def put(self, place: int) -> None:
        self.memory[place] = self.stack[-1]

    def get(self, place: int) -> None:
        value = self.memory[place]
        if type(value) is _Array and value.made is not None:
            value = value.made
        self.stack.append(value)

    def name(self, module: object, name: object) -> None:
        named = _Name(f"{module}.{name}")
        if named not in _CALLS and named != _NDARRAY:
            _refuse(named)
        self.stack.append(named)

    def call(self) -> None:
        named, arguments = self.pop(2)
        if type(named) is not _Name or named not in _CALLS or type(arguments) is not tuple:
            _refuse("a call of what has no name")
        count, function = _CALLS[named]
        if len(arguments) != count:
            _refuse(f"{named} with {len(arguments)} arguments")
        self.stack.append(function(*arguments))

    def build(self) -> None:
        """Give a type its byte order, or an array its content."""
        target, state = self.pop(2)
        if type(target) is _Type and type(state) is tuple and len(state) == 8:
            target.order = str(state[1])
            self.stack.append(target)
        elif type(target) is _Array and type(state) is tuple and len(state) == 5:
            _, shape, dtype, fortran, raw = state
            target.made = _array(raw, dtype, shape, "F" if fortran else "C")
            self.stack.append(target.made)
        else:
            _refuse(f"a state of {type(target).__name__}")


def _dictionary(items: list[Any]) -> dict[Any, Any]:
    keys = items[::2]
    for key in keys:
        if not wire.is_key(key) and not isinstance(key, float | np.number):
            _refuse(f"a key that is {type(key).__name__}")
    return dict(zip(keys, items[1::2], strict=True))


_STOP = ord(".")
_BINGET = ord("h")
_NUMBERS = {
    ord(code): (struct.Struct(layout).unpack_from, struct.calcsize(layout))
    for code, layout in (("K", "<B"), ("M", "<H"), ("J", "<i"), ("G", ">d"))
}
_VALUES = (
    "INT LONG LONG1 FLOAT STRING BINSTRING SHORT_BINSTRING UNICODE SHORT_BINUNICODE "
    "BINUNICODE BINUNICODE8 SHORT_BINBYTES BINBYTES BINBYTES8 BYTEARRAY8"
)
# What an instruction does; one that is followed by an argument in the data is given it.
_MEANING: dict[str, Callable[..., object]] = {
    "PROTO": lambda m, number: None,
    "FRAME": lambda m, length: None,
    **dict.fromkeys(_VALUES.split(), _Machine.push),
    "NONE": lambda m: m.push(None),
    "NEWTRUE": lambda m: m.push(True),
    "NEWFALSE": lambda m: m.push(False),
    "MARK": _Machine.mark,
    "EMPTY_LIST": lambda m: m.push([]),
    "LIST": lambda m: m.push(m.since_mark()),
    "APPEND": lambda m: m.extend(m.pop(1)),
    "APPENDS": lambda m: m.extend(m.since_mark()),
    "EMPTY_TUPLE": lambda m: m.push(()),
    "TUPLE": lambda m: m.push(tuple(m.since_mark())),
    "TUPLE1": lambda m: m.push(tuple(m.pop(1))),
    "TUPLE2": lambda m: m.push(tuple(m.pop(2))),
    "TUPLE3": lambda m: m.push(tuple(m.pop(3))),
    "EMPTY_DICT": lambda m: m.push({}),
    "DICT": lambda m: m.push(_dictionary(m.since_mark())),
    "SETITEM": lambda m: m.update(m.pop(2)),
    "SETITEMS": lambda m: m.update(m.since_mark()),
    **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT"), _Machine.put),
    "MEMOIZE": lambda m: m.put(len(m.memory)),
    **dict.fromkeys(("GET", "BINGET", "LONG_BINGET"), _Machine.get),
    "GLOBAL": lambda m, both: m.name(*both.split(" ", 1)),
    "STACK_GLOBAL": lambda m: m.name(*m.pop(2)),
    "REDUCE": _Machine.call,
    "BUILD": _Machine.build,
}
_INSTRUCTIONS = {ord(op.code): op.name for op in pickletools.opcodes}
_STEPS: dict[int, tuple[Any, Callable[..., object]]] = {  # what reads the argument, and the step
    ord(op.code): (op.arg and op.arg.reader, _MEANING[op.name])
    for op in pickletools.opcodes
    if op.name in _MEANING
}
