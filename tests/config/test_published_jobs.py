"""The job files: each is checked to its last key, read by FedScale's driver and run at smoke scale.

The rule that makes a job smaller is tested in test_scales.py.
"""

from __future__ import annotations

import math
import os
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from conftest import ROOT, driver_commands, records, run, run_killed_and_resumed, same_records

from fedsuv_plugin import named
from fedsuv_plugin.cli import main
from fedsuv_plugin.config.argv import from_argv
from fedsuv_plugin.config.job import Job, make_job
from fedsuv_plugin.config.job_file import load_job
from fedsuv_plugin.config.scales import scaled
from fedsuv_plugin.errors import UserError
from fedsuv_plugin.run_directory import RunDirectory
from fedsuv_plugin.tasks.datasets import DATASETS
from fedsuv_plugin.tasks.federated_data import FederatedData, data_set, initial_model, public_set

CONFIGS = sorted((ROOT / "configs").rglob("*.yml"))
NAMES = [str(path.relative_to(ROOT / "configs")) for path in CONFIGS]
CPU = torch.device("cpu")
YOGI = [name for name in NAMES if name.startswith("fedsuv/")] + [
    "gpfl/cifar10_2spc.yml",
    "filfl/femnist.yml",
    "pczfl/cifar10.yml",
    "goal_directed/mnist_svm.yml",
]
PUBLISHED = {  # what the papers name: file -> (data, model, clients, participants, rounds)
    "fedsuv/cifar10_resnet18.yml": ("cifar10", "resnet18", 3500, 20, 1000),
    "fedsuv/cifar10_mobilenet.yml": ("cifar10", "mobilenet_v2", 3500, 20, 1000),
    "fedsuv/cifar100_shufflenet.yml": ("cifar100", "shufflenet_v2_x2_0", 3500, 20, 1000),
    "fedsuv/femnist_resnet18.yml": ("femnist", "resnet18", 3500, 20, 1000),
    "fedsuv/google_speech_resnet34.yml": ("google_speech", "resnet34", 2618, 20, 1000),
    **{
        f"gpfl/femnist_{setting}.yml": ("femnist", "mlp", 100, k, 500)
        for setting, k in (("1spc", 10), ("2spc", 5), ("dir", 5))
    },
    **{
        f"gpfl/cifar10_{setting}.yml": ("cifar10", "gpfl_cnn", 100, k, 2000)
        for setting, k in (("1spc", 10), ("2spc", 5), ("dir", 5))
    },
    "filfl/cifar10.yml": ("cifar10", "resnet18", 200, 10, 500),
    "filfl/femnist.yml": ("femnist", "filfl_cnn", 190, 5, 500),
    "filfl/shakespeare.yml": ("shakespeare", "char_lstm", 143, 10, 250),
    "pczfl/cifar10.yml": ("cifar10", "pczfl_cnn", 30, 5, 200),
    "pczfl/fmnist_cnn.yml": ("fmnist", "pczfl_cnn", 30, 5, 200),
}


def smoke(name: str, folder: Path, **values: object) -> Job:
    """A job file at smoke scale; on stand-in data where the real data is not here.

    The job's deadline is one for the whole population of phones. Of the two that are asked here
    perhaps nobody would meet it, and nothing would be trained, so it is put off."""
    given: dict[str, object] = {"log_path": str(folder), "stand_in": not is_here(name), **values}
    job = load_job(ROOT / "configs" / name)
    if job.config.round_deadline is not None:
        given["round_deadline"] = 1e6
    return scaled(load_job(ROOT / "configs" / name, given), "smoke", given)[0]


def is_here(name: str) -> bool:
    job = load_job(ROOT / "configs" / name)
    folder, root = DATASETS[job.config.data_set].folder, os.environ.get("FEDSUV_DATA")
    return not folder or root is not None and (Path(root) / folder).is_dir()


# ---- the files


@pytest.mark.parametrize("name", NAMES)
def test_a_job_file_is_sound_to_the_last_key(name: str) -> None:
    """Its keys are known and in their bounds, its selector is installed, its model fits its data.

    FedScale's driver makes command lines of it that mean the same job."""
    path = ROOT / "configs" / name
    job = load_job(path)
    assert job.config.sample_mode in named.installed()
    assert not job.extra  # nothing that has no effect
    for key in ("device_conf_file", "device_avail_file", "data_map_file"):
        file = getattr(job.config, key)
        assert file is None or (ROOT / file).is_file()
    initial_model(job.config)
    aggregator, executors = driver_commands(path, {}, "now")
    for rank, command in enumerate([aggregator, *executors]):
        same, place = from_argv(shlex.split(command)[2:])
        assert same.flat() == job.flat()
        assert (place.this_rank, place.num_executors) == (rank, len(executors))
        assert place.time_stamp == "now"


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_a_published_job_is_the_papers(name: str) -> None:
    config = load_job(ROOT / "configs" / name).config
    assert PUBLISHED[name] == (
        config.data_set,
        config.model,
        config.num_clients,
        config.num_participants,
        config.rounds,
    )
    assert config.sample_mode == name.partition("/")[0]


def test_fedsuvs_jobs_are_for_four_gpus_and_a_deadline() -> None:
    for name in PUBLISHED:
        if name.startswith("fedsuv/"):
            job = load_job(ROOT / "configs" / name)
            assert (job.config.round_deadline, job.config.use_cuda) == (100, True)
            assert job.config.device_avail_file == job.config.device_conf_file is not None
            assert job.config.local_epochs is None
            assert job.config.local_steps == (5 if "femnist" in name else 1)
            (worker,) = job.cluster["worker_ips"]
            gpus = worker.partition(":")[2]  # [processes on the first, on the second, ...]
            assert gpus.count(",") + 1 == 4


# ---- at smoke scale


@pytest.mark.parametrize("name", NAMES)
def test_a_job_file_runs_at_smoke_scale(name: str, tmp_path: Path) -> None:
    job = smoke(name, tmp_path)
    path = run(job)
    rounds, metrics = records(path), records(path, "metrics.jsonl")
    assert [record["round"] for record in rounds] == [1, 2]
    assert all(0 < len(record["valid"]) <= len(record["asked"]) for record in rounds)
    # The test loss need not be finite: two rounds of a few samples leave a deep network's BatchNorm
    # statistics useless.
    assert all(math.isfinite(record["train_loss"]) for record in rounds)
    assert metrics[-1]["round"] == 2


@pytest.mark.parametrize("name", YOGI)
def test_the_other_aggregation_is_one_key(name: str, tmp_path: Path) -> None:
    """Stand-in data: what is to be seen is the server's step, and it is the same for any data."""

    def one_round(policy: str) -> Path:
        keys = {"stand_in": True, "gradient_policy": policy, "rounds": 1}
        return run(smoke(name, tmp_path / policy, **keys))

    averaged = one_round("fed-avg")
    stepped = one_round("fed-yogi")
    assert [r["asked"] for r in records(averaged)] == [r["asked"] for r in records(stepped)]
    losses = [records(path, "metrics.jsonl")[-1]["loss"] for path in (averaged, stepped)]
    assert losses[0] != losses[1]


# ---- scales


def test_the_command_line_says_what_a_scale_changed_and_records_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ["run", str(ROOT / "configs" / "quickstart.yml"), "--scale", "smoke"]
    assert main([*words, "--set", "num_clients=9", "--set", f"log_path={tmp_path}"]) == 0
    err = capsys.readouterr().err
    assert "scale smoke: rounds: 60 -> 2\n" in err
    assert "num_clients" not in err
    path = next((tmp_path / "quickstart").iterdir())
    with_scale = RunDirectory.open(path)
    with_scale.close()
    assert (with_scale.job.config.rounds, with_scale.job.config.num_clients) == (2, 9)
    assert main(["run", "--resume", str(path), "--set", "rounds=3", "--quiet"]) == 0
    assert len(records(path)) == 3
    assert main(["run", "--resume", str(path), "--scale", "mini"]) == 2
    assert "only rounds can be changed" in capsys.readouterr().err


# ---- stand-in data


@pytest.mark.parametrize("name", ["cifar100", "femnist", "google_speech", "shakespeare", "Mnist"])
def test_stand_in_data_looks_like_the_data_set(name: str) -> None:
    config = make_job(
        {
            "data_set": name,
            "stand_in": True,
            "num_clients": 12,
            "synthetic_samples": 300,
            "partition": "natural" if DATASETS[name].clients else "iid",
        }
    ).config
    data = FederatedData(config, CPU)
    real = DATASETS[name](config)
    assert len(data.getSize()["size"]) == 12
    assert data.getSize()["size"].sum() == 300
    some = data.training(1)
    assert (some.x.shape[1:], some.x.dtype) == (real.shape, real.dtype)
    assert int(some.y.max()) < real.classes
    assert torch.equal(FederatedData(config, CPU).training(1).x, some.x)  # from the seed
    assert len(public_set(replace(config, public_fraction=0.1))) == 30


def test_stand_in_data_is_never_used_unasked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FEDSUV_DATA", str(tmp_path))
    job = scaled(load_job(ROOT / "configs" / "filfl" / "shakespeare.yml"), "smoke")[0]
    with pytest.raises(UserError, match="no such file"):
        data_set(job.config).load()


def test_a_run_on_stand_in_data_says_so(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["run", str(ROOT / "configs" / "gpfl" / "femnist_dir.yml"), "--scale", "smoke"]
    assert main([*words, "--stand-in", "--set", f"log_path={tmp_path}"]) == 0
    out, err = capsys.readouterr()
    assert "stand-in data: made-up samples in place of femnist" in err
    assert "on made-up stand-in data" in out
    path = next((tmp_path / "gpfl_femnist_dir").iterdir())
    assert "stand_in: true" in (path / "config.yml").read_text()


def test_a_scaled_job_that_was_killed_ends_with_the_same_numbers(tmp_path: Path) -> None:
    job = smoke("filfl/shakespeare.yml", tmp_path, stand_in=True, rounds=4, checkpoint_every=1)
    same_records(run(job), run_killed_and_resumed(job, 2))
