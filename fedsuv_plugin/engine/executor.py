"""FedScale's executor: holds the data, does the clients' work, answers the aggregator.

Runnable as a script, as FedScale's driver starts it:
    python executor.py --job_name=... --this_rank=1 --num_executors=2 --cuda_device=cuda:0
"""

from __future__ import annotations

import logging
import sys
from argparse import Namespace
from collections.abc import Callable
from typing import Any

import grpc
import numpy as np
import torch

from fedsuv_plugin.config.argv import from_argv
from fedsuv_plugin.config.job import Job
from fedsuv_plugin.engine import fedscale_env
from fedsuv_plugin.engine.client import PluginClient, accuracies, evaluate
from fedsuv_plugin.engine.grpc_service import (
    CLIENT_PROBE,
    Completion,
    Event,
    GrpcChannel,
    LoopbackChannel,
)
from fedsuv_plugin.engine.stock import Executor, commons
from fedsuv_plugin.errors import UserError
from fedsuv_plugin.selectors import signals as signal
from fedsuv_plugin.tasks.federated_data import FederatedData, Samples, initial_model

CLIENTS_AT_ONCE = 1000  # clients whose held-out data are evaluated end to end ...
SAMPLES_AT_ONCE = 4096  # ... so many samples at a time


class PluginExecutor(Executor):  # type: ignore[misc]  # FedScale has no types
    """Waits for events instead of polling, and trains from memory."""

    def __init__(self, job: Job, args: Namespace, channel: LoopbackChannel | None = None):
        self.job = job
        self.device = (
            torch.device(args.cuda_device or "cuda:0") if args.use_cuda else torch.device("cpu")
        )
        with fedscale_env.model_from(lambda: initial_model(job.config).to(self.device)):
            super().__init__(args)
        self.aggregator_communicator = channel or GrpcChannel(args.ps_ip, args.ps_port)
        self._global_weights: list[np.ndarray] = []
        self._handlers: dict[str, Callable[[Event], Completion | None]] = {
            commons.UPDATE_MODEL: self._update_model,
            commons.CLIENT_TRAIN: self._train,
            commons.MODEL_TEST: self._test,
            CLIENT_PROBE: self._probe,
            commons.SHUT_DOWN: self._stop,
        }

    def get_client_trainer(self, conf: Namespace) -> PluginClient:
        return PluginClient(conf)

    def setup_env(self) -> None:
        torch.set_num_threads(self.job.config.torch_threads)
        torch.backends.cudnn.deterministic = True

    def init_data(self) -> tuple[FederatedData, Samples]:
        data = FederatedData(
            self.job.config,
            self.device,
        )
        return data, data.test

    def run(self) -> None:
        """The life of an executor process."""
        self.start()
        self.event_monitor()

    def start(self) -> None:
        self.setup_env()
        self.training_sets, self.testing_sets = self.init_data()
        self.setup_communication()
        self.aggregator_communicator.register(
            self.executor_id, self.report_executor_info_handler(), self.args.connection_timeout
        )

    def event_monitor(self) -> None:
        while not self.received_stop_request:
            self.step()

    def step(self) -> None:
        """Take one event from the aggregator and see it through, and so on with what the answer brings."""
        event = self.aggregator_communicator.ping(self.executor_id)
        while (done := self.handle(event)) is not None:
            event = self.aggregator_communicator.complete(self.executor_id, done)

    def handle(self, event: Event) -> Completion | None:
        if event.name == commons.DUMMY_EVENT:
            return None
        try:
            return self._handlers[event.name](event)
        except Exception as error:  # the aggregator must hear of it, or it waits for ever
            logging.exception("event %s failed", event.name)
            return Completion(0, event.name, None, f"{type(error).__name__}: {error}")

    # ---- events

    def _update_model(self, event: Event) -> None:
        self.round = event.meta["round"]
        self._global_weights = event.data

    def _train(self, event: Event) -> Completion:
        client_id = int(event.meta["client_id"])
        return Completion(
            client_id,
            commons.UPLOAD_MODEL,
            self.training_handler(
                client_id, self.override_conf(event.meta["task_config"]), self._global_weights
            ),
        )

    def training_handler(
        self, client_id: int, conf: Namespace, model: list[np.ndarray]
    ) -> dict[str, Any]:
        self.model_adapter.set_weights(model, is_aggregator=False)
        conf.client_id = client_id
        conf.interview = self.training_sets.interview
        return self.get_client_trainer(self.args).train(
            self.training_sets.training(client_id), self.model_adapter.get_model(), conf
        )

    def _test(self, event: Event) -> Completion:
        """Every n-th chunk of the test set, or of its first samples, each reported on its own, so that the sum of them
        all does not depend on how many executors there are."""
        self.model_adapter.set_weights(self._global_weights, is_aggregator=False)
        client, size, wanted = (
            self.get_client_trainer(self.args),
            self.args.test_bsz,
            event.meta["samples"],
        )
        x, y = self.testing_sets.x[:wanted], self.testing_sets.y[:wanted]
        chunks = range(self.this_rank - 1, -(-len(y) // size), self.num_executors)
        results = {
            chunk: client.test(
                Samples(x[chunk * size : (chunk + 1) * size], y[chunk * size : (chunk + 1) * size]),
                self.model_adapter.get_model(),
                self.args,
            )
            for chunk in chunks
        }
        return Completion(self.this_rank, commons.MODEL_TEST, results)

    def _probe(self, event: Event) -> Completion:
        """Work for a client that goes into no global model."""
        client_id, kind = int(event.meta["client_id"]), event.meta["kind"]
        if kind == signal.OPINIONS:
            return Completion(
                client_id, CLIENT_PROBE, {"answers": self._opinions(client_id, event.meta)}
            )
        if kind in (signal.DIRECTION, signal.WEIGHTS):
            conf = self.override_conf({**event.meta["task_config"], "needs": frozenset({kind})})
            answer = self.training_handler(client_id, conf, self._global_weights)["signals"][kind]
        else:
            self.model_adapter.set_weights(self._global_weights, is_aggregator=False)
            data = self.training_sets
            interview = kind == signal.INTERVIEW_ACCURACY
            samples = data.interview if interview else data.training(client_id)
            result = evaluate(
                self.model_adapter.get_model(), samples, self.args.model, self.args.test_bsz
            )
            answer = np.float64(result.accuracy if interview else result.mean_loss)
        return Completion(client_id, CLIENT_PROBE, {"client_id": client_id, "answer": answer})

    def _opinions(self, task: int, meta: dict[str, Any]) -> dict[int, np.float64]:
        """The accuracy of the received model on each client's held-out data. Task i of n takes every n-th group of
        clients; what is in a group does not depend on n, so the numbers do not either."""
        self.model_adapter.set_weights(self._global_weights, is_aggregator=False)
        model, opinions = self.model_adapter.get_model(), dict[int, np.float64]()
        for start in range(
            (task - 1) * CLIENTS_AT_ONCE, len(meta["of"]), meta["tasks"] * CLIENTS_AT_ONCE
        ):
            clients, lengths, batches = self.training_sets.held_out_together(
                meta["of"][start : start + CLIENTS_AT_ONCE], SAMPLES_AT_ONCE
            )
            opinions.update(zip(clients.tolist(), accuracies(model, batches, lengths), strict=True))
        return opinions

    def _stop(self, event: Event) -> None:
        self.Stop()


def main(argv: list[str]) -> int:
    """An executor process; what goes wrong goes to stderr and the exit code."""
    from fedsuv_plugin.config.resolved import resolve
    from fedsuv_plugin.job import fedscale_args

    logging.basicConfig(
        level=logging.WARNING, format="%(asctime)s %(levelname)s executor: %(message)s"
    )
    try:
        job, place = from_argv(argv)
        resolved = resolve(job)
        PluginExecutor(resolved, fedscale_args(resolved, place)).run()
    except UserError as error:
        print(f"executor: {error}", file=sys.stderr)
        return 2
    except grpc.RpcError as error:
        print(f"executor: the aggregator is gone ({error.code().name})", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    from fedsuv_plugin.engine.executor import (
        main as run,
    )  # this module under its own name, not as __main__

    sys.exit(run(sys.argv[1:]))
