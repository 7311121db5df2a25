"""The fingerprint of a job: what its aggregator and its executors must agree on.

Any other value would give other numbers, silently. What may differ from host to host stays out:
paths, addresses, devices, what only the aggregator uses, and secrets.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

from fedsuv_plugin import named
from fedsuv_plugin.config.job_file import FILES
from fedsuv_plugin.config.resolved import ResolvedJob
from fedsuv_plugin.errors import shown

OF_A_HOST = {
    *FILES,
    "connection_timeout",
    "insecure",
    "late_budget_mb",
    "log_path",
    "ps_ip",
    "ps_port",
    "use_cuda",
    "wandb_token",
}
MOST_SHOWN = 5  # differences that a message names


def fingerprint(job: ResolvedJob) -> dict[str, object]:
    """The version of this package, and every key of the job that the numbers may depend on.

    Parameters are those of the selectors in use. Of the map file it is the content that counts, on
    hosts that have it: the aggregator may do without."""
    marks: dict[str, object] = {"fedsuv_plugin": version("fedsuv_plugin")}
    map_file = Path(job.config.data_map_file or "").expanduser()
    if map_file.is_file():
        digest = hashlib.sha256(map_file.read_bytes()).hexdigest()
        marks["data_map_file (digest of its content)"] = digest[:16]
    keys = vars(job.config).keys() - OF_A_HOST
    selectors = named.requirements(job.config.sample_mode, job.params_of)
    parameters = tuple(f"{name}." for name in selectors)
    counted = {
        key: value
        for key, value in job.every_key().items()
        if key in keys or key.startswith(parameters)
    }
    return marks | counted


def differences(here: Mapping[str, object], there: object) -> str:
    """What differs, such as "seed: 3 here, 4 there"; empty if nothing does."""
    if not isinstance(there, Mapping):
        return "it does not say which job it is for"
    apart = [
        f"{key}: {value} here, {shown(there.get(key, 'nothing'), 60)} there"
        for key, value in here.items()
        if key not in there or type(there[key]) is not type(value) or there[key] != value
    ]
    more = len(apart) - MOST_SHOWN
    return "; ".join([*apart[:MOST_SHOWN], *([f"and {more} more"] if more > 0 else [])])
