"""Runs as data frames, and a comparison from Python."""

from __future__ import annotations

from pathlib import Path

import pytest

import fedsuv_plugin as fp
from fedsuv_plugin.errors import UserError
from fedsuv_plugin.experiments.study import Study


@pytest.fixture
def study(job_file: Path) -> Study:
    vary = {"sample_mode": ["random", "pow_d"]}
    folder = job_file.parent / "study"
    return fp.compare(
        job_file, vary, [0, 1], folder=folder, workers=1, set={"rounds": 2}, target=0.3
    )


def test_a_comparison_from_python(study: fp.experiments.study.Study) -> None:  # type: ignore[name-defined]
    table = study.table()
    assert list(table.index) == ["random", "pow_d"]
    assert "final accuracy, %" in table.columns
    assert " ± " in table.loc["random", "final accuracy, %"]
    figure = study.plot()
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["random", "pow_d"]
    with pytest.raises(UserError, match="expected one of round, time"):
        study.plot(by="moon")
    assert (study.folder / "summary.csv").is_file()
    assert study.failures == {}


def test_runs_as_frames(study: fp.experiments.study.Study) -> None:  # type: ignore[name-defined]
    frames = fp.read_runs(study.folder / "runs" / "*" / "*")
    assert len(frames.settings) == 4
    assert set(frames.settings.sample_mode) == {"random", "pow_d"}
    assert len(frames.rounds) == 4 * 2
    assert len(frames.metrics) == 4 * 2  # rounds 0 and 2
    by_selector = frames.rounds.groupby("sample_mode")["probing.clients"].sum()
    assert by_selector["random"] == 0
    assert by_selector["pow_d"] > 0
    one = fp.read_run(study.cells[0].path).frames()
    assert list(one.rounds["round"]) == [1, 2]
    with pytest.raises(UserError, match="a pattern that matches run directories"):
        fp.read_runs(study.folder / "nothing" / "*")
