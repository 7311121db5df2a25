"""`fedsuv compare` and `fedsuv report`, as a user gives them."""

from __future__ import annotations

import csv
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from fedsuv_plugin.cli import main

QUICK = ["--set", "rounds=2", "--set", "eval_interval=1"]


def summary(folder: Path) -> list[dict[str, str]]:
    """The rows of summary.csv without wall times."""
    with (folder / "summary.csv").open() as file:
        rows = list(csv.DictReader(file))
    return [{k: v for k, v in row.items() if not k.startswith("wall_")} for row in rows]


def compare(job_file: Path, *words: str) -> int:
    folder = job_file.parent / "study"
    return main(["compare", str(job_file), "-o", str(folder), "-j", "1", *QUICK, *words])


def refusal(capsys: pytest.CaptureFixture[str], words: list[str]) -> str:
    """What a command that is refused says: one line."""
    capsys.readouterr()
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert err.startswith("fedsuv: ")
    assert err.count("\n") == 1
    assert out == ""
    return err


def test_from_a_job_file_to_a_table(job_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare(job_file, "--selectors", "random,oort", "--seeds", "0-1", "--target", "0.3") == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[0].split()[:2] == ["variant", "seeds"]
    assert [line.split()[0] for line in out.splitlines()[1:3]] == ["random", "oort"]
    assert "2 variants x 2 seeds = 4 jobs" in err
    assert "4/4  " in err
    folder = job_file.parent / "study"
    for file in ("report.html", "report.md", "table.tex", "runs.csv", "summary.csv", "study.yml"):
        assert (folder / file).is_file(), file
    assert f"report: {folder / 'report.html'}" in out
    assert [row["label"] for row in summary(folder)] == ["random", "oort"]


def test_the_same_command_again_runs_nothing(
    job_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--selectors", "random,oort", "--seeds", "0"]
    compare(job_file, *words)
    before = (job_file.parent / "study" / "summary.csv").read_text()
    capsys.readouterr()
    assert compare(job_file, *words) == 0
    err = capsys.readouterr().err
    assert "2 jobs, 2 of them already there" in err
    assert "1/2  " not in err
    assert (job_file.parent / "study" / "summary.csv").read_text() == before


def test_a_study_grows_by_its_folder(job_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    compare(job_file, "--selectors", "random", "--seeds", "0")
    folder = str(job_file.parent / "study")
    assert main(["compare", folder, "--selectors", "oort", "--seeds", "1", "-j", "1"]) == 0
    err = capsys.readouterr().err
    assert "2 variants x 2 seeds = 4 jobs, 1 of them already there" in err
    assert [row["finished"] for row in summary(Path(folder))] == ["2", "2"]


def test_a_study_file(job_file: Path, tmp_path: Path) -> None:
    file = tmp_path / "mine.yml"
    vary = {"sample_mode": ["random"], "partition_alpha": [0.1, 1]}
    content = {"job": "small.yml", "vary": vary, "seeds": [0], "set": {"rounds": 1}, "target": 0.3}
    file.write_text(yaml.safe_dump(content))
    assert main(["compare", str(file), "-o", str(tmp_path / "s"), "-j", "1", "--quiet"]) == 0
    rows = summary(tmp_path / "s")
    assert [row["partition_alpha"] for row in rows] == ["0.1", "1"]


def test_values_with_commas_come_as_a_yaml_list(job_file: Path) -> None:
    assert compare(job_file, "--vary", 'mlp_hidden=["8,4", "6"]', "--seeds", "0", "--quiet") == 0
    labels = [row["label"] for row in summary(job_file.parent / "study")]
    assert labels == ["mlp_hidden=8,4", "mlp_hidden=6"]


def test_a_job_that_fails_is_reported_and_the_others_finish(
    job_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compare(job_file, "--vary", "filter_less=1,10000", "--seeds", "0") == 1
    err = capsys.readouterr().err
    assert "fedsuv: filter_less=10000, seed 0: no client has at least" in err
    good, bad = summary(job_file.parent / "study")
    assert (good["finished"], bad["finished"], bad["failed"]) == ("1", "0", "1")


def test_jobs_end_early_if_asked(job_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--selectors", "random", "--seeds", "0", "--target", "0.01", "--early-stop"]
    assert compare(job_file, *words) == 0
    assert "1 runs ended when they had reached the target" in capsys.readouterr().out
    assert summary(job_file.parent / "study")[0]["rounds_to_target_mean"] == "0.0"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--vary", "sample_mod=random"], "unknown key 'sample_mod'; did you mean 'sample_mode'"),
        (["--vary", "rounds"], "--vary rounds: expected KEY=V,V,..."),
        (["--vary", "rounds="], "--vary rounds=: expected KEY=V,V,..."),
        (["--selectors", "randon"], "unknown client manager 'randon'; installed: "),
        (["--selectors", "a", "--vary", "sample_mode=b"], "--vary sample_mode: given twice"),
        (["--seeds", "4-1"], "seeds: expected a list such as 0-4"),
        (["--target", "90"], "--target: expected an accuracy > 0 and <= 1, got 90.0"),
        (["--jobs", "0"], "--jobs: expected an integer >= 1, got 0"),
        (["--early-stop"], "--early-stop: expected a --target"),
        (["--keep-for", "nobody"], "unknown client manager 'nobody'"),
        (["--selectors", "oort", "--reference", "random"], "reference: expected one of oort"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(
    job_file: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    folder = job_file.parent / "study"
    assert message in refusal(capsys, ["compare", str(job_file), "-o", str(folder), *words])
    assert not folder.exists()


def test_what_was_fixed_when_the_study_was_made_stays(
    job_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    compare(job_file, "--selectors", "random", "--seeds", "0", "--quiet")
    folder = str(job_file.parent / "study")
    for words in (["--set", "rounds=3"], ["--scale", "mini"], ["--keep-for", "pczfl"]):
        assert f"{words[0]}: was fixed" in refusal(capsys, ["compare", folder, *words])
    assert "needs interview_accuracy" in refusal(
        capsys, ["compare", folder, "--selectors", "pczfl"]
    )
    assert "no such job file" in refusal(capsys, ["compare", folder + "x"])
    assert "not a study" in refusal(capsys, ["compare", str(job_file.parent)])
    other = ["compare", str(job_file), "-o", folder, "--set", "rounds=3"]
    assert "another study is here" in refusal(capsys, [*other, "--selectors", "random"])


# ---- report


def test_a_report_of_a_study_again_with_another_target(
    job_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    compare(job_file, "--selectors", "random,oort", "--seeds", "0", "--quiet")
    folder = job_file.parent / "study"
    assert main(["report", str(folder), "--target", "0.01"]) == 0
    assert [row["rounds_to_target_mean"] for row in summary(folder)] == ["0.0", "0.0"]
    capsys.readouterr()
    message = refusal(capsys, ["report", str(folder), "-o", str(job_file.parent)])
    assert "expected a new folder" in message


def run_of(job_file: Path, *keys: str) -> None:
    base = ["rounds=2", f"log_path={job_file.parent / 'runs'}"]
    words = [word for key in [*base, *keys] for word in ("--set", key)]
    assert main(["run", str(job_file), "--quiet", *words]) == 0


def test_a_report_of_single_runs(job_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for selector in ("random", "oort"):
        for seed in (0, 1):
            run_of(job_file, f"sample_mode={selector}", f"seed={seed}")
    runs = job_file.parent / "runs"
    folder = job_file.parent / "report"
    assert main(["report", str(runs), "-o", str(folder), "--reference", "oort"]) == 0
    rows = {row["label"]: row for row in summary(folder)}
    assert {label: row["finished"] for label, row in rows.items()} == {"oort": "2", "random": "2"}
    assert rows["oort"]["final_accuracy_wins"] == ""
    assert rows["random"]["final_accuracy_wins"] in "012"
    run_of(job_file, "sample_mode=random", "seed=0")
    again = refusal(capsys, ["report", str(runs), "-o", str(folder)])
    assert "two runs of random with seed 0" in again


def test_runs_of_different_jobs_are_refused(
    job_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_of(job_file, "sample_mode=random")
    run_of(job_file, "sample_mode=pczfl")  # which keeps a share of the test set
    words = ["report", str(job_file.parent / "runs"), "-o", str(job_file.parent / "report")]
    message = refusal(capsys, words)
    assert "runs of different jobs: interview_fraction is " in message
    assert "--by sample_mode,interview_fraction" in message
    assert not (job_file.parent / "report").exists()
    assert main([*words, "--by", "sample_mode,interview_fraction"]) == 0
    assert "no run directory is here" in refusal(
        capsys, ["report", str(job_file.parent / "report")]
    )


# ---- killed


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs /proc")
def test_killed_anywhere_the_same_command_ends_with_the_same_summary(job_file: Path) -> None:
    folder = job_file.parent / "study"
    words = ["--selectors", "random,oort,pow_d", "--seeds", "0-1", "--target", "0.5", "--quiet"]
    common = ["--set", "rounds=30", "--set", "checkpoint_every=7"]
    command = ["compare", str(job_file), "-o", str(folder), "-j", "2", *words, *common]
    assert main(command) == 0
    whole = summary(folder)
    shutil.rmtree(folder)
    rng = random.Random(3)
    start = [sys.executable, "-m", "fedsuv_plugin.cli", *command]
    for _ in range(3):
        process = subprocess.Popen(start, env={**os.environ, "OMP_NUM_THREADS": "1"})
        rounds = rng.randrange(1, 60)
        end = time.monotonic() + 120
        while recorded(folder) < rounds and process.poll() is None:
            assert time.monotonic() < end, "no rounds within two minutes"
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert main(command) == 0
    assert summary(folder) == whole


def recorded(folder: Path) -> int:
    """Rounds that stand in the run directories."""
    files = folder.glob("runs/*/*/rounds.jsonl")
    return sum(file.read_text().count("\n") for file in files)
