"""How each signal of `selectors/signals.py` is measured.

A signal that a client sends along with its update is a generator: what stands before its `yield`
happens before local training, what stands after it happens afterwards, and it returns the value.
As a probe the same generator runs without training in between, unless the signal is declared to
train first. Signals of many clients that are quick to measure are measured for all at once.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Generator, Iterable
from typing import Any

import numpy as np
import torch

from fedsuv_plugin.engine.evaluation import Evaluation, accuracies, evaluate
from fedsuv_plugin.engine.model import flat
from fedsuv_plugin.engine.simhash import simhash
from fedsuv_plugin.selectors import signals as declared
from fedsuv_plugin.tasks.federated_data import SAMPLES_AT_ONCE, FederatedData, Samples

CLIENTS_AT_ONCE = 1000  # clients whose held-out data are evaluated end to end


class Local:
    """One client's training, as signals see it: the model in its hands, and its data."""

    def __init__(self, model: torch.nn.Module, data: Samples, seen: Samples, conf: Namespace):
        self.model = model
        self.data = data  # all that the client trains on in the course of the job
        self.seen = seen  # what it trains on this time
        self.conf = conf
        self.received: Evaluation | None = None  # of the received model on `seen`, if evaluated

    def parameters(self) -> np.ndarray:
        return flat(self.model.parameters())

    def evaluate(self, samples: Samples) -> Evaluation:
        return evaluate(self.model, samples, self.conf.model, self.conf.test_bsz)


Measurement = Generator[None, None, np.ndarray | np.float64]


def accuracy_gain(client: Local) -> Measurement:
    client.received = client.evaluate(client.seen)
    yield
    return np.float64(client.evaluate(client.seen).accuracy - client.received.accuracy)


def direction(client: Local) -> Measurement:
    received = client.parameters()
    yield
    return np.asarray((received - client.parameters()) / client.conf.learning_rate)


def weights(client: Local) -> Measurement:
    yield
    return client.parameters()


def loss(client: Local) -> Measurement:
    received = client.evaluate(client.data).mean_loss
    yield
    return np.float64(received)


def interview_accuracy(client: Local) -> Measurement:
    yield
    return np.float64(client.evaluate(client.conf.interview).accuracy)


def opinions(model: torch.nn.Module, data: FederatedData, clients: np.ndarray) -> dict[int, Any]:
    """The model's accuracy on the held-out samples of each client that holds out any.

    Clients are taken in groups of CLIENTS_AT_ONCE, whoever evaluates them: in which batch a sample
    is can change the last bits of its scores."""
    found: dict[int, Any] = {}
    for start in range(0, len(clients), CLIENTS_AT_ONCE):
        group = clients[start : start + CLIENTS_AT_ONCE]
        holding, lengths, batches = data.held_out_together(group, SAMPLES_AT_ONCE)
        found.update(zip(holding.tolist(), accuracies(model, batches, lengths), strict=True))
    return found


def fingerprint(model: torch.nn.Module, data: FederatedData, clients: np.ndarray) -> dict[int, Any]:
    """SimHash of each client's training data; the model has no part in it."""
    bits_of = simhash(data)
    return {client: bits_of(data.training(client)) for client in clients.tolist()}


BY_CLIENT: dict[str, Callable[[Local], Measurement]] = {
    declared.ACCURACY_GAIN: accuracy_gain,
    declared.DIRECTION: direction,
    declared.WEIGHTS: weights,
    declared.LOSS: loss,
    declared.INTERVIEW_ACCURACY: interview_accuracy,
}
FOR_MANY = {declared.OPINIONS: opinions, declared.FINGERPRINT: fingerprint}


class Measurements:
    """The signals of one client's training that were asked for.

    What is measured before training is measured when this is made."""

    def __init__(self, client: Local, needs: Iterable[str]):
        self._running = {name: BY_CLIENT[name](client) for name in BY_CLIENT if name in needs}
        for measurement in self._running.values():
            next(measurement)

    def values(self) -> dict[str, np.ndarray | np.float64]:
        """Every signal by name; called when the client has trained."""
        return {name: _last(measurement) for name, measurement in self._running.items()}


def _last(measurement: Measurement) -> np.ndarray | np.float64:
    try:
        next(measurement)
    except StopIteration as over:
        value: np.ndarray | np.float64 = over.value
        return value
    raise RuntimeError("a measurement must have one yield")
