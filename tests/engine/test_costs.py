"""What goes to TensorBoard and to Weights & Biases beyond FedScale's own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import ROOT, run
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from fedsuv_plugin.config.job import Job
from fedsuv_plugin.records import read_run

POPULATION = str(ROOT / "device_traces" / "population_3500.npz")


def test_tensorboard_gets_energy_and_valid_share(job: Callable[..., Job]) -> None:
    path = run(job(device_conf_file=POPULATION, round_deadline=30, rounds=3))
    events = EventAccumulator(str(path / "tensorboard"))
    events.Reload()
    for record in read_run(path).rounds:
        number = record["round"] - 1
        joules = events.Scalars("Train/energy (J)")[number].value
        assert joules == pytest.approx(record["energy_joules"])
        share = events.Scalars("Train/valid share")[number].value
        assert share == pytest.approx(len(record["valid"]) / len(record["asked"]))


# A stand-in for the package: it notes what it is told. The real one was tried by hand, offline.
WANDB = """
import json
run = None
class config:
    update = staticmethod(lambda values: None)
def init(**options):
    global run
    run = object()
def finish():
    pass
def log(values, step):
    with open("logged.jsonl", "a") as f:
        f.write(json.dumps([step, values], default=lambda array: array.tolist()) + "\\n")
"""


def test_weights_and_biases_gets_what_a_round_costs_and_how_good_the_model_is(
    tmp_path: Path,
) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "wandb.py").write_text(WANDB)
    paths = os.pathsep.join([str(tmp_path / "site"), str(ROOT)])
    keys = [
        "wandb_token=secret",
        "rounds=2",
        "eval_interval=1",
        f"device_conf_file={POPULATION}",
        f"log_path={tmp_path / 'runs'}",
    ]
    words = [word for key in keys for word in ("--set", key)]
    job_file = str(ROOT / "configs" / "quickstart.yml")
    subprocess.run(
        [sys.executable, "-m", "fedsuv_plugin.cli", "run", job_file, "--quiet", *words],
        env={**os.environ, "PYTHONPATH": paths},
        cwd=tmp_path,
        check=True,
    )
    done = read_run(next((tmp_path / "runs").rglob("config.yml")).parent)
    logged: dict[int, dict[str, object]] = {}
    for line in (tmp_path / "logged.jsonl").read_text().splitlines():
        step, values = json.loads(line)
        logged.setdefault(step, {}).update(values)
    for record, metrics in zip(done.rounds, done.metrics[1:], strict=True):
        told = logged[record["round"]]
        assert told["Train/energy (J)"] == pytest.approx(record["energy_joules"])
        valid = len(record["valid"]) / len(record["asked"])
        assert told["Train/valid share"] == pytest.approx(valid)
        assert told["Test/accuracy"] == pytest.approx(metrics["accuracy"])
        assert told["Test/loss"] == pytest.approx(metrics["loss"])
        assert told["Train/round_duration (min)"] == pytest.approx(record["duration"] / 60)
        slowest = max(told["Train/client_duration (min)"])  # type: ignore[call-overload]
        assert slowest >= record["duration"] / 60  # in minutes too; FedScale logs seconds as such
        assert slowest < 60 * record["duration"]
