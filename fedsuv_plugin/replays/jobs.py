"""Real jobs for replays: one job file, run again with other keys, and what became of it."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from fedsuv_plugin.config.job_file import load_job

CONFIGS = Path(__file__).parents[2] / "configs"
Records = list[dict[str, Any]]


def play_job(config: str | Path, overrides: dict[str, object]) -> tuple[Records, Records]:
    """(rounds, metrics) of a job run in a directory that is gone afterwards."""
    from fedsuv_plugin.job import run_job
    from fedsuv_plugin.records import RunDirectory

    with tempfile.TemporaryDirectory() as folder:
        run = RunDirectory.create(load_job(config, {**overrides, "log_path": folder}))
        run_job(run)
        return run.records("rounds.jsonl"), run.records("metrics.jsonl")


def last_mean(accuracies: list[float], rounds: int = 10) -> float:
    """The end of a curve that zigzags: the mean of its last rounds."""
    return float(np.mean(accuracies[-rounds:]))
