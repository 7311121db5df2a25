"""What is trained: a data set, its partition over clients, and a model."""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from fedsuv_plugin.errors import UserError
from fedsuv_plugin.randomness import stream, torch_seed
from fedsuv_plugin.tasks.datasets import DATASETS, DataSet
from fedsuv_plugin.tasks.models import build_model
from fedsuv_plugin.tasks.partitions import Partition, from_map_file, partition

if TYPE_CHECKING:
    from fedsuv_plugin.config import JobConfig

DEFAULT_CLIENTS = 100


@dataclass(frozen=True)
class Samples:
    """Prepared inputs and their labels, on the device that computes."""

    x: torch.Tensor
    y: torch.Tensor

    def __len__(self) -> int:
        return len(self.y)


class FederatedData:
    """All clients' data in memory. `getSize` is FedScale's name: an executor reports it when it registers."""

    def __init__(self, config: JobConfig, device: torch.device, holdout: float = 0.0, interview: float = 0.0):
        """`holdout`: share of every client's samples kept from training, for its opinions; `interview`: share of the
        test set kept from the reported accuracy, for the server's interviews."""
        self._set = DATASETS[config.data_set](config)
        self._device = device
        splits = self._set.load()
        self._x, self._y = splits.train_x, splits.train_y
        labels = splits.train_y.numpy()
        if config.data_map_file is not None:
            self._clients = from_map_file(config.data_map_file, labels, config.num_clients)
        else:
            self._clients = partition(labels, config.partition, config.num_clients or DEFAULT_CLIENTS,
                                      config.partition_alpha, stream(config.seed, "partition"))
        self._held = np.floor(self._clients.sizes * holdout).astype(np.int64)  # the first so many of each client
        if holdout:
            self._clients = self._clients.shuffled(stream(config.seed, "holdout"))
        order = torch.from_numpy(stream(config.seed, "interview").permutation(len(splits.test_y)))
        interviewed = int(len(order) * interview)
        self.interview = self._samples(splits.test_x, splits.test_y, order[:interviewed])
        self.test = self._samples(splits.test_x, splits.test_y, order[interviewed:].sort().values)

    def getSize(self) -> dict[str, np.ndarray]:
        return {"size": self._clients.sizes - self._held}

    def training(self, client_id: int) -> Samples:
        return self._samples(self._x, self._y, self._own(client_id)[self._held[client_id - 1]:])

    def held_out(self, client_id: int) -> Samples:
        return self._samples(self._x, self._y, self._own(client_id)[:self._held[client_id - 1]])

    def held_out_together(self, client_ids: np.ndarray, batch: int) -> tuple[np.ndarray, np.ndarray, Iterator[Samples]]:
        """(clients that hold anything out, how much each does, all of it end to end in batches)."""
        clients = client_ids[self._held[client_ids - 1] > 0]
        own = [self._own(client)[:self._held[client - 1]] for client in clients.tolist()]
        rows = torch.cat(own) if own else torch.zeros(0, dtype=torch.int64)
        return clients, self._held[clients - 1], (
            self._samples(self._x, self._y, part) for part in rows.split(batch))

    def _own(self, client_id: int) -> torch.Tensor:
        if not 1 <= client_id <= len(self._clients):
            raise UserError(f"client {client_id}: expected an id from 1 to {len(self._clients)}")
        return torch.from_numpy(self._clients.samples(client_id - 1))

    def _samples(self, x: torch.Tensor, y: torch.Tensor, rows: torch.Tensor) -> Samples:
        return Samples(self._set.prepare(x[rows]).to(self._device), y[rows].to(self._device))


def data_set(config: JobConfig) -> DataSet:
    """The job's data set, described but not loaded."""
    return DATASETS[config.data_set](config)


def initial_model(config: JobConfig) -> torch.nn.Module:
    """The job's model with its initial weights, a function of the seed alone."""
    spec = data_set(config)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(torch_seed(config.seed, "model"))
        return build_model(config, spec.shape, spec.classes)


def kbit(model: torch.nn.Module) -> float:
    """Size of a model in FedScale's unit, 1024 bits."""
    return sum(t.numel() * t.element_size() for t in model.state_dict().values()) * 8 / 1024


def model_kbit(config: JobConfig) -> float:
    return kbit(initial_model(config))


__all__ = ["FederatedData", "Partition", "Samples", "data_set", "initial_model", "kbit", "model_kbit"]
