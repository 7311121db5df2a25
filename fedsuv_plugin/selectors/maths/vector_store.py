"""Many long vectors by number: in memory up to a budget, the others in a file."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, MutableMapping
from typing import IO

import numpy as np

MB = 2**20


class VectorStore(MutableMapping[int, np.ndarray]):
    """Vectors of one length in float32, in the order in which their numbers first came.

    The file has no name, so it disappears with the process, however that ends.

    >>> store = VectorStore(budget_mb=0)
    >>> store[7] = np.array([1.0, 2.0])
    >>> store[7].tolist()
    [1.0, 2.0]
    """

    def __init__(self, budget_mb: int):
        self._budget = budget_mb * MB
        self.clear()

    def clear(self) -> None:
        self._slots: dict[int, int] = {}  # number -> place: first those in memory, then the file's
        self._free: list[int] = []  # places that were given up
        self._memory: list[np.ndarray] = []
        self._file: IO[bytes] | None = None
        self._mapped: np.ndarray | None = None  # (rows, p), the file

    def __len__(self) -> int:
        return len(self._slots)

    def __iter__(self) -> Iterator[int]:
        return iter(self._slots)

    def __contains__(self, number: object) -> bool:
        return number in self._slots

    def __setitem__(self, number: int, vector: np.ndarray) -> None:
        own = np.array(vector, np.float32)  # the caller's may change afterwards
        if number not in self._slots:
            self._slots[number] = self._free.pop() if self._free else len(self._slots)
        slot = self._slots[number]
        room = self._budget // max(1, own.nbytes)
        if slot >= room:
            self._row(slot - room, len(own))[:] = own
        elif slot == len(self._memory):
            self._memory.append(own)
        else:
            self._memory[slot] = own

    def __getitem__(self, number: int) -> np.ndarray:
        slot = self._slots[number]
        if slot < len(self._memory):
            return self._memory[slot]
        assert self._mapped is not None
        return np.asarray(self._mapped[slot - len(self._memory)])

    def __delitem__(self, number: int) -> None:
        self._free.append(self._slots.pop(number))

    def _row(self, row: int, p: int) -> np.ndarray:
        """A row of the file, which doubles when it is full."""
        if self._mapped is None or row >= len(self._mapped):
            if self._file is None:
                self._file = tempfile.TemporaryFile(prefix="vectors-")
            rows = max(16, 2 * row)
            self._file.truncate(rows * p * np.dtype(np.float32).itemsize)
            self._mapped = np.memmap(self._file, np.float32, "r+", shape=(rows, p))
        return np.asarray(self._mapped[row])
