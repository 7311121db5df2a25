"""Resolved jobs: which data is kept for the selector's signals, and jobs without it are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fedsuv_plugin import cli
from fedsuv_plugin.config.job import Job
from fedsuv_plugin.config.resolved import resolve
from fedsuv_plugin.errors import UserError
from fedsuv_plugin.run_directory import RunDirectory

MakeJob = Callable[..., Job]
NEEDS_OPINIONS = "holdout_fraction: expected more than 0, because {} needs opinions, got 0.0"


@pytest.mark.parametrize(
    ("selector", "share", "message"),
    [
        ("quick_init_ucb", "holdout_fraction", NEEDS_OPINIONS.format("quick_init_ucb")),
        ("ucb", "holdout_fraction", NEEDS_OPINIONS.format("ucb")),
        ("bp_ucb", "holdout_fraction", NEEDS_OPINIONS.format("bp_ucb")),
        (
            "pczfl",
            "interview_fraction",
            "interview_fraction: expected more than 0, because pczfl needs interview_accuracy, "
            "got 0.0",
        ),
        (
            "filfl",
            "public_fraction",
            "public_fraction: expected more than 0 or a public_data_set, because filfl needs "
            "public_loss, got 0.0",
        ),
    ],
)
def test_a_selector_without_the_signal_it_lives_on_is_refused(
    job: MakeJob, tmp_path: Path, selector: str, share: str, message: str
) -> None:
    without = job(sample_mode=selector, **{share: 0})
    with pytest.raises(UserError) as error:
        RunDirectory.create(without)
    assert str(error.value) == message
    assert not list(tmp_path.iterdir())  # nothing is left behind


def test_the_refusal_names_the_selector_that_asks(job: MakeJob) -> None:
    inside = job(sample_mode="filfl", filfl__inner="pczfl", interview_fraction=0)
    with pytest.raises(UserError, match="because pczfl needs interview_accuracy, got 0.0"):
        resolve(inside)


def test_the_command_refuses_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = Path(__file__).parent.parent.parent / "configs" / "quickstart.yml"
    keys = ["sample_mode=ucb", "holdout_fraction=0", f"log_path={tmp_path / 'runs'}"]
    assert cli.main(["run", str(config), *(word for key in keys for word in ("--set", key))]) == 2
    assert capsys.readouterr().err.splitlines()[-1].endswith(NEEDS_OPINIONS.format("ucb"))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("selector", "keys"),
    [
        ("random", {"holdout_fraction": 0, "interview_fraction": 0, "public_fraction": 0}),
        # It has time slots, and its sets are given: it asks for no opinions.
        ("oracle", {"holdout_fraction": 0}),
        # The public set comes from elsewhere.
        ("filfl", {"public_fraction": 0, "public_data_set": "synthetic"}),
        ("pczfl", {"holdout_fraction": 0}),
    ],
)
def test_shares_that_the_selector_does_not_need_may_be_0(
    job: MakeJob, selector: str, keys: dict[str, object]
) -> None:
    resolved = resolve(job(sample_mode=selector, **keys))
    assert all(getattr(resolved.config, key) == value for key, value in keys.items())


@pytest.mark.parametrize(
    ("selector", "kept"),
    [
        ("random", (0.0, 0.0, 0.0)),
        ("ucb", (0.2, 0.0, 0.0)),
        ("pczfl", (0.0, 0.2, 0.0)),
        ("filfl", (0.0, 0.0, 0.05)),
    ],
)
def test_a_job_that_does_not_say_keeps_what_its_selector_needs(
    job: MakeJob, selector: str, kept: tuple[float, ...]
) -> None:
    resolved = resolve(job(sample_mode=selector))
    shares = (
        resolved.config.holdout_fraction,
        resolved.config.interview_fraction,
        resolved.config.public_fraction,
    )
    assert shares == kept
    assert resolve(resolved) == resolved
