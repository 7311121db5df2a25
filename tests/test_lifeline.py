"""Processes end with the one that started them, however that one ends."""

from __future__ import annotations

import signal
import subprocess
import sys

CHILD = """
import os, sys, time
from fedsuv_plugin.lifeline import end_with
end_with(0)
print(os.getpid(), flush=True)
while True:
    sum(range(10**6))
"""
PARENT = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {CHILD!r}], stdin=subprocess.PIPE)
child.wait()
"""


def test_a_child_in_the_middle_of_something_ends_with_its_killed_parent() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    assert parent.stdout.readline().strip().isdecimal()  # the child is at work
    parent.send_signal(signal.SIGKILL)
    assert parent.stdout.read() == ""  # which ends when the child, who shares it, has ended
    parent.wait()


def test_as_long_as_the_pipe_is_open_it_goes_on() -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdout.readline()
    try:
        child.wait(0.3)
        raise AssertionError("it has ended")
    except subprocess.TimeoutExpired:
        child.stdin.close()
    assert child.wait(30) == 1
    child.stdout.close()
