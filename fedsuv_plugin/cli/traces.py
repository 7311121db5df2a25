"""`fedsuv traces`: build, import, export and show device populations.

What brings scipy, matplotlib or torch along is imported where a command runs.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

import numpy as np

from fedsuv_plugin.cli.options import add_command, add_job_options
from fedsuv_plugin.errors import UserError
from fedsuv_plugin.tables import columns
from fedsuv_plugin.traces import summary
from fedsuv_plugin.traces.availability import Availability
from fedsuv_plugin.traces.catalogues import load_catalogues
from fedsuv_plugin.traces.files import read, write, write_behaviour, write_capacity
from fedsuv_plugin.traces.tables import Trace

DESCRIPTION = """\
A device population says how fast each client computes and communicates, what power it draws, and
when it is online. A job names one in device_conf_file (devices) and device_avail_file
(availability), in our .npz or as FedScale's pickles.
"""
BUILD = """\
Make a population up from the catalogues in device_traces/. It resembles real phones, networks and
charging habits, and is none of the published traces; device_traces/README.md says how close it
comes and what was assumed.

examples:
  fedsuv traces build --clients 3500 --seed 7 -o population.npz
  fedsuv traces build --clients 1000000 -o million.npz
"""
IMPORT = """\
Turn FedScale's pickles into one .npz, which loads in seconds and can be looked up all at once. Only
plain data is unpickled. A job also takes the pickles as they are; bad ones are refused either way.

examples:
  fedsuv traces import --capacity client_device_capacity -o devices.npz
  fedsuv traces import --capacity device_capacity --availability behave_trace -o both.npz
"""
EXPORT = """\
Write a population as FedScale's pickles, for use with FedScale itself. Importing them again gives
the same population: columns that FedScale does not know travel along under their own names.

examples:
  fedsuv traces export population.npz --capacity client_device_capacity
  fedsuv traces export population.npz --capacity device_capacity --availability behave_trace
"""
SHOW = """\
Describe a trace: quantiles of every column, and who is online when.

With --job, also how long a participation takes with that job's model and local work, and what share
of the clients asked is valid by which deadline: choose round_deadline from it (with local_epochs
this loads the job's data, since a client's time depends on what it has). As in the job itself,
clients are the first num_clients of the file (all, if the job does not say), online as its
device_avail_file says (none: always); whoever goes offline before it is done is not valid.

With several job files: for each of them the share of those asked that are valid at its
round_deadline, at full scale and at --scale.

examples:
  fedsuv traces show device_traces/population_3500.npz
  fedsuv traces show population.npz --plot traces.png --job configs/quickstart.yml
  fedsuv traces show population.npz --job configs/quickstart.yml --set model=resnet18
  fedsuv traces show device_traces/population_3500.npz --job configs/fedsuv/*.yml --scale mini
  fedsuv traces show population.npz --compare $FEDSUV_DATA/device_traces
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The sub-commands of `traces`; each sets `run`."""
    commands = parser.add_subparsers(required=True, metavar="command")

    build = add_command(commands, "build", "make a population up", BUILD)
    build.add_argument("--clients", type=int, required=True, metavar="N", help="how many clients")
    build.add_argument(
        "--seed", type=int, default=0, help="the same seed gives the same population (0)"
    )
    build.add_argument("-o", "--output", required=True, metavar="FILE", help="the .npz to write")
    build.add_argument(
        "--catalogues",
        metavar="DIR",
        help="folder of phones.csv, networks.csv, ... (device_traces/)",
    )
    build.set_defaults(run=_build)

    imports = add_command(commands, "import", "FedScale's pickles -> .npz", IMPORT)
    imports.add_argument("--capacity", metavar="FILE", help="FedScale's client_device_capacity")
    imports.add_argument("--availability", metavar="FILE", help="FedScale's client_behave_trace")
    imports.add_argument("-o", "--output", required=True, metavar="FILE", help="the .npz to write")
    imports.set_defaults(run=_import)

    export = add_command(commands, "export", ".npz -> FedScale's pickles", EXPORT)
    export.add_argument("file", help="the population")
    export.add_argument("--capacity", metavar="FILE", help="where to write client_device_capacity")
    export.add_argument("--availability", metavar="FILE", help="where to write client_behave_trace")
    export.set_defaults(run=_export)

    show = add_command(
        commands, "show", "describe a population, and help to choose a deadline", SHOW
    )
    show.add_argument("file", help="a trace: our .npz or one of FedScale's pickles")
    show.add_argument("--plot", metavar="FILE", help="also plot it; png, pdf or svg")
    show.add_argument(
        "--job",
        metavar="CONFIG",
        nargs="+",
        action="extend",
        default=[],
        help="the job whose deadline is to be chosen; several: the share valid in each",
    )
    add_job_options(show)
    show.add_argument(
        "--compare", metavar="DIR", help="put it beside the real samples in this folder"
    )
    show.set_defaults(run=_show)


def _build(args: argparse.Namespace) -> None:
    from fedsuv_plugin.traces.build import build_population

    if args.clients < 1:
        raise UserError(f"--clients: expected a number >= 1, got {args.clients}")
    if args.seed < 0:
        raise UserError(f"--seed: expected a number >= 0, got {args.seed}")
    population = build_population(args.clients, args.seed, load_catalogues(args.catalogues))
    write(Trace.of(population), args.output)
    print(
        f"{args.output}: {len(population):,} clients; "
        f"`fedsuv traces show {args.output}` describes them"
    )


def _import(args: argparse.Namespace) -> None:
    if args.capacity is None and args.availability is None:
        raise UserError(
            "traces import: expected --capacity FILE, --availability FILE or both, got neither"
        )
    trace = Trace(None, None, None)
    if args.capacity is not None:
        found = read(args.capacity)
        if found.devices is None:
            raise UserError(
                f"--capacity: {args.capacity}: holds no devices; did you mean --availability?"
            )
        trace = replace(trace, devices=found.devices, device_ids=found.device_ids)
    if args.availability is not None:
        found = read(args.availability)
        if found.users is None:
            raise UserError(
                f"--availability: {args.availability}: holds no availability; "
                "did you mean --capacity?"
            )
        trace = replace(trace, users=found.users)
    write(trace, args.output)
    print(f"{args.output}: {_contents(trace)}")


def _export(args: argparse.Namespace) -> None:
    if args.capacity is None and args.availability is None:
        raise UserError(
            "traces export: expected --capacity FILE, --availability FILE or both, got neither"
        )
    trace = read(args.file)
    if args.capacity is not None:
        write_capacity(trace, args.capacity)
    if args.availability is not None:
        write_behaviour(trace, args.availability)
    print(f"{args.file}: exported {_contents(trace)}")


def _contents(trace: Trace) -> str:
    parts = []
    if trace.devices is not None:
        parts.append(f"{len(trace.devices):,} devices")
    if trace.users is not None:
        parts.append(f"availability of {len(trace.users):,} users")
    return " and ".join(parts)


def _show(args: argparse.Namespace) -> None:
    trace = read(args.file)
    population = trace.population()
    if args.compare is not None:
        print(summary.comparison(population, args.compare))
        return
    print(f"{args.file}: {_contents(trace)}\n")
    devices = [] if trace.devices is None else summary.measures(trace.devices)
    users = [] if trace.users is None else summary.habits(trace.users.availability)
    print(summary.quantile_table(devices + users))
    if trace.users is not None:
        print("\nshare online by hour of the trace's day\n" + _by_hour(trace.users.availability))
    jobs = []
    if args.job:
        from fedsuv_plugin.cli.job_deadlines import show_jobs

        jobs = show_jobs(population, args)
    if args.plot is not None:
        from fedsuv_plugin.traces.plots import plot_population

        title = f"{args.file}: {_contents(trace)}"
        if trace.devices is None:
            title += ", on uniform devices"
        if len(jobs) == 1:
            deadline = jobs[0].config.round_deadline
            plot_population(population, title, args.plot, args.job[0], jobs[0].asked, deadline)
        else:
            plot_population(population, title, args.plot)
        print(f"\n{args.plot}: plotted")


def _by_hour(availability: Availability) -> str:
    shares = summary.online_by_hour(availability)
    cells = ["-" if np.isnan(share) else f"{100 * share:.1f}" for share in shares]
    return columns(["", *map(str, range(24))], [["%", *cells]])
