"""How far a job is, while it runs."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any


class Progress:
    """One live line on a terminal; elsewhere a line at every tenth of the job."""

    def __init__(self, rounds: int, quiet: bool):
        self._rounds = rounds
        self._quiet = quiet
        self._live = sys.stderr.isatty()
        self._started: tuple[float, int] | None = None  # when the first round was over, and which
        self._accuracy = "   -  "

    def __call__(self, record: Mapping[str, Any], metrics: Mapping[str, Any] | None) -> None:
        if self._quiet:
            return
        if metrics is not None:
            self._accuracy = f"{metrics['accuracy']:.4f}"
        done = record["round"]
        line = self._line(record)
        if self._live:
            print(f"\r{line}\x1b[K", end="", file=sys.stderr, flush=True)
        elif done * 10 // self._rounds > (done - 1) * 10 // self._rounds:
            print(line, file=sys.stderr, flush=True)

    def _line(self, record: Mapping[str, Any]) -> str:
        now = time.monotonic()
        done = record["round"]
        if self._started is None:
            self._started = (now, done)
        began, first = self._started
        pace = (now - began) / max(1, done - first)
        return (
            f"round {done:>{len(str(self._rounds))}}/{self._rounds}  "
            f"clock {record['clock']:,.0f} s  accuracy {self._accuracy}  "
            f"valid {len(record['valid'])}/{len(record['asked'])}  "
            f"{minutes(pace * (self._rounds - done))} left"
        )

    def end(self) -> None:
        """Leave the live line."""
        if self._live and not self._quiet and self._started:
            print(file=sys.stderr)


def minutes(seconds: float) -> str:
    """Minutes and seconds; a question mark where nothing is known yet."""
    if seconds != seconds:
        return "?"
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
