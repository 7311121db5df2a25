"""The front page does what it says: its selector installs and runs, its Python runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from conftest import ROOT

PAGE = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_the_selector_of_the_front_page_installs_and_runs_as_printed(tmp_path: Path) -> None:
    folder = tmp_path / "my_selectors"
    folder.mkdir()
    for block in [*blocks("python"), *blocks("toml")]:
        name = re.match(r"# (\S+\.(?:py|toml))\n", block)
        if name:
            (folder / name[1]).write_text(block)
    assert {file.name for file in folder.iterdir()} == {"my_selectors.py", "pyproject.toml"}
    # Without build isolation: the build back end that is here, and no network.
    options = ["--no-deps", "--no-build-isolation", "--quiet", "--target", str(tmp_path / "site")]
    install = [sys.executable, "-m", "pip", "install", *options, str(folder)]
    subprocess.run(install, check=True, capture_output=True)
    paths = [str(tmp_path / "site"), str(ROOT)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    keys = ["sample_mode=worst_loss", "rounds=3", f"log_path={tmp_path / 'runs'}"]
    words = ["run", "configs/quickstart.yml", *(w for key in keys for w in ("--set", key))]
    command = [sys.executable, "-m", "fedsuv_plugin.cli", *words]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("worst_loss: accuracy ")


def test_the_python_of_the_front_page_runs_as_printed(tmp_path: Path) -> None:
    (script,) = (block for block in blocks("python") if "load_job" in block)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    path, accuracy = done.stdout.split()
    assert float(accuracy) > 0.8
    assert (tmp_path / path / "rounds.jsonl").is_file()


def test_every_page_it_links_to_is_there() -> None:
    links = [link for link in re.findall(r"\]\(([^)]+)\)", PAGE) if "://" not in link]
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []
