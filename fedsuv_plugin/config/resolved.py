"""The resolved job: nothing in it is open, and it is all that anyone reads once a job runs.

A selector decides what clients and server compute and which shares of the data are kept from
training for it. `resolve` settles both, and the run directory records the result as `config.yml`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from fedsuv_plugin import named
from fedsuv_plugin.config.job import Job
from fedsuv_plugin.errors import UserError
from fedsuv_plugin.selectors.signals import SHARES, Signal


@dataclass(frozen=True)
class ResolvedJob(Job):
    """A job whose kept shares are numbers, with what its selector needs."""

    needs: frozenset[str] = field(default_factory=frozenset)  # signals: see selectors/signals.py


def resolve(job: Job) -> ResolvedJob:
    """Settle what the job file leaves to the selector. A resolved job stays as it is.

    A job that keeps no data for a signal of its selector is refused."""
    wanted = named.required(job.config.sample_mode, job.params_of)
    config = replace(job.config, **_kept_shares(job, wanted.signals))
    in_use = named.requirements(job.config.sample_mode, job.params_of)
    params = {**job.selector_params, **{name: job.params_of(name) for name in in_use}}
    return ResolvedJob(config, params, job.extra, job.cluster, job.source, wanted.needs)


def open_shares(job: Job) -> dict[str, float]:
    """The shares that the job leaves to its selector, and what that one needs of each."""
    config = resolve(job).config
    return {key: getattr(config, key) for key in SHARES if getattr(job.config, key) is None}


def _kept_shares(job: Job, wanted: frozenset[str]) -> dict[str, Any]:
    """The shares of the data that are kept from training, as the job says or the selector needs."""
    kept = {}
    for key, signal in SHARES.items():
        given = getattr(job.config, key)
        if signal.instead is not None and getattr(job.config, signal.instead) is not None:
            kept[key] = 0.0  # the data comes from elsewhere: clients keep theirs
        elif given is None:
            kept[key] = signal.default_share * (signal.name in wanted)
        elif given == 0 and signal.name in wanted:
            raise UserError(_nothing_kept(job, signal))
        else:
            kept[key] = given
    return kept


def _nothing_kept(job: Job, signal: Signal) -> str:
    """Why a job is refused that keeps no data for a signal of its selector."""
    asks = named.requirements(job.config.sample_mode, job.params_of)
    who = next(name for name, required in asks.items() if signal.name in required.signals)
    other = "" if signal.instead is None else f" or a {signal.instead}"
    return (
        f"{signal.share}: expected more than 0{other}, because {who} needs {signal.name}, got 0.0"
    )


def kept_in_words(job: ResolvedJob) -> str:
    """What a job keeps from training or testing, in one line; empty if nothing.

    Two selectors that keep different shares are not compared on the same data."""
    shares = {key: getattr(job.config, key) for key in SHARES}
    return ", ".join(
        f"{share:g} {SHARES[key].kept} ({key})" for key, share in shares.items() if share
    )
