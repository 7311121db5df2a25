"""The resolved job: nothing in it is open, and it is all that anyone reads once a job runs.

A selector decides what clients and server compute and which shares of the data are kept from
training for it. `resolve` settles both, and the run directory records the result as `config.yml`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from fedsuv_plugin import named
from fedsuv_plugin.config.job import Job
from fedsuv_plugin.selectors.signals import SHARES


@dataclass(frozen=True)
class ResolvedJob(Job):
    """A job whose kept shares are numbers, with what its selector needs."""

    needs: frozenset[str] = field(default_factory=frozenset)  # signals: see selectors/signals.py


def resolve(job: Job) -> ResolvedJob:
    """Settle what the job file leaves to the selector. A resolved job stays as it is."""
    wanted = named.required(job.config.sample_mode, job.params_of)
    config = replace(job.config, **_kept_shares(job, wanted.needs | wanted.probes))
    return ResolvedJob(
        config, job.selector_params, job.extra, job.cluster, job.source, wanted.needs
    )


def _kept_shares(job: Job, wanted: frozenset[str]) -> dict[str, Any]:
    """The shares of the data that are kept from training, as the job says or the selector needs."""
    kept = {}
    for key, (signal, default) in SHARES.items():
        given = getattr(job.config, key)
        kept[key] = given if given is not None else default * (signal in wanted)
    if job.config.public_data_set is not None:
        kept["public_fraction"] = 0.0  # the public set comes from elsewhere: clients keep theirs
    return kept
