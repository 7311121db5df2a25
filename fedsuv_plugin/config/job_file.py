"""FedScale's job files: YAML -> a checked `Job`.

A job file is FedScale's own: `ps_ip`, `worker_ips`, `exp_path`, `executor_entry`,
`aggregator_entry`, `auth`, `setup_commands` and `job_conf`, a list of one-key maps. Every key in
`job_conf` is flat, so that FedScale's driver can turn it into command lines.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from fedsuv_plugin.config.job import Job, make_job
from fedsuv_plugin.config.keys import TLS_KEYS
from fedsuv_plugin.errors import UserError
from fedsuv_plugin.params import refuse_unknown

# Keys that name files; only_clients may.
FILES = (
    "device_conf_file",
    "device_avail_file",
    "data_map_file",
    "data_dir",
    "only_clients",
    *TLS_KEYS,
)
TOP_LEVEL = (
    "ps_ip",
    "worker_ips",
    "exp_path",
    "executor_entry",
    "aggregator_entry",
    "auth",
    "setup_commands",
    "job_conf",
)


def load_job(path: str | Path, overrides: Mapping[str, object] | None = None) -> Job:
    """Read and check a job file; `overrides` are flat keys that win over it."""
    path = Path(path)
    if not path.is_file():
        raise UserError(f"no such job file: {path}")
    try:
        return _job(read_yaml(path), path, overrides or {})
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def read_yaml(path: Path) -> object:
    """What a YAML file holds. A key that stands twice in one map is an error."""
    try:
        return yaml.load(path.read_text(), Loader=_StrictLoader)
    except OSError as error:
        raise UserError(f"cannot be read ({error.strerror})") from None
    except RecursionError:
        raise UserError("not a job file: it is nested too deeply") from None
    except (yaml.YAMLError, ValueError) as error:  # ValueError: no text, or a number too long
        raise UserError(f"not a YAML file: {' '.join(str(error).split())}") from None


class _StrictLoader(yaml.SafeLoader):
    """YAML's safe loader, which by itself takes the last of two equal keys without a word."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1:
                line = node.start_mark.line + 1
                raise UserError(f"key {key!r} is given twice in the map at line {line}")
        return super().construct_mapping(node, deep)


def _job(content: object, path: Path, overrides: Mapping[str, object]) -> Job:
    if not isinstance(content, dict):
        kind = type(content).__name__
        raise UserError(f"expected a FedScale job file with `job_conf`, got {kind}")
    refuse_unknown(content, TOP_LEVEL)
    values = _job_conf(content.get("job_conf"))
    if "ps_ip" in content:
        values.setdefault("ps_ip", content["ps_ip"])
    for key in FILES:
        if key in values:
            values[key] = _located(values[key], path)
    cluster = {key: value for key, value in content.items() if key != "job_conf"}
    return make_job({**values, **overrides}, cluster=cluster, source=str(path))


def _located(name: object, job_file: Path) -> object:
    """The file that a job file names, wherever the command is given.

    It is looked for in the working directory and, if it is not there, in the job file's folder
    and those above it."""
    if isinstance(name, str) and not Path(name).expanduser().exists():
        for folder in job_file.resolve().parents:
            if (folder / name).exists():
                return str(folder / name)
    return name


def by_full_path(key: str, value: object) -> object:
    """The value of a key; a file, and the folder of runs, by its full path."""
    names_file = key in (*FILES, "log_path") and isinstance(value, str)
    if names_file and (key == "log_path" or Path(str(value)).expanduser().exists()):
        return str(Path(str(value)).expanduser().resolve())
    return value


def _job_conf(entries: object) -> dict[str, object]:
    """FedScale's list of one-key maps as one mapping. A key given twice is an error."""
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        kind = type(entries).__name__
        raise UserError(f"job_conf: expected a list of `- key: value`, got {kind}")
    values: dict[str, object] = {}
    for entry in entries:
        for key, value in entry.items():
            if key in values:
                raise UserError(f"job_conf: key {key!r} is given twice")
            values[str(key)] = value
    return values
