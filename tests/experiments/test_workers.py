"""Work over processes: what comes back, what fails, what is left when somebody dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fedsuv_plugin.errors import UserError
from fedsuv_plugin.experiments.workers import (
    Begun,
    Done,
    Failed,
    Tell,
    Told,
    WorkerDied,
    over_processes,
)


def halved(number: int, tell: Tell) -> int:
    if number % 2:
        raise UserError(f"{number} is odd")
    tell("half")
    return number // 2


def pid(item: object, tell: Tell) -> int:
    return os.getpid()


def dies_of_two(number: int, tell: Tell) -> int:
    if number == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


class Odd(Exception):
    """Cannot cross between processes: it is made with two arguments and pickled with one."""

    def __init__(self, one: str, two: str):
        super().__init__(one + two)


def raises_odd(item: object, tell: Tell) -> None:
    raise Odd("a", "b")


def prints(item: object, tell: Tell) -> None:
    print("from Python", flush=True)
    os.write(2, b"from C\n")


def test_every_item_is_begun_told_of_and_done_or_failed() -> None:
    events = list(over_processes(halved, [4, 7, 10], 2))
    by_item = {item: [e for i, e in events if i == item] for item in (4, 7, 10)}
    assert by_item[4] == [Begun(), Told("half"), Done(2)]
    assert by_item[10] == [Begun(), Told("half"), Done(5)]
    begun, failed = by_item[7]
    assert begun == Begun()
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, UserError)
    assert str(failed.error) == "7 is odd"
    assert [item for item, event in events if event == Begun()] == [4, 7, 10]


def test_workers_start_once_and_are_other_processes() -> None:
    pids = [
        event.result for _, event in over_processes(pid, range(6), 2) if isinstance(event, Done)
    ]
    assert len(pids) == 6
    assert len(set(pids)) <= 2
    assert os.getpid() not in pids


def test_nothing_to_do() -> None:
    assert list(over_processes(pid, [], 2)) == []


def test_a_worker_that_is_killed_takes_only_its_own_work_with_it() -> None:
    over = {
        item: event
        for item, event in over_processes(dies_of_two, [1, 2, 3, 4], 2)
        if isinstance(event, Done | Failed)
    }
    died = over.pop(2)
    assert isinstance(died, Failed)
    assert isinstance(died.error, WorkerDied)
    assert "exit code -9" in str(died.error)
    assert over == {1: Done(1), 3: Done(3), 4: Done(4)}


def test_an_error_that_cannot_be_sent_is_told_in_words() -> None:
    (_, event) = list(over_processes(raises_odd, ["x"], 1))[-1]
    assert isinstance(event, Failed)
    assert str(event.error) == "Odd: ab"


def test_what_workers_print_goes_to_the_log(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    list(over_processes(prints, ["x"], 1, tmp_path / "log"))
    assert set((tmp_path / "log").read_text().splitlines()) == {"from Python", "from C"}
    assert capfd.readouterr() == ("", "")


SCRIPT = """
import sys, time
from pathlib import Path
sys.path.insert(0, {folder!r})
from sleepers import sleep
from fedsuv_plugin.experiments.workers import over_processes

if __name__ == "__main__":
    for item, event in over_processes(sleep, [Path({folder!r}) / "a", Path({folder!r}) / "b"], 2):
        pass
"""
SLEEPERS = """
import os, time

def sleep(path, tell):
    path.write_text(str(os.getpid()))
    try:
        time.sleep(600)
    except KeyboardInterrupt:
        path.with_suffix(".stopped").touch()
        raise
"""


def start_sleepers(folder: Path) -> tuple[subprocess.Popen[str], list[int]]:
    """Two workers that sleep, and the process that started them."""
    (folder / "sleepers.py").write_text(SLEEPERS)
    (folder / "main.py").write_text(textwrap.dedent(SCRIPT.format(folder=str(folder))))
    process = subprocess.Popen([sys.executable, str(folder / "main.py")], text=True)
    until(lambda: all(file.is_file() and file.read_text() for file in (folder / "a", folder / "b")))
    return process, [int((folder / name).read_text()) for name in ("a", "b")]


def until(condition: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs /proc")
def test_workers_end_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    process, workers = start_sleepers(tmp_path)
    process.kill()
    process.wait()
    until(lambda: not any(is_alive(worker) for worker in workers), 10)


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs /proc")
def test_ctrl_c_lets_work_stop_cleanly(tmp_path: Path) -> None:
    process, workers = start_sleepers(tmp_path)
    process.send_signal(signal.SIGINT)
    process.wait(30)
    assert (tmp_path / "a.stopped").exists()
    assert (tmp_path / "b.stopped").exists()
    assert not any(is_alive(worker) for worker in workers)
