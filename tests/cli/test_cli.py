"""The command line as a user meets it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT, records

from fedsuv_plugin import named
from fedsuv_plugin.cli import main

QUICKSTART = str(ROOT / "configs" / "quickstart.yml")


def fedsuv(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    try:
        code = main(list(words))
    except SystemExit as stopped:
        code = int(stopped.code or 0)
    out, err = capsys.readouterr()
    return code, out, err


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
    code, out, err = fedsuv(
        capsys,
        "run",
        QUICKSTART,
        "--quiet",
        "--set",
        f"log_path={tmp_path}",
        "--set",
        f"sample_mode={selector}",
        "--set",
        "rounds=5",
    )
    assert (code, out, err) == (0, "", "")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["run", QUICKSTART, "--set", "sample_mode=fedsvu"],
            f"fedsuv: {QUICKSTART}: unknown client manager 'fedsvu'; installed: {', '.join(named.installed())}",
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
    assert (
        fedsuv(
            capsys, "run", QUICKSTART, "--set", f"log_path={tmp_path}/runs", "--set", "momentum=2"
        )[0]
        == 2
    )
    assert not (tmp_path / "runs").exists()
    # this one is found out only when the job starts
    code, _, err = fedsuv(
        capsys, "run", QUICKSTART, "--set", f"log_path={tmp_path}/runs", "--set", "data_set=Mnst"
    )
    assert (code, len(err.splitlines())) == (2, 1)
    assert list((tmp_path / "runs" / "quickstart").iterdir()) == []


def test_a_deadline_shows_in_the_progress_line_and_agrees_with_the_curve(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """600 clients asked at random: the share valid has a standard error of at most 0.02; allow five."""
    code, _, err = fedsuv(
        capsys, "run", QUICKSTART, "--set", f"log_path={tmp_path}", "--set", "round_deadline=80"
    )
    assert code == 0
    rounds = records(next((tmp_path / "quickstart").iterdir()))
    share = sum(len(r["valid"]) for r in rounds) / sum(len(r["asked"]) for r in rounds)
    assert f"valid {len(rounds[-1]['valid'])}/10" in err
    population = str(Path(QUICKSTART).parent.parent / "device_traces" / "population_3500.npz")
    _, out, _ = fedsuv(
        capsys, "traces", "show", population, "--job", QUICKSTART, "--set", "round_deadline=80"
    )
    shown = re.search(r"round_deadline 80: ([\d.]+)% of those asked are valid", out)
    assert shown
    assert abs(share - float(shown[1]) / 100) < 0.1


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
    assert {
        "name": "exploration_min",
        "default": "0.3",
        "allowed": "a number >= 0 and <= 1",
    }.items() <= listed["oort"]["parameters"][2].items()
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


@pytest.mark.parametrize("package", ["tensorflow", "wandb"])
def test_optional_packages_say_which_extra_to_install(package: str) -> None:
    """Absent: FedScale imports, and using them says what to do. Present: the real ones are used."""
    script = f"""
import importlib.util, sys
from fedsuv_plugin.engine.stock import Aggregator
import fedscale.cloud.aggregation.aggregator as module
import fedscale.cloud.internal.tensorflow_model_adapter as adapter
used = module.wandb if {package!r} == "wandb" else adapter.tf
if importlib.util.find_spec({package!r}) is None:
    assert {package!r} not in sys.modules
    try:
        used.init() if {package!r} == "wandb" else used.keras.Model()
    except ImportError as error:
        assert "pip install 'fedsuv_plugin[{package}]'" in str(error), error
    else:
        raise SystemExit("no error")
else:
    assert used is sys.modules[{package!r}]
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_a_real_optional_package_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "wandb.py").write_text("real = True\nrun = None\n")
    script = (
        "import fedsuv_plugin.engine.stock, fedscale.cloud.aggregation.aggregator as module\n"
        "assert module.wandb.real"
    )
    subprocess.run(
        [sys.executable, "-c", script],
        check=True,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"},
    )
