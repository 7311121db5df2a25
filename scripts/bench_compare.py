#!/usr/bin/env python3
"""A comparison of quickstart jobs beside the same jobs started one after the other.

    python scripts/bench_compare.py [--seeds 4] [--jobs 2]

Twelve jobs (three selectors, four seeds), one torch thread each: first `fedsuv run --launcher
loopback` for each of them, then one `fedsuv compare` in a fresh folder, report included. The ratio
compares numbers of this one run; machines are noisy, so look at the ratio, not at the seconds.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

JOB = str(Path(__file__).parents[1] / "configs" / "quickstart.yml")
SELECTORS = ("random", "oort", "round_robin")


def fedsuv(*words: str) -> float:
    """Seconds that a command takes."""
    began = time.perf_counter()
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "fedsuv_plugin.cli", *words, "--quiet"]
    subprocess.run(command, check=True, env=environment)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=4, help="seeds of each selector (4)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="jobs at a time (cores)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        apart = 0.0
        for selector in SELECTORS:
            for seed in range(args.seeds):
                keys = [f"sample_mode={selector}", f"seed={seed}", f"log_path={folder}"]
                words = [word for key in keys for word in ("--set", key)]
                apart += fedsuv("run", JOB, "--launcher", "loopback", *words)
        together = fedsuv(
            "compare",
            JOB,
            "--selectors",
            ",".join(SELECTORS),
            "--seeds",
            f"0-{args.seeds - 1}",
            "-j",
            str(args.jobs),
            "-o",
            str(Path(folder) / "study"),
        )
    count = args.seeds * len(SELECTORS)
    print(f"{count} jobs one after the other   {apart:7.1f} s   1.00")
    print(f"one comparison, {args.jobs} at a time   {together:7.1f} s   {together / apart:.2f}")


if __name__ == "__main__":
    main()
