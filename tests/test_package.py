"""What a user imports: a job from a file, run, and read again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from conftest import ROOT

import fedsuv_plugin as fp

QUICKSTART = ROOT / "configs" / "quickstart.yml"


def test_a_job_from_python(tmp_path: Path) -> None:
    keys = {"sample_mode": "oort", "rounds": 3, "eval_interval": 2, "log_path": str(tmp_path)}
    job = fp.load_job(QUICKSTART, keys)
    seen: list[tuple[int, bool]] = []

    def on_round(record: Any, metrics: Any) -> None:
        seen.append((record["round"], metrics is not None))

    run = fp.run(job, on_round=on_round)
    assert seen == [(1, False), (2, True), (3, True)]
    assert [record["round"] for record in run.rounds] == [1, 2, 3]
    assert [record["round"] for record in run.metrics] == [0, 2, 3]
    assert run.settings["sample_mode"] == "oort"
    assert run.path.is_relative_to(tmp_path)
    assert fp.read_run(run.path) == run


def test_the_version_is_that_of_the_distribution() -> None:
    assert fp.__version__.count(".") >= 1
    assert set(fp.__all__) >= {"__version__", "load_job", "read_run", "run"}
