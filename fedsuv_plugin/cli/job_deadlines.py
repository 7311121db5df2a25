"""What deadlines mean for jobs on a population, as `fedsuv traces show --job` prints it."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace

import numpy as np

from fedsuv_plugin.cli.options import job_at
from fedsuv_plugin.config.job import Job
from fedsuv_plugin.config.keys import JobConfig
from fedsuv_plugin.config.resolved import resolve
from fedsuv_plugin.tables import columns, short_number
from fedsuv_plugin.tasks.federated_data import model_kbit, training_sizes
from fedsuv_plugin.traces import summary
from fedsuv_plugin.traces.clock import Work, durations
from fedsuv_plugin.traces.deadlines import Participations, participations
from fedsuv_plugin.traces.population import Population, load_population

EXAMPLE_KBPS = 5648.0  # a client of FedScale's own trace, published as an example
SHARES = np.array([0.1, 0.25, 0.5, 0.75, 0.9, 0.95])


@dataclass(frozen=True)
class JobOnDevices:
    """A job on the devices of some population, and what would become of those it asks."""

    config: JobConfig
    population: Population  # of the job's clients
    work: Work
    asked: Participations

    @property
    def share_valid(self) -> float | None:
        """Share of those asked that are valid at the job's deadline; None: it has none."""
        if self.config.round_deadline is None:
            return None
        return float(self.asked.share_valid(np.array([self.config.round_deadline]))[0])


def job_on_devices(job: Job, devices: Population) -> JobOnDevices:
    """Clients are the first `num_clients` of `devices`, online as the job says. Nothing is trained.

    Data is loaded only where a client's time depends on how much of it the client has."""
    config = job.config
    n = config.num_clients or len(devices)
    sizes = None
    if config.local_epochs is not None and config.clock_samples is None:
        sizes = training_sizes(resolve(job).config)
        n = len(sizes)
    work = Work.of(config, model_kbit(config), sizes)
    population = replace(
        replace(devices, availability=None).take(np.arange(n) % len(devices)),
        availability=load_population(n, None, config.device_avail_file).availability,
    )
    asked = participations(population, work, config.duration_jitter, config.seed)
    return JobOnDevices(config, population, work, asked)


def show_jobs(devices: Population, args: argparse.Namespace) -> list[JobOnDevices]:
    """Print what deadlines mean for the jobs of a command line; the jobs at its scale."""
    several = len(args.job) > 1
    scales = ["full", args.scale] if several and args.scale != "full" else [args.scale]
    found = [
        [job_on_devices(job_at(path, scale, args, quiet=several), devices) for scale in scales]
        for path in args.job
    ]
    print("\n" + (_table(args.job, found, scales) if several else _text(args.job[0], found[0][0])))
    return [at_scales[-1] for at_scales in found]


def _table(names: list[str], found: list[list[JobOnDevices]], scales: list[str]) -> str:
    """A line per job: what the clock counts, and the share valid at each scale."""
    head = ["", "kbit each way", "samples", "round_deadline", *(f"valid at {s}" for s in scales)]
    rows = []
    for name, at_scales in zip(names, found, strict=True):
        job = at_scales[-1]
        epochs = job.config.local_epochs is not None and job.config.clock_samples is None
        samples = "its own" if epochs else str(job.work.timed_samples(np.array([0]))[0])
        deadline = job.config.round_deadline
        shares = [each.share_valid for each in at_scales]
        rows.append(
            [
                name,
                short_number(job.work.upload_kbit),
                samples,
                "-" if deadline is None else f"{deadline:g} s",
                *("-" if share is None else f"{share:.1%}" for share in shares),
            ]
        )
    return columns(head, rows)


def _text(name: str, job: JobOnDevices) -> str:
    """All about one job: how long a participation takes, and which deadline leaves how many."""
    config = job.config
    size = job.work.upload_kbit
    computing, communicating = durations(job.population, job.work, np.arange(len(job.population)))
    there_and_back = 2 * size / EXAMPLE_KBPS
    seconds = [
        ("computing (s)", computing),
        ("communicating (s)", communicating),
        ("one participation, with fluctuation (s)", job.asked.seconds),
    ]
    deadlines = [_or_never(deadline) for deadline in job.asked.deadline_for(SHARES)]
    lines = [
        f"{name}: {len(job.population):,} clients, {_amount(config)}",
        f"a model of {short_number(size)} kbit each way: {short_number(there_and_back)} s there "
        f"and back at {EXAMPLE_KBPS / 1000:.1f} Mbit/s",
        "",
        summary.quantile_table(seconds),
        "",
        columns(
            ["of those asked valid", *(f"{share:.0%}" for share in SHARES)],
            [["needs a round_deadline of (s)", *deadlines]],
        ),
    ]
    share = job.share_valid
    if share is not None:
        told = f"round_deadline {config.round_deadline:g}: {share:.1%} of those asked are valid"
        lines += ["", told]
    return "\n".join(lines)


def _amount(config: JobConfig) -> str:
    """The local work that the clock counts, in words."""
    if config.clock_samples is not None:
        return f"{config.clock_samples} samples (clock_samples)"
    if config.local_epochs is None:
        return f"{config.local_steps} steps of {config.batch_size} samples"
    epochs = "1 epoch" if config.local_epochs == 1 else f"{config.local_epochs} epochs"
    return f"{epochs} of a client's own samples"


def _or_never(deadline: float) -> str:
    return short_number(deadline) if np.isfinite(deadline) else "never"
