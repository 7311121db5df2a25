"""Jobs that end when they have reached an accuracy, and when a run counts as finished."""

from __future__ import annotations

from typing import Any

from conftest import MakeJob, records, run, run_killed_and_resumed, same_records

from fedsuv_plugin.engine.launchers import run_job
from fedsuv_plugin.records import read_run
from fedsuv_plugin.run_directory import RunDirectory


def test_a_job_ends_when_it_has_reached_its_accuracy(job: MakeJob) -> None:
    whole = run(job(rounds=12, eval_interval=2))
    curve = [(m["round"], m["accuracy"]) for m in records(whole, "metrics.jsonl")]
    # The best of the first half, which some evaluation before the last one reaches first.
    wanted = max(accuracy for number, accuracy in curve if 0 < number <= 8)
    first = next(number for number, accuracy in curve if accuracy >= wanted)
    for options in ({}, {"launcher": "processes", "executors": 2}):
        short = run(job(rounds=12, eval_interval=2, stop_at_accuracy=wanted), **options)
        for file in ("rounds.jsonl", "metrics.jsonl"):
            upto = [line for line in records(whole, file) if line["round"] <= first]
            assert records(short, file) == upto


def test_a_job_that_has_reached_it_does_nothing_more(job: MakeJob) -> None:
    path = run(job(rounds=12, eval_interval=2, stop_at_accuracy=0.01))
    assert records(path) == []
    assert read_run(path).finished
    before = records(path, "metrics.jsonl")
    assert run_job(RunDirectory.open(path))
    assert records(path, "metrics.jsonl") == before


def test_a_run_is_finished_only_with_the_record_of_its_last_round(job: MakeJob) -> None:
    path = run(job(rounds=4, eval_interval=2))
    assert read_run(path).finished
    lines = (path / "rounds.jsonl").read_text().splitlines(keepends=True)
    (path / "rounds.jsonl").write_text("".join(lines[:-1]))  # its evaluation is there already
    assert not read_run(path).finished


def test_a_job_killed_on_the_way_to_its_accuracy_ends_the_same(job: MakeJob) -> None:
    keys: dict[str, Any] = {"rounds": 12, "eval_interval": 2, "checkpoint_every": 3}
    curve = records(run(job(**keys)), "metrics.jsonl")
    wanted = max(m["accuracy"] for m in curve if 0 < m["round"] <= 8)
    chosen = job(stop_at_accuracy=wanted, **keys)
    last = records(run(chosen))[-1]["round"]
    same_records(run(chosen), run_killed_and_resumed(chosen, last))
    same_records(run(chosen), run_killed_and_resumed(chosen, 1))
