"""The command line as a user meets it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import DEVICES, ROOT, records

from fedsuv_plugin import named
from fedsuv_plugin.cli import main
from fedsuv_plugin.traces.files import write
from fedsuv_plugin.traces.population import load_population
from fedsuv_plugin.traces.tables import Trace

QUICKSTART = str(ROOT / "configs" / "quickstart.yml")


def fedsuv(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    try:
        code = main(list(words))
    except SystemExit as stopped:
        code = int(stopped.code or 0)
    out, err = capsys.readouterr()
    return code, out, err


def setting(*keys: str) -> list[str]:
    """--set for each of them."""
    return [word for key in keys for word in ("--set", key)]


def test_the_quickstart_reaches_ninety_percent(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code, out, err = fedsuv(capsys, "run", QUICKSTART, "--set", f"log_path={tmp_path}")
    assert code == 0
    path = next((tmp_path / "quickstart").iterdir())
    assert f"run directory: {path}" in out
    assert "--set sample_mode=oort" in out  # what to try next
    assert records(path, "metrics.jsonl")[-1]["accuracy"] >= 0.9
    assert "round 60/60" in err
    assert "\r" not in err  # no live line where nobody looks


@pytest.mark.parametrize("selector", ["fedsuv", "oort", "round_robin"])
def test_swapping_the_selector_is_one_key(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, selector: str
) -> None:
    keys = (f"log_path={tmp_path}", f"sample_mode={selector}", "rounds=5")
    assert fedsuv(capsys, "run", QUICKSTART, "--quiet", *setting(*keys)) == (0, "", "")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["run", QUICKSTART, "--set", "sample_mode=fedsvu"],
            f"fedsuv: {QUICKSTART}: unknown client manager 'fedsvu'; "
            f"installed: {', '.join(named.installed())}",
        ),
        (
            ["run", QUICKSTART, "--set", "rounds=no"],
            f"fedsuv: {QUICKSTART}: rounds: expected an integer >= 1, got False",
        ),
        (["run", QUICKSTART, "--set", "rounds"], "fedsuv: --set rounds: expected key=value"),
        (["run", "nowhere.yml"], "fedsuv: no such job file: nowhere.yml"),
        (["run"], "fedsuv: run: expected a job file or --resume DIR"),
        (["run", "--resume", "nowhere"], "fedsuv: nowhere: not a run directory"),
        (
            ["run", "--resume", "x", "--set", "seed=2"],
            "fedsuv: --resume: only rounds can be changed",
        ),
        (
            ["run", QUICKSTART, "--executors", "0"],
            "fedsuv: --executors: expected an integer >= 1, got 0",
        ),
        (["selectors", "fedsvu"], "fedsuv: unknown client manager 'fedsvu'"),
    ],
)
def test_mistakes_are_one_line(
    capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    code, out, err = fedsuv(capsys, *words)
    assert code == 2
    assert err.startswith(message)
    assert len(err.splitlines()) == 1
    assert out == ""


def test_a_job_refused_before_it_starts_leaves_nothing_behind(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    here = f"log_path={tmp_path}/runs"
    code, _, _ = fedsuv(capsys, "run", QUICKSTART, *setting(here, "momentum=2"))
    assert code == 2
    assert not (tmp_path / "runs").exists()
    # This one is found out only when the job starts.
    code, _, err = fedsuv(capsys, "run", QUICKSTART, *setting(here, "data_set=Mnst"))
    assert (code, len(err.splitlines())) == (2, 1)
    assert list((tmp_path / "runs" / "quickstart").iterdir()) == []


def test_a_deadline_shows_in_the_progress_line_and_agrees_with_the_curve(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """600 clients are asked at random.

    The share that is valid has a standard error of at most 0.02; allow five of them."""
    keys = setting(f"log_path={tmp_path}", "round_deadline=80")
    code, _, err = fedsuv(capsys, "run", QUICKSTART, *keys)
    assert code == 0
    rounds = records(next((tmp_path / "quickstart").iterdir()))
    share = sum(len(r["valid"]) for r in rounds) / sum(len(r["asked"]) for r in rounds)
    assert f"valid {len(rounds[-1]['valid'])}/10" in err
    show = ("traces", "show", DEVICES, "--job", QUICKSTART)
    _, out, _ = fedsuv(capsys, *show, *setting("round_deadline=80"))
    shown = re.search(r"round_deadline 80: ([\d.]+)% of those asked are valid", out)
    assert shown
    assert abs(share - float(shown[1]) / 100) < 0.1


def test_traces_show_knows_local_epochs(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    write(Trace.of(load_population(300, DEVICES, None)), tmp_path / "devices.npz")
    show = ("traces", "show", str(tmp_path / "devices.npz"), "--job", QUICKSTART)
    code, out, _ = fedsuv(capsys, *show, *setting("local_epochs=2", "num_clients=40"))
    assert code == 0
    assert "40 clients, 2 epochs of a client's own samples" in out


def test_debug_shows_the_traceback() -> None:
    with pytest.raises(Exception, match="no such job file"):
        main(["--debug", "run", "nowhere.yml"])


def test_selectors_as_a_table_and_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = fedsuv(capsys, "selectors")
    assert code == 0
    assert re.search(r"^oort +Lai et al\.", out, re.MULTILINE)
    _, out, _ = fedsuv(capsys, "selectors", "--json")
    listed = {entry["name"]: entry for entry in json.loads(out)}
    assert {"oort", "random", "round_robin"} <= listed.keys()
    parameters = {entry["name"]: entry for entry in listed["oort"]["parameters"]}
    assert parameters["exploration_min"]["default"] == "0.3"
    assert parameters["exploration_min"]["allowed"] == "a number >= 0 and <= 1"
    _, out, _ = fedsuv(capsys, "selectors", "oort")
    assert "oort.exploration_min: 0.3" in out
    assert "OSDI 2021" in out


@pytest.mark.parametrize(
    "words", [["--help"], ["run", "--help"], ["selectors", "--help"], ["run", "--keys"]]
)
def test_help_teaches(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    code, out, _ = fedsuv(capsys, *words)
    assert code == 0
    assert len(out) > 300


def test_every_key_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = fedsuv(capsys, "run", "--keys")
    assert "round_deadline: none\n    seconds a round may last" in out


def test_a_closed_pipe_is_no_error() -> None:
    command = subprocess.Popen(
        [sys.executable, "-m", "fedsuv_plugin.cli", "run", "--keys"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert command.stdout is not None
    assert command.stderr is not None
    command.stdout.close()
    assert b"Traceback" not in command.stderr.read()
    command.wait()
