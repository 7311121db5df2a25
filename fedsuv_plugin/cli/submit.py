"""`fedsuv submit`: a job on the hosts that its file names."""

from __future__ import annotations

import argparse
from datetime import datetime

from fedsuv_plugin.cli.options import add_job_options, chosen_job
from fedsuv_plugin.config.scales import EXPLAINED
from fedsuv_plugin.errors import UserError

DESCRIPTION = (
    """\
Run a job on the hosts that its file names: the aggregator on ps_ip, executors on the GPUs of
worker_ips. For now only with --dry-run, which prints the commands of each host; run each block in
a shell on its host, in a clone of this repository and with the package installed.

examples:
  fedsuv submit configs/fedsuv/cifar10_resnet18.yml --dry-run
  fedsuv submit configs/quickstart.yml --dry-run --set rounds=10 > commands.sh
  bash commands.sh                       all on this host

"""
    + EXPLAINED
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", help="the job file")
    add_job_options(parser)
    parser.add_argument(
        "--dry-run", action="store_true", help="print the commands of each host and end"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    from fedsuv_plugin.engine import cluster

    job = chosen_job(args)
    hosts = cluster.commands(job, datetime.now().strftime("%Y%m%d-%H%M%S"))
    if not args.dry_run:
        raise UserError(
            "submit: the cluster launcher is not there yet; run the commands of `fedsuv submit "
            "--dry-run` on each host, or all on this one with `fedsuv run --launcher processes`"
        )
    print(cluster.script(hosts), end="")
