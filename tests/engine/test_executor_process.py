"""An executor process of our launchers: where its secret comes from, and when it ends."""

from __future__ import annotations

import os
import subprocess
import sys

from conftest import MakeJob

from fedsuv_plugin.engine.executor_process import first_line

COMMAND = [sys.executable, "-m", "fedsuv_plugin.engine.executor_process"]


def test_one_line_is_read_and_not_a_byte_further() -> None:
    here, there = os.pipe()
    os.write(there, b"the secret\nmore")
    assert first_line(here) == "the secret"
    assert os.read(here, 9) == b"more"
    os.close(there)
    assert first_line(here) == ""  # its parent is gone already
    os.close(here)


def test_it_ends_with_its_pipe_while_it_is_being_set_up(job: MakeJob) -> None:
    """It would wait for its aggregator for a minute; to import torch alone takes seconds."""
    process = subprocess.Popen(
        [*COMMAND, *job().to_argv()], stdin=subprocess.PIPE, stderr=subprocess.PIPE
    )
    _, err = process.communicate(b"the secret\n", timeout=30)
    assert process.returncode == 1
    assert err == b""


def test_a_mistake_on_its_command_line_is_one_line() -> None:
    process = subprocess.Popen(
        [*COMMAND, "--rounds=no"], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    process.stdin.write("the secret\n")
    process.stdin.flush()
    assert process.wait(120) == 2
    assert process.stderr is not None
    assert process.stderr.read() == "executor: rounds: expected an integer >= 1, got 'no'\n"
    process.communicate()


def test_its_code_is_imported_after_its_parent_is_watched() -> None:
    code = "import sys, fedsuv_plugin.engine.executor_process; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "numpy", "grpc"} & set(done.stdout.split())
