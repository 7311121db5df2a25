"""Job keys of training and availability: on the command line, and values that mean nothing."""

from __future__ import annotations

import pytest
from conftest import DEVICES, SMALL, MakeJob

from fedsuv_plugin.config.argv import from_argv
from fedsuv_plugin.config.job import make_job
from fedsuv_plugin.errors import UserError


def test_the_keys_survive_the_command_line(job: MakeJob) -> None:
    made = job(
        local_epochs=2,
        available_clients=8,
        available_every=2,
        data_fraction=0.6,
        test_samples=70,
        partition="dirichlet_qp",
        device_conf_file=DEVICES,
        round_deadline=60.0,
        rounds=7,
        checkpoint_every=3,
        warmup_rounds=2,
    )
    assert from_argv(made.to_argv())[0].config == made.config


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("local_epochs", 0, "local_epochs: expected an integer >= 1 or none, got 0"),
        ("data_fraction", 0, "data_fraction: expected a number > 0 and <= 1, got 0"),
        ("data_fraction", 1.5, "data_fraction: expected"),
        ("test_samples", 0, "test_samples: expected"),
        ("available_clients", 0, "available_clients: expected"),
        ("available_every", 0, "available_every: expected"),
    ],
)
def test_values_that_mean_nothing(key: str, value: object, message: str) -> None:
    with pytest.raises(UserError, match=message):
        make_job({**SMALL, key: value})
