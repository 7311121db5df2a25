"""The replays of GPFL and FilFL, small: on digits, a few rounds, so that numbers mean nothing."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import yaml

from fedsuv_plugin.config.job_file import load_job
from fedsuv_plugin.replays import CONFIGS, REPLAYS
from fedsuv_plugin.replays.filfl_fig6 import every_value
from fedsuv_plugin.replays.filfl_noisy import drop_rates
from fedsuv_plugin.replays.gpfl_table2 import rounds_to_all

JOBS = {
    "gpfl/table2": "gpfl/mnist_shards.yml",
    "filfl/noisy": "filfl/mnist_noisy.yml",
    "filfl/fig6": "filfl/mnist_ratio.yml",
}


@pytest.fixture
def on_digits(tmp_path: Path) -> dict[str, str]:
    """The replays' own job files, with digits for MNIST and 12 clients."""
    small = {"data_set": "digits", "num_clients": 12, "public_fraction": 0.05}
    files = {}
    for replay, name in JOBS.items():
        content = yaml.safe_load((CONFIGS / name).read_text())
        content["job_conf"] = [
            entry for entry in content["job_conf"] if not entry.keys() & small.keys()
        ]
        content["job_conf"] += [{key: value} for key, value in small.items()]
        files[replay] = str(tmp_path / name.replace("/", "_"))
        Path(files[replay]).write_text(yaml.safe_dump(content))
    return files


@pytest.mark.parametrize(
    ("name", "settings", "methods"),
    [
        ("gpfl/table2", {"rounds": 10}, ["random", "pow_d", "gpfl"]),
        ("filfl/noisy", {"rounds": 12}, ["random", "filfl dgf, random", "filfl rgf, random"]),
        (
            "filfl/noisy",
            {"rounds": 10, "weights": "fresh", "partition": "iid", "inner": "pow_d"},
            ["pow_d", "filfl dgf, pow_d", "filfl rgf, pow_d"],
        ),
        ("filfl/fig6", {"rounds": 2, "every": 1, "available": 4}, ["dgf", "rgf"]),
    ],
)
def test_a_replay_reports_every_method_and_is_the_same_again(
    on_digits: dict[str, str],
    tmp_path: Path,
    name: str,
    settings: dict[str, object],
    methods: list[str],
) -> None:
    cls = REPLAYS[name]
    params = cls.Params.from_mapping(
        {"seeds": 1, "workers": 1, "config": on_digits[name], **settings}
    )
    reports = [
        cls(params).run(tmp_path, lambda line: None)
        for _ in range(2 if name == "filfl/fig6" else 1)
    ]
    assert list(reports[0].data) == methods
    assert all((tmp_path / figure).stat().st_size > 0 for figure in reports[0].figures)
    assert reports[0].text() == reports[-1].text()
    reports[0].save(tmp_path, name)
    assert (tmp_path / "report.md").read_text().startswith(f"# {name}")


@pytest.mark.parametrize("name", JOBS.values())
def test_the_job_files_are_sound(name: str) -> None:
    job = load_job(CONFIGS / name)
    assert job.config.partition == "shards"
    assert job.config.shards_per_client == 2
    assert job.config.mlp_hidden == "64,30"


def test_every_subset_has_its_value_as_in_plain_loops() -> None:
    rng = np.random.default_rng(0)
    updates, target = rng.normal(size=(6, 3)), rng.normal(size=3)

    def value(total: np.ndarray, count: int) -> float:
        return -float(((total / count - target) ** 2).sum())

    every = [list(s) for size in range(1, 7) for s in itertools.combinations(range(6), size)]
    expected = sorted(value(updates[s].sum(axis=0), len(s)) for s in every)
    assert sorted(every_value(updates, value).tolist()) == pytest.approx(expected)


def test_drop_rates_by_hand() -> None:
    def line(valid: list[int], dropped: list[int] | None) -> dict[str, object]:
        report = {"visited": 0, "dropped": dropped, "filter_seconds": 2.0}
        filtering = None if dropped is None else report
        return {"valid": valid, "selector": {"filtering": filtering}}

    # Clients 1, 2, 3 have uploaded before the first filtering, 1 to 5 before the second. Those with
    # wrong labels, 1 and 5, are visited 1 + 2 times and dropped 1 + 2 times; the others are visited
    # 2 + 3 times and dropped once.
    found = drop_rates(
        [line([1, 2, 3], None), line([4, 5], [1]), line([], [1, 5, 2])], frozenset({1, 5}), "last"
    )
    assert found == {
        "dropped_wrong": 1.0,
        "dropped_right": 0.2,
        "kept_share": 0.5,
        "filter_seconds": 2.0,
    }


def test_rounds_to_all_by_hand() -> None:
    assert rounds_to_all([2, 4, 5, 5], 5) == 3
    assert rounds_to_all([2, 4], 5) is None
