"""`fedsuv run`: a job on this machine."""

from __future__ import annotations

import argparse
import shlex
import sys

from fedsuv_plugin.cli.options import add_job_options, chosen_job, print_params
from fedsuv_plugin.cli.progress import Progress
from fedsuv_plugin.config.keys import JobConfig
from fedsuv_plugin.config.resolved import ResolvedJob, kept_in_words
from fedsuv_plugin.config.scales import EXPLAINED
from fedsuv_plugin.errors import UserError
from fedsuv_plugin.params import parameter_rows, parse_assignment
from fedsuv_plugin.records import Run, read_run
from fedsuv_plugin.run_directory import RunDirectory

DESCRIPTION = (
    """\
Run a FedScale job from its YAML file and record it in a run directory.

examples:
  fedsuv run configs/quickstart.yml
  fedsuv run configs/quickstart.yml --set sample_mode=oort --set rounds=100
  fedsuv run configs/quickstart.yml --set oort.exploration_factor=0.5
  fedsuv run configs/quickstart.yml --launcher processes --executors 2
  fedsuv run configs/fedsuv/cifar10_resnet18.yml --scale mini --set sample_mode=random
  fedsuv run --resume runs/quickstart/random-s1-20260101-120000
  fedsuv run --keys                      every key a job file may have

"""
    + EXPLAINED
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from fedsuv_plugin.engine.launchers import LAUNCHERS

    parser.add_argument("config", nargs="?", help="the job file")
    add_job_options(parser)
    parser.add_argument(
        "--launcher",
        choices=LAUNCHERS,
        default="loopback",
        help="one process (default), or an aggregator and executors over gRPC on this machine",
    )
    parser.add_argument(
        "--executors",
        type=int,
        default=2,
        metavar="N",
        help="executors of --launcher processes (2)",
    )
    parser.add_argument(
        "--resume", metavar="DIR", help="go on with a run that was stopped or killed"
    )
    parser.add_argument("--quiet", action="store_true", help="say nothing but errors")
    parser.add_argument("--keys", action="store_true", help="list the keys of a job file and end")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if args.keys:
        print_params(parameter_rows(JobConfig))
        return 0
    _check(args)
    directory = _directory(args)

    # FedScale takes seconds to import: only for a sound job.
    from fedsuv_plugin.engine.executor_pool import JobFailed
    from fedsuv_plugin.engine.launchers import run_job

    if not args.quiet:
        _say_what_is_kept(directory.job)
    progress = Progress(directory.job.config.rounds, args.quiet)
    try:
        finished = run_job(directory, args.launcher, args.executors, progress)
    except UserError:
        progress.end()
        raise
    except JobFailed as error:
        progress.end()
        print(
            f"fedsuv: {error}; resume with: fedsuv run --resume {directory.path}", file=sys.stderr
        )
        return 1
    except KeyboardInterrupt:  # pressed twice: the round is not finished, and will be done again
        finished = False
    progress.end()
    if not finished:
        print(f"stopped; resume with: fedsuv run --resume {directory.path}", file=sys.stderr)
        return 130
    if not args.quiet:
        _say_what_came_out(read_run(directory.path), directory.job.config)
        if args.config is not None:
            _say_what_to_try(args, directory.job.config)
    return 0


def _check(args: argparse.Namespace) -> None:
    if args.resume == "":
        raise UserError("--resume: expected a run directory, got ''")
    if (args.config is None) == (args.resume is None):
        raise UserError("run: expected a job file or --resume DIR; see fedsuv run --help")
    if args.executors < 1:
        raise UserError(f"--executors: expected an integer >= 1, got {args.executors}")


def _directory(args: argparse.Namespace) -> RunDirectory:
    """A new run directory, or that of the job to go on with."""
    if args.resume is None:
        return RunDirectory.create(chosen_job(args, args.quiet))
    overrides = dict(parse_assignment(text) for text in args.assignments)
    if overrides.keys() - {"rounds"} or args.scale != "full" or args.stand_in:
        raise UserError(
            "--resume: only rounds can be changed in a run that has begun; start a new run for "
            "the rest"
        )
    return RunDirectory.open(args.resume, overrides)


def _say_what_is_kept(job: ResolvedJob) -> None:
    """Selectors that keep different shares are not compared on the same data."""
    kept = kept_in_words(job)
    if kept:
        print(f"{job.config.sample_mode} keeps back {kept}", file=sys.stderr)


def _say_what_came_out(done: Run, config: JobConfig) -> None:
    last = done.metrics[-1]
    print(
        f"{config.sample_mode}: accuracy {last['accuracy']:.4f} after {last['round']} rounds, "
        f"{last['clock']:.0f} virtual seconds"
        + (", on made-up stand-in data" if config.stand_in else "")
    )
    known = done.environment
    print(f"clients:       {known['clients']:,} with {known['training_samples']:,} samples")
    print(f"run directory: {done.path}")


def _say_what_to_try(args: argparse.Namespace, config: JobConfig) -> None:
    """The same command with another selector."""
    words = ["fedsuv", "run", args.config]
    if args.scale != "full":
        words += ["--scale", args.scale]
    if args.stand_in:
        words.append("--stand-in")
    for assignment in args.assignments:
        if assignment.partition("=")[0].strip() != "sample_mode":
            words += ["--set", assignment]
    other = "oort" if config.sample_mode != "oort" else "random"
    print(f"try next:      {shlex.join([*words, '--set', f'sample_mode={other}'])}")
    print("               fedsuv selectors")
