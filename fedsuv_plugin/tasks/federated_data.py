"""What is trained: a data set, its partition over clients, and a model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from fedsuv_plugin.errors import UserError, require
from fedsuv_plugin.randomness import stream, torch_seed
from fedsuv_plugin.tasks.datasets import DATASETS, DataSet
from fedsuv_plugin.tasks.models import build_model
from fedsuv_plugin.tasks.partitions import PARTITIONS, Partition, from_map_file, natural, partition
from fedsuv_plugin.tasks.stand_in import StandIn

if TYPE_CHECKING:
    from fedsuv_plugin.config.keys import JobConfig

DEFAULT_CLIENTS = 100
NATURAL = "natural"  # the partition that comes with the data set


@dataclass(frozen=True)
class Samples:
    """Prepared inputs and their labels, on the device that computes."""

    x: torch.Tensor
    y: torch.Tensor

    def __len__(self) -> int:
        return len(self.y)


class FederatedData:
    """All clients' data in memory, less the shares that the resolved job keeps from training.

    `getSize` is FedScale's name: an executor reports it when it registers."""

    def __init__(self, config: JobConfig, device: torch.device):
        holdout = config.holdout_fraction or 0.0
        self._set = data_set(config)
        self._device = device
        splits = self._set.load()
        self._x, self._y = splits.train_x, splits.train_y.clone()
        self._clients = _partition(config, splits.train_y.numpy(), splits.owner)
        for client in noisy_clients(
            config, len(self._clients)
        ):  # the labels these clients believe in
            own = self._own(client)
            self._y[own] = (self._y[own] + 1) % self._set.classes
        self._held = np.floor(self._clients.sizes * holdout).astype(
            np.int64
        )  # the first so many of each client
        if holdout:
            self._clients = self._clients.shuffled(stream(config.seed, "holdout"))
        order = torch.from_numpy(
            stream(config.seed, "interview").permutation(len(splits.test_y))[: config.test_samples]
        )
        interviewed = int(len(order) * (config.interview_fraction or 0.0))
        self.interview = self._samples(splits.test_x, splits.test_y, order[:interviewed])
        self.test = self._samples(splits.test_x, splits.test_y, order[interviewed:].sort().values)

    def getSize(self) -> dict[str, np.ndarray]:
        return {"size": self._clients.sizes - self._held}

    def training(self, client_id: int) -> Samples:
        return self._samples(self._x, self._y, self._own(client_id)[self._held[client_id - 1] :])

    def held_out(self, client_id: int) -> Samples:
        return self._samples(self._x, self._y, self._own(client_id)[: self._held[client_id - 1]])

    def held_out_together(
        self, client_ids: np.ndarray, batch: int
    ) -> tuple[np.ndarray, np.ndarray, Iterator[Samples]]:
        """(clients that hold anything out, how much each does, all of it end to end in batches)."""
        clients = client_ids[self._held[client_ids - 1] > 0]
        own = [self._own(client)[: self._held[client - 1]] for client in clients.tolist()]
        rows = torch.cat(own) if own else torch.zeros(0, dtype=torch.int64)
        return (
            clients,
            self._held[clients - 1],
            (self._samples(self._x, self._y, part) for part in rows.split(batch)),
        )

    def _own(self, client_id: int) -> torch.Tensor:
        if not 1 <= client_id <= len(self._clients):
            raise UserError(f"client {client_id}: expected an id from 1 to {len(self._clients)}")
        return torch.from_numpy(self._clients.samples(client_id - 1))

    def _samples(self, x: torch.Tensor, y: torch.Tensor, rows: torch.Tensor) -> Samples:
        return Samples(self._set.prepare(x[rows]).to(self._device), y[rows].to(self._device))


def _partition(config: JobConfig, labels: np.ndarray, owner: np.ndarray | None) -> Partition:
    """Who owns which training sample, once the server has taken its public share."""
    schemes = sorted([*PARTITIONS.names(), NATURAL])
    require(
        config.partition in schemes, "partition", f"one of {', '.join(schemes)}", config.partition
    )
    used, rng = _used_rows(config, labels), stream(config.seed, "partition")
    left = np.setdiff1d(used, _public_rows(config, used), assume_unique=True)  # ascending
    if (
        config.data_map_file is not None or config.partition == NATURAL
    ):  # which are about all samples
        whole = (
            natural(_known(config, owner), config.num_clients, rng)
            if config.data_map_file is None
            else from_map_file(config.data_map_file, labels, config.num_clients)
        )
        numbers = np.full(len(labels), -1)
        numbers[left] = left
        return whole.renumbered(numbers)
    return partition(
        labels[left],
        config.partition,
        config.num_clients or DEFAULT_CLIENTS,
        config.partition_alpha,
        rng,
        config.shards_per_client,
    ).renumbered(left)


def _known(config: JobConfig, owner: np.ndarray | None) -> np.ndarray:
    if owner is None:
        some = ", ".join(
            f"{name} ({DATASETS[name].clients})"
            for name in DATASETS.names()
            if DATASETS[name].clients
        )
        raise UserError(
            f"partition: natural: this {config.data_set} does not say whose its samples are; expected "
            f"another partition, or one of {some}"
        )
    return owner


def _used_rows(config: JobConfig, labels: np.ndarray) -> np.ndarray:
    """The training samples that are used at all, ascending: of each label the same share, and at least one."""
    if config.data_fraction == 1:
        return np.arange(len(labels))
    _, classes, totals = np.unique(labels, return_inverse=True, return_counts=True)
    order = np.lexsort((stream(config.seed, "data fraction").random(len(labels)), classes))
    place = np.arange(len(labels)) - np.repeat(np.cumsum(totals) - totals, totals)  # in its class
    kept = np.maximum(np.rint(config.data_fraction * totals), 1)
    return np.sort(order[place < np.repeat(kept, totals)])


def _public_rows(config: JobConfig, used: np.ndarray) -> np.ndarray:
    count = int(len(used) * (config.public_fraction or 0.0))
    return used[stream(config.seed, "public").permutation(len(used))[:count]]


def describe_partition(config: JobConfig) -> tuple[Partition, np.ndarray]:
    """Who owns which training sample, and the labels of all of them."""
    splits = data_set(config).load()
    labels = splits.train_y.numpy()
    return _partition(config, labels, splits.owner), labels


def public_set(config: JobConfig) -> Samples:
    """The server's own samples: `public_data_set`, or a share of the training samples that no client has."""
    source, named = data_set(config), config.public_data_set
    if named is not None and named != config.data_set:
        ours, source = (
            source,
            data_set(replace(config, data_set=named, data_dir=None)),
        )  # data_dir is that of ours
        require(
            (source.shape, source.classes) == (ours.shape, ours.classes),
            "public_data_set",
            f"a data set with inputs of shape {ours.shape} and {ours.classes} classes",
            named,
        )
    splits = source.load()
    labels = splits.train_y.numpy()
    rows = (
        _public_rows(config, _used_rows(config, labels))
        if named is None
        else stream(config.seed, "public").permutation(len(labels))[: config.public_samples]
    )
    require(
        len(rows) > 0,
        "public_fraction",
        "enough for at least one sample: the selector needs a public set",
        config.public_fraction,
    )
    picked = torch.from_numpy(rows)
    return Samples(source.prepare(splits.train_x[picked]), splits.train_y[picked])


def noisy_clients(config: JobConfig, n: int) -> frozenset[int]:
    """Ids of the clients, of n, whose labels are wrong: a share of them, drawn from the seed."""
    chosen = stream(config.seed, "label noise").permutation(n)[
        : round(n * config.label_noise_clients)
    ]
    return frozenset((chosen + 1).tolist())


def data_set(config: JobConfig) -> DataSet:
    """The job's data set, or what it has stand for it, described but not loaded."""
    real = DATASETS[config.data_set](config)
    return StandIn(real) if config.stand_in else real


def initial_model(config: JobConfig) -> torch.nn.Module:
    """The job's model with its initial weights, a function of the seed alone."""
    spec = data_set(config)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(torch_seed(config.seed, "model"))
        return build_model(config, spec.shape, spec.classes, spec.dtype)


def kbit(model: torch.nn.Module) -> float:
    """Size of a model in FedScale's unit, 1024 bits."""
    return sum(t.numel() * t.element_size() for t in model.state_dict().values()) * 8 / 1024


def model_kbit(config: JobConfig) -> float:
    return kbit(initial_model(config))


def training_sizes(config: JobConfig) -> np.ndarray:
    """How many samples each client of a resolved job trains on; loads its data."""
    return FederatedData(config, torch.device("cpu")).getSize()["size"]


__all__ = [
    "FederatedData",
    "Partition",
    "Samples",
    "data_set",
    "describe_partition",
    "initial_model",
    "kbit",
    "model_kbit",
    "noisy_clients",
    "public_set",
    "training_sizes",
]
