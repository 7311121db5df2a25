"""Ctrl-C: once ends the job with its round, twice stops it at once."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from fedsuv_plugin.engine.aggregator import PluginAggregator


@contextmanager
def stop_on_interrupt(aggregator: PluginAggregator) -> Iterator[None]:
    """The first Ctrl-C lets the round finish and writes a checkpoint; the second stops at once."""

    def handler(number: int, frame: object) -> None:
        if aggregator.stop_after_round.is_set():
            raise KeyboardInterrupt
        aggregator.stop_after_round.set()
        print(
            f"\nstopping after round {aggregator.round}; press Ctrl-C again to stop at once",
            file=sys.stderr,
        )

    try:
        previous = signal.signal(signal.SIGINT, handler)
    except ValueError:  # not the main thread: whoever runs us has the say
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
