"""A study: its grid, what it keeps for whom, what is refused, how it grows and goes on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import records

from fedsuv_plugin.errors import UserError
from fedsuv_plugin.experiments.study import Study
from fedsuv_plugin.experiments.study_folder import (
    make_study,
    open_study,
    parse_seeds,
    study_settings,
)
from fedsuv_plugin.experiments.workers import Done, Failed

Vary = dict[str, list[object]]
QUICK = {"rounds": 2, "eval_interval": 1}


def study_of(
    job_file: Path, selectors: Sequence[object] = ("random", "oort"), **settings: Any
) -> Study:
    seeds = settings.pop("seeds", [0])
    folder = settings.pop("folder", job_file.parent / "study")
    common = {**QUICK, **settings.pop("set", {})}
    return make_study(job_file, folder, {"sample_mode": selectors}, seeds, set=common, **settings)


def run(study: Study, workers: int = 1) -> dict[str, object]:
    """How each job ended, by label and seed."""
    ends = (Done, Failed)
    events = [(c, e) for c, e in study.run(workers) if isinstance(e, ends)]
    return {f"{cell.label}/{cell.seed}": event for cell, event in events}


# ---- the grid


def test_all_combinations_are_variants(job_file: Path) -> None:
    vary: Vary = {"sample_mode": ["random", "oort"], "partition_alpha": [0.1, 1]}
    study = make_study(job_file, job_file.parent / "s", vary, [3, 1], set=QUICK)
    assert list(study.variants) == [
        "random, partition_alpha=0.1",
        "random, partition_alpha=1",
        "oort, partition_alpha=0.1",
        "oort, partition_alpha=1",
    ]
    assert len(study.cells) == 8
    config = study.cells[-1].job.config
    assert (config.sample_mode, config.partition_alpha, config.seed) == ("oort", 1.0, 3)
    assert study.cells[0].path == job_file.parent / "s/runs/random-partition_alpha=0.1/seed1"


def test_nothing_varied_is_the_job_over_seeds(job_file: Path) -> None:
    study = make_study(job_file, job_file.parent / "s", {}, [0, 1])
    assert list(study.variants) == ["job"]
    assert len(study.cells) == 2


def test_the_longest_jobs_come_first(job_file: Path) -> None:
    study = make_study(job_file, job_file.parent / "s", {"rounds": [1, 5, 3]}, [0])
    assert [cell.job.config.rounds for cell in study.missing] == [5, 3, 1]


def test_a_scale_is_that_of_every_job(job_file: Path) -> None:
    study = study_of(job_file, scale="smoke", set={"num_clients": 20})
    assert study.cells[0].job.config.num_participants < 4 or study.cells[0].job.config.rounds == 2
    assert study.cells[0].job.config.local_steps < 3
    assert any("scale smoke" in note for note in study.notes)


@pytest.mark.parametrize(
    ("text", "seeds"), [("0-2", [0, 1, 2]), ("7", [7]), ("5,1-2,1", [1, 2, 5]), ([4, 2], [2, 4])]
)
def test_seeds(text: object, seeds: list[int]) -> None:
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize("text", ["", "a", "3-1", "-1", "1.5", [0.5]])
def test_seeds_that_are_none(text: object) -> None:
    with pytest.raises(UserError, match="seeds: expected a list such as 0-4"):
        parse_seeds(text)


# ---- fair by construction


def test_what_any_selector_needs_is_kept_for_all(job_file: Path) -> None:
    study = study_of(job_file, ["random", "pczfl", "filfl"])
    assert study.kept == {
        "interview_fraction": 0.2,  # pczfl's interviews
        "holdout_fraction": 0.0,
        "public_fraction": 0.05,  # filfl's public set
    }
    for cell in study.cells:
        config = cell.job.config
        assert (config.interview_fraction, config.public_fraction) == (0.2, 0.05)
    (note,) = study.notes
    assert "0.2 of the test set for interviews" in note
    assert "0.05 of the training samples" in note


def test_data_can_be_kept_for_selectors_that_come_later(job_file: Path) -> None:
    study = study_of(job_file, ["random"], keep_for=["pczfl"])
    assert study.kept["interview_fraction"] == 0.2
    larger = study.enlarged({"sample_mode": ["pczfl"]}, [])
    assert list(larger.variants) == ["random", "pczfl"]


def test_a_selector_for_which_nothing_was_kept_is_refused(job_file: Path) -> None:
    study = study_of(job_file, ["random"])
    with pytest.raises(UserError) as refused:
        study.enlarged({"sample_mode": ["pczfl"]}, [])
    assert "pczfl needs interview_accuracy" in str(refused.value)
    assert "--keep-for pczfl" in str(refused.value)


def test_a_share_that_the_job_sets_stays(job_file: Path) -> None:
    study = study_of(job_file, ["random", "pczfl"], set={"interview_fraction": 0.4})
    assert "interview_fraction" not in study.kept
    assert {cell.job.config.interview_fraction for cell in study.cells} == {0.4}


def test_variants_of_a_seed_have_the_same_world(job_file: Path) -> None:
    """The untrained model is the same, and is tested on the same samples."""
    study = study_of(job_file, ["random", "pczfl"], seeds=[0, 1])
    run(study, 2)
    start = {
        (cell.label, cell.seed): records(cell.path, "metrics.jsonl")[0]["loss"]
        for cell in study.cells
    }
    assert start["random", 0] == start["pczfl", 0]
    assert start["random", 1] == start["pczfl", 1]
    assert start["random", 0] != start["random", 1]


# ---- running it


def test_a_study_is_run_once(job_file: Path) -> None:
    study = study_of(job_file, seeds=[0, 1])
    assert run(study) == {f"{s}/{i}": Done(None) for s in ("random", "oort") for i in (0, 1)}
    assert study.missing == []
    assert run(study) == {}
    assert open_study(study.folder) == study


def test_only_what_was_added_is_run(job_file: Path) -> None:
    run(study_of(job_file))
    larger = study_of(job_file, ["round_robin"], seeds=[1])  # the same command with other values
    assert list(larger.variants) == ["random", "oort", "round_robin"]
    assert larger.seeds == [0, 1]
    assert set(run(larger)) == {"round_robin/0", "random/1", "oort/1", "round_robin/1"}
    assert open_study(larger.folder) == larger


def test_a_job_that_fails_stops_no_other(job_file: Path) -> None:
    study = make_study(
        job_file, job_file.parent / "s", {"filter_less": [1, 10_000]}, [0], set=QUICK
    )
    ends = run(study, 2)
    assert ends["filter_less=1/0"] == Done(None)
    assert isinstance(ends["filter_less=10000/0"], Failed)
    (place, reason), *_ = study.failures.items()
    assert place == "filter_less=10000, seed 0"
    assert "no client has at least" in reason
    results = study.results()
    assert [r.status for r in results.runs] == ["finished", "failed"]
    assert results.runs[1].reason == reason
    assert "filter_less=10000: failed with seed 0; left out." in results.notes


def test_a_run_directory_that_was_broken_off_anywhere_is_mended(job_file: Path) -> None:
    study = study_of(job_file)
    for cell, left in zip(study.cells, (["lock"], ["lock", "config.yml"]), strict=True):
        cell.path.mkdir(parents=True)
        for name in left:
            (cell.path / name).touch()
    assert set(run(study).values()) == {Done(None)}


def test_the_reference_is_random_or_the_first_or_as_asked(job_file: Path) -> None:
    folder = job_file.parent
    first = study_of(job_file, ["oort", "random"], folder=folder / "a")
    assert first._compared_with == ("sample_mode", "random")
    second = study_of(job_file, ["oort", "round_robin"], folder=folder / "b")
    assert second._compared_with == ("sample_mode", "oort")
    third = study_of(
        job_file, ["oort", "round_robin"], folder=folder / "c", reference="round_robin"
    )
    assert third._compared_with == ("sample_mode", "round_robin")
    run(third)
    oort, other = third.results().variants
    assert (oort.reference, other.reference) == ("round_robin", None)


def test_a_variant_is_compared_with_the_reference_of_its_own_world(job_file: Path) -> None:
    vary: Vary = {"sample_mode": ["random", "oort"], "partition_alpha": [0.1, 1]}
    study = make_study(job_file, job_file.parent / "s", vary, [0], set=QUICK)
    references = {variant.label: variant.reference for variant in study.results().variants}
    assert references["oort, partition_alpha=1"] == "random, partition_alpha=1"
    assert references["random, partition_alpha=1"] is None


# ---- the folder


def test_a_study_file(tmp_path: Path) -> None:
    file = tmp_path / "study.yml"
    file.write_text(
        yaml.safe_dump({"job": "small.yml", "vary": {"rounds": [1, 2]}, "seeds": "0-1"})
    )
    assert study_settings(file) == {
        "job": "small.yml",
        "vary": {"rounds": [1, 2]},
        "seeds": [0, 1],
    }


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"vary": {}}, "expected a study file"),
        ({"job": "a.yml", "seed": 1}, "unknown key 'seed'; did you mean 'seeds'"),
        ({"job": "a.yml", "vary": ["x"]}, "vary: expected a map"),
        ({"job": "a.yml", "vary": {"rounds": 3}}, "vary rounds: expected a list"),
        ({"job": "a.yml", "target": 2}, "target: expected an accuracy"),
        ({"job": "a.yml", "seeds": "x"}, "seeds: expected a list"),
        ([], "expected a study file"),
    ],
)
def test_study_files_that_are_none(tmp_path: Path, content: object, message: str) -> None:
    file = tmp_path / "study.yml"
    file.write_text(yaml.safe_dump(content))
    with pytest.raises(UserError, match=message) as refused:
        study_settings(file)
    assert str(refused.value).startswith(f"{file}: ")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"set": {"rounds": 3}}, "rounds is 2 there and 3 now"),
        ({"scale": "smoke"}, "scale is 'full' there and 'smoke' now"),
        ({"target": 0.5, "early_stop": True}, "early_stop is False there and True now"),
    ],
)
def test_another_study_in_the_folder_is_refused(
    job_file: Path, change: dict[str, Any], message: str
) -> None:
    study = study_of(job_file)
    before = (study.folder / "study.yml").read_text()
    with pytest.raises(UserError, match=message):
        study_of(job_file, **change)
    with pytest.raises(UserError, match="the varied keys"):
        make_study(job_file, study.folder, {"rounds": [1]}, [0])
    assert (study.folder / "study.yml").read_text() == before


def test_another_job_in_the_folder_is_refused(job_file: Path, tmp_path: Path) -> None:
    study_of(job_file)
    other = tmp_path / "other.yml"
    other.write_text(job_file.read_text().replace("num_clients: 20", "num_clients: 10"))
    with pytest.raises(UserError, match="num_clients is 20 there and 10 now"):
        study_of(other)


def test_a_folder_that_is_no_study_is_left_alone(job_file: Path, tmp_path: Path) -> None:
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / "thesis.tex").touch()
    with pytest.raises(UserError, match="expected a new folder or that of a study"):
        study_of(job_file)
    assert [file.name for file in (tmp_path / "study").iterdir()] == ["thesis.tex"]
    with pytest.raises(UserError, match="not a study"):
        open_study(tmp_path / "study")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"vary": {"sample_mod": ["oort"]}}, "unknown key 'sample_mod'; did you mean"),
        ({"vary": {"sample_mode": ["oorrt"]}}, "unknown client manager 'oorrt'; installed: "),
        ({"vary": {"rounds": [1, "many"]}}, "rounds: expected an integer"),
        ({"vary": {"rounds": []}}, "vary rounds: expected at least one value"),
        ({"vary": {"seed": [1]}}, "seeds by --seeds"),
        ({"vary": {"rounds": [1]}, "set": {"rounds": 2}}, "a key that is not set for all"),
        ({"vary": {}, "set": {"round": 2}}, "unknown key 'round'"),
        ({"vary": {}, "early_stop": True}, "--early-stop: expected a --target"),
        (
            {"vary": {"sample_mode": ["random"]}, "reference": "oort"},
            "reference: expected one of random, got 'oort'",
        ),
        ({"vary": {}, "keep_for": ["oorrt"]}, "unknown client manager 'oorrt'"),
    ],
)
def test_bad_input_is_refused_and_leaves_nothing(
    job_file: Path, settings: dict[str, Any], message: str
) -> None:
    folder = job_file.parent / "study"
    vary = settings.pop("vary")
    with pytest.raises(UserError, match=message):
        make_study(job_file, folder, vary, [0], **settings)
    assert not folder.exists()


def test_a_key_that_the_study_does_not_vary_cannot_be_added(job_file: Path) -> None:
    study = study_of(job_file)
    with pytest.raises(UserError, match="expected a key that this study varies"):
        study.enlarged({"rounds": [1]}, [])


def test_the_folder_says_what_it_is(job_file: Path) -> None:
    study = study_of(job_file, target=0.5)
    text = (study.folder / "study.yml").read_text()
    assert text.startswith("# A comparison of jobs")
    assert yaml.safe_load(text)["vary"] == {"sample_mode": ["random", "oort"]}
    run(study)
    assert json.loads((study.folder / "failures.json").read_text()) == {}
