"""A comparison: the grid, what is kept of it, what is run again and what is refused."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from conftest import Killed, records

from fedsuv_plugin.engine import launchers
from fedsuv_plugin.errors import UserError
from fedsuv_plugin.experiments.comparison import (
    Comparison,
    folder_name,
    parallel,
    run_grid,
    summarise,
)
from fedsuv_plugin.experiments.curves import accuracy_curve, last_mean
from fedsuv_plugin.records import Run

VARIANTS = {"oort": {"sample_mode": "oort"}, "at random": {"sample_mode": "random"}}


def timeless(runs: dict[str, dict[int, Run]]) -> dict[str, dict[int, list[Any]]]:
    """All records of a comparison but wall times."""
    return summarise(
        runs, lambda run: [records(run.path), records(run.path, "metrics.jsonl"), run.job.flat()]
    )


def count_jobs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The folders of the jobs that are run from now on, in this process."""
    started: list[str] = []
    original = launchers.run_job

    def noted(run: Any, *args: Any, **options: Any) -> bool:
        started.append(f"{run.path.parent.name}/{run.path.name}")
        return original(run, *args, **options)

    monkeypatch.setattr(launchers, "run_job", noted)
    return started


def test_every_cell_is_a_kept_run_in_the_order_of_the_grid(job_file: Path, tmp_path: Path) -> None:
    said: list[str] = []
    comparison = Comparison(job_file, VARIANTS, [5, 1], {"rounds": 2})
    runs = comparison.run(tmp_path / "runs", workers=1, say=said.append)
    assert [(label, list(by_seed)) for label, by_seed in runs.items()] == [
        ("oort", [5, 1]),
        ("at random", [5, 1]),
    ]
    for label, by_seed in runs.items():
        for seed, run in by_seed.items():
            assert run.path == tmp_path / "runs" / folder_name(label) / f"seed{seed}"
            assert (run.job.config.sample_mode, run.job.config.seed) == (
                VARIANTS[label]["sample_mode"],
                seed,
            )
            assert [r["round"] for r in run.rounds] == [1, 2]
            assert [m["round"] for m in run.metrics] == [0, 2]
    accuracy = runs["oort"][5].metrics[-1]["accuracy"]
    assert said[0] == f"1/4  oort, seed 5: accuracy {accuracy:.4f}"
    assert len(said) == 4


def test_the_number_of_workers_changes_nothing(job_file: Path, tmp_path: Path) -> None:
    comparison = Comparison(job_file, VARIANTS, [0, 1], {"rounds": 2})
    # The same folder under another name, so that nothing but the workers differs.
    one = timeless(comparison.run(tmp_path / "runs", workers=1))
    os.rename(tmp_path / "runs", tmp_path / "kept")
    assert timeless(comparison.run(tmp_path / "runs", workers=2)) == one


def test_only_what_is_missing_is_run(
    job_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = count_jobs(monkeypatch)
    first = Comparison(job_file, VARIANTS, [0], {"rounds": 2}).run(tmp_path / "runs", 1)
    assert started == ["oort/seed0", "at-random/seed0"]
    before = timeless(first)
    said: list[str] = []
    larger = Comparison(job_file, {**VARIANTS, "gpfl": {"sample_mode": "gpfl"}}, [0], {"rounds": 2})
    again = larger.run(tmp_path / "runs", 1, said.append)
    assert started[2:] == ["gpfl/seed0"]
    assert said[0] == f"2 of 3 runs are already in {tmp_path / 'runs'}"
    assert {label: timeless(again)[label] for label in before} == before


def test_the_folder_may_be_moved_and_called_by_another_name(
    job_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    comparison = Comparison(job_file, VARIANTS, [0], {"rounds": 2})
    comparison.run(tmp_path / "runs", 1)
    os.rename(tmp_path / "runs", tmp_path / "moved")
    started = count_jobs(monkeypatch)
    monkeypatch.chdir(tmp_path)
    comparison.run(Path("moved"), 1)
    assert started == []


def test_a_cell_that_was_broken_off_is_gone_on_with(
    job_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    comparison = Comparison(job_file, VARIANTS, [0], {"rounds": 5, "checkpoint_every": 2})
    whole = timeless(comparison.run(tmp_path / "runs", 1))
    os.rename(tmp_path / "runs", tmp_path / "kept")
    original = launchers.run_job

    def killed_in_round_3(run: Any, on_round: object) -> bool:
        def kill(record: dict[str, Any], metrics: object) -> None:
            if record["round"] == 3:
                raise Killed

        return original(run, on_round=kill)

    with monkeypatch.context() as patch:
        patch.setattr(launchers, "run_job", killed_in_round_3)
        with pytest.raises(Killed):
            comparison.run(tmp_path / "runs", 1)
    assert len(records(tmp_path / "runs" / "oort" / "seed0")) == 3
    assert timeless(comparison.run(tmp_path / "runs", 1)) == whole


def test_a_folder_with_another_job_is_refused_before_anything_runs(
    job_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Comparison(job_file, VARIANTS, [0], {"rounds": 2}).run(tmp_path / "runs", 1)
    started = count_jobs(monkeypatch)

    def refusal(variants: Mapping[str, Mapping[str, object]], common: dict[str, object]) -> str:
        with pytest.raises(UserError) as refused:
            Comparison(job_file, variants, [1, 0], common).run(tmp_path / "runs", 1)
        return str(refused.value)

    message = refusal(VARIANTS, {"rounds": 3})
    assert message.startswith(f"{tmp_path / 'runs' / 'oort' / 'seed0'}: ")
    assert "rounds is 2 there and 3 in oort, seed 0" in message
    assert "\n" not in message
    other = {"oort": {"sample_mode": "oort", "oort.exploration_factor": 0.5}}
    assert "oort.exploration_factor is its default there and 0.5 in" in refusal(
        other, {"rounds": 2}
    )
    assert started == []


def test_a_job_that_is_refused_leaves_nothing_behind(job_file: Path, tmp_path: Path) -> None:
    """Else the folder would be that of another job once the key is mended."""
    many = {"rounds": 2, "filter_less": 10_000}
    with pytest.raises(UserError, match="filter_less"):
        Comparison(job_file, VARIANTS, [0], many).run(tmp_path / "runs", 1)
    Comparison(job_file, VARIANTS, [0], {"rounds": 2}).run(tmp_path / "runs", 1)


def test_a_run_directory_that_was_hardly_made_is_made_anew(job_file: Path, tmp_path: Path) -> None:
    cell = tmp_path / "runs" / "oort" / "seed0"
    cell.mkdir(parents=True)
    (cell / "lock").touch()
    comparison = Comparison(job_file, {"oort": VARIANTS["oort"]}, [0], {"rounds": 2})
    assert len(comparison.run(tmp_path / "runs", 1)["oort"][0].rounds) == 2


def test_a_folder_that_is_no_run_directory_is_left_alone(job_file: Path, tmp_path: Path) -> None:
    cell = tmp_path / "runs" / "oort" / "seed0"
    cell.mkdir(parents=True)
    (cell / "thesis.tex").touch()
    with pytest.raises(UserError, match="expected a run directory, which has a config.yml"):
        Comparison(job_file, VARIANTS, [0], {"rounds": 2}).run(tmp_path / "runs", 1)
    assert (cell / "thesis.tex").exists()


def test_a_variant_may_depend_on_the_seed_and_wins_over_common_keys(
    job_file: Path, tmp_path: Path
) -> None:
    def cohort(seed: int) -> dict[str, object]:
        return {"num_participants": 2 + seed, "rounds": 4}

    cells = Comparison(job_file, {"cohort": cohort}, [0, 3], {"rounds": 9}).cells(tmp_path)
    assert [(c.job.config.num_participants, c.job.config.rounds) for c in cells] == [(2, 4), (5, 4)]


def test_what_any_variant_needs_is_kept_by_all(job_file: Path, tmp_path: Path) -> None:
    variants = {name: {"sample_mode": name} for name in ("random", "filfl")}
    fractions = {
        cell.label: cell.job.config.public_fraction
        for cell in Comparison(job_file, variants, [0]).cells(tmp_path)
    }
    assert fractions == {"random": 0.05, "filfl": 0.05}  # filfl's public set
    own = Comparison(job_file, {**variants, "random": {"public_fraction": 0.1}}, [0])
    assert [cell.job.config.public_fraction for cell in own.cells(tmp_path)] == [0.1, 0.05]


def test_a_wrong_key_is_refused_before_anything_runs(job_file: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="unknown key 'round'; did you mean 'rounds'"):
        Comparison(job_file, VARIANTS, [0], {"round": 2}).run(tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_labels_must_differ_as_folders(job_file: Path) -> None:
    with pytest.raises(UserError, match="variants: expected labels that differ as folder names"):
        Comparison(job_file, {"a b": {}, "a, b": {}}, [0])


def test_labels_as_folders() -> None:
    assert folder_name("filfl dgf, random") == "filfl-dgf-random"
    assert folder_name("rank=product") == "rank=product"
    assert folder_name("../..") == "variant"


# ---- work over processes


@dataclass(frozen=True)
class Number:
    label: str
    seed: int


def squared(number: Number) -> int:
    return number.seed**2


def refused(number: Number) -> int:
    raise UserError(f"{number.label}: refused")


def refused_once_begun(path: Path) -> None:
    path.touch()
    raise UserError("refused")


@pytest.mark.parametrize("workers", [1, 2])
def test_parallel_gives_every_item_its_result(workers: int) -> None:
    assert dict(parallel(abs, [-1, -2, -3], workers)) == {-1: 1, -2: 2, -3: 3}


@pytest.mark.parametrize("workers", [1, 2])
def test_a_grid_is_in_the_order_of_its_cells(workers: int) -> None:
    cells = [Number(label, seed) for seed in (3, 1) for label in "ba"]
    said: list[str] = []
    found = run_grid(squared, cells, workers, said.append, about="is {}".format)
    assert [(label, list(by_seed.items())) for label, by_seed in found.items()] == [
        ("b", [(3, 9), (1, 1)]),
        ("a", [(3, 9), (1, 1)]),
    ]
    assert sorted(line.partition("  ")[2] for line in said) == [
        "a, seed 1: is 1",
        "a, seed 3: is 9",
        "b, seed 1: is 1",
        "b, seed 3: is 9",
    ]
    assert [line.partition("  ")[0] for line in said] == ["1/4", "2/4", "3/4", "4/4"]


def test_an_error_of_a_worker_comes_through_as_it_was_raised() -> None:
    with pytest.raises(UserError, match="^a: refused$"):
        run_grid(refused, [Number("a", seed) for seed in range(3)], 2)


@pytest.mark.parametrize("workers", [1, 2])
def test_nothing_new_begins_after_an_error(workers: int, tmp_path: Path) -> None:
    with pytest.raises(UserError):
        list(parallel(refused_once_begun, [tmp_path / str(i) for i in range(8)], workers))
    assert 1 <= len(list(tmp_path.iterdir())) <= workers


# ---- curves


def test_curves_by_hand() -> None:
    metrics = [{"round": 0, "accuracy": 0.1, "loss": 2.0}, {"round": 5, "accuracy": 0.4}]
    assert accuracy_curve(metrics) == [[0, 0.1], [5, 0.4]]
    assert last_mean([0.9, 0.1, 0.3], 2) == pytest.approx(0.2)
    assert last_mean([0.1, 0.3]) == pytest.approx(0.2)
