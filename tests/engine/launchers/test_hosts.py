"""A job on three hosts, which are network namespaces here: its secret, TLS, and cuts of cables."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from certificates import make_certificates
from conftest import ROOT, SMALL, run, same_records
from process_worlds import until

from fedsuv_plugin.config.job import Job, make_job
from fedsuv_plugin.engine.secret import VARIABLE, make_token

HOSTS = ("one", "two", "three")
ADDRESSES = {host: f"10.77.0.{i}" for i, host in enumerate(HOSTS, start=1)}
AGGREGATOR = ADDRESSES["one"]
CUT_SECONDS = 10.0
KEYS: dict[str, Any] = {
    "rounds": 60,
    "local_steps": 150,
    "eval_interval": 10,
    "ps_ip": AGGREGATOR,
    "connection_timeout": 60,
}
counter = itertools.count()


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


class Hosts:
    """Namespaces with an address each, and a switch that joins them."""

    def __init__(self, folder: Path):
        self.processes: list[subprocess.Popen[bytes]] = []
        self.token_file = folder / "token"
        self.token_file.touch(mode=0o600)
        self.token_file.write_text(make_token())
        self._folder = folder
        self._prefix = f"fedsuv-{os.getpid()}-{next(counter)}"

    def make(self) -> None:
        switch = self._namespace("switch")
        ip("netns", "add", switch)
        ip("-n", switch, "link", "add", "bridge", "type", "bridge")
        ip("-n", switch, "link", "set", "bridge", "up")
        for host, address in ADDRESSES.items():
            here = self._namespace(host)
            ip("netns", "add", here)
            ends = ("link", "add", "cable", "netns", here, "type", "veth", "peer", "name", host)
            ip(*ends, "netns", switch)
            ip("-n", switch, "link", "set", host, "master", "bridge", "up")
            ip("-n", here, "addr", "add", f"{address}/24", "dev", "cable")
            ip("-n", here, "link", "set", "cable", "up")
            ip("-n", here, "link", "set", "lo", "up")

    def remove(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
        for name in (*HOSTS, "switch"):
            with suppress(subprocess.CalledProcessError):
                ip("netns", "delete", self._namespace(name))

    def cut(self, host: str) -> None:
        ip("-n", self._namespace("switch"), "link", "set", host, "down")

    def mend(self, host: str) -> None:
        ip("-n", self._namespace("switch"), "link", "set", host, "up")

    def start(self, host: str, script: str, rank: int, job: Job, **environment: str) -> int:
        """A process of the job on a host, with the secret unless told otherwise; its number."""
        number = len(self.processes)
        entry = str(ROOT / "fedsuv_plugin" / "engine" / script)
        words = [*job.to_argv(), f"--this_rank={rank}", "--num_executors=2", "--time_stamp=now"]
        with self._log(number).open("wb") as log:
            process = subprocess.Popen(
                ["ip", "netns", "exec", self._namespace(host), sys.executable, entry, *words],
                env={**os.environ, VARIABLE: str(self.token_file), **environment},
                stdout=log,
                stderr=log,
            )
        self.processes.append(process)
        return number

    def start_all(self, job: Job) -> None:
        """The aggregator on the first host, an executor on each of the others."""
        self.start("one", "aggregator.py", 0, job)
        self.start("two", "executor.py", 1, job)
        self.start("three", "executor.py", 2, job)

    def ended(self, number: int, seconds: float = 300) -> int:
        try:
            return self.processes[number].wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it goes on: {self.said(number)}") from None

    def said(self, number: int) -> str:
        return self._log(number).read_text()

    def _log(self, number: int) -> Path:
        return self._folder / f"process-{number}.log"

    def _namespace(self, host: str) -> str:
        return f"{self._prefix}-{host}"


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    if shutil.which("ip") is None:
        pytest.skip("ip (of iproute2) is not installed: no network namespaces can be made here")
    made = Hosts(tmp_path)
    try:
        try:
            made.make()
        except subprocess.CalledProcessError as error:
            pytest.skip(f"network namespaces cannot be made here: {error.stderr.strip()}")
        yield made
    finally:
        made.remove()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of the same job in one process."""
    folder = str(tmp_path_factory.mktemp("undisturbed"))
    return run(make_job({**SMALL, **KEYS, "log_path": folder}))


def run_directory(job: Job) -> Path:
    return Path(job.config.log_path) / job.config.job_name / f"random-s{job.config.seed}-now"


def rounds(job: Job) -> int:
    file = run_directory(job) / "rounds.jsonl"
    return file.read_bytes().count(b"\n") if file.exists() else 0


def log_of(job: Job) -> str:
    return (run_directory(job) / "log").read_text()


def test_hosts_that_share_a_secret_and_a_certificate_run_a_job(
    hosts: Hosts, tmp_path: Path, undisturbed: Path
) -> None:
    """A fourth process without the secret is refused, and the job does not notice."""
    certificates = make_certificates(tmp_path / "certificates", AGGREGATOR)
    job = make_job({**SMALL, **KEYS, **certificates.keys(), "log_path": str(tmp_path / "runs")})
    hosts.start_all(job)
    until(lambda: rounds(job) >= 1, "a round", 300)
    other = tmp_path / "other"
    other.touch(mode=0o600)
    other.write_text(make_token())
    stranger = hosts.start("three", "executor.py", 3, job, FEDSUV_TOKEN_FILE=str(other))
    assert [hosts.ended(number) for number in range(3)] == [0, 0, 0], hosts.said(0)
    same_records(run_directory(job), undisturbed)
    assert hosts.ended(stranger) == 2
    assert "does not have the secret of this job" in hosts.said(stranger)
    assert log_of(job).count("does not have the secret of this job") == 1
    assert hosts.token_file.read_text() not in log_of(job)


def test_without_a_secret_an_aggregator_does_not_listen_on_a_network(
    hosts: Hosts, tmp_path: Path
) -> None:
    job = make_job({**SMALL, **KEYS, "log_path": str(tmp_path / "runs")})
    alone = hosts.start("one", "aggregator.py", 0, job, FEDSUV_TOKEN_FILE="")
    assert hosts.ended(alone) == 2
    assert "ps_ip: without a secret expected a loopback address" in hosts.said(alone)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("host", "lease"),
    [("two", 15.0), ("two", 2.0), ("one", 15.0), ("one", 2.0)],
    ids=["executor", "executor, past its lease", "aggregator", "aggregator, past all leases"],
)
def test_a_cut_of_ten_seconds_changes_no_record(
    hosts: Hosts, tmp_path: Path, undisturbed: Path, host: str, lease: float
) -> None:
    """Within the lease everybody waits; past it the others do the work, if there are any."""
    keys = {**SMALL, **KEYS, "executor_timeout": lease, "log_path": str(tmp_path / "runs")}
    job = make_job(keys)
    hosts.start_all(job)
    until(lambda: rounds(job) >= 5, "five rounds", 300)
    hosts.cut(host)
    threading.Event().wait(CUT_SECONDS)
    hosts.mend(host)
    assert [hosts.ended(number) for number in range(3)] == [0, 0, 0], hosts.said(0)
    same_records(run_directory(job), undisturbed)
    silent = log_of(job).count(f"silent for {lease:g} s")
    assert silent == (0 if lease > CUT_SECONDS else 1 if host == "two" else 2)
    if lease < CUT_SECONDS:
        assert "registering again" in hosts.said(1)
