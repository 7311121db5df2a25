"""Selector name -> FedScale client manager class, found by entry point.

Any installed package can add one under `fedscale.client_manager`; the name is the value of `sample_mode`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING

from fedsuv_plugin.errors import UserError, require
from fedsuv_plugin.params import NoParams, Params

if TYPE_CHECKING:
    from fedsuv_plugin.selectors.base import Selector

ParamsOf = Callable[[str], Params]  # a selector's name -> its parameters in the job
GROUP = "fedscale.client_manager"


def installed(points: Iterable[EntryPoint] | None = None) -> dict[str, EntryPoint]:
    """All registered client managers by name, unloaded. Two packages claiming one name is an error naming both."""
    found: dict[str, EntryPoint] = {}
    for point in sorted(
        entry_points(group=GROUP) if points is None else points, key=lambda p: p.name
    ):
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
    """The selector behind a name; None for a foreign client manager, which has none that we know of."""
    return getattr(client_manager_class(name), "selector_class", None)


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


def required(name: str, params_of: ParamsOf) -> frozenset[str]:
    """What clients and server must compute for the selector `name` and the one it is put around, if any; nothing extra
    for a foreign one."""
    selector, params = selector_class(name), params_of(name)
    if selector is None:
        return frozenset()
    inner = inner_of(selector, params)
    return selector.required(params) | (
        frozenset() if inner is None else required(inner[0], params_of)
    )


def params_class(manager: type) -> type[Params]:
    """The parameters a client manager takes as `<name>.<parameter>`; a foreign one has none that we know of."""
    selector = getattr(manager, "selector_class", None)
    return NoParams if selector is None else selector.Params
