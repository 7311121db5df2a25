"""Parameters declared once: a frozen dataclass gives the defaults, the checks and the help text.

    @dataclass(frozen=True, kw_only=True)
    class MyParams(Params):
        rho: float = param(0.4, "share of clients that may be eliminated", low=0, high=1)

The job keys (`config.JobConfig`) and every selector's parameters are declared this way.
"""

from __future__ import annotations

import difflib
import math
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import Field, dataclass, field, fields
from typing import Any, TypeVar

import yaml

from fedsuv_plugin.errors import UserError, require


def param(
    default: Any,
    help: str,
    *,
    low: float | None = None,
    above: float | None = None,
    high: float | None = None,
    choices: Iterable[object] | None = None,
    scales_with: str | None = None,
) -> Any:
    """A parameter with its default, what it means, and the values it may take (low <= value <= high, value > above)."""
    return field(
        default=default,
        metadata={
            "help": help,
            "low": low,
            "above": above,
            "high": high,
            "choices": None if choices is None else tuple(choices),
            "scales_with": scales_with,
        },
    )


P = TypeVar("P", bound="Params")


@dataclass(frozen=True, kw_only=True)
class Params:
    """Checks every field against its declaration; numbers may come as text, as YAML gives `1e-3`."""

    def __post_init__(self) -> None:
        allowed = _types(type(self))
        for f in fields(self):
            object.__setattr__(self, f.name, check(f, allowed[f.name], getattr(self, f.name)))

    @classmethod
    def from_mapping(cls: type[P], values: Mapping[str, Any]) -> P:
        refuse_unknown(values, [f.name for f in fields(cls)])
        return cls(**values)


@dataclass(frozen=True, kw_only=True)
class NoParams(Params):
    """For what takes none."""


def refuse_unknown(names: Iterable[str], known: Iterable[str], what: str = "key") -> None:
    known = list(known)
    for name in names:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            raise UserError(
                f"unknown {what} {name!r}" + (f"; did you mean {close[0]!r}?" if close else "")
            )


def _types(cls: type[Params]) -> dict[str, tuple[type, ...]]:
    """Field name -> the types its annotation allows."""
    hints = typing.get_type_hints(cls)
    return {
        f.name: typing.get_args(hints[f.name])
        if isinstance(hints[f.name], types.UnionType)
        else (hints[f.name],)
        for f in fields(cls)
    }


def check(declaration: Field[Any], allowed: tuple[type, ...], value: object) -> object:
    """`value` in the declared type, or a UserError that says what was expected."""
    meta, expected = declaration.metadata, describe(declaration, allowed)
    got, value = value, coerce(value, allowed)
    require(
        value is not _NO and (value is not None or type(None) in allowed),
        declaration.name,
        expected,
        got,
    )
    if isinstance(value, int | float) and not isinstance(value, bool):
        require(
            math.isfinite(value)
            and (meta.get("low") is None or value >= meta["low"])
            and (meta.get("above") is None or value > meta["above"])
            and (meta.get("high") is None or value <= meta["high"]),
            declaration.name,
            expected,
            got,
        )
    if meta.get("choices") is not None and value is not None:
        require(value in meta["choices"], declaration.name, expected, got)
    return value


_NO = object()  # "this value is not of any of these types"


def coerce(value: object, allowed: tuple[type, ...]) -> object:
    """The value as one of the allowed types, or _NO. Text is read as YAML would read it, so `1e-3` is a number."""
    if type(value) in allowed:
        return value
    if isinstance(value, str):
        text = value.strip()
        if type(None) in allowed and text in ("None", "none", "null", ""):
            return None
        if str in allowed:
            return value
        if bool in allowed and text.lower() in ("true", "false"):
            return text.lower() == "true"
        for number in (int, float):
            if number in allowed:
                try:
                    return number(text)
                except ValueError:
                    pass
        if int in allowed:
            try:
                value = float(text)
            except ValueError:
                return _NO
    if isinstance(value, bool):
        return _NO
    if isinstance(value, int) and float in allowed:
        return float(value)
    if isinstance(value, float) and int in allowed and value.is_integer():
        return int(value)
    if isinstance(value, int | float) and str in allowed:
        return str(value)
    return _NO


NAMES = {int: "an integer", float: "a number", bool: "true or false", str: "text"}


def describe(declaration: Field[Any], allowed: tuple[type, ...] | None = None) -> str:
    """What a parameter may be, in words: 'a number > 0 or none'."""
    meta, allowed = declaration.metadata, allowed or (str,)
    if meta.get("choices") is not None:
        text = "one of " + ", ".join(str(c) for c in meta["choices"])
    else:
        text = NAMES[next(t for t in allowed if t is not type(None))]
        bounds = [
            f"{sign} {meta[key]:g}"
            for key, sign in (("low", ">="), ("above", ">"), ("high", "<="))
            if meta.get(key) is not None
        ]
        text += " " + " and ".join(bounds) if bounds else ""
    return text + (" or none" if type(None) in allowed else "")


def parameter_rows(cls: type[Params], prefix: str = "") -> list[tuple[str, str, str, str]]:
    """(name, default, allowed values, help) of every parameter, for tables."""
    return [
        (
            prefix + f.name,
            "none" if f.default is None else str(f.default),
            describe(f, _types(cls)[f.name]),
            f.metadata.get("help", ""),
        )
        for f in fields(cls)
    ]


def parse_assignment(text: str) -> tuple[str, object]:
    """'key=value' -> (key, value), the value read as YAML."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise UserError(f"--set {text}: expected key=value, for example --set sample_mode=oort")
    try:
        return key.strip(), yaml.safe_load(value) if value.strip() else ""
    except yaml.YAMLError:
        return key.strip(), value
