"""What the tests share: jobs on small worlds, their records, and real data where it is at hand."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml

from fedsuv_plugin import named
from fedsuv_plugin.config.job import Job, make_job
from fedsuv_plugin.engine.client_manager import SelectorClientManager
from fedsuv_plugin.engine.launchers import run_job
from fedsuv_plugin.run_directory import RunDirectory

MakeJob = Callable[..., Job]
ROOT = Path(__file__).parent.parent
DEVICES = str(ROOT / "device_traces" / "population_3500.npz")
SMALL: dict[str, object] = {
    "job_name": "test",
    "data_set": "synthetic",
    "synthetic_samples": 600,
    "synthetic_dim": 8,
    "synthetic_classes": 4,
    "num_clients": 20,
    "partition": "dirichlet",
    "model": "lr",
    "num_participants": 4,
    "rounds": 6,
    "local_steps": 3,
    "batch_size": 8,
    "eval_interval": 2,
    "seed": 3,
}


@pytest.fixture
def job(tmp_path: Path) -> MakeJob:
    """A small job, with the given keys over its own; `oort.x` is spelt oort__x."""

    def make(**values: object) -> Job:
        keys = {key.replace("__", "."): value for key, value in values.items()}
        return make_job({**SMALL, "log_path": str(tmp_path / "runs"), **keys})

    return make


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    """The tests' small job, as a file."""
    path = tmp_path / "small.yml"
    path.write_text(yaml.safe_dump({"job_conf": [{key: value} for key, value in SMALL.items()]}))
    return path


@pytest.fixture
def data_root() -> Path:
    """The folder of real data sets, or a skip that says how to get it."""
    root = os.environ.get("FEDSUV_DATA")
    if not root:
        pytest.skip("FEDSUV_DATA is not set: no real data sets on this machine")
    return Path(root)


def records(path: Path, file: str = "rounds.jsonl") -> list[dict[str, Any]]:
    """The lines of a record file without wall times, which are the keys that end in _seconds."""

    def timeless(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        return {key: value for key, value in pairs if not key.endswith("_seconds")}

    lines = (path / file).read_text().splitlines()
    return [json.loads(line, object_pairs_hook=timeless) for line in lines]


def checkpoint(path: Path) -> dict[str, Any]:
    """The last checkpoint of a run."""
    with closing(RunDirectory.open(path)) as directory:
        state = directory.load_checkpoint()
    assert state is not None
    return state


def run(job: Job, **options: Any) -> Path:
    """A job run to its end; its run directory."""
    directory = RunDirectory.create(job)
    assert run_job(directory, **options)
    return directory.path


class Killed(BaseException):
    """Stands for kill -9 within one process: nobody cleans up what the job was writing."""


def run_killed_and_resumed(job: Job, last_round: int) -> Path:
    """The same job, killed when `last_round` is recorded and gone on with."""
    directory = RunDirectory.create(job)

    def kill(record: dict[str, Any], metrics: object) -> None:
        if record["round"] == last_round:
            raise Killed

    with pytest.raises(Killed):
        run_job(directory, on_round=kill)
    assert run_job(RunDirectory.open(directory.path))
    return directory.path


def same_records(one: Path, other: Path) -> None:
    for file in ("rounds.jsonl", "metrics.jsonl"):
        assert records(one, file) == records(other, file)


def install(monkeypatch: pytest.MonkeyPatch, manager: type[SelectorClientManager]) -> None:
    """A client manager of a test, registered under its selector's name in this process."""
    original = named.client_manager_class
    name = manager.selector_class.name

    def found(wanted: str, points: Any = None) -> type:
        return manager if wanted == name else original(wanted, points)

    monkeypatch.setattr(named, "client_manager_class", found)


# ---- a job as separate processes


def driver_commands(
    config: Path, overrides: dict[str, object], time_stamp: str
) -> tuple[str, list[str]]:
    """The command lines that FedScale's docker/driver.py builds from a job file.

    Every entry of job_conf is a flag; then comes who is who."""
    content = yaml.safe_load(config.read_text())
    flags = {"time_stamp": time_stamp, "ps_ip": content["ps_ip"]}
    for entry in content["job_conf"]:
        flags.update(entry)
    flags.update(overrides)  # what the test changes, as if it stood in the file
    conf = " ".join(
        f"--{key} {value}" if i % 2 else f"--{key}={value}"
        for i, (key, value) in enumerate(flags.items())
    )
    gpus = [yaml.safe_load(worker.partition(":")[2]) for worker in content["worker_ips"]]
    total = sum(sum(per_gpu) for per_gpu in gpus)
    configs = "=".join(content["worker_ips"])
    aggregator = (
        f"python {content['exp_path']}/{content['aggregator_entry']} {conf} --this_rank=0 "
        f"--num_executors={total} --executor_configs={configs}"
    )
    cuda = [i for per_gpu in gpus for i, processes in enumerate(per_gpu) for _ in range(processes)]
    return aggregator, [
        f"python {content['exp_path']}/{content['executor_entry']} {conf} --this_rank={rank} "
        f"--num_executors={total} --cuda_device=cuda:{i}"
        for rank, i in enumerate(cuda, start=1)
    ]


def run_commands(commands: list[str]) -> None:
    """Command lines of one job, all at once, from the repository's folder; each must end well."""
    processes = [
        subprocess.Popen(
            [sys.executable, *shlex.split(command)[1:]],
            cwd=ROOT,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for command in commands
    ]
    for process in processes:
        _, err = process.communicate(timeout=300)
        assert process.returncode == 0, err


def start_command(job: Job, *words: str) -> subprocess.Popen[str]:
    """`fedsuv run` in a process of its own, on the job's file unless other words are given."""
    file = Path(job.config.log_path).parent / "job.yml"
    file.write_text(json.dumps({"job_conf": [{k: v} for k, v in job.flat().items()]}))
    return subprocess.Popen(
        [sys.executable, "-m", "fedsuv_plugin.cli", "run", *(words or (str(file),))],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def wait_for_rounds(job: Job, n: int) -> Path:
    """The job's run directory, once n rounds stand in it."""
    parent = Path(job.config.log_path) / job.config.job_name
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        for path in parent.glob("*/rounds.jsonl"):
            if path.read_text().count("\n") >= n:
                return path.parent
        time.sleep(0.01)
    raise AssertionError(f"no {n} rounds within five minutes")
