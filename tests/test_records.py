"""The run directory, and going on after anything that can happen to a job."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import yaml
from conftest import (
    Killed,
    MakeJob,
    checkpoint,
    records,
    run,
    same_records,
    start_command,
    wait_for_rounds,
)

from fedsuv_plugin.cli import main
from fedsuv_plugin.config.job_file import load_job
from fedsuv_plugin.config.resolved import resolve
from fedsuv_plugin.engine.launchers import run_job
from fedsuv_plugin.errors import UserError
from fedsuv_plugin.records import BLOCK, FORMAT, finite_or_none, read_run
from fedsuv_plugin.run_directory import RunDirectory

# ---- a job that died goes on


def die_at(monkeypatch: pytest.MonkeyPatch, round_number: int, torn: bool) -> None:
    append = RunDirectory.append

    def dying(self: RunDirectory, file: str, record: dict[str, object]) -> None:
        if file == "rounds.jsonl" and record["round"] == round_number:
            if torn:  # half of the line is on disk
                with (self.path / file).open("a") as f:
                    f.write(json.dumps(record)[:25])
            raise Killed
        append(self, file, record)

    monkeypatch.setattr(RunDirectory, "append", dying)


@pytest.mark.parametrize("selector", ["random", "round_robin", "oort", "fedsuv"])
@pytest.mark.parametrize(
    ("round_number", "torn"), [(1, False), (2, True), (4, False), (7, True), (9, False)]
)
def test_a_killed_job_resumes_to_the_same_numbers(
    job: MakeJob, monkeypatch: pytest.MonkeyPatch, selector: str, round_number: int, torn: bool
) -> None:
    small = job(sample_mode=selector, rounds=9, checkpoint_every=3, gradient_policy="fed-yogi")
    whole = run(small)
    directory = RunDirectory.create(small)
    with monkeypatch.context() as patch:
        die_at(patch, round_number, torn)
        with pytest.raises(Killed):
            run_job(directory)
    assert run_job(RunDirectory.open(directory.path))
    same_records(directory.path, whole)


def test_dying_while_a_checkpoint_is_written_leaves_the_old_one(
    job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = job(rounds=8, checkpoint_every=3)
    whole = run(small)
    directory = RunDirectory.create(small)

    def replace(source: str | Path, target: str | Path) -> None:
        if Path(target).name == "state.pkl" and Path(target).exists():
            Path(source).write_bytes(Path(source).read_bytes()[:100])
            raise Killed
        os.rename(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", replace)
        with pytest.raises(Killed):
            run_job(directory)
    assert checkpoint(directory.path)["round"] == 3
    assert run_job(RunDirectory.open(directory.path))
    same_records(directory.path, whole)


@pytest.mark.parametrize("launcher", ["loopback", "processes"])
def test_kill_dash_nine_and_resume(job: MakeJob, launcher: str) -> None:
    small = job(rounds=400, checkpoint_every=20, eval_interval=100, sample_mode="oort")
    process = start_command(small)
    path = wait_for_rounds(small, 50)
    process.kill()
    process.communicate()
    kept = (path / "rounds.jsonl").read_text().count("\n")
    assert 50 <= kept < 400
    resumed = start_command(small, "--resume", str(path), "--launcher", launcher)
    _, err = resumed.communicate(timeout=300)
    assert resumed.returncode == 0, err
    same_records(path, run(small.with_values(log_path=small.config.log_path + "2")))


def test_a_finished_run_resumed_stays_as_it_is_and_can_be_lengthened(job: MakeJob) -> None:
    path = run(job(rounds=4))
    before = records(path)
    assert run_job(RunDirectory.open(path))
    assert records(path) == before
    assert run_job(RunDirectory.open(path, {"rounds": 6}))
    assert records(path) == records(run(job(rounds=6)))


# ---- the directory


def test_two_jobs_do_not_share_a_run_directory(job: MakeJob) -> None:
    directory = RunDirectory.create(job())
    with pytest.raises(UserError, match="another job is writing"):
        RunDirectory.open(directory.path)
    directory.close()
    RunDirectory.open(directory.path).close()


def test_runs_in_the_same_second_get_directories_of_their_own(job: MakeJob) -> None:
    assert len({RunDirectory.create(job()).path for _ in range(3)}) == 3


def test_what_is_no_run_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not a run directory"):
        RunDirectory.open(tmp_path)


def test_a_foreign_checkpoint_is_refused(job: MakeJob) -> None:
    directory = RunDirectory.create(job())
    directory.save_checkpoint({"format": 0})
    with pytest.raises(UserError, match="written by another version"):
        directory.load_checkpoint()


def test_the_environment_is_recorded(job: MakeJob) -> None:
    directory = RunDirectory.create(job())
    environment = json.loads((directory.path / "environment.json").read_text())
    assert environment["seed"] == 3
    assert environment["format"] == FORMAT
    assert environment["packages"]["fedscale"] == "1.0"


def test_the_job_is_recorded_as_it_was_resolved(job: MakeJob) -> None:
    """What the selector settled stands there as numbers, and is read back as the same job."""
    small = job(sample_mode="quick_init_ucb", oort__exploration_min=0.25)
    directory = RunDirectory.create(small)
    settings = read_run(directory.path).settings
    assert settings["holdout_fraction"] == 0.2
    assert settings["public_fraction"] == 0.0
    assert settings["oort.exploration_min"] == 0.25
    again = resolve(load_job(directory.path / "config.yml"))
    assert again.config == directory.job.config == resolve(small).config
    assert again.selector_params == directory.job.selector_params
    assert again.needs == directory.job.needs


def test_a_job_refused_before_its_first_round_can_be_thrown_away(job: MakeJob) -> None:
    refused = RunDirectory.create(job())
    refused.discard()
    assert not refused.path.exists()
    begun = RunDirectory.create(job())
    begun.append("rounds.jsonl", {"round": 1})
    begun.discard()
    assert begun.path.exists()


# ---- reading it


def test_a_run_is_read_up_to_the_line_that_was_not_written_to_its_end(job: MakeJob) -> None:
    path = run(job(rounds=4))
    whole = read_run(path)
    assert [record["round"] for record in whole.rounds] == [1, 2, 3, 4]
    assert [record["round"] for record in whole.metrics] == [0, 2, 4]
    assert whole.settings["rounds"] == 4
    assert whole.environment["seed"] == 3
    assert whole.path == path
    with (path / "rounds.jsonl").open("a") as file:
        file.write('{"round": 5, "clo')
    assert read_run(path).rounds == whole.rounds


@pytest.mark.parametrize("width", [1, BLOCK - 40, BLOCK, 3 * BLOCK])
def test_whether_a_run_is_finished_is_read_from_the_end_of_its_files(
    tmp_path: Path, width: int
) -> None:
    """Lines may be longer than what is read at a time."""
    (tmp_path / "config.yml").write_text("job_conf: [{rounds: 3}]")
    lines = [json.dumps({"round": n, "pad": "x" * width}) + "\n" for n in (1, 2, 3)]
    file = tmp_path / "rounds.jsonl"
    for content, finished in (("", False), (lines[0], False), ("".join(lines), True)):
        file.write_text(content)
        assert read_run(tmp_path).finished is finished
    file.write_text("".join(lines)[:-1])  # the last line was not written to its end
    assert not read_run(tmp_path).finished


def test_a_run_that_has_not_begun_has_no_rounds(job: MakeJob) -> None:
    begun = read_run(RunDirectory.create(job()).path)
    assert (begun.rounds, begun.metrics) == ([], [])


def test_what_is_no_run_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not a run directory"):
        read_run(tmp_path)


def test_a_run_of_version_0_1_can_be_read_but_not_resumed(
    job: MakeJob, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its environment.json says nothing of a format, and its job file leaves the shares open."""
    path = run(job(rounds=4))
    environment = json.loads((path / "environment.json").read_text())
    del environment["format"]
    (path / "environment.json").write_text(json.dumps(environment))
    content = yaml.safe_load((path / "config.yml").read_text())
    content["job_conf"] = [e for e in content["job_conf"] if "holdout_fraction" not in e]
    (path / "config.yml").write_text(yaml.safe_dump(content))
    before = {file.name: file.read_bytes() for file in path.iterdir() if file.is_file()}
    assert main(["run", "--resume", str(path)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"fedsuv: {path}: written by another version of fedsuv_plugin")
    assert len(err.splitlines()) == 1
    old = read_run(path)
    assert [record["round"] for record in old.rounds] == [1, 2, 3, 4]
    assert old.metrics[-1]["round"] == 4
    assert "format" not in old.environment
    assert {file.name: file.read_bytes() for file in path.iterdir() if file.is_file()} == before


def test_json_has_no_infinity() -> None:
    assert [finite_or_none(x) for x in (1.5, float("nan"), float("inf"))] == [1.5, None, None]
