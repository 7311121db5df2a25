"""Bad input ends with one line and exit code 2, and leaves nothing behind."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import ROOT

from fedsuv_plugin.cli import main

QUICKSTART = str(ROOT / "configs" / "quickstart.yml")
HEAD = """\
ps_ip: 127.0.0.1
worker_ips: ['127.0.0.1:[1]']
exp_path: fedsuv_plugin/engine
executor_entry: executor.py
aggregator_entry: aggregator.py
auth: {ssh_user: ""}
setup_commands:
"""


def one_line(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(list(words)) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1, lines
    return lines[0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEAD + "7: x\njob_conf: []\n", "unknown key 7"),
        (HEAD + 'job_conf:\n  - job_name: "a\\0b"\n', "job_name: expected text, got 'a\\x00b'"),
        ("[" * 5000, "nested too deeply"),
        (HEAD + f"job_conf:\n  - rounds: {'9' * 5000}\n", "not a YAML file"),
        (HEAD + f"job_conf:\n  - learning_rate: {'9' * 400}\n", "learning_rate: expected a number"),
        (HEAD + "job_conf:\n  - rounds: 1e400\n", "rounds: expected an integer"),
        (HEAD + "job_conf:\n  - rounds: 3\n    rounds: 4\n", "key 'rounds' is given twice"),
        (HEAD + "ps_ip: 10.0.0.1\njob_conf: []\n", "key 'ps_ip' is given twice"),
        (HEAD + "job_conf:\n  - job_name: ../..\n", "job_name: expected the name of a folder"),
        (HEAD + "job_conf:\n  - job_name: ..\n", "job_name: expected the name of a folder"),
    ],
)
def test_job_files_that_are_none(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, message: str
) -> None:
    file = tmp_path / "job.yml"
    file.write_text(text)
    line = one_line(capsys, "run", str(file), "--set", f"log_path={tmp_path / 'runs'}")
    assert message in line
    assert not (tmp_path / "runs").exists()


def test_a_job_file_that_cannot_be_read(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "loop.yml").symlink_to("loop.yml")
    assert "no such job file" in one_line(capsys, "run", str(tmp_path / "loop.yml"))
    assert "cannot be read" in one_line(capsys, "run", "/proc/self/mem")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "--resume", ""], "--resume: expected a run directory, got ''"),
        (["run", QUICKSTART, "--set", "data_set=mnist"], "did you mean 'Mnist'?"),
        (["run", QUICKSTART, "--set", "only_clients=5,400"], "only_clients: expected ids from 1"),
        (["run", QUICKSTART, "--set", "only_clients=9-3"], "only_clients: expected ids from 1"),
        (["run", QUICKSTART, "--set", "wandb_token=secret"], "Weights & Biases is not installed"),
    ],
)
def test_words_that_mean_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, words: list[str], message: str
) -> None:
    folder = tmp_path / "runs"
    given = [*words, "--quiet"]
    if "--resume" not in words:
        given += ["--set", f"log_path={folder}"]
    assert message in one_line(capsys, *given)
    assert not list(folder.rglob("config.yml"))


def test_a_log_path_that_is_a_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "below", "/proc/nowhere"):
        line = one_line(capsys, "run", QUICKSTART, "--set", f"log_path={place}")
        assert "log_path: cannot make the folder" in line


def test_a_map_file_that_is_no_text(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "map.csv").write_bytes(b"\xff\xfe\x00\x01" * 10)
    for key in (f"data_map_file={tmp_path / 'map.csv'}", f"only_clients={tmp_path / 'map.csv'}"):
        words = ["run", QUICKSTART, "--quiet", "--set", key, "--set", f"log_path={tmp_path / 'r'}"]
        assert "cannot be read" in one_line(capsys, *words)
    assert not list((tmp_path / "r").rglob("config.yml"))


def test_a_report_folder_that_is_a_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    line = one_line(capsys, "replay", "fedsuv/fig6", "-o", str(tmp_path / "file"))
    assert "-o: cannot make the folder" in line


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (["sample_mode=filfl", "public_fraction=0"], "public_fraction"),
        (["sample_mode=filfl", "public_data_set=Mnist"], "public_data_set"),
        (["model=nonsense"], "model: expected one of"),
        (["synthetic_samples=1", "data_set=synthetic", "num_clients=100000000000000"], ""),
    ],
)
def test_a_job_that_is_refused_leaves_nothing_behind(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, keys: list[str], message: str
) -> None:
    words = [word for key in [*keys, f"log_path={tmp_path / 'runs'}"] for word in ("--set", key)]
    assert message in one_line(capsys, "run", QUICKSTART, "--quiet", *words)
    assert not list((tmp_path / "runs").rglob("config.yml"))


@pytest.mark.parametrize("key", ["gradient_policy", "device_conf_file", "public_data_set"])
@pytest.mark.parametrize("none", ["none", "None", "null"])
def test_none_is_a_value_of_text_keys(key: str, none: str) -> None:
    from fedsuv_plugin.config.job_file import load_job

    assert getattr(load_job(QUICKSTART, {key: none}).config, key) is None


def test_what_to_try_next_is_the_same_job(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    keys = ["--set", "rounds=2", "--set", f"log_path={tmp_path / 'my runs'}"]
    chosen = ["--set", "sample_mode=filfl"]
    assert main(["run", QUICKSTART, "--scale", "smoke", "--stand-in", *keys, *chosen]) == 0
    printed = capsys.readouterr()
    (line,) = (line for line in printed.out.splitlines() if line.startswith("try next:"))
    assert f"--scale smoke --stand-in --set rounds=2 --set 'log_path={tmp_path}/my runs'" in line
    assert line.endswith("--set sample_mode=oort")
    assert "sample_mode=filfl" not in line
    kept = "filfl keeps back 0.05 of the training samples for the server's public set"
    assert kept in printed.err


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    import fedsuv_plugin

    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out == f"fedsuv_plugin {fedsuv_plugin.__version__}\n"


@pytest.mark.parametrize("ending", ["png", "pdf", "svg"])
def test_the_ending_of_a_picture_says_what_it_is(tmp_path: Path, ending: str) -> None:
    first = {"png": b"\x89PNG", "pdf": b"%PDF", "svg": b"<?xml"}[ending]
    trace = str(ROOT / "device_traces" / "population_3500.npz")
    for words in (["traces", "show", trace], ["data", "partition", QUICKSTART]):
        file = tmp_path / f"{words[0]}.{ending}"
        assert main([*words, "--plot", str(file)]) in (0, None)
        assert file.read_bytes().startswith(first)


def test_a_picture_of_no_known_kind_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    line = one_line(capsys, "data", "partition", QUICKSTART, "--plot", str(tmp_path / "a.bmp"))
    assert "--plot: expected a file that ends in .png, .pdf, .svg" in line
