"""The command line: `fedsuv run`, `submit`, `selectors`, `traces`, `data`, `replay`."""

from __future__ import annotations

import argparse
import inspect
import json
import sys
import textwrap
import time
from datetime import datetime
from pathlib import Path
from typing import Any

from fedsuv_plugin import named
from fedsuv_plugin.cli import traces as traces
from fedsuv_plugin.cli.options import add_command, add_job_options, chosen_job
from fedsuv_plugin.config.keys import JobConfig
from fedsuv_plugin.config.scales import EXPLAINED
from fedsuv_plugin.errors import UserError
from fedsuv_plugin.params import parameter_rows, parse_assignment
from fedsuv_plugin.tables import columns

RUN_HELP = (
    """\
Run a FedScale job from its YAML file and record it in a run directory.

examples:
  fedsuv run configs/quickstart.yml
  fedsuv run configs/quickstart.yml --set sample_mode=oort --set rounds=100
  fedsuv run configs/quickstart.yml --set oort.exploration_factor=0.5
  fedsuv run configs/quickstart.yml --launcher processes --executors 2
  fedsuv run configs/fedsuv/cifar10_resnet18.yml --scale mini --set sample_mode=random
  fedsuv run --resume runs/quickstart/20260101-120000
  fedsuv run --keys                      every key a job file may have

"""
    + EXPLAINED
)


SUBMIT_HELP = """\
Run a job on the hosts that its file names: the aggregator on ps_ip, executors on the GPUs of worker_ips. For now only
with --dry-run, which prints the commands of each host; run each block in a shell on its host, in a clone of this
repository and with the package installed.

examples:
  fedsuv submit configs/fedsuv/cifar10_resnet18.yml --dry-run
  fedsuv submit configs/quickstart.yml --dry-run --set rounds=10 > commands.sh && bash commands.sh     all on this host

"""


REPLAY_HELP = """\
Run a published experiment again and write report.md, results.json and its pictures.

examples:
  fedsuv replay                          what there is, and its parameters
  fedsuv replay fedsuv/fig6
  fedsuv replay fedsuv/fig6 --set seeds=1 --set settings=default -o /tmp/fig6
"""


def main(argv: list[str] | None = None) -> int:
    words = sys.argv[1:] if argv is None else argv
    args = _parser(words).parse_args(words)
    try:
        return args.run(args) or 0
    except UserError as error:
        if args.debug:
            raise
        print(f"fedsuv: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nfedsuv: stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output has gone, e.g. `| head`
        sys.stderr.close()
        return 0


def _parser(words: list[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="fedsuv",
        description="Client selection for FedScale jobs: run them, swap the selector by one key.",
    )
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    commands = parser.add_subparsers(required=True, metavar="command")
    run = add_command(commands, "run", "run a job", RUN_HELP)
    run.add_argument("config", nargs="?", help="the job file")
    add_job_options(run)
    run.add_argument(
        "--launcher",
        choices=("loopback", "processes"),
        default="loopback",
        help="one process (default), or an aggregator and executors over gRPC on this machine",
    )
    run.add_argument(
        "--executors",
        type=int,
        default=2,
        metavar="N",
        help="executors of --launcher processes (2)",
    )
    run.add_argument("--resume", metavar="DIR", help="go on with a run that was stopped or killed")
    run.add_argument("--quiet", action="store_true", help="say nothing but errors")
    run.add_argument("--keys", action="store_true", help="list the keys of a job file and end")
    run.set_defaults(run=_run)
    submit = add_command(commands, "submit", "run a job on a cluster", SUBMIT_HELP + EXPLAINED)
    submit.add_argument("config", help="the job file")
    add_job_options(submit)
    submit.add_argument(
        "--dry-run", action="store_true", help="print the commands of each host and end"
    )
    submit.set_defaults(run=_submit)
    selectors = commands.add_parser(
        "selectors",
        help="list the installed selectors, or explain one",
        description="List every installed selector with its paper, or the parameters of one. A parameter is set in the "
        "job file, or with --set, as <selector>.<parameter>.",
    )
    selectors.add_argument("name", nargs="?", help="the selector to explain")
    selectors.add_argument("--json", action="store_true", help="the same for programs")
    selectors.set_defaults(run=_selectors)
    traces.register(commands)
    if (
        "data" in words
    ):  # torch and the data sets take seconds to import: only for the command that needs them
        from fedsuv_plugin.cli import data as data

        data.register(commands)
    else:
        commands.add_parser("data", help="list, fetch, check and share out data sets")
    replay = add_command(commands, "replay", "run a published experiment again", REPLAY_HELP)
    replay.add_argument("name", nargs="?", help="the experiment; none: list them")
    replay.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        dest="assignments",
        help="set a parameter of the experiment; may be repeated",
    )
    replay.add_argument(
        "-o", "--output", metavar="DIR", help="folder for the report (runs/replays/<name>)"
    )
    replay.set_defaults(run=_replay)
    return parser


# ---- run


def _run(args: argparse.Namespace) -> int:
    if args.keys:
        _print_params(parameter_rows(JobConfig))
        return 0
    if (args.config is None) == (args.resume is None):
        raise UserError("run: expected a job file or --resume DIR; see fedsuv run --help")
    if args.executors < 1:
        raise UserError(f"--executors: expected an integer >= 1, got {args.executors}")
    overrides = dict(parse_assignment(text) for text in args.assignments)
    if args.resume is not None and (
        overrides.keys() - {"rounds"} or args.scale != "full" or args.stand_in
    ):
        raise UserError(
            "--resume: only rounds can be changed in a run that has begun; start a new run for the rest"
        )
    if args.config is not None:
        job = chosen_job(args, args.quiet)

    from fedsuv_plugin.engine.aggregator import (
        JobFailed,
    )  # FedScale takes seconds to import: only for a sound job
    from fedsuv_plugin.job import run_job
    from fedsuv_plugin.records import RunDirectory

    run = RunDirectory.open(args.resume, overrides) if args.resume else RunDirectory.create(job)
    progress = Progress(run.job.config, args.quiet)
    try:
        finished = run_job(run, args.launcher, args.executors, progress)
    except UserError:
        progress.end()
        if args.resume is None:
            run.discard()
        raise
    except JobFailed as error:
        progress.end()
        print(f"fedsuv: {error}; resume with: fedsuv run --resume {run.path}", file=sys.stderr)
        return 1
    progress.end()
    return _say_what_next(run, finished, args)


def _say_what_next(run: Any, finished: bool, args: argparse.Namespace) -> int:
    metrics = run.records("metrics.jsonl")
    if not finished:
        print(f"stopped; resume with: fedsuv run --resume {run.path}", file=sys.stderr)
        return 130
    if not args.quiet:
        print(
            f"{run.job.config.sample_mode}: accuracy {metrics[-1]['accuracy']:.4f} after "
            f"{metrics[-1]['round']} rounds, {metrics[-1]['clock']:.0f} virtual seconds"
            + (", on made-up stand-in data" if run.job.config.stand_in else "")
        )
        print(f"run directory: {run.path}")
        if args.config:
            other = "oort" if run.job.config.sample_mode != "oort" else "random"
            print(
                f"try next:      fedsuv run {args.config} --set sample_mode={other}\n"
                "               fedsuv selectors"
            )
    return 0


def _submit(args: argparse.Namespace) -> None:
    from fedsuv_plugin.engine.launchers import cluster

    job = chosen_job(args)
    hosts = cluster.commands(job, datetime.now().strftime("%Y%m%d-%H%M%S"))
    if not args.dry_run:
        raise UserError(
            "submit: the cluster launcher is not there yet; run the commands of `fedsuv submit --dry-run` "
            "on each host, or all on this one with `fedsuv run --launcher processes`"
        )
    print(cluster.script(hosts), end="")


class Progress:
    """One live line on a terminal; elsewhere a line at every tenth of the job."""

    def __init__(self, config: JobConfig, quiet: bool):
        self._config, self._quiet = config, quiet
        self._live = sys.stderr.isatty()
        self._started: tuple[float, int] | None = None
        self._accuracy = "   -  "

    def __call__(self, record: dict[str, Any], metrics: dict[str, Any] | None) -> None:
        if self._quiet:
            return
        if metrics is not None:
            self._accuracy = f"{metrics['accuracy']:.4f}"
        now, done, rounds = time.monotonic(), record["round"], self._config.rounds
        self._started = self._started or (now, done)
        pace = (now - self._started[0]) / max(1, done - self._started[1])
        line = (
            f"round {done:>{len(str(rounds))}}/{rounds}  clock {record['clock']:,.0f} s  "
            f"accuracy {self._accuracy}  valid {len(record['valid'])}/{len(record['asked'])}  "
            f"{_minutes(pace * (rounds - done))} left"
        )
        if self._live:
            print(f"\r{line}\x1b[K", end="", file=sys.stderr, flush=True)
        elif done * 10 // rounds > (done - 1) * 10 // rounds:
            print(line, file=sys.stderr, flush=True)

    def end(self) -> None:
        if self._live and not self._quiet and self._started:
            print(file=sys.stderr)


def _minutes(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


# ---- replay


def _replay(args: argparse.Namespace) -> int:
    from fedsuv_plugin.replays import REPLAYS

    if args.name is None:
        for name in REPLAYS.names():
            print(f"{name}: {REPLAYS[name].shows}")
            print(
                textwrap.indent(
                    "\n".join(
                        f"{p}={default}  {text}"
                        for p, default, _, text in parameter_rows(REPLAYS[name].Params)
                    ),
                    "    ",
                )
            )
        return 0
    replay_class = REPLAYS[args.name]
    params = replay_class.Params.from_mapping(
        dict(parse_assignment(text) for text in args.assignments)
    )
    folder = Path(args.output or f"runs/replays/{args.name}").expanduser()
    folder.mkdir(parents=True, exist_ok=True)
    report = replay_class(params).run(folder, lambda line: print(line, file=sys.stderr, flush=True))
    report.save(folder, f"{args.name}: {replay_class.shows}")
    print(f"{report.text()}\n\nreport: {folder / 'report.md'}")
    return 0


# ---- selectors


def _selectors(args: argparse.Namespace) -> int:
    names = list(named.installed()) if args.name is None else [args.name]
    entries = [_describe(name) for name in names]
    if args.json:
        print(json.dumps(entries if args.name is None else entries[0], indent=2))
    elif args.name is None:
        print(
            columns(
                ["name", "paper", "parameters"],
                [
                    [e["name"], e["paper"], ", ".join(p["name"] for p in e["parameters"])]
                    for e in entries
                ],
                left=3,
            )
        )
        print(
            "\nUse one with `sample_mode: <name>` in the job file; `fedsuv selectors <name>` explains it."
        )
    else:
        entry = entries[0]
        print(f"{entry['name']}: {entry['paper']}\n{entry['class']}\n\n{entry['about']}\n")
        _print_params(parameter_rows(named.params_class(args.name), f"{args.name}."))
    return 0


def _describe(name: str) -> dict[str, Any]:
    manager = named.client_manager_class(name)
    selector = getattr(manager, "selector_class", None)
    return {
        "name": name,
        "paper": getattr(selector, "paper", ""),
        "class": f"{manager.__module__}:{manager.__name__}",
        "about": inspect.getdoc(sys.modules[(selector or manager).__module__]) or "",
        "needs": sorted(getattr(selector, "needs", ())),
        "parameters": [
            dict(zip(("name", "default", "allowed", "help"), row, strict=True))
            for row in parameter_rows(named.params_class(name))
        ],
    }


def _print_params(rows: list[tuple[str, str, str, str]]) -> None:
    if not rows:
        print("It has no parameters.")
    for name, default, allowed, help_text in rows:
        print(
            f"{name}: {default}\n"
            + textwrap.fill(
                f"{help_text} ({allowed})", 100, initial_indent="    ", subsequent_indent="    "
            )
        )


if __name__ == "__main__":
    sys.exit(main())
