"""Parameters declared once: a frozen dataclass gives the defaults, the checks and the help text.

The job keys (`config.JobConfig`) and every selector's parameters are declared this way: see
`Params` for an example.
"""

from __future__ import annotations

import difflib
import math
import re
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
    """A field of `Params`: its default, what it means (`help`), and the values it may take.

    A number lies within low <= value <= high and value > above, as far as they are given; any
    other value is one of `choices`. `scales_with` names the job key in proportion to which a
    scaled-down job shrinks this parameter, for example the rounds of a warm-up with "rounds":

    >>> warmup = param(20, "rounds before it selects by score", low=0, scales_with="rounds")
    >>> warmup.metadata["scales_with"]
    'rounds'
    """
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
    """Parameters that are checked against their declarations when they are made.

    >>> @dataclass(frozen=True, kw_only=True)
    ... class MyParams(Params):
    ...     rho: float = param(0.4, "share of clients that may be eliminated", low=0, high=1)
    >>> MyParams()
    MyParams(rho=0.4)
    >>> MyParams(rho=2)
    Traceback (most recent call last):
        ...
    fedsuv_plugin.errors.UserError: rho: expected a number >= 0 and <= 1, got 2

    A number may come as text, because YAML reads `1e-3` as text:

    >>> MyParams.from_mapping({"rho": "1e-3"})
    MyParams(rho=0.001)
    """

    def __post_init__(self) -> None:
        allowed = _types(type(self))
        for f in fields(self):
            object.__setattr__(self, f.name, check(f, allowed[f.name], getattr(self, f.name)))

    @classmethod
    def from_mapping(cls: type[P], values: Mapping[str, Any]) -> P:
        """The given values, and defaults for the others; an unknown name is an error."""
        refuse_unknown(values, [f.name for f in fields(cls)])
        return cls(**values)


@dataclass(frozen=True, kw_only=True)
class NoParams(Params):
    """The parameters of a selector that takes none."""


def refuse_unknown(names: Iterable[str], known: Iterable[str], what: str = "key") -> None:
    """A UserError about the first name that is not known, and the known one most like it."""
    known = list(known)
    for name in names:
        if name not in known:
            close = difflib.get_close_matches(str(name), known, n=1)
            suggestion = f"; did you mean {close[0]!r}?" if close else ""
            raise UserError(f"unknown {what} {name!r}{suggestion}")


def _types(cls: type[Params]) -> dict[str, tuple[type, ...]]:
    """Field name -> the types its annotation allows."""
    hints = typing.get_type_hints(cls)
    allowed: dict[str, tuple[type, ...]] = {}
    for f in fields(cls):
        hint = hints[f.name]
        allowed[f.name] = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    return allowed


def check(declaration: Field[Any], allowed: tuple[type, ...], value: object) -> object:
    """`value` in the declared type, or a UserError that says what was expected."""
    meta = declaration.metadata
    converted = coerce(value, allowed)
    ok = converted is not _NO and (converted is not None or type(None) in allowed)
    if isinstance(converted, int | float) and not isinstance(converted, bool):
        ok = (
            math.isfinite(converted)
            and (meta.get("low") is None or converted >= meta["low"])
            and (meta.get("above") is None or converted > meta["above"])
            and (meta.get("high") is None or converted <= meta["high"])
        )
    if ok and meta.get("choices") is not None and converted is not None:
        ok = converted in meta["choices"]
    require(ok, declaration.name, describe(declaration, allowed), value)
    return converted


_NO = object()  # what `coerce` returns for a value that is of none of the allowed types


def coerce(value: object, allowed: tuple[type, ...]) -> object:
    """The value as one of the allowed types, or _NO.

    Text is read as the number, the truth value or the None that it spells, if one of these is
    allowed; a list, where text is wanted, as its entries with commas between them."""
    if isinstance(value, str):
        text = value.strip()
        if type(None) in allowed and text in ("None", "none", "null"):
            return None
        if str in allowed:
            return _NO if "\0" in value else value  # no file can be called so
    if type(value) in allowed:
        return value
    if isinstance(value, list) and str in allowed:
        plain = all(isinstance(entry, str | int | float) for entry in value)
        return ",".join(map(str, value)) if plain else _NO
    if isinstance(value, str):
        if type(None) in allowed and not text:
            return None
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
        try:
            return float(value)
        except OverflowError:
            return _NO
    if isinstance(value, float) and int in allowed and value.is_integer():
        return int(value)
    if isinstance(value, int | float) and str in allowed:
        return str(value)
    return _NO


NAMES = {int: "an integer", float: "a number", bool: "true or false", str: "text"}


def describe(declaration: Field[Any], allowed: tuple[type, ...] | None = None) -> str:
    """What a parameter may be, in words: 'a number > 0 or none'."""
    meta = declaration.metadata
    allowed = allowed or (str,)
    if meta.get("choices") is not None:
        text = "one of " + ", ".join(str(c) for c in meta["choices"])
    else:
        text = NAMES[next(t for t in allowed if t is not type(None))]
        bounds = [
            f"{sign} {meta[key]:g}"
            for key, sign in (("low", ">="), ("above", ">"), ("high", "<="))
            if meta.get(key) is not None
        ]
        if bounds:
            text += " " + " and ".join(bounds)
    return text + (" or none" if type(None) in allowed else "")


def parameter_rows(cls: type[Params], prefix: str = "") -> list[tuple[str, str, str, str]]:
    """(name, default, allowed values, help) of every parameter, for tables."""
    allowed = _types(cls)
    rows = []
    for f in fields(cls):
        default = "none" if f.default is None else str(f.default)
        meaning = f.metadata.get("help", "")
        rows.append((prefix + f.name, default, describe(f, allowed[f.name]), meaning))
    return rows


def range_of(text: str) -> range:
    """The numbers that a part of a list such as 3,7,10-19 stands for; empty if it is no such part.

    >>> range_of("7"), range_of("10-19"), len(range_of("9-3")), len(range_of("x"))
    (range(7, 8), range(10, 20), 0, 0)
    """
    match = re.fullmatch(r"(\d+)(?:-(\d+))?", text)
    return range(int(match[1]), int(match[2] or match[1]) + 1) if match else range(0)


def parse_assignment(text: str) -> tuple[str, object]:
    """'key=value' -> (key, value), the value read as YAML or, if it is no YAML, kept as text."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise UserError(f"--set {text}: expected key=value, for example --set sample_mode=oort")
    try:
        return key.strip(), yaml.safe_load(value) if value.strip() else ""
    except yaml.YAMLError:
        return key.strip(), value
