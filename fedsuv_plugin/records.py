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

import fcntl
import json
import math
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import yaml

from fedsuv_plugin import safe_pickle
from fedsuv_plugin.atomic_file import replace_file
from fedsuv_plugin.config.job import Job
from fedsuv_plugin.config.job_file import by_full_path, load_job
from fedsuv_plugin.config.resolved import ResolvedJob, resolve
from fedsuv_plugin.environment import environment
from fedsuv_plugin.errors import UserError

if TYPE_CHECKING:
    from fedsuv_plugin.engine.rounds import Played
    from fedsuv_plugin.experiments.frames import Frames

Records = list[dict[str, Any]]  # the lines of rounds.jsonl or metrics.jsonl
FORMAT = 3  # of a run directory; those of version 0.1 have none


def round_record(played: Played, diagnostics: Mapping[str, Any]) -> dict[str, Any]:
    """A line of rounds.jsonl."""
    wasted = played.wasted
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
        # ... of these, what went into no model, because it was late, lost or rubbish, ...
        "wasted": {
            "client_time": float(played.settled.times[wasted].sum()),
            "energy_joules": float(played.settled.energy[wasted].sum()),
        },
        # ... and on top of it, probes and what was measured for signals. No clock moves for it.
        "probing": asdict(played.probing),
        "select_seconds": played.cohort.select_seconds,
        "selector": diagnostics,
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
        last = max((r["round"] for r in self.rounds), default=0)
        end = self.settings.get("stop_at_accuracy")
        there = [m for m in self.metrics if m["round"] == last]
        reached = end is not None and any(m["accuracy"] >= end for m in there)
        return reached or last == self.settings["rounds"]

    @property
    def rounds(self) -> Records:
        return list(_complete_lines(self.path / "rounds.jsonl"))

    @property
    def metrics(self) -> Records:
        return list(_complete_lines(self.path / "metrics.jsonl"))

    def frames(self) -> Frames:
        """The same as pandas data frames."""
        from fedsuv_plugin.experiments.frames import frames_of

        return frames_of([self])


def read_run(path: str | Path) -> Run:
    """The records of a run, finished or not."""
    path = Path(path)
    if not (path / "config.yml").is_file():
        raise UserError(f"{path}: not a run directory (it has no config.yml)")
    content = yaml.safe_load((path / "config.yml").read_text())
    settings = {key: value for entry in content["job_conf"] for key, value in entry.items()}
    return Run(path, settings, _environment_of(path))


def _environment_of(path: Path) -> dict[str, Any]:
    file = path / "environment.json"
    found: dict[str, Any] = json.loads(file.read_text()) if file.is_file() else {}
    return found


class RunDirectory:
    """The run directory of a job that runs.

    Records are appended as they come; a line half-written by a killed job is dropped when the job
    resumes."""

    def __init__(self, path: Path, job: ResolvedJob):
        self.path = path
        self.job = job
        self.events = path / "tensorboard"
        self._checkpoint = path / "checkpoint" / "state.pkl"
        self._open: dict[str, IO[str]] = {}
        self._lock = (path / "lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UserError(f"{path}: another job is writing to this run directory") from None

    @classmethod
    def create(cls, job: Job, time_stamp: str | None = None) -> RunDirectory:
        """A new directory <log_path>/<job_name>/<selector>-s<seed>-<time stamp>.

        A second one in the same second gets a number."""
        job = resolve(job)  # a job that is refused leaves no directory behind
        config = job.config
        parent = Path(config.log_path).expanduser() / config.job_name
        stamp = time_stamp or datetime.now().strftime("%Y%m%d-%H%M%S")
        first = f"{config.sample_mode}-s{config.seed}-{stamp}"
        _make_folder(parent)
        for name in [first, *(f"{first}-{n}" for n in range(2, 1000))]:
            with suppress(FileExistsError):
                (parent / name).mkdir()
                break
            if time_stamp is not None:
                raise UserError(
                    f"{parent / name}: this run directory exists already; pass another time_stamp"
                )
        return cls.begin(parent / name, job)

    @classmethod
    def begin(cls, path: Path, job: Job) -> RunDirectory:
        """A run directory in an empty folder, with the job, resolved."""
        run = cls(path, resolve(job))
        run._write_job()
        run.note(format=FORMAT, **environment(run.job))
        return run

    def _write_job(self) -> None:
        """config.yml has every key, and files by their full path: it is read from anywhere."""
        job_conf = [{key: by_full_path(key, value)} for key, value in self.job.every_key().items()]
        content = {**self.job.cluster, "job_conf": job_conf}
        _write(self.path / "config.yml", yaml.safe_dump(content, sort_keys=False))

    def note(self, **facts: Any) -> None:
        """Add to environment.json."""
        known = {**_environment_of(self.path), **facts}
        _write(self.path / "environment.json", json.dumps(known, indent=2) + "\n")

    @classmethod
    def open(cls, path: str | Path, overrides: dict[str, object] | None = None) -> RunDirectory:
        """The directory of a job that is to go on."""
        path = Path(path)
        if not (path / "config.yml").is_file():
            raise UserError(f"{path}: not a run directory (it has no config.yml)")
        if _environment_of(path).get("format") != FORMAT:
            raise UserError(
                f"{path}: written by another version of fedsuv_plugin; it can be read, but not "
                "resumed: start the job anew"
            )
        run = cls(path, resolve(load_job(path / "config.yml", overrides)))
        if overrides:
            run._write_job()  # or the run could not be resumed a second time
        return run

    # ---- records

    def append(self, file: str, record: Mapping[str, Any]) -> None:
        """One line to rounds.jsonl or metrics.jsonl, handed to the system at once."""
        if file not in self._open:
            self._open[file] = (self.path / file).open("a", encoding="utf-8")
        self._open[file].write(json.dumps(record, allow_nan=False) + "\n")
        self._open[file].flush()

    def rewind(self, round_number: int) -> None:
        """Forget what was recorded after a round: the job goes on from there."""
        for file in ("rounds.jsonl", "metrics.jsonl"):
            records = _complete_lines(self.path / file)
            kept = [record for record in records if record["round"] <= round_number]
            if file in self._open:
                self._open.pop(file).close()
            _write(self.path / file, "".join(json.dumps(record) + "\n" for record in kept))

    # ---- checkpoints

    def save_checkpoint(self, state: dict[str, Any]) -> None:
        self._checkpoint.parent.mkdir(exist_ok=True)
        content = safe_pickle.dumps({"format": FORMAT, **state})
        replace_file(self._checkpoint, lambda file: file.write(content))

    def load_checkpoint(self) -> dict[str, Any] | None:
        if not self._checkpoint.is_file():
            return None
        with self._checkpoint.open("rb") as file:
            state: dict[str, Any] = safe_pickle.load(file)
        if state.get("format") != FORMAT:
            raise UserError(
                f"{self._checkpoint}: written by another version of fedsuv_plugin; start the job "
                "anew"
            )
        return state

    def discard(self) -> None:
        """Remove the directory of a job that was refused before its first round."""
        self.close()
        begun = self._checkpoint.exists() or any(_complete_lines(self.path / "rounds.jsonl"))
        if not begun:
            shutil.rmtree(self.path)

    def close(self) -> None:
        for file in self._open.values():
            file.close()
        self._open.clear()
        self._lock.close()


def _make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"log_path: cannot make the folder {path} ({error.strerror})") from None


def _write(path: Path, text: str) -> None:
    replace_file(path, lambda file: file.write(text.encode()))


def _complete_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a JSON-lines file, up to the first line that was not written to its end."""
    if not path.is_file():
        return
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            if not line.endswith("\n"):
                return
            yield json.loads(line)
