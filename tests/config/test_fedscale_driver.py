"""What FedScale's own driver (docker/driver.py) does with a job file, read as it reads it."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from conftest import ROOT

FILES = sorted((ROOT / "configs").rglob("*.yml"))


@pytest.mark.parametrize("file", FILES, ids=lambda f: f"{f.parent.name}/{f.stem}")
def test_the_driver_reads_it_to_the_end(file: Path) -> None:
    """It looks every one of these up, the last two when all processes have been started."""
    content = yaml.load(file.read_text(), Loader=yaml.FullLoader)
    for key in ("ps_ip", "exp_path", "executor_entry", "aggregator_entry"):
        assert isinstance(content[key], str)
    for entry in content["worker_ips"]:
        _, gpus = entry.strip().split(":")
        assert all(isinstance(count, int) for count in yaml.safe_load(gpus))
    assert len(content["auth"]["ssh_user"]) >= 0
    assert content["setup_commands"] is None or isinstance(content["setup_commands"][0], str)
    job_conf: dict[str, object] = {"time_stamp": "1118_120000", "ps_ip": content["ps_ip"]}
    for entry in content["job_conf"]:
        job_conf.update(entry)
    assert f"{job_conf['log_path']}/logs/{job_conf['job_name']}"
