"""Small worlds for engine tests: clients that train, devices of known speed, a selector that
listens, and executors that are threads of the test."""

from __future__ import annotations

import pickle
import threading
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from conftest import DEVICES, install

from fedsuv_plugin.config.argv import Place
from fedsuv_plugin.config.fingerprint import fingerprint
from fedsuv_plugin.config.job import Job
from fedsuv_plugin.config.resolved import ResolvedJob, resolve
from fedsuv_plugin.engine import fedscale_env
from fedsuv_plugin.engine.client import PluginClient
from fedsuv_plugin.engine.client_manager import SelectorClientManager
from fedsuv_plugin.engine.executor_pool import ExecutorPool
from fedsuv_plugin.engine.grpc_channel import GrpcChannel
from fedsuv_plugin.engine.grpc_service import GrpcService
from fedsuv_plugin.engine.launchers.processes import free_port
from fedsuv_plugin.engine.stock import commons
from fedsuv_plugin.engine.task import NOTHING, Result, Task
from fedsuv_plugin.selectors.base import RoundOutcome, RoundView, Selector
from fedsuv_plugin.tasks.federated_data import FederatedData, Samples, initial_model

CPU = torch.device("cpu")

# A job that uses many keys at once.
MANY_KEYS: dict[str, object] = {
    "local_epochs": 2,
    "available_clients": 8,
    "available_every": 2,
    "data_fraction": 0.6,
    "test_samples": 70,
    "partition": "dirichlet_qp",
    "device_conf_file": DEVICES,
    "round_deadline": 60.0,
    "warmup_rounds": 2,
}


# ---- clients


def client_conf(job: Job, **values: object) -> Namespace:
    """The configuration with which an executor has client 1 train in round 1."""
    args = fedscale_env.namespace(resolve(job), Place())
    return Namespace(**{**vars(args), "client_id": 1, "round": 1, **values})


def trained(job: Job, data: Samples) -> tuple[torch.nn.Module, dict[str, Any]]:
    """The initial model after client 1 has trained it, and what the client reports."""
    conf = client_conf(job)
    model = initial_model(job.config)
    return model, PluginClient(conf).train(data, model, conf)


def samples_of(n: int) -> Samples:
    """n random samples of the small job's shape."""
    torch.manual_seed(5)
    return Samples(torch.randn(n, 8), torch.randint(4, (n,)))


def data_of(job: Job) -> FederatedData:
    """The job's data as its executors hold it, less the shares kept for the selector."""
    return FederatedData(resolve(job).config, CPU)


def vector(model: torch.nn.Module) -> np.ndarray:
    """A model's parameters end to end."""
    return torch.nn.utils.parameters_to_vector(model.parameters()).detach().numpy()


def model_with(job: Job, parameters: np.ndarray) -> torch.nn.Module:
    """The job's model with the given parameters, end to end."""
    model = initial_model(job.config)
    torch.nn.utils.vector_to_parameters(torch.from_numpy(parameters).float(), model.parameters())
    return model


# ---- devices


def write_traces(folder: Path, users: list[dict[str, Any]], n: int = 20) -> dict[str, object]:
    """Trace files in FedScale's formats, as job keys: client c takes 10 + c ms for a sample."""
    capacity = {c: {"computation": 10.0 + c, "communication": 5000.0} for c in range(1, n + 1)}
    (folder / "capacity").write_bytes(pickle.dumps(capacity))
    (folder / "behaviour").write_bytes(pickle.dumps(dict(enumerate(users, start=1))))
    return {
        "device_conf_file": str(folder / "capacity"),
        "device_avail_file": str(folder / "behaviour"),
    }


def user(*intervals: tuple[float, float], period: float = 1000.0) -> dict[str, Any]:
    """One entry of FedScale's availability trace."""
    return {
        "active": [a for a, _ in intervals],
        "inactive": [b for _, b in intervals],
        "finish_time": period,
        "duration": sum(b - a for a, b in intervals),
        "model": "unknown",
    }


# ---- a selector


class Listener(Selector):
    """Chooses the first k, and keeps every view and outcome. Tests say what else it asks for."""

    name = "listener"
    paper = "these tests"
    views: list[RoundView] = []
    outcomes: list[RoundOutcome] = []

    def select(self, view: RoundView, k: int) -> np.ndarray:
        self.views.append(view)
        return view.online[:k]

    def update(self, outcome: RoundOutcome) -> None:
        self.outcomes.append(outcome)


def listen(monkeypatch: pytest.MonkeyPatch, selector: type[Listener] = Listener) -> None:
    """Install a listener that has heard nothing yet; `sample_mode` is its name."""
    manager = type("ListenerManager", (SelectorClientManager,), {"selector_class": selector})
    install(monkeypatch, manager)
    forget(monkeypatch, selector)


def forget(monkeypatch: pytest.MonkeyPatch, selector: type[Listener] = Listener) -> None:
    """The listener has heard nothing yet: for a second job in one test."""
    monkeypatch.setattr(selector, "views", [])
    monkeypatch.setattr(selector, "outcomes", [])


# ---- executors


class Worker(threading.Thread):
    """An executor of a pool: asks, does what `work` says with each task, and delivers.

    It keeps the names of the events it heard, and the model it had at each task."""

    def __init__(self, pool: ExecutorPool, name: str, work: Callable[[Task], Any]):
        super().__init__(daemon=True)
        self.executor = name
        self.heard: list[str] = []
        self.model: list[np.ndarray] = []
        self.models: dict[int, list[np.ndarray]] = {}  # task number -> the model it was done with
        self._pool = pool
        self._work = work
        pool.admit(name, np.array([5, 5, 5]))
        self.start()

    def run(self) -> None:
        while True:
            event = self._pool.next_event(self.executor, wait=30)
            if event is NOTHING:
                continue
            self.heard.append(event.name)
            if event.name == commons.SHUT_DOWN:
                return
            if event.name == commons.UPDATE_MODEL:
                self.model = event.data
                continue
            task = Task.from_event(event)
            self.models[task.number] = self.model
            try:
                result = Result(task.number, task.kind, self._work(task))
            except Exception as error:
                result = Result(task.number, task.kind, None, str(error))
            self._pool.deliver(self.executor, result)


# ---- over gRPC

TOKEN = "the-secret-of-these-tests"
SIZES = np.array([5, 5])  # of the clients, as these executors report them


class Served(NamedTuple):
    """A pool that is served, and an executor's connection to it."""

    pool: ExecutorPool
    channel: GrpcChannel
    job: ResolvedJob


@contextmanager
def served_pool(job: Job, token: str | None = TOKEN) -> Iterator[Served]:
    """A pool with the timeouts of the job, on a free port of this machine."""
    resolved = resolve(job).with_values(ps_port=free_port())
    config = resolved.config
    pool = ExecutorPool(config.executor_timeout, config.connection_timeout)
    with GrpcService(pool, resolved, token):
        channel = GrpcChannel(config, token)
        channel.connect_to_server()
        yield Served(pool, channel, resolved)
        channel.close_sever_connection()
        for lease in list(pool._leases.values()):  # so that nobody waits for them to say goodbye
            pool.give_up(lease, "the test is over")
        pool.shut_down()


def register(served: Served, **values: object) -> None:
    """Executor 1 registers, for this job unless other values are given."""
    info = {"size": SIZES, "job": fingerprint(served.job), **values}
    served.channel.register("1", info, timeout=60)
