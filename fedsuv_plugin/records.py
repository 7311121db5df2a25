"""The run directory: what a job was, what happened in it, and where it can go on from.

    config.yml         the resolved job; `fedsuv run --resume` reads it
    environment.json   versions, seed, git revision, command, format of the directory
    rounds.jsonl       one line a round: see `round_record`
    metrics.jsonl      one line an evaluation: see `metrics_record`
    checkpoint/        the state after the last checkpointed round, replaced as a whole
    tensorboard/, log  what FedScale writes

Wall times end in `_seconds`; everything else is the same whenever and wherever a job is run.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from fedsuv_plugin.config.job_file import load_job
from fedsuv_plugin.config.resolved import ResolvedJob, resolve
from fedsuv_plugin.errors import UserError

if TYPE_CHECKING:
    from fedsuv_plugin.engine.rounds import Late, Played
    from fedsuv_plugin.experiments.frames import Frames

SAFE = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast, where it is there
Records = list[dict[str, Any]]  # the lines of rounds.jsonl or metrics.jsonl
BLOCK = 1 << 16  # bytes that hold the last line, but for rounds of very many clients
FORMAT = 4  # of a run directory; those of version 0.1 have none


def round_record(played: Played, diagnostics: Mapping[str, Any]) -> dict[str, Any]:
    """A line of rounds.jsonl."""
    late = played.trained.late
    return {
        "round": played.round.number,
        "clock": played.round.clock + played.settled.seconds,  # virtual seconds when it is over
        "duration": played.settled.seconds,
        "asked": played.cohort.clients.tolist(),  # FedScale's ids, ascending
        "valid": sorted(played.trained.reports),  # of these, whose update was merged
        "train_loss": played.trained.mean_loss,  # mean of the valid; null: there was none
        # What the round cost: virtual seconds, joules, traffic of all who were asked, ...
        "client_time": float(played.settled.times.sum()),
        "energy_joules": played.settled.joules,
        "megabytes": played.settled.megabytes,  # down and up
        # ... of these, what goes into no model, because it was late, lost or rubbish (with late
        # updates: also what was given up in this round, whenever it was asked for), ...
        "wasted": asdict(played.wasted),
        **({} if late is None else _late_record(played, late)),
        # ... and on top of it, probes and what was measured for signals. No clock moves for it.
        "probing": asdict(played.probing),
        "select_seconds": played.cohort.select_seconds,
        "selector": diagnostics,
    }


def _late_record(played: Played, late: Late) -> dict[str, Any]:
    """What a round of a selector that takes late updates says of them."""
    return {
        # Updates of earlier rounds that were merged: client, asked_in, staleness, weight.
        "late": [asdict(update) for update in late.merged],
        # In time, but not needed: they count from the next round on (`safa`).
        "undrafted": sorted(
            [*played.settled.undrafted.tolist(), *played.settled.arrived_undrafted.tolist()]
        ),
        # What has not arrived when the round is over, and what it has cost.
        "on_the_way": {"clients": list(late.on_the_way), **asdict(late.under_way)},
    }


def metrics_record(
    round_number: int,
    clock: float,
    performance: Mapping[str, float],
    opinions: Mapping[str, float],
) -> dict[str, Any]:
    """A line of metrics.jsonl: the global model after a round; round 0 is the untrained one.

    Where clients hold out samples, `clients_mean` and `clients_worst_tenth` are its accuracy on
    theirs."""
    return {
        "round": round_number,
        "clock": clock,
        "accuracy": performance["top_1"],
        "accuracy_top5": performance["top_5"],
        "loss": finite_or_none(performance["loss"]),
        **opinions,
    }


def finite_or_none(value: float) -> float | None:
    """JSON has no NaN: a loss that overflowed is written as null."""
    return value if math.isfinite(value) else None


@dataclass(frozen=True)
class Run:
    """What is in a run directory, of this version or of one before.

    Records are read from the disk each time they are asked for: a study may hold hundreds of
    thousands of rounds, too many to keep in memory all at once."""

    path: Path
    settings: dict[str, Any]  # the keys of the job
    environment: dict[str, Any]

    @property
    def job(self) -> ResolvedJob:
        return resolve(load_job(self.path / "config.yml"))

    @property
    def finished(self) -> bool:
        """Whether the job is over: its last round, or the accuracy at which it was to end, is
        recorded, with the round that it came from."""
        played = _last_line(self.path / "rounds.jsonl")
        tested = _last_line(self.path / "metrics.jsonl")
        last = played["round"] if played else 0
        end = self.settings.get("stop_at_accuracy")
        if end is not None and tested and tested["round"] == last and tested["accuracy"] >= end:
            return True
        return bool(last == self.settings["rounds"])

    @property
    def rounds(self) -> Records:
        return list(complete_lines(self.path / "rounds.jsonl"))

    @property
    def metrics(self) -> Records:
        return list(complete_lines(self.path / "metrics.jsonl"))

    def frames(self) -> Frames:
        """The same as pandas data frames."""
        from fedsuv_plugin.experiments.frames import frames_of

        return frames_of([self])


def read_run(path: str | Path) -> Run:
    """The records of a run, finished or not."""
    path = Path(path)
    if not (path / "config.yml").is_file():
        raise UserError(f"{path}: not a run directory (it has no config.yml)")
    content = yaml.load((path / "config.yml").read_text(), Loader=SAFE)
    settings = {key: value for entry in content["job_conf"] for key, value in entry.items()}
    return Run(path, settings, environment_of(path))


def environment_of(path: Path) -> dict[str, Any]:
    file = path / "environment.json"
    found: dict[str, Any] = json.loads(file.read_text()) if file.is_file() else {}
    return found


def complete_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a JSON-lines file, up to the first line that was not written to its end."""
    return map(json.loads, _texts(path))


def _last_line(path: Path) -> dict[str, Any] | None:
    """The last of them; the file is read from its end, as far as is needed."""
    if not path.is_file():
        return None
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        read = 0
        while True:
            read = min(max(2 * read, BLOCK), size)
            file.seek(size - read)
            lines = file.read(read).split(b"\n")[:-1]  # after the last newline nothing is complete
            if len(lines) > 1 or read == size:
                return json.loads(lines[-1].decode(errors="replace")) if lines else None


def _texts(path: Path) -> Iterator[str]:
    if not path.is_file():
        return
    with path.open(encoding="utf-8", errors="replace") as file:
        yield from takewhile(lambda line: line.endswith("\n"), file)
