"""What a job ran with: versions, revision, command."""

from __future__ import annotations

import platform
import subprocess
import sys
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from fedsuv_plugin.config.job import Job

PACKAGES = (
    "fedsuv_plugin",
    "fedscale",
    "torch",
    "torchvision",
    "numpy",
    "scipy",
    "scikit-learn",
    "grpcio",
    "protobuf",
)


def environment(job: Job) -> dict[str, Any]:
    return {
        "seed": job.config.seed,
        "started": datetime.now().astimezone().isoformat(timespec="seconds"),
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "python": platform.python_version(),
        "platform": platform.platform(),
        "git_revision": _git_revision(),
        "packages": {name: _version(name) for name in PACKAGES},
    }


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _git_revision() -> str | None:
    """The revision of this code, where it runs from a checkout; '+' marks uncommitted changes."""

    def git(*words: str) -> str:
        return subprocess.run(
            ["git", "-C", str(Path(__file__).parent), *words],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()

    try:
        return git("rev-parse", "HEAD") + (
            "+" if git("status", "--porcelain", "--untracked-files=no") else ""
        )
    except (OSError, subprocess.CalledProcessError):
        return None
