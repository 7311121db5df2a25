"""What the tests share: jobs on small worlds, their records, and the real data where it is at hand."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from fedsuv_plugin import named
from fedsuv_plugin.config.job import Job, make_job
from fedsuv_plugin.engine.client_manager import SelectorClientManager
from fedsuv_plugin.engine.launchers import run_job
from fedsuv_plugin.records import RunDirectory

ROOT = Path(__file__).parent.parent
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
def job(tmp_path: Path) -> Callable[..., Job]:
    """A small job, with the given keys over its own; `oort.x` is spelt oort__x."""

    def make(**values: object) -> Job:
        keys = {key.replace("__", "."): value for key, value in values.items()}
        return make_job({**SMALL, "log_path": str(tmp_path / "runs"), **keys})

    return make


@pytest.fixture
def data_root() -> Path:
    """The folder of real data sets, or a skip that says how to get it."""
    root = os.environ.get("FEDSUV_DATA")
    if not root:
        pytest.skip("FEDSUV_DATA is not set: no real data sets on this machine")
    return Path(root)


def records(path: Path, file: str = "rounds.jsonl") -> list[dict[str, Any]]:
    """The lines of a record file, without what is measured in wall time: every key that ends in _seconds."""

    def timeless(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        return {key: value for key, value in pairs if not key.endswith("_seconds")}

    return [
        json.loads(line, object_pairs_hook=timeless)
        for line in (path / file).read_text().splitlines()
    ]


def run(job: Job, **options: Any) -> Path:
    """A job run to its end; its run directory."""
    directory = RunDirectory.create(job)
    assert run_job(directory, **options)
    return directory.path


class Killed(BaseException):
    """Stands for kill -9 within one process: nothing of the job gets to clean up what it was writing."""


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
    original, name = named.client_manager_class, manager.selector_class.name
    monkeypatch.setattr(
        named,
        "client_manager_class",
        lambda wanted, points=None: manager if wanted == name else original(wanted, points),
    )


# ---- a job as separate processes


def driver_commands(
    config: Path, overrides: dict[str, object], time_stamp: str
) -> tuple[str, list[str]]:
    """The command lines that FedScale's docker/driver.py builds from a job file: every entry of job_conf as a flag,
    then who is who."""
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
