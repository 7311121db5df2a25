"""Three executors that are killed, stopped and cut off at random, and come back: the same records.

`FEDSUV_CHAOS=<first>-<last>` chooses other seeds than the twenty of a slow run.
"""

from __future__ import annotations

import os
import random
import signal
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import SMALL, run, same_records
from process_worlds import Cable, Team, team

from fedsuv_plugin.config.job import make_job
from fedsuv_plugin.params import range_of

SEEDS = range_of(os.environ.get("FEDSUV_CHAOS", "0-19"))
EXECUTORS = 3
KEYS: dict[str, Any] = {
    "rounds": 100,
    "local_steps": 100,
    "eval_interval": 10,
    "sample_mode": "fedsuv",
    "round_deadline": 0.8,
    "executor_timeout": 1.0,
    "connection_timeout": 120,
}


class Fate(threading.Thread):
    """What happens to one executor, again and again, until the job is over."""

    def __init__(self, made: Team, rank: int, seed: int):
        super().__init__(daemon=True)
        self.suffered: Counter[str] = Counter()
        self._made = made
        self._rank = rank
        self._random = random.Random(f"{seed}/{rank}")
        self._cable = Cable(made.job.config.ps_port)
        self._over = threading.Event()
        self._process = self._new_process()
        self.start()

    def end(self) -> None:
        self._over.set()
        self.join()
        self._cable.close()

    def run(self) -> None:
        misfortunes: list[Callable[[], None]] = [self.die, self.freeze, self.be_cut_off, self.tear]
        while not self._over.wait(self._random.uniform(0.5, 3)):
            misfortune = self._random.choice(misfortunes)
            self.suffered[misfortune.__name__] += 1
            misfortune()

    def die(self) -> None:
        self._process.signal(signal.SIGKILL)
        self._for_a_while()
        self._process = self._new_process()

    def freeze(self) -> None:
        self._process.signal(signal.SIGSTOP)
        self._for_a_while()
        self._process.signal(signal.SIGCONT)

    def be_cut_off(self) -> None:
        self._cable.cut()
        self._for_a_while()
        self._cable.mend()

    def tear(self) -> None:
        self._cable.tear()

    def _for_a_while(self) -> None:
        """Shorter than a lease, or longer."""
        self._over.wait(self._random.uniform(0.2, 3))

    def _new_process(self) -> Any:
        there = self._made.job.with_values(ps_port=self._cable.port)
        return self._made.executor(self._rank, there)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_happens_to_executors_the_records_are_those_of_an_undisturbed_run(
    tmp_path: Path, seed: int, record_property: Callable[[str, object], None]
) -> None:
    keys = {**SMALL, **KEYS, "seed": seed}
    alone = run(make_job({**keys, "log_path": str(tmp_path / "alone")}))
    job = make_job({**keys, "log_path": str(tmp_path / "runs")})
    with team(job, tmp_path, EXECUTORS, start=False) as made:
        fates = [Fate(made, rank, seed) for rank in range(1, EXECUTORS + 1)]
        try:
            assert made.aggregator.ended(900) == 0, made.aggregator.said
        finally:
            for fate in fates:
                fate.end()
        same_records(made.run, alone)
        suffered = sum((fate.suffered for fate in fates), Counter())
        record_property("suffered", dict(suffered))
        record_property("given up", made.log.count("is given up"))
        # Fewer, and the test would show nothing; there are about as many as rounds.
        assert suffered.total() >= 5
