"""`fedsuv submit`: the commands of every host, and that they run the job."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
import yaml
from conftest import ROOT, driver_commands, run_commands, same_records

from fedsuv_plugin.cli import main
from fedsuv_plugin.config.argv import from_argv
from fedsuv_plugin.config.job_file import load_job
from fedsuv_plugin.engine import cluster
from fedsuv_plugin.engine.launchers.processes import free_port
from fedsuv_plugin.errors import UserError

QUICKSTART = ROOT / "configs" / "quickstart.yml"


@pytest.fixture
def two_hosts(tmp_path: Path) -> Path:
    """The quickstart on other hosts.

    Three executors are on two GPUs of one, and one executor is where the aggregator is."""
    content = yaml.safe_load(QUICKSTART.read_text())
    content |= {
        "ps_ip": "10.0.0.1",
        "worker_ips": ["10.0.0.2:[2, 1]", "10.0.0.1:[0,1]"],
        "auth": {"ssh_user": "ann"},
        "setup_commands": ["source ~/venv/bin/activate"],
    }
    path = tmp_path / "two hosts.yml"
    path.write_text(yaml.safe_dump(content))
    return path


def test_ranks_and_gpus_are_those_of_fedscales_driver(two_hosts: Path) -> None:
    job = load_job(two_hosts, {"job_name": "it's mine"})  # a name that a shell would take apart
    server, worker = cluster.commands(job, "now")
    assert (server.address, worker.address) == ("ann@10.0.0.1", "ann@10.0.0.2")
    assert server.setup == worker.setup == ("source ~/venv/bin/activate",)
    assert worker.aggregator is None
    assert server.aggregator is not None
    by_driver, executors = driver_commands(two_hosts, {"job_name": "mine"}, "now")
    ours = [server.aggregator, *worker.executors, *server.executors]  # in the order of their ranks
    for rank, (command, theirs) in enumerate(zip(ours, [by_driver, *executors], strict=True)):
        words = shlex.split(command)
        driven = shlex.split(theirs.replace("[2, 1]", "[2,1]"))
        assert words[:2] == driven[:2]
        same, place = from_argv(words[2:])
        _, expected = from_argv(driven[2:])
        assert same.flat() == job.flat()
        assert place == expected
        assert place.this_rank == rank
    assert [shlex.split(command)[-1] for command in ours[1:]] == [
        f"--cuda_device=cuda:{gpu}" for gpu in (0, 0, 1, 1)
    ]


def test_the_printed_commands_run_the_job(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    scale = [str(QUICKSTART), "--scale", "smoke", "--set"]
    there = [f"log_path={tmp_path / 'cluster'}", "--set", f"ps_port={free_port()}"]
    assert main(["submit", *scale, *there, "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert (lines[0], lines[-1]) == ("# ---- 127.0.0.1", "wait")
    commands = [line.removesuffix(" &") for line in lines[1:-1]]
    assert len(commands) == 3  # an aggregator and two executors
    run_commands(commands)
    assert main(["run", *scale, f"log_path={tmp_path / 'here'}", "--quiet"]) == 0
    cluster_run, own_run = (
        next((tmp_path / place / "quickstart").iterdir()) for place in ("cluster", "here")
    )
    same_records(cluster_run, own_run)


def test_without_dry_run_it_says_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["submit", str(QUICKSTART)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    reason = "fedsuv: submit: the cluster launcher is not there yet; "
    assert err.startswith(f"{reason}run the commands of `fedsuv submit --dry-run`")
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("worker_ips", None, "worker_ips: expected a list such as"),
        (
            "worker_ips",
            ["10.0.0.2"],
            r"worker_ips: expected host:\[executors on its first GPU.*, got '10.0.0.2'",
        ),
        ("worker_ips", ["10.0.0.2:[2,x]"], "worker_ips: expected host:"),
        ("worker_ips", ["10.0.0.2:[0]"], "with at least one executor, got '10.0.0.2:"),
        ("exp_path", None, "exp_path: expected a path such as fedsuv_plugin/engine, got None"),
        ("aggregator_entry", 3, "aggregator_entry: expected a path such as aggregator.py, got 3"),
        ("auth", "ann", "auth: expected ssh_user: <name>, got 'ann'"),
        ("setup_commands", "cd x", "setup_commands: expected a list of shell commands, got 'cd x'"),
    ],
)
def test_mistakes_in_where_it_runs(tmp_path: Path, key: str, value: object, message: str) -> None:
    path = tmp_path / "job.yml"
    path.write_text(yaml.safe_dump({**yaml.safe_load(QUICKSTART.read_text()), key: value}))
    with pytest.raises(UserError, match=message):
        cluster.commands(load_job(path), "now")
