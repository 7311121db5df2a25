"""Command lines of FedScale's driver: `--key=value` for every key of the job, then who is who."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields

from fedsuv_plugin.config.job import Job, make_job
from fedsuv_plugin.errors import UserError
from fedsuv_plugin.params import Params, param


@dataclass(frozen=True, kw_only=True)
class Place(Params):
    """Which process of the job this is; FedScale's driver says so on the command line."""

    this_rank: int = param(1, "0: the aggregator; 1, 2, ...: the executors", low=0)
    num_executors: int = param(1, "executors of the job", low=1)
    executor_configs: str = param("127.0.0.1:[1]", "ip:[processes per GPU], joined by =")
    cuda_device: str | None = param(None, "GPU of this executor")
    time_stamp: str = param("logs", "name of the run directory below log_path/job_name")


def from_argv(argv: Sequence[str]) -> tuple[Job, Place]:
    """The job and the place in it from `--key=value` or `--key value`, as `Job.to_argv` writes."""
    values = dict(_pairs(argv))
    own = [f.name for f in fields(Place)]
    place = Place.from_mapping({key: values.pop(key) for key in own if key in values})
    return make_job(values, source="command line"), place


def _pairs(argv: Sequence[str]) -> Iterable[tuple[str, str]]:
    rest = list(argv)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--"):
            raise UserError(f"expected --key=value, got {word!r}")
        key, equals, value = word[2:].partition("=")
        if not equals:
            if not rest:
                raise UserError(f"--{key}: expected a value")
            value = rest.pop(0)
        yield key, value
