"""The fingerprint of a job: what aggregator and executors must agree on, and what they need not."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import MakeJob

from fedsuv_plugin.config.argv import from_argv
from fedsuv_plugin.config.fingerprint import differences, fingerprint
from fedsuv_plugin.config.job import Job
from fedsuv_plugin.config.resolved import resolve


def of(job: Job) -> dict[str, object]:
    return fingerprint(resolve(job))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("seed", 4),
        ("batch_size", 9),
        ("torch_threads", 2),
        ("executor_timeout", 5.0),
        ("job_name", "other"),
        ("sample_mode", "fedsuv"),
        ("holdout_fraction", 0.1),
    ],
)
def test_whatever_the_numbers_depend_on_counts(job: MakeJob, key: str, value: object) -> None:
    assert f"{key}: " in differences(of(job()), of(job(**{key: value})))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("log_path", "/elsewhere"),
        ("data_dir", "/mnt/data"),
        ("ps_ip", "10.0.0.1"),
        ("ps_port", 3000),
        ("use_cuda", True),
        ("insecure", True),
        ("connection_timeout", 5),
        ("late_budget_mb", 1),
        ("wandb_token", "a secret of its own"),
        ("oort__exploration_min", 0.1),  # of a selector that is not in use
    ],
)
def test_what_a_host_has_its_own_of_does_not(job: MakeJob, key: str, value: object) -> None:
    assert differences(of(job()), of(job(**{key: value}))) == ""
    assert key not in of(job(**{key: value}))


def test_parameters_of_the_selector_in_use_and_of_the_one_inside_it_count(job: MakeJob) -> None:
    wrapped = {"sample_mode": "filfl", "filfl__inner": "oort"}
    other = of(job(**wrapped, oort__exploration_min=0.1))
    here = differences(of(job(**wrapped)), other)
    assert here == "oort.exploration_min: 0.3 here, 0.1 there"


def test_of_the_map_file_the_content_counts_and_not_its_place(job: MakeJob, tmp_path: Path) -> None:
    one, same, other = (tmp_path / name for name in ("one.csv", "same.csv", "other.csv"))
    one.write_text("client_id,sample_path,label_name,label_id\n1,0,0,0\n")
    same.write_text(one.read_text())
    other.write_text("client_id,sample_path,label_name,label_id\n2,0,0,0\n")
    here = of(job(data_map_file=str(one)))
    assert differences(here, of(job(data_map_file=str(same)))) == ""
    assert "data_map_file" in differences(here, of(job(data_map_file=str(other))))
    # The host of the aggregator may do without data.
    assert differences(of(job(data_map_file="/nowhere.csv")), here) == ""


def test_an_executor_started_by_a_command_line_has_the_fingerprint_of_its_aggregator(
    job: MakeJob,
) -> None:
    """Also where the job spells out parameters that are the defaults."""
    made = job(sample_mode="oort", oort__exploration_min=0.3, fedsuv__rho=0.4, late_budget_mb=5)
    again, _ = from_argv(resolve(made).to_argv())
    assert differences(of(made), of(again)) == ""


def test_a_message_names_what_differs_and_is_not_long() -> None:
    here = {"seed": 3, "model": "lr"}
    assert differences(here, {"seed": 4, "model": "lr"}) == "seed: 3 here, 4 there"
    assert differences(here, {"seed": 3}) == "model: lr here, nothing there"
    assert differences(here, {"seed": 3.0, "model": "lr"}) == "seed: 3 here, 3.0 there"
    many = {f"key{i}": 0 for i in range(9)}
    named = differences(many, dict.fromkeys(many, "x" * 10**6))
    assert named.startswith("key0: 0 here, xxx")
    assert named.endswith("; and 4 more")
    assert len(named) < 600


@pytest.mark.parametrize("stranger", [None, [], "\x1b[2J", 3])
def test_what_is_no_fingerprint_differs(stranger: object) -> None:
    assert differences({"seed": 3}, stranger) == "it does not say which job it is for"
    assert differences({"seed": 3}, {"seed": "\x1b[2J"}) == r"seed: 3 here, \x1b[2J there"
