"""Selector name -> FedScale client manager class, found by entry point.

Any installed package can add one under `fedscale.client_manager`; the name is the value of `sample_mode`.
"""
from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points

from fedsuv_plugin.errors import UserError
from fedsuv_plugin.params import NoParams, Params

GROUP = "fedscale.client_manager"


def installed(points: Iterable[EntryPoint] | None = None) -> dict[str, EntryPoint]:
    """All registered client managers by name, unloaded. Two packages claiming one name is an error naming both."""
    found: dict[str, EntryPoint] = {}
    for point in sorted(entry_points(group=GROUP) if points is None else points, key=lambda p: p.name):
        other = found.setdefault(point.name, point)
        if other.value != point.value:
            raise UserError(f"client manager {point.name!r} is claimed by two packages: "
                            f"{_origin(other)} and {_origin(point)}; uninstall one of them")
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
        raise UserError(f"client manager {name!r} of {_origin(found[name])} cannot be loaded: "
                        f"{type(error).__name__}: {error}") from error
    if not isinstance(loaded, type):
        raise UserError(f"client manager {name!r} of {_origin(found[name])} is not a class")
    return loaded


def required(name: str, params: Params) -> frozenset[str]:
    """What clients must compute for the selector `name`; nothing extra for a foreign one."""
    selector = getattr(client_manager_class(name), "selector_class", None)
    return frozenset() if selector is None else selector.required(params)


def params_class(manager: type) -> type[Params]:
    """The parameters a client manager takes as `<name>.<parameter>`; a foreign one has none that we know of."""
    selector = getattr(manager, "selector_class", None)
    return NoParams if selector is None else selector.Params
