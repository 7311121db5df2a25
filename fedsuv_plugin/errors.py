"""The one kind of error a user can cause, and the check that words it."""

from __future__ import annotations


class UserError(Exception):
    """Wrong input from the user.

    The command line shows the message as one line and exits with code 2, without a traceback."""


def require(ok: bool, key: str, expected: str, got: object) -> None:
    """Raise a UserError about `key` unless `ok`.

    >>> require(False, "rounds", "an integer >= 1", 0)
    Traceback (most recent call last):
        ...
    fedsuv_plugin.errors.UserError: rounds: expected an integer >= 1, got 0
    """
    if not ok:
        raise UserError(f"{key}: expected {expected}, got {got!r}")


def shown(text: object, longest: int = 300) -> str:
    """Text of somebody else, fit for a terminal and a log: one line, escaped and cut.

    >>> shown("\\x1b[2Jgone\\n")
    '\\\\x1b[2Jgone\\\\n'
    """
    start = str(text)[: longest + 1]
    cut = f"{start[:longest]}..." if len(start) > longest else start
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in cut)
