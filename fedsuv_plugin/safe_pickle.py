"""Pickle without its danger: only numpy arrays, torch tensors and plain containers come out.

FedScale's traces and some data sets are pickles, and loading a pickle runs whatever code it names.
Here only what is on an allow-list is loaded; anything else is refused, by name, before it is run.
"""

from __future__ import annotations

import io
import pickle
from typing import Any, BinaryIO

from fedsuv_plugin.errors import UserError

_ALLOWED = {
    ("builtins", "bytearray"),
    ("builtins", "complex"),
    ("builtins", "frozenset"),
    ("builtins", "set"),
    ("collections", "OrderedDict"),
    ("numpy", "dtype"),
    ("numpy", "ndarray"),
    # NumPy 1 writes arrays under numpy.core, NumPy 2 under numpy._core.
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy.core.multiarray", "scalar"),
    ("numpy.core.numeric", "_frombuffer"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "scalar"),
    ("numpy._core.numeric", "_frombuffer"),
    ("torch", "device"),
    ("torch", "Size"),
    ("torch._utils", "_rebuild_tensor_v2"),
    ("torch._utils", "_rebuild_parameter"),
}
_TORCH_DTYPES = frozenset(
    "float16 bfloat16 float32 float64 int8 int16 int32 int64 uint8 bool".split()
)


class UnsafePickle(UserError):
    """The pickle holds something outside the allow-list, or is no pickle at all."""


def _storage_from_bytes(data: bytes) -> Any:
    """The storage of a tensor: torch's own helper of that task, but with its restricted loader."""
    import torch

    return torch.load(io.BytesIO(data), weights_only=True)


def _bytes_from_text(text: str, encoding: str) -> bytes:
    """Bytes, which protocol 2 writes as a call of `encode`; it uses no codec but latin1."""
    if encoding != "latin1":
        raise UnsafePickle(f"refused the codec {encoding!r}")
    return text.encode("latin1")


# Functions that pickles call but that would be unsafe as they are.
_REPLACED = {
    ("torch.storage", "_load_from_bytes"): _storage_from_bytes,
    ("_codecs", "encode"): _bytes_from_text,
}


class _Unpickler(pickle.Unpickler):
    """The standard unpickler, except that the names it may look up are those above."""

    def find_class(self, module: str, name: str) -> Any:
        if module == "__builtin__":  # what protocol 2 calls builtins
            module = "builtins"
        if (module, name) in _REPLACED:
            return _REPLACED[module, name]
        if (module, name) in _ALLOWED or (module == "torch" and name in _TORCH_DTYPES):
            return super().find_class(module, name)
        raise UnsafePickle(
            f"refused {module}.{name}: "
            f"only numpy arrays, torch tensors and plain containers are loaded"
        )

    def persistent_load(self, pid: Any) -> Any:
        raise UnsafePickle("refused a persistent reference")


def dumps(value: object) -> bytes:
    return pickle.dumps(value, protocol=5)


def loads(data: bytes) -> Any:
    return load(io.BytesIO(data))


def load(file: BinaryIO, encoding: str = "ASCII") -> Any:
    """The value pickled in a file.

    `encoding` is that of the texts in pickles of Python 2; numpy arrays in those need latin1."""
    try:
        return _Unpickler(file, encoding=encoding).load()
    except UnsafePickle:
        raise
    except Exception as error:  # a damaged pickle can raise nearly anything
        raise UnsafePickle(f"not a readable pickle ({type(error).__name__}: {error})") from error
