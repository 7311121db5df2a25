"""An executor process as our launchers start it: it ends with whoever started it.

    python -m fedsuv_plugin.engine.executor_process --job_name=... --this_rank=1 ...

Its standard input is a pipe of which the launcher holds the other end. The secret of the job comes
through it: no command line, environment or file has it. The end of the pipe is the end of this
process, also while it is still being set up: what takes seconds to import is imported afterwards.
"""

from __future__ import annotations

import os
import sys

from fedsuv_plugin.lifeline import end_with

STANDARD_INPUT = 0


def first_line(descriptor: int) -> str:
    """Read to the end of a line and not a byte further: the end of what follows is watched."""
    line = b""
    while not line.endswith(b"\n") and (byte := os.read(descriptor, 1)):
        line += byte
    return line.decode().strip()


def main(argv: list[str]) -> int:
    token = first_line(STANDARD_INPUT)
    end_with(STANDARD_INPUT)
    from fedsuv_plugin.engine import executor

    return executor.main(argv, token)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
