"""Parameters declared once: defaults, checks, words."""

from __future__ import annotations

from dataclasses import dataclass, fields

import pytest

from fedsuv_plugin.errors import UserError
from fedsuv_plugin.params import Params, param, parameter_rows, parse_assignment


@dataclass(frozen=True, kw_only=True)
class Toy(Params):
    count: int = param(3, "how many", low=1)
    share: float = param(0.5, "how much", low=0, high=1)
    rate: float | None = param(None, "how fast", above=0)
    flag: bool = param(False, "whether")
    kind: str = param("mean", "which", choices=("mean", "zero"))


@pytest.mark.parametrize(
    ("given", "became"),
    [
        ({"count": "7"}, 7),
        ({"count": 7.0}, 7),
        ({"count": "1e2"}, 100),
        ({"share": "1e-3"}, 0.001),
        ({"share": 1}, 1.0),
        ({"rate": "None"}, None),
        ({"rate": 2}, 2.0),
        ({"flag": "True"}, True),
        ({"flag": "false"}, False),
        ({"kind": "zero"}, "zero"),
    ],
)
def test_values_are_read_as_declared(given: dict[str, object], became: object) -> None:
    value = getattr(Toy.from_mapping(given), next(iter(given)))
    assert value == became
    assert type(value) is type(became)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"count": 0}, "count: expected an integer >= 1, got 0"),
        ({"count": 1.5}, "count: expected an integer >= 1, got 1.5"),
        ({"count": True}, "count: expected an integer >= 1, got True"),
        ({"count": "many"}, "count: expected an integer >= 1, got 'many'"),
        ({"count": None}, "count: expected an integer >= 1, got None"),
        ({"share": 2}, "share: expected a number >= 0 and <= 1, got 2"),
        ({"share": float("nan")}, "share: expected a number >= 0 and <= 1, got nan"),
        ({"rate": 0}, "rate: expected a number > 0 or none, got 0"),
        ({"flag": "maybe"}, "flag: expected true or false, got 'maybe'"),
        ({"flag": 1}, "flag: expected true or false, got 1"),
        ({"kind": "men"}, "kind: expected one of mean, zero, got 'men'"),
        ({"shar": 0.1}, "unknown key 'shar'; did you mean 'share'?"),
        ({"xyz": 0.1}, "unknown key 'xyz'"),
    ],
)
def test_a_bad_value_says_what_was_expected_and_what_came(
    given: dict[str, object], message: str
) -> None:
    with pytest.raises(UserError) as error:
        Toy.from_mapping(given)
    assert str(error.value) == message


def test_the_declaration_is_the_help() -> None:
    row = ("toy.rate", "none", "a number > 0 or none", "how fast")
    assert parameter_rows(Toy, "toy.")[2] == row


def test_a_declaration_may_say_what_it_scales_with() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Scaled(Toy):
        warmup: int = param(20, "rounds of warm-up", low=0, scales_with="rounds")

    scales_with = {f.name: f.metadata["scales_with"] for f in fields(Scaled)}
    assert scales_with == {**dict.fromkeys(f.name for f in fields(Toy)), "warmup": "rounds"}


def test_assignments() -> None:
    # YAML reads 1e-3 as text; the declared type makes it a number.
    assert parse_assignment("a.b=1e-3") == ("a.b", "1e-3")
    assert parse_assignment("a=[1") == ("a", "[1")
    with pytest.raises(UserError, match="expected key=value"):
        parse_assignment("rounds")
