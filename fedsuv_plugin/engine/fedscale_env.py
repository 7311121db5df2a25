"""Make FedScale 1.0 importable and tell it what the job is.

FedScale's modules import TensorFlow and wandb even for a PyTorch job, parse `sys.argv` at import
and read the result as a global. `load` gets them imported once without any of that leaking out;
`namespace` is the only writer of that global.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from fedsuv_plugin.errors import UserError

if TYPE_CHECKING:
    from fedsuv_plugin.config.argv import Place
    from fedsuv_plugin.config.keys import JobConfig
    from fedsuv_plugin.config.resolved import ResolvedJob

# Packages that FedScale imports and a job may do without -> our extra that installs each.
OPTIONAL = {"tensorflow": "tensorflow", "wandb": "wandb"}


class _AbsentMeta(type):
    """Attributes of an absent package are absent too: named and subclassed, but not used."""

    def __getattr__(cls, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return _absent(f"{cls.__qualname__}.{name}")

    def __call__(cls, *args: object, **kwargs: object) -> object:
        package = cls.__qualname__.partition(".")[0]
        raise ImportError(
            f"{cls.__qualname__} is needed, but {package} is not installed; "
            f"install it with: pip install 'fedsuv_plugin[{OPTIONAL[package]}]'"
        )


def _absent(qualname: str) -> type:
    return _AbsentMeta(qualname.rpartition(".")[2], (), {"__qualname__": qualname})


@contextmanager
def _stand_ins() -> Iterator[None]:
    """Stand in for the optional packages that are not installed, while FedScale is being imported.

    They are taken out again afterwards, so that nobody else mistakes them for the real ones."""
    added = []
    for name in OPTIONAL:
        if name not in sys.modules and importlib.util.find_spec(name) is None:
            module = types.ModuleType(name)
            module.__getattr__ = partial(getattr, _absent(name))  # type: ignore[method-assign]
            sys.modules[name] = module
            added.append(name)
    try:
        yield
    finally:
        for name in added:
            del sys.modules[name]


@contextmanager
def _no_command_line() -> Iterator[None]:
    argv = sys.argv
    sys.argv = argv[:1]
    try:
        yield
    finally:
        sys.argv = argv


@cache
def parser_module() -> types.ModuleType:
    """FedScale's argument parser and the global namespace of its arguments; cheap to import."""
    with _no_command_line():
        return importlib.import_module("fedscale.cloud.config_parser")


@cache
def load() -> None:
    """Import FedScale's aggregator and executor, and with them all that a PyTorch job uses."""
    # Before the stand-ins: it looks for TensorFlow itself.
    import torch.utils.tensorboard  # noqa: F401

    from fedsuv_plugin.tasks.models.torchvision_zoo import import_torchvision

    parser_module()
    import_torchvision()
    with _stand_ins(), _no_command_line():
        importlib.import_module("fedscale.cloud.aggregation.aggregator")
        importlib.import_module("fedscale.cloud.execution.executor")
    for side in ("aggregator", "executor"):
        _own_logging(importlib.import_module(f"fedscale.cloud.logger.{side}_logging"))


def _own_logging(logger: types.ModuleType) -> None:
    """Keep FedScale from setting up logging for the whole process in folders of its own.

    Where logs go is the job's business: FedScale only knows the folder of TensorBoard events."""

    def init_logging() -> None:
        logger.logDir = parser_module().args.event_dir  # type: ignore[attr-defined]
        if logger.logDir:  # an executor writes none
            os.makedirs(logger.logDir, exist_ok=True)

    logger.init_logging = init_logging  # type: ignore[attr-defined]


@contextmanager
def model_from(build: Callable[[], object]) -> Iterator[None]:
    """While FedScale's Executor is being made, `build` is where its model comes from."""
    module = importlib.import_module("fedscale.cloud.execution.executor")
    original = module.init_model
    module.init_model = build  # type: ignore[attr-defined]
    try:
        yield
    finally:
        module.init_model = original  # type: ignore[attr-defined]


def options() -> dict[str, argparse.Action]:
    """FedScale's own job keys, by name."""
    return {a.dest: a for a in parser_module().parser._actions if a.dest != "help"}


def namespace(job: ResolvedJob, place: Place, events: Path | None = None) -> argparse.Namespace:
    """The namespace that all of FedScale reads, made from the resolved job and nothing else.

    `events`: the folder for TensorBoard events; an executor writes none."""
    module = parser_module()
    args: argparse.Namespace = module.parser.parse_args([])
    vars(args).update(
        {
            **job.extra,
            **asdict(job.config),
            **asdict(place),
            "ps_port": str(job.config.ps_port),
            "needs": job.needs,
            "selector_params": job.selector_params,
            "event_dir": "" if events is None else str(events),
        }
    )
    args.num_class = module.datasetCategories.get(args.data_set, args.num_classes)
    module.args = args  # type: ignore[attr-defined]
    return args


def refuse_missing_packages(config: JobConfig) -> None:
    """A job that wants Weights & Biases is refused at its start where that is not installed."""
    if config.wandb_token and importlib.util.find_spec("wandb") is None:
        raise UserError(
            "wandb_token: Weights & Biases is not installed; install it with: "
            "pip install 'fedsuv_plugin[wandb]'"
        )


def trace_file(name: str | None) -> str | None:
    """A trace that FedScale's arguments name. The file that is its default may be missing."""
    return None if name == "/tmp/client.cfg" and not Path(name).exists() else name
