"""FedScale's executor: holds the data, does the clients' work, answers the aggregator.

Runnable as a script, as FedScale's driver starts it:
    python executor.py --job_name=... --this_rank=1 --num_executors=2 --cuda_device=cuda:0
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from argparse import Namespace
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
import torch

from fedsuv_plugin.config.argv import Place, from_argv
from fedsuv_plugin.config.fingerprint import fingerprint
from fedsuv_plugin.config.resolved import ResolvedJob, resolve
from fedsuv_plugin.engine import fedscale_env
from fedsuv_plugin.engine.client import PluginClient
from fedsuv_plugin.engine.grpc_channel import AggregatorGone, GrpcChannel, OutOfTouch
from fedsuv_plugin.engine.interrupts import on_interrupt
from fedsuv_plugin.engine.secret import token_of_environment
from fedsuv_plugin.engine.signals import FOR_MANY, Local, Measurements
from fedsuv_plugin.engine.stock import Executor, commons
from fedsuv_plugin.engine.task import PROBE, TEST, TRAIN, Event, Result, Task
from fedsuv_plugin.errors import UserError
from fedsuv_plugin.selectors.signals import SIGNALS
from fedsuv_plugin.tasks.federated_data import FederatedData, Samples, initial_model

GONE_GRACE = 1.0  # seconds in which an executor without an aggregator may end by itself


class Channel(Protocol):
    """How an executor talks to its aggregator."""

    def connect_to_server(self) -> None: ...
    def close_sever_connection(self) -> None: ...  # FedScale's spelling
    def register(self, executor: str, info: Any, timeout: float) -> None: ...
    def ping(self, executor: str) -> Event: ...
    def complete(self, executor: str, result: Result) -> Event: ...


class PluginExecutor(Executor):  # type: ignore[misc]  # FedScale has no types
    """Waits for events instead of polling, and trains from memory."""

    def __init__(self, job: ResolvedJob, place: Place, channel: Channel):
        self.job = job
        args = fedscale_env.namespace(job, place)
        self.device = _device(args)
        with fedscale_env.model_from(lambda: initial_model(job.config).to(self.device)):
            super().__init__(args)
        self.aggregator_communicator = channel
        self._global_weights: list[np.ndarray] = []
        self._work: Mapping[str, Callable[[Task], dict[int, Any]]] = {
            TRAIN: self._train,
            TEST: self._test,
            PROBE: self._probe,
        }

    def get_client_trainer(self, conf: Namespace) -> PluginClient:
        return PluginClient(conf)

    def setup_env(self) -> None:
        torch.set_num_threads(self.job.config.torch_threads)
        torch.backends.cudnn.deterministic = True

    def init_data(self) -> tuple[FederatedData, Samples]:
        data = FederatedData(self.job.config, self.device)
        return data, data.test

    def run(self) -> None:
        """The life of an executor process."""
        self.start()
        self.event_monitor()

    def start(self) -> None:
        self.setup_env()
        self.training_sets, self.testing_sets = self.init_data()
        self.setup_communication()
        self.register()

    def register(self) -> None:
        """Take part. The aggregator sends the model anew, and knows of no task that is out."""
        info = {**self.report_executor_info_handler(), "job": fingerprint(self.job)}
        self.aggregator_communicator.register(self.executor_id, info, self.args.connection_timeout)

    def event_monitor(self) -> None:
        while not self.received_stop_request:
            try:
                self.step()
            except OutOfTouch as error:
                logging.warning("out of touch with the aggregator (%s); registering again", error)
                self.register()

    def step(self) -> None:
        """See one event through, and those that the answers to its results bring."""
        event = self.aggregator_communicator.ping(self.executor_id)
        while (result := self.handle(event)) is not None:
            event = self.aggregator_communicator.complete(self.executor_id, result)

    def handle(self, event: Event) -> Result | None:
        """Do what an event says; a task has a result."""
        if event.name == commons.DUMMY_EVENT:
            return None
        if event.name == commons.SHUT_DOWN:
            self.Stop()
            return None
        if event.name == commons.UPDATE_MODEL:
            self.round = event.meta["round"]
            self._global_weights = event.data
            return None
        task = Task.from_event(event)
        try:
            return Result(task.number, task.kind, self._work[task.kind](task))
        except Exception as error:  # the aggregator must hear of it, or it waits for ever
            logging.exception("task %d, %s, failed", task.number, task.kind)
            return Result(task.number, task.kind, None, f"{type(error).__name__}: {error}")

    # ---- tasks

    def _train(self, task: Task) -> dict[int, Any]:
        """Every client of the task, one after the other.

        Each trains from the global model, unless its state brings a model of its own."""
        results = {}
        for client in task.clients.tolist():
            state = task.states.get(client, {})
            conf = self.override_conf({**task.settings, "state": state})
            start = state.get("model", self._global_weights)
            results[client] = self.training_handler(client, conf, start)
        return results

    def training_handler(
        self, client_id: int, conf: Namespace, model: list[np.ndarray]
    ) -> dict[str, Any]:
        self.model_adapter.set_weights(model, is_aggregator=False)
        conf.client_id = client_id
        conf.interview = self.training_sets.interview
        return self.get_client_trainer(self.args).train(
            self.training_sets.training(client_id), self.model_adapter.get_model(), conf
        )

    def _test(self, task: Task) -> dict[int, Any]:
        """Some of the chunks of the test set, or of its first samples, each reported on its own.

        So the sum of all chunks does not depend on how many executors share them."""
        model = self._received_model()
        client = self.get_client_trainer(self.args)
        size = self.args.test_bsz
        wanted = task.settings["samples"]
        x = self.testing_sets.x[:wanted].split(size)
        y = self.testing_sets.y[:wanted].split(size)
        chunks = range(task.settings["first"], len(y), task.settings["every"])
        return {
            chunk: client.test(Samples(x[chunk], y[chunk]), model, self.args) for chunk in chunks
        }

    def _probe(self, task: Task) -> dict[int, Any]:
        """Work for clients that goes into no global model: each one's answer."""
        kind = task.settings["probe"]
        if kind in FOR_MANY:
            return FOR_MANY[kind](self._received_model(), self.training_sets, task.clients)
        if SIGNALS[kind].trains:
            trained = self._train(
                Task(task.number, TRAIN, task.clients, {**task.settings, "needs": {kind}})
            )
            return {client: result["signals"][kind] for client, result in trained.items()}
        return {client: self._ask(client, kind) for client in task.clients.tolist()}

    def _ask(self, client: int, kind: str) -> Any:
        """A signal of the model as the client received it."""
        data = self.training_sets.training(client)
        conf = self.override_conf({"interview": self.training_sets.interview})
        return Measurements(Local(self._received_model(), data, data, conf), {kind}).values()[kind]

    def _received_model(self) -> torch.nn.Module:
        self.model_adapter.set_weights(self._global_weights, is_aggregator=False)
        model: torch.nn.Module = self.model_adapter.get_model()
        return model


def _device(args: Namespace) -> torch.device:
    if not args.use_cuda:
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise UserError("use_cuda: expected false on a machine without a usable GPU, got True")
    return torch.device(args.cuda_device or "cuda:0")


def main(argv: list[str], token: str | None = None) -> int:
    """An executor process; what goes wrong goes to stderr and the exit code.

    Without a token it looks for one where FedScale's driver can leave it."""
    logging.basicConfig(
        level=logging.WARNING, format="%(asctime)s %(levelname)s executor: %(message)s"
    )
    try:
        job, place = from_argv(argv)
        channel = GrpcChannel(job.config, token or token_of_environment(), on_gone=_end_soon)
        with on_interrupt(lambda: "executor: works on until the aggregator ends the job"):
            PluginExecutor(resolve(job), place, channel).run()
    except UserError as error:
        print(f"executor: {error}", file=sys.stderr)
        return 2
    except AggregatorGone as error:
        print(f"executor: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("executor: stopped", file=sys.stderr)
        return 130
    return 0


def _end_soon() -> None:
    """End this process, which has no aggregator any more, even if it is in the middle of a task."""
    if not threading.Event().wait(GONE_GRACE):
        print("executor: the aggregator is gone", file=sys.stderr, flush=True)
        os._exit(1)


if __name__ == "__main__":
    # This module under its own name, not as __main__: others import it too.
    from fedsuv_plugin.engine.executor import main as run

    sys.exit(run(sys.argv[1:]))
