"""Jobs over several processes that a test starts, kills, stops, cuts off and starts again.

Processes are forked from one that has imported the engine already: a start takes no seconds.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic
from typing import Any

from fedsuv_plugin.config.job import Job
from fedsuv_plugin.engine.launchers.processes import free_port

HERE = "127.0.0.1"
FORKED = multiprocessing.get_context("forkserver")
FORKED.set_forkserver_preload(["fedsuv_plugin.engine.aggregator", "fedsuv_plugin.engine.executor"])


def play(role: str, argv: list[str], log: Path) -> None:
    """In the process: be an aggregator or an executor, as its script would be."""
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.environ.pop("FEDSUV_TOKEN_FILE", None)
    if role == "aggregator":
        from fedsuv_plugin.engine.launchers import aggregator_main as main
    else:
        from fedsuv_plugin.engine.executor import main
    sys.exit(main(argv))


def until(true: Callable[[], Any], what: str, seconds: float = 120) -> None:
    """Return when it is true; fail if that takes too long."""
    deadline = monotonic() + seconds
    pause = threading.Event()
    while not true():
        assert monotonic() < deadline, f"{what}: not within {seconds:g} s"
        pause.wait(0.01)


class Process:
    """A process of a job."""

    def __init__(self, role: str, argv: list[str], log: Path):
        self.log = log
        self._process = FORKED.Process(target=play, args=(role, argv, log))
        self._process.start()

    def signal(self, number: int) -> None:
        assert self._process.pid is not None
        if self.running:
            os.kill(self._process.pid, number)

    @property
    def running(self) -> bool:
        return self._process.is_alive()

    @property
    def worked(self) -> float:
        """Seconds of processor time that it has used."""
        words = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")

    def ended(self, seconds: float = 120) -> int:
        """Its exit code, once it has ended."""
        self._process.join(seconds)
        code = self._process.exitcode
        assert code is not None, f"still running after {seconds:g} s: {self.said}"
        return code

    @property
    def said(self) -> str:
        return self.log.read_text() if self.log.exists() else ""


class Team:
    """An aggregator, and executors that may come and go."""

    def __init__(self, job: Job, folder: Path, expected: int):
        self.job = job.with_values(ps_port=free_port())
        self.path = Path(job.config.log_path) / job.config.job_name
        self.processes: list[Process] = []
        self._folder = folder
        self._expected = expected
        self.aggregator = self._start("aggregator", 0, self.job)

    def executor(self, rank: int, job: Job | None = None) -> Process:
        """One more executor process, of this job unless another one is given."""
        return self._start("executor", rank, job or self.job)

    def _start(self, role: str, rank: int, job: Job) -> Process:
        words = [f"--this_rank={rank}", f"--num_executors={self._expected}", "--time_stamp=now"]
        log = self._folder / f"{role}-{rank}-{len(self.processes)}.log"
        process = Process(role, [*job.to_argv(), *words], log)
        self.processes.append(process)
        return process

    @property
    def run(self) -> Path:
        """The run directory."""
        (path,) = self.path.iterdir()
        return path

    @property
    def rounds(self) -> int:
        """How many rounds have been recorded."""
        return sum(path.read_bytes().count(b"\n") for path in self.path.glob("*/rounds.jsonl"))

    def until_round(self, number: int) -> None:
        until(lambda: self.rounds >= number or not self.aggregator.running, f"round {number}")
        assert self.rounds >= number, self.aggregator.said

    @property
    def log(self) -> str:
        """What the aggregator's log says."""
        return "".join(path.read_text() for path in self.path.glob("*/log"))

    def until_logged(self, text: str) -> None:
        until(lambda: text in self.log, f"{text!r} in the log")

    def until_all_train(self) -> None:
        """Return when every executor is in the middle of training."""
        self.until_logged("FL Testing")
        executors = self.processes[1:]
        before = [executor.worked for executor in executors]
        for executor, used in zip(executors, before, strict=True):
            until(lambda e=executor, u=used: e.worked > u + 0.3, "an executor at work")  # type: ignore[misc]


@contextmanager
def team(job: Job, folder: Path, executors: int, start: bool = True) -> Iterator[Team]:
    """A job that expects so many executors, and starts them; no process outlives the test."""
    made = Team(job, folder, executors)
    try:
        for rank in range(1, executors + 1) if start else ():
            made.executor(rank)
        yield made
    finally:
        for process in made.processes:
            process.signal(signal.SIGKILL)


class Cable:
    """Takes connections on a port of its own to another port, until it is cut."""

    def __init__(self, port: int):
        self.port = free_port()
        self._to = port
        self._whole = threading.Event()
        self._whole.set()
        self._sockets: list[socket.socket] = []
        self._listening = socket.create_server((HERE, self.port))
        threading.Thread(target=self._listen, daemon=True).start()

    def cut(self) -> None:
        """Nothing passes, and nobody hears of it."""
        self._whole.clear()

    def mend(self) -> None:
        """What was sent in the meantime arrives."""
        self._whole.set()

    def tear(self) -> None:
        """Both ends of every connection hear that it is over."""
        for end in self._sockets:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        self._sockets.clear()

    def close(self) -> None:
        self._listening.close()
        self.mend()
        self.tear()

    def _listen(self) -> None:
        while True:
            try:
                near, _ = self._listening.accept()
                far = socket.create_connection((HERE, self._to))
            except ConnectionRefusedError:  # nobody is at the other end
                near.close()
                continue
            except OSError:
                return
            self._sockets += [near, far]
            for pair in ((near, far), (far, near)):
                threading.Thread(target=self._pass_on, args=pair, daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                self._whole.wait()
                sink.sendall(data)
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
