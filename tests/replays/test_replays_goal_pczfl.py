"""The replays of the goal-directed paper and of PCZFL, small."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT

from fedsuv_plugin.cli import main
from fedsuv_plugin.config.job_file import load_job
from fedsuv_plugin.errors import UserError
from fedsuv_plugin.replays import REPLAYS
from fedsuv_plugin.replays.goal_directed import slots_table, slots_to
from fedsuv_plugin.replays.goal_directed_jobs import (
    CLIENTS,
    IID,
    IID_SIZES,
    METHODS,
    OTHER_SIZES,
    JobsParams,
    Trial,
    owners,
    selector_keys,
)
from fedsuv_plugin.replays.pczfl_fig3 import parse_epochs
from fedsuv_plugin.selectors.baselines.oracle import OracleParams

CONFIGS = ROOT / "configs"


@pytest.mark.parametrize("name", ["goal_directed/mnist_svm.yml", "pczfl/fmnist.yml"])
def test_the_job_files_are_valid(name: str) -> None:
    job = load_job(CONFIGS / name)
    assert job.config.sample_mode in ("quick_init_ucb", "pczfl")
    assert job.config.learning_rate_in(1000) == pytest.approx(job.config.learning_rate, rel=0.9)


@pytest.mark.parametrize("few", [1, 2])
def test_clients_1_to_5_are_iid_and_the_others_have_few_classes(few: int) -> None:
    labels = np.random.default_rng(0).integers(10, size=60_000)
    owner = owners(labels, few, np.random.default_rng(1))
    for client in range(CLIENTS):
        mine = labels[owner == client]
        assert len(np.unique(mine)) == (10 if client < IID else few)
        low, high = IID_SIZES if client < IID else OTHER_SIZES
        assert low <= len(mine) <= high
    assert len(np.unique(np.bincount(owner[owner >= 0]))) > 10  # sizes differ


@pytest.mark.parametrize("method", METHODS)
def test_every_method_is_a_valid_job(method: str) -> None:
    keys = selector_keys(method, trial=0, slots=7)
    job = load_job(CONFIGS / "goal_directed" / "mnist_svm.yml", keys)
    if method in ("optimal", "round_robin", "random"):
        params = job.params_of("oracle")
        assert isinstance(params, OracleParams)
        assert params.clients is not None
        sets = params.clients.split(";")
        assert len(sets) == {"optimal": 1, "round_robin": 5, "random": 7}[method]
    else:
        assert job.config.sample_mode == method


def test_slots_to_a_target_by_hand() -> None:
    trial = Trial([0.1, 0.9, 0.9, 0.9, 0.5], [0.0] * 5, [0] * 20)
    assert trial.average == pytest.approx([0.45, 0.6, 0.675, 0.64])  # t slots' sum over t + 1
    assert [slots_to(trial.average, target) for target in (0.5, 0.65, 0.7)] == [2, 3, None]
    steady = Trial([0.1] + [0.96] * 6, [0.0] * 7, [0] * 20)  # 0.48 0.64 0.72 0.768 0.8 0.823
    slow = Trial([0.1] + [0.93] * 6, [0.0] * 7, [0] * 20)  # 0.465 0.62 0.698 0.744 0.775 0.797
    rows = slots_table({"random": [steady, slow]}, JobsParams(slots=6)).rows
    assert [row[2] for row in rows] == ["4.50", "5.50", "> 6.00", "> 6.00"]
    assert [row[3] for row in rows] == ["4 5", "5 6", "6 -", "- -"]


def test_the_papers_optimal_set_has_one_reward() -> None:
    """What the replay's reading of table I rests on: four rows, one number."""
    table1 = [(6, 0.7683), (7, 0.7843), (11, 0.8217), (19, 0.8515)]
    rewards = [average * (t + 1) / t for t, average in table1]
    assert max(rewards) - min(rewards) < 2e-4  # four digits after the point, times 7/6
    trial = Trial([0.1] + [float(np.mean(rewards))] * 19, [0.0] * 20, [0] * 20)
    assert [slots_to(trial.average, target) for target in (0.75, 0.78, 0.82, 0.85)] == [
        t for t, _ in table1
    ]


@pytest.mark.parametrize("text", ["", "50,20", "a", "0", "1,1"])
def test_epochs_are_checked(text: str) -> None:
    with pytest.raises(UserError, match="epochs: expected ascending rounds"):
        parse_epochs(text)


@pytest.mark.parametrize("name", ["goal_directed/table1", "pczfl/fig3", "pczfl/energy"])
def test_without_the_data_it_says_so(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("FEDSUV_DATA", raising=False)
    given = [] if name == "pczfl/fig3" else ["--set", "workers=1"]
    assert main(["replay", name, *given, "-o", str(tmp_path)]) == 2
    assert "data_dir: this data set is read from disk" in capsys.readouterr().err


def test_all_are_listed() -> None:
    assert {
        "goal_directed/fig7",
        "goal_directed/fig9",
        "goal_directed/table1",
        "pczfl/energy",
        "pczfl/fig3",
    } <= set(REPLAYS.names())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("goal_directed/fig7", ["slots=6", "trials=1", "workers=1"]),
        ("goal_directed/fig9", ["slots=6", "trials=1", "workers=1"]),
        ("goal_directed/table1", ["slots=6", "trials=1", "workers=1"]),
        ("pczfl/fig3", ["epochs=0,4,8"]),
        ("pczfl/energy", ["seeds=1", "rounds=8", "workers=1"]),
    ],
)
def test_small(name: str, given: list[str], data_root: Path, tmp_path: Path) -> None:
    sets = [word for assignment in given for word in ("--set", assignment)]
    assert main(["replay", name, *sets, "-o", str(tmp_path)]) == 0
    assert (tmp_path / "report.md").read_text().startswith(f"# {name}")
    assert list(tmp_path.glob("*.png"))
