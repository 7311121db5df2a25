"""Paths in a report, which may be sent to others: they show nobody's folders.

Run directories have every path in full."""

from __future__ import annotations

import os
import re
from pathlib import Path

HOME = re.compile(r"^(/home/[^/]+|/Users/[^/]+|/root)(?=/|$)")
PATH = re.compile(r"(?<![\w.~/…-])(?:/[\w.+@%~-]+){2,}")
KEPT = 2  # parts of a long path that are shown


def relative(path: Path, folder: Path) -> str:
    """A path as seen from the folder of the report, so that both can be moved together."""
    return Path(os.path.relpath(path.expanduser(), folder.expanduser())).as_posix()


def short_path(path: str) -> str:
    """The end of an absolute path; any other stays as it is.

    >>> short_path("/home/ann/our project/device_traces/small.npz")
    '…/device_traces/small.npz'
    >>> short_path("/home/ann/small.npz"), short_path("/data/mnist"), short_path("runs/a/b/c")
    ('~/small.npz', '/data/mnist', 'runs/a/b/c')
    """
    path = HOME.sub("~", path)
    if not path.startswith(("/", "~")):
        return path
    parts = [part for part in path.split("/") if part]
    if len(parts) <= KEPT:
        return path
    return "/".join(["…", *parts[-KEPT:]])


def short_paths(text: str) -> str:
    """A text with its absolute paths shortened.

    >>> short_paths("no file /home/ann/work/data/x.npz; see https://a.org/b/c/d")
    'no file …/data/x.npz; see https://a.org/b/c/d'
    """
    return PATH.sub(lambda found: short_path(found[0]), text)
