"""The run directory of a job that runs: made, written to, locked, and gone on from.

What is in it, and how it is read, is in `records.py`.
"""

from __future__ import annotations

import fcntl
import json
import shutil
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import IO, Any

import yaml

from fedsuv_plugin import wire
from fedsuv_plugin.atomic_file import replace_file
from fedsuv_plugin.config.job import Job
from fedsuv_plugin.config.job_file import by_full_path, load_job
from fedsuv_plugin.config.resolved import ResolvedJob, resolve
from fedsuv_plugin.environment import environment
from fedsuv_plugin.errors import UserError
from fedsuv_plugin.records import FORMAT, complete_lines, environment_of


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
        known = {**environment_of(self.path), **facts}
        _write(self.path / "environment.json", json.dumps(known, indent=2) + "\n")

    @classmethod
    def open(cls, path: str | Path, overrides: dict[str, object] | None = None) -> RunDirectory:
        """The directory of a job that is to go on."""
        path = Path(path)
        if not (path / "config.yml").is_file():
            raise UserError(f"{path}: not a run directory (it has no config.yml)")
        if environment_of(path).get("format") != FORMAT:
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
            records = complete_lines(self.path / file)
            kept = [record for record in records if record["round"] <= round_number]
            if file in self._open:
                self._open.pop(file).close()
            _write(self.path / file, "".join(json.dumps(record) + "\n" for record in kept))

    # ---- checkpoints

    def save_checkpoint(self, state: dict[str, Any]) -> None:
        self._checkpoint.parent.mkdir(exist_ok=True)
        content = wire.encode({"format": FORMAT, **state}, "checkpoint")
        replace_file(self._checkpoint, lambda file: file.write(content))

    def load_checkpoint(self) -> dict[str, Any] | None:
        if not self._checkpoint.is_file():
            return None
        # In a bytearray, so that the arrays can be written to.
        state: dict[str, Any] = wire.decode(bytearray(self._checkpoint.read_bytes()))
        if state.get("format") != FORMAT:
            raise UserError(
                f"{self._checkpoint}: written by another version of fedsuv_plugin; start the job "
                "anew"
            )
        return state

    def discard(self) -> None:
        """Remove the directory of a job that was refused before its first round."""
        self.close()
        begun = self._checkpoint.exists() or any(complete_lines(self.path / "rounds.jsonl"))
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
