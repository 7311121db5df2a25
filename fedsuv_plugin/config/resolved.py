"""The resolved job: nothing in it is open, and it is all that anyone reads once a job runs.

A selector decides what clients and server compute and which shares of the data are kept from
training for it. `resolve` settles both, and the run directory records the result as `config.yml`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from fedsuv_plugin import named
from fedsuv_plugin.config.job import Job
from fedsuv_plugin.params import Params
from fedsuv_plugin.selectors.signals import SHARES


@dataclass(frozen=True)
class ResolvedJob(Job):
    """A job whose kept shares are numbers, with what its selector needs."""

    needs: frozenset[str] = field(default_factory=frozenset)  # signals: see selectors/signals.py


def resolve(job: Job) -> ResolvedJob:
    """Settle what the job file leaves to the selector. A resolved job stays as it is."""
    wanted = named.required(job.config.sample_mode, job.params_of)
    config = replace(job.config, **_kept_shares(job, wanted.needs | wanted.probes))
    params = {**job.selector_params, **_params_in_use(job)}
    return ResolvedJob(config, params, job.extra, job.cluster, job.source, wanted.needs)


def _params_in_use(job: Job) -> dict[str, Params]:
    """The parameters of the chosen selector, and of the one it is put around."""
    name = job.config.sample_mode
    selector = named.selector_class(name)
    if selector is None:
        return {}
    params = {name: job.params_of(name)}
    inner = named.inner_of(selector, params[name])
    return params if inner is None else {**params, inner[0]: job.params_of(inner[0])}


def _kept_shares(job: Job, wanted: frozenset[str]) -> dict[str, Any]:
    """The shares of the data that are kept from training, as the job says or the selector needs."""
    kept = {}
    for key, (signal, default) in SHARES.items():
        given = getattr(job.config, key)
        kept[key] = given if given is not None else default * (signal in wanted)
    if job.config.public_data_set is not None:
        kept["public_fraction"] = 0.0  # the public set comes from elsewhere: clients keep theirs
    return kept


WORDS = {  # what each share is of, and for
    "holdout_fraction": "of each client's samples for its opinions",
    "interview_fraction": "of the test set for interviews",
    "public_fraction": "of the training samples for the server's public set",
}


def kept_in_words(job: ResolvedJob) -> str:
    """What a job keeps from training or testing, in one line; empty if nothing.

    Two selectors that keep different shares are not compared on the same data."""
    shares = {key: getattr(job.config, key) for key in WORDS}
    return ", ".join(f"{share:g} {WORDS[key]} ({key})" for key, share in shares.items() if share)
