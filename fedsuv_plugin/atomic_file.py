"""Files that are whole or not there."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from fedsuv_plugin.errors import UserError


def replace_file(path: str | Path, fill: Callable[[BinaryIO], object]) -> None:
    """Write the file anew by `fill`, or leave the old one untouched.

    The new content is written to a file beside it, which is then renamed. Should the process or
    the machine die on the way, what was there before is still there."""
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
