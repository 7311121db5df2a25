"""Names that a job may use, each bound to the code behind it.

Selectors are found by entry point: any installed package can add a FedScale client manager under
`fedscale.client_manager`, and the name is the value of `sample_mode`. Data sets, models,
partitions and replays are in catalogues, to which each file of a package adds its own.
"""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from collections.abc import Callable, Iterable
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from fedsuv_plugin.errors import UserError, require
from fedsuv_plugin.params import NoParams, Params

if TYPE_CHECKING:
    from fedsuv_plugin.selectors.base import Selector

T = TypeVar("T")
ParamsOf = Callable[[str], Params]  # a selector's name -> its parameters in the job
GROUP = "fedscale.client_manager"


class Catalogue(Generic[T]):
    """name -> entry. An entry adds itself with a decorator when its file is imported.

    `discover` imports every file of a package, so a new data set is one file and no other change.

    >>> shapes = Catalogue("shape")
    >>> @shapes.add("square", "quadrangle")
    ... def square(): ...
    >>> shapes.names()
    ['quadrangle', 'square']
    """

    def __init__(self, key: str):
        self._key = key
        self._entries: dict[str, T] = {}

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
            expected = ", ".join(self.names())
            by_small_letters = {known.lower(): known for known in self.names()}
            close = difflib.get_close_matches(str(name).lower(), by_small_letters, n=1)
            suggestion = f"; did you mean {by_small_letters[close[0]]!r}?" if close else ""
            raise UserError(f"{self._key}: expected one of {expected}, got {name!r}{suggestion}")
        return self._entries[name]


def installed(points: Iterable[EntryPoint] | None = None) -> dict[str, EntryPoint]:
    """All registered client managers by name, unloaded.

    Two packages that claim one name are an error that names both."""
    found: dict[str, EntryPoint] = {}
    points = entry_points(group=GROUP) if points is None else points
    for point in sorted(points, key=lambda p: p.name):
        other = found.setdefault(point.name, point)
        if other.value != point.value:
            raise UserError(
                f"client manager {point.name!r} is claimed by two packages: "
                f"{_origin(other)} and {_origin(point)}; uninstall one of them"
            )
    return found


def _origin(point: EntryPoint) -> str:
    return f"{point.dist.name if point.dist else 'unknown package'} ({point.value})"


def client_manager_class(name: str, points: Iterable[EntryPoint] | None = None) -> type:
    """The class registered as `name`; FedScale makes it with `cls(args.sample_mode, args=args)`."""
    found = installed(points)
    if name not in found:
        raise UserError(f"unknown client manager {name!r}; installed: {', '.join(found) or 'none'}")
    try:
        loaded = found[name].load()
    except Exception as error:  # a plugin may fail in any way when it is imported
        raise UserError(
            f"client manager {name!r} of {_origin(found[name])} cannot be loaded: "
            f"{type(error).__name__}: {error}"
        ) from error
    if not isinstance(loaded, type):
        raise UserError(f"client manager {name!r} of {_origin(found[name])} is not a class")
    return loaded


def selector_class(name: str) -> type[Selector] | None:
    """The selector behind a name; None for a foreign client manager, which need not have one."""
    return getattr(client_manager_class(name), "selector_class", None)


def params_class(name: str) -> type[Params]:
    """What a selector takes as `<name>.<parameter>`; of a foreign client manager we know none."""
    selector = selector_class(name)
    return NoParams if selector is None else selector.Params


def inner_of(outer: type[Selector], params: Params) -> tuple[str, type[Selector]] | None:
    """The selector that `outer` is put around, refused if it is one that cannot be."""
    name = outer.wraps(params)
    if name is None:
        return None
    inner = selector_class(name)
    require(
        inner is not None and inner is not outer and not inner.time_slots,
        f"{outer.name}.inner",
        "a selector of fedsuv_plugin's contract without time slots, and not itself",
        name,
    )
    assert inner is not None
    return name, inner


class Required(NamedTuple):
    """The signals that a selector asks for: see selectors/signals.py."""

    needs: frozenset[str]
    probes: frozenset[str]

    @property
    def signals(self) -> frozenset[str]:
        return self.needs | self.probes


def requirements(name: str, params_of: ParamsOf) -> dict[str, Required]:
    """What the selector `name` asks for, and the one it is put around; empty for a foreign one."""
    selector = selector_class(name)
    if selector is None:
        return {}
    params = params_of(name)
    own = {name: Required(selector.required(params), selector.may_ask(params))}
    inner = inner_of(selector, params)
    return own if inner is None else own | requirements(inner[0], params_of)


def required(name: str, params_of: ParamsOf) -> Required:
    """What the selector `name` and the one it is put around ask for together."""
    nothing: frozenset[str] = frozenset()
    asks = requirements(name, params_of).values()
    return Required(
        nothing.union(*(each.needs for each in asks)),
        nothing.union(*(each.probes for each in asks)),
    )
