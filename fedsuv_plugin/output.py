"""What users read: whole files or none, and tables."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO

from fedsuv_plugin.errors import UserError


def replace_file(path: str | Path, fill: Callable[[BinaryIO], object]) -> None:
    """Write beside the file, then rename: whenever the process or the machine dies, what was there before is there."""
    target = Path(path).expanduser()
    beside = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        with beside.open("wb") as f:
            fill(f)
            f.flush()
            os.fsync(f.fileno())
        os.replace(beside, target)
    except OSError as error:
        raise UserError(
            f"{path}: cannot be written ({error.strerror}); does the folder exist?"
        ) from None
    finally:
        beside.unlink(missing_ok=True)


def columns(head: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """Text in columns: the first `left` of them to the left, numbers to the right."""
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i < left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in [head, *rows]
    )


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *rows])


def figure(value: float) -> str:
    """Three figures are enough to read."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
