"""The commands that run a job on the hosts of its file: an aggregator on `ps_ip`, executors on `worker_ips`.

They are those of FedScale's driver: every key of the job as a flag, then who is who. `worker_ips` entries are
`host:[a, b, ...]`, a executors on the first GPU of the host, b on the second, ...; ranks run through all hosts in that
order, and rank 0 is the aggregator.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from fedsuv_plugin.config.job import Job
from fedsuv_plugin.errors import UserError

WORKER = re.compile(r"\s*(?P<host>[^\s\[\]]+):\s*\[(?P<gpus>\s*\d+(\s*,\s*\d+)*\s*)\]\s*")


@dataclass(frozen=True)
class Host:
    """What runs on one host, as shell commands in the order in which to run them."""

    address: str  # user@host
    setup: tuple[str, ...]
    aggregator: str | None  # to be started first
    executors: tuple[str, ...]


def workers(job: Job) -> list[tuple[str, list[int]]]:
    """(host, executors on each of its GPUs) of every entry of worker_ips."""
    entries = job.cluster.get("worker_ips")
    if not isinstance(entries, list) or not entries:
        raise UserError(
            f"{job.source}: worker_ips: expected a list such as ['10.0.0.2:[2,2]'], got {entries!r}"
        )
    found = []
    for entry in entries:
        match = WORKER.fullmatch(str(entry))
        counts = [int(count) for count in match["gpus"].split(",")] if match else []
        if match is None or not sum(counts):
            raise UserError(
                f"{job.source}: worker_ips: expected host:[executors on its first GPU, on its second, ...] "
                f"with at least one executor, got {entry!r}"
            )
        found.append((match["host"], counts))
    return found


def commands(job: Job, time_stamp: str) -> list[Host]:
    """What to run where; the aggregator's host comes first. Keys of the job decide: `log_path` and files they name are
    paths on the hosts."""
    folder, aggregator_entry, executor_entry = (
        _text(job, key) for key in ("exp_path", "aggregator_entry", "executor_entry")
    )
    placed = workers(job)
    total = sum(sum(counts) for _, counts in placed)
    shared = [*job.to_argv(), f"--time_stamp={time_stamp}", f"--num_executors={total}"]
    if "ps_ip" not in job.flat():
        shared.append(f"--ps_ip={job.config.ps_ip}")
    where = "=".join(f"{host}:[{','.join(map(str, counts))}]" for host, counts in placed)
    on: dict[str, list[str]] = {job.config.ps_ip: []}
    rank = 0
    for host, counts in placed:
        for gpu in (gpu for gpu, count in enumerate(counts) for _ in range(count)):
            rank += 1
            on.setdefault(host, []).append(
                shlex.join(
                    [
                        "python",
                        f"{folder}/{executor_entry}",
                        *shared,
                        f"--this_rank={rank}",
                        f"--cuda_device=cuda:{gpu}",
                    ]
                )
            )
    aggregator = shlex.join(
        [
            "python",
            f"{folder}/{aggregator_entry}",
            *shared,
            "--this_rank=0",
            f"--executor_configs={where}",
        ]
    )
    user, setup = _user(job), _setup(job)
    return [
        Host(
            f"{user}@{host}" if user else host,
            setup,
            aggregator if host == job.config.ps_ip else None,
            tuple(executors),
        )
        for host, executors in on.items()
    ]


def script(hosts: list[Host]) -> str:
    """The commands as text to paste, a block per host; each host's own shell runs its block from a copy of the
    repository, since paths are relative to it."""
    blocks = []
    for host in hosts:
        lines = [f"# ---- {host.address}", *host.setup]
        lines += [] if host.aggregator is None else [f"{host.aggregator} &"]
        lines += [f"{executor} &" for executor in host.executors]
        blocks.append("\n".join([*lines, "wait", ""]))
    return "\n".join(blocks)


def _text(job: Job, key: str) -> str:
    value = job.cluster.get(key)
    if not isinstance(value, str) or not value:
        default = "fedsuv_plugin/engine" if key == "exp_path" else key.partition("_")[0] + ".py"
        raise UserError(f"{job.source}: {key}: expected a path such as {default}, got {value!r}")
    return str(Path(value)) if key == "exp_path" else value


def _user(job: Job) -> str:
    auth = job.cluster.get("auth") or {}
    if not isinstance(auth, dict) or not isinstance(auth.get("ssh_user") or "", str):
        raise UserError(f"{job.source}: auth: expected ssh_user: <name>, got {auth!r}")
    return auth.get("ssh_user") or ""


def _setup(job: Job) -> tuple[str, ...]:
    lines = job.cluster.get("setup_commands") or []
    if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
        raise UserError(
            f"{job.source}: setup_commands: expected a list of shell commands, got {lines!r}"
        )
    return tuple(lines)
