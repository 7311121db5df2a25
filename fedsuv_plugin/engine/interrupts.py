"""Ctrl-C: once ends the job with its round, twice stops it at once."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedsuv_plugin.engine.aggregator import PluginAggregator


def stop_on_interrupt(aggregator: PluginAggregator) -> AbstractContextManager[None]:
    """The first Ctrl-C lets the round finish and writes a checkpoint; the second stops at once."""

    def first() -> str:
        aggregator.stop_after_round.set()
        return f"stopping after round {aggregator.round}"

    return on_interrupt(first)


@contextmanager
def on_interrupt(first: Callable[[], str]) -> Iterator[None]:
    """The first Ctrl-C is answered with what `first` does and says; the second stops at once."""
    pressed = False

    def handler(number: int, frame: object) -> None:
        nonlocal pressed
        if pressed:
            raise KeyboardInterrupt
        pressed = True
        print(f"\n{first()}; press Ctrl-C again to stop at once", file=sys.stderr)

    try:
        previous = signal.signal(signal.SIGINT, handler)
    except ValueError:  # not the main thread: whoever runs us has the say
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
