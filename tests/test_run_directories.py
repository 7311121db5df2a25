"""Run directories: every key is recorded, and a run can be gone on with from anywhere, again."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest
import yaml
from conftest import ROOT, run, same_records

from fedsuv_plugin.cli import main
from fedsuv_plugin.config.job import Job
from fedsuv_plugin.config.keys import JobConfig
from fedsuv_plugin.engine.launchers import run_job
from fedsuv_plugin.records import read_run
from fedsuv_plugin.run_directory import RunDirectory

MakeJob = Callable[..., Job]


def test_every_key_is_recorded_with_all_parameters_of_the_selectors_in_use(job: MakeJob) -> None:
    path = run(job(sample_mode="filfl", filfl__inner="oort", pow_d__d=7, rounds=1))
    content = yaml.safe_load((path / "config.yml").read_text())
    keys = {key: value for entry in content["job_conf"] for key, value in entry.items()}
    assert {f.name for f in fields(JobConfig)} <= keys.keys()
    assert (keys["sample_mode"], keys["rounds"], keys["overcommitment"]) == ("filfl", 1, 1.3)
    assert (keys["filfl.variant"], keys["filfl.inner"], keys["pow_d.d"]) == ("dgf", "oort", 7)
    assert "oort.exploration_factor" in keys
    assert keys["public_fraction"] == 0.05
    assert keys["holdout_fraction"] == 0


def test_a_directory_is_named_by_selector_seed_and_time(job: MakeJob) -> None:
    path = run(job(sample_mode="oort", seed=5, rounds=1))
    assert path.name.startswith("oort-s5-2")
    assert path.parent.name == "test"


def test_how_much_data_the_clients_have_is_recorded(job: MakeJob) -> None:
    """The same job keeps different shares for different selectors."""
    whole = read_run(run(job(rounds=1))).environment
    less = read_run(run(job(rounds=1, sample_mode="ucb", ucb__slot_rounds=2))).environment
    assert whole["clients"] == less["clients"] == 20
    assert whole["training_samples"] == 600
    assert less["training_samples"] < 500  # a fifth of each client's samples, rounded down, is kept


def test_a_lengthened_run_can_be_resumed_again(job: MakeJob) -> None:
    path = run(job(rounds=2))
    assert run_job(RunDirectory.open(path, {"rounds": 4}))
    again = RunDirectory.open(path)
    assert again.job.config.rounds == 4
    assert run_job(again)
    same_records(path, run(job(rounds=4)))


def test_a_run_is_resumed_from_another_folder(
    job: MakeJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here" / "traces").mkdir(parents=True)
    trace = ROOT / "device_traces" / "population_3500.npz"
    (tmp_path / "here" / "traces" / "p.npz").write_bytes(trace.read_bytes())
    monkeypatch.chdir(tmp_path / "here")
    # The run is kept where no folder above it leads to the trace.
    there = str(tmp_path / "there" / "runs")
    path = run(job(rounds=2, device_conf_file="traces/p.npz", log_path=there))
    monkeypatch.chdir(tmp_path)
    assert main(["run", "--resume", str(path), "--set", "rounds=3", "--quiet"]) == 0
    assert [r["round"] for r in read_run(path).rounds] == [1, 2, 3]


def test_an_aggregator_whose_port_is_taken_leaves_nothing_behind(
    job: MakeJob, tmp_path: Path
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        busy = job(ps_port=taken.getsockname()[1])
        entry = str(ROOT / "fedsuv_plugin" / "engine" / "aggregator.py")
        words = [*busy.to_argv(), "--this_rank=0", "--num_executors=1", "--time_stamp=now"]
        done = subprocess.run([sys.executable, entry, *words], capture_output=True, text=True)
    assert done.returncode == 2
    assert "cannot listen on 127.0.0.1:" in done.stderr
    assert not list((tmp_path / "runs").rglob("config.yml"))


@pytest.mark.parametrize("launcher", ["loopback", "processes"])
def test_a_job_may_have_some_of_the_clients_only(
    job: MakeJob, tmp_path: Path, launcher: str
) -> None:
    (tmp_path / "some.txt").write_text("2, 5\n8-10\n17\n")
    some = {2, 5, 8, 9, 10, 17}
    paths = [
        run(job(only_clients=given, rounds=4, holdout_fraction=0.2), launcher=launcher)
        for given in ("2,5,8-10,17", str(tmp_path / "some.txt"), [2, 5, 8, 9, 10, 17])
    ]
    asked = {client for record in read_run(paths[0]).rounds for client in record["asked"]}
    assert asked <= some
    assert len(asked) == 6  # of whom five are asked in each of four rounds
    assert read_run(paths[0]).environment["clients"] == 6
    for other in paths[1:]:
        same_records(paths[0], other)
