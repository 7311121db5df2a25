"""The one kind of error a user can cause, and the check that words it."""

from __future__ import annotations


class UserError(Exception):
    """Wrong input: the command line shows the message as one line and exits with code 2, without a traceback."""


def require(ok: bool, key: str, expected: str, got: object) -> None:
    if not ok:
        raise UserError(f"{key}: expected {expected}, got {got!r}")
