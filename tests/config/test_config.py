"""Job files: what is accepted, what is refused and in which words."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from conftest import ROOT

from fedsuv_plugin.config.argv import from_argv
from fedsuv_plugin.config.job import make_job
from fedsuv_plugin.config.job_file import load_job
from fedsuv_plugin.errors import UserError

QUICKSTART = ROOT / "configs" / "quickstart.yml"


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def refusal(path: Path, **overrides: object) -> str:
    with pytest.raises(UserError) as error:
        load_job(path, overrides)
    return str(error.value)


@pytest.mark.parametrize("path", sorted(QUICKSTART.parent.rglob("*.yml")), ids=lambda p: p.name)
def test_every_shipped_config_is_sound(path: Path) -> None:
    assert load_job(path).config.job_name


@pytest.mark.parametrize(
    ("job_conf", "message"),
    [
        (
            "  - num_participant: 3",
            "unknown key 'num_participant'; did you mean 'num_participants'?",
        ),
        ("  - num_participants: 0", "num_participants: expected an integer >= 1, got 0"),
        ("  - learning_rate: fast", "learning_rate: expected a number > 0, got 'fast'"),
        ("  - sample_mode: fedsvu", "unknown client manager 'fedsvu'; installed: "),
        ("  - rounds: 5\n  - rounds: 6", "job_conf: key 'rounds' is given twice"),
        ("  rounds: 5", "job_conf: expected a list of `- key: value`, got dict"),
        ("  - oort.exploration: 0.3", "oort: unknown key 'exploration'"),
        (
            "  - oort.exploration_min: 3",
            "oort.exploration_min: expected a number >= 0 and <= 1, got 3",
        ),
        ("  - ort.exploration_min: 0.3", "unknown selector 'ort'; did you mean 'oort'?"),
        ("  - exploration_min: 3", "oort.exploration_min: expected a number >= 0 and <= 1, got 3"),
        ("  - engine: tensorflow", "engine: expected pytorch, got 'tensorflow'"),
        ("  - task: nlp", "task: expected cv or speech or text_clf, got 'nlp'"),
    ],
)
def test_bad_keys_are_named_with_their_file(tmp_path: Path, job_conf: str, message: str) -> None:
    path = write(tmp_path / "job.yml", f"job_conf:\n{job_conf}\n")
    assert refusal(path).startswith(f"{path}: {message}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("job_conf: [", "not a YAML file"),
        ("- 1", "expected a FedScale job file with `job_conf`, got list"),
        ("jobconf: []", "unknown key 'jobconf'; did you mean 'job_conf'?"),
        ("", "got NoneType"),
        ("ps_ip: x", "job_conf: expected a list"),
    ],
)
def test_files_that_are_no_job_files(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path / "job.yml", text)
    assert message in refusal(path)
    assert refusal(path).startswith(str(path))
    assert "\n" not in refusal(path)


def test_a_missing_file(tmp_path: Path) -> None:
    assert refusal(tmp_path / "no.yml") == f"no such job file: {tmp_path / 'no.yml'}"


def test_overrides_win_and_are_checked() -> None:
    assert load_job(QUICKSTART, {"rounds": "7"}).config.rounds == 7
    assert "rounds: expected an integer >= 1, got 0" in refusal(QUICKSTART, rounds=0)


def test_files_are_found_from_the_working_directory_or_from_the_job_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "configs").mkdir()
    (tmp_path / "traces").mkdir()
    (tmp_path / "traces" / "a.npz").touch()
    path = write(
        tmp_path / "configs" / "job.yml",
        "job_conf:\n  - device_conf_file: traces/a.npz\n  - device_avail_file: traces/b.npz\n",
    )
    monkeypatch.chdir(tmp_path / "traces")
    config = load_job(path).config
    assert config.device_conf_file == str(tmp_path / "traces" / "a.npz")
    # There is no such file; the name is left as it is, for the error to show.
    assert config.device_avail_file == "traces/b.npz"
    monkeypatch.chdir(tmp_path)
    assert load_job(path).config.device_conf_file == "traces/a.npz"


def test_parameters_of_selectors_not_chosen_are_kept_and_checked(tmp_path: Path) -> None:
    job = make_job({"sample_mode": "random", "oort.exploration_min": "0.1", "round_threshold": 50})
    assert list(job.selector_params) == ["oort"]
    oort = {"oort.exploration_min": 0.1, "oort.round_threshold": 50.0}
    assert {key: value for key, value in job.flat().items() if "." in key} == oort


def test_false_means_false() -> None:
    # FedScale declares such keys with type=bool, for which every non-empty text is true.
    assert from_argv(["--use_cuda=False"])[0].config.use_cuda is False


def test_fedscale_keys_without_effect_are_accepted_and_said_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    job = make_job({"num_loaders": 4})
    assert job.extra == {"num_loaders": 4}
    assert "num_loaders has no effect here" in capsys.readouterr().err


def test_the_command_line_carries_the_whole_job() -> None:
    job = load_job(
        QUICKSTART,
        {
            "sample_mode": "oort",
            "oort.exploration_min": 0.1,
            "round_deadline": 12.5,
            "gradient_policy": "fed-yogi",
            "data_dir": "with space",
        },
    )
    again, place = from_argv(
        [*job.to_argv(), "--this_rank", "2", "--num_executors=3", "--cuda_device=cuda:1"]
    )
    assert again.config == job.config
    assert again.selector_params == job.selector_params
    assert (place.this_rank, place.num_executors, place.cuda_device) == (2, 3, "cuda:1")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["rounds=3"], "expected --key=value, got 'rounds=3'"),
        (["--rounds"], "--rounds: expected a value"),
        (["--round=3"], "unknown key 'round'; did you mean 'rounds'?"),
        (["--this_rank=x"], "this_rank: expected an integer >= 0, got 'x'"),
    ],
)
def test_bad_command_lines(argv: list[str], message: str) -> None:
    with pytest.raises(UserError) as error:
        from_argv(argv)
    assert str(error.value) == message


def test_learning_rate_decays_like_fedscales() -> None:
    # FedScale multiplies before round 10, 20, ... and stops at the minimum.
    config = make_job(
        {"learning_rate": 0.1, "decay_factor": 0.5, "decay_round": 10, "min_learning_rate": 0.03}
    ).config
    rates = [config.learning_rate_in(r) for r in (1, 9, 10, 19, 20, 500)]
    assert rates == [0.1, 0.1, 0.05, 0.05, 0.03, 0.03]


def test_a_job_file_is_what_fedscales_driver_reads() -> None:
    """The driver takes these keys by name and joins worker_ips.

    It puts every entry of job_conf on a command line."""
    content = yaml.safe_load(QUICKSTART.read_text())
    keys = "ps_ip worker_ips exp_path executor_entry aggregator_entry auth setup_commands job_conf"
    assert set(keys.split()) <= content.keys()
    assert content["auth"]["ssh_user"] == ""
    for entry in content["job_conf"]:
        assert isinstance(entry, dict)
        (value,) = entry.values()
        assert isinstance(value, str | int | float)


def test_importing_the_configuration_loads_neither_torch_nor_a_selector() -> None:
    """Commands read job files before they know whether they need anything else, so it is quick."""
    modules = sorted(file.stem for file in (ROOT / "fedsuv_plugin" / "config").glob("[!_]*.py"))
    assert "scales" in modules
    code = "\n".join(f"import fedsuv_plugin.config.{module}" for module in modules)
    code += "\nimport sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert not loaded & {"torch", "scipy", "sklearn", "matplotlib"}
    # The table of signals is a list of names and not a selector.
    selectors = {name for name in loaded if name.startswith("fedsuv_plugin.selectors.")}
    assert selectors <= {"fedsuv_plugin.selectors.signals"}
