"""Jobs that somebody else starts: FedScale's driver, and our own scripts as it calls them."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import ROOT, MakeJob, driver_commands, run, run_commands, same_records

from fedsuv_plugin.config.job_file import load_job
from fedsuv_plugin.engine.launchers import LAUNCHERS, aggregator_main
from fedsuv_plugin.engine.launchers.processes import free_port


def test_there_are_these() -> None:
    assert sorted(LAUNCHERS) == ["loopback", "processes"]


def test_the_command_lines_of_fedscales_driver_run_the_job(tmp_path: Path) -> None:
    config = ROOT / "configs" / "quickstart.yml"
    there = {"rounds": 5, "log_path": tmp_path / "cluster", "ps_port": free_port()}
    aggregator, executors = driver_commands(config, there, "1118_120000")
    assert len(executors) == 2
    run_commands([aggregator, *executors])
    here = run(load_job(config, {"rounds": 5, "log_path": str(tmp_path / "here")}))
    same_records(tmp_path / "cluster" / "quickstart" / "random-s1-1118_120000", here)


def test_an_aggregator_whose_executors_do_not_come_ends_in_one_line(
    job: MakeJob, capsys: pytest.CaptureFixture[str]
) -> None:
    lonely = job(ps_port=free_port(), connection_timeout=1)
    assert aggregator_main([*lonely.to_argv(), "--this_rank=0", "--num_executors=2"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("aggregator: expected 2 executors within 1 s, 0 came")
    assert len(err.splitlines()) == 1


def test_a_mistake_on_an_aggregators_command_line_is_one_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert aggregator_main(["--rounds=no"]) == 2
    assert capsys.readouterr().err == "aggregator: rounds: expected an integer >= 1, got 'no'\n"
