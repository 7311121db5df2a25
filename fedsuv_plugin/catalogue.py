"""Names that a job file may use, each bound to the code behind it."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from types import ModuleType
from typing import Generic, TypeVar

from fedsuv_plugin.errors import UserError

T = TypeVar("T")


class Catalogue(Generic[T]):
    """name -> entry. Entries add themselves with a decorator when their file is imported; `discover` imports every
    file of a package, so that a new data set or model is one file and no other change."""

    def __init__(self, key: str):
        self._key, self._entries = key, dict[str, T]()

    def add(self, *names: str) -> Callable[[T], T]:
        def decorate(entry: T) -> T:
            for name in names:
                if name in self._entries:
                    raise ValueError(f"{self._key} {name!r} is already taken")
                self._entries[name] = entry
            return entry

        return decorate

    def discover(self, package: ModuleType) -> None:
        for module in pkgutil.iter_modules(package.__path__):
            importlib.import_module(f"{package.__name__}.{module.name}")

    def names(self) -> list[str]:
        return sorted(self._entries)

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def __getitem__(self, name: str) -> T:
        if name not in self._entries:
            raise UserError(f"{self._key}: expected one of {', '.join(self.names())}, got {name!r}")
        return self._entries[name]
