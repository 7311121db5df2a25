"""What a job trains on: who has which samples, what is kept from training, and the initial model.

Everything here is a function of the resolved job alone, so that every process of a job, and every
job of a comparison, sees the same clients. Client ids are FedScale's, from 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch

from fedsuv_plugin.errors import UserError, require
from fedsuv_plugin.randomness import stream, torch_seed
from fedsuv_plugin.tasks.datasets import DATASETS, DataSet
from fedsuv_plugin.tasks.map_file import from_map_file
from fedsuv_plugin.tasks.models import build_model
from fedsuv_plugin.tasks.partitions import PARTITIONS, Partition, natural, partition
from fedsuv_plugin.tasks.stand_in import StandIn

if TYPE_CHECKING:
    from fedsuv_plugin.config.keys import JobConfig

DEFAULT_CLIENTS = 100
NATURAL = "natural"  # the partition that comes with the data set
SAMPLES_AT_ONCE = 4096  # are prepared where all are passed through


@dataclass(frozen=True)
class Samples:
    """Prepared inputs and their labels, on the device that computes."""

    x: torch.Tensor
    y: torch.Tensor

    def __len__(self) -> int:
        return len(self.y)


class FederatedData:
    """All clients' data in memory, less the shares that the resolved job keeps from training."""

    def __init__(self, config: JobConfig, device: torch.device):
        self.config = config
        self._set = data_set(config)
        self._device = device
        splits = self._set.load()
        self._x = splits.train_x
        self._y = splits.train_y.clone()
        self._clients = _partition(config, splits.train_y.numpy(), splits.owner)
        for client in noisy_clients(config, len(self._clients)):
            own = self._own(client)
            self._y[own] = (self._y[own] + 1) % self._set.classes
        # Each client holds out its first so many samples, once these are in random order.
        holdout = config.holdout_fraction or 0.0
        self._held = np.floor(self._clients.sizes * holdout).astype(np.int64)
        if holdout:
            self._clients = self._clients.shuffled(stream(config.seed, "holdout"))
        shuffled = stream(config.seed, "interview").permutation(len(splits.test_y))
        order = torch.from_numpy(shuffled[: config.test_samples])
        interviewed = int(len(order) * (config.interview_fraction or 0.0))
        self.interview = self._samples(splits.test_x, splits.test_y, order[:interviewed])
        self.test = self._samples(splits.test_x, splits.test_y, order[interviewed:].sort().values)

    def getSize(self) -> dict[str, np.ndarray]:
        """How many samples each client trains on. An executor reports it when it registers.

        FedScale gave it this name and calls it."""
        return {"size": self._clients.sizes - self._held}

    def training(self, client_id: int) -> Samples:
        return self._samples(self._x, self._y, self._own(client_id)[self._held[client_id - 1] :])

    def held_out(self, client_id: int) -> Samples:
        return self._samples(self._x, self._y, self._own(client_id)[: self._held[client_id - 1]])

    @property
    def classes(self) -> int:
        return self._set.classes

    @property
    def dtype(self) -> torch.dtype:
        """Of inputs: numbers are floating-point, characters whole."""
        return self._set.dtype

    @cached_property
    def mean_input(self) -> np.ndarray:
        """The mean (d,) of the data set's training inputs, flat, whoever has them.

        It costs a pass over the data set when it is first asked for. Sums are in float64 and in one
        order, so that it is the same in every process."""
        total = np.zeros(self._x[0].numel())
        for chunk in self._x.split(SAMPLES_AT_ONCE):
            prepared = self._set.prepare(chunk).reshape(len(chunk), -1).numpy()
            total += prepared.sum(axis=0, dtype=np.float64)
        return total / len(self._x)

    def held_out_together(
        self, client_ids: np.ndarray, batch: int
    ) -> tuple[np.ndarray, np.ndarray, Iterator[Samples]]:
        """What several clients hold out, to be evaluated at once.

        Returns (the clients that hold anything out, how many samples each does, all these samples
        client after client, in batches)."""
        clients = client_ids[self._held[client_ids - 1] > 0]
        own = [self._own(client)[: self._held[client - 1]] for client in clients.tolist()]
        rows = torch.cat(own) if own else torch.zeros(0, dtype=torch.int64)
        batches = (self._samples(self._x, self._y, part) for part in rows.split(batch))
        return clients, self._held[clients - 1], batches

    def _own(self, client_id: int) -> torch.Tensor:
        if not 1 <= client_id <= len(self._clients):
            raise UserError(f"client {client_id}: expected an id from 1 to {len(self._clients)}")
        return torch.from_numpy(self._clients.samples(client_id - 1))

    def _samples(self, x: torch.Tensor, y: torch.Tensor, rows: torch.Tensor) -> Samples:
        return Samples(self._set.prepare(x[rows]).to(self._device), y[rows].to(self._device))


# ---- who has which samples


def _partition(config: JobConfig, labels: np.ndarray, owner: np.ndarray | None) -> Partition:
    """Who owns which training sample, once the server has taken its public share."""
    schemes = sorted([*PARTITIONS.names(), NATURAL])
    require(
        config.partition in schemes, "partition", f"one of {', '.join(schemes)}", config.partition
    )
    rng = stream(config.seed, "partition")
    used = _used_rows(config, labels)
    left = np.setdiff1d(used, _public_rows(config, used), assume_unique=True)  # ascending
    if config.data_map_file is None and config.partition != NATURAL:
        shared_out = partition(
            labels[left],
            config.partition,
            config.num_clients or DEFAULT_CLIENTS,
            config.partition_alpha,
            rng,
            config.shards_per_client,
        )
        return shared_out.renumbered(left)
    # A map file and the natural owners speak of all training samples; those not left go out.
    if config.data_map_file is not None:
        whole = from_map_file(config.data_map_file, labels, config.num_clients)
    else:
        whole = natural(_known(config, owner), config.num_clients, rng)
    numbers = np.full(len(labels), -1)
    numbers[left] = left
    return whole.renumbered(numbers)


def _known(config: JobConfig, owner: np.ndarray | None) -> np.ndarray:
    """The natural owners, or an error that names the data sets that have some."""
    if owner is None:
        sets = [(name, DATASETS[name].clients) for name in DATASETS.names()]
        some = ", ".join(f"{name} ({clients})" for name, clients in sets if clients)
        raise UserError(
            f"partition: natural: this {config.data_set} does not say whose its samples are; "
            f"expected another partition, or one of {some}"
        )
    return owner


def _used_rows(config: JobConfig, labels: np.ndarray) -> np.ndarray:
    """The training samples that are used at all, ascending: the same share of each label.

    Of each label at least one sample is used."""
    if config.data_fraction == 1:
        return np.arange(len(labels))
    _, classes, totals = np.unique(labels, return_inverse=True, return_counts=True)
    order = np.lexsort((stream(config.seed, "data fraction").random(len(labels)), classes))
    firsts = np.cumsum(totals) - totals  # where each class begins in the order
    place = np.arange(len(labels)) - np.repeat(firsts, totals)  # of a sample in its class
    kept = np.maximum(np.rint(config.data_fraction * totals), 1)
    return np.sort(order[place < np.repeat(kept, totals)])


def _public_rows(config: JobConfig, used: np.ndarray) -> np.ndarray:
    """The training samples that the server takes for its public set, in random order."""
    count = int(len(used) * (config.public_fraction or 0.0))
    return used[stream(config.seed, "public").permutation(len(used))[:count]]


def describe_partition(config: JobConfig) -> tuple[Partition, np.ndarray]:
    """Who owns which training sample, and the labels of all of them."""
    splits = data_set(config).load()
    labels = splits.train_y.numpy()
    return _partition(config, labels, splits.owner), labels


def training_sizes(config: JobConfig) -> np.ndarray:
    """How many samples each client of a resolved job trains on; loads its data."""
    return FederatedData(config, torch.device("cpu")).getSize()["size"]


def noisy_clients(config: JobConfig, n: int) -> frozenset[int]:
    """Ids of the clients, of n, whose training labels are wrong: a share chosen by the seed."""
    order = stream(config.seed, "label noise").permutation(n)
    chosen = order[: round(n * config.label_noise_clients)]
    return frozenset((chosen + 1).tolist())


def data_set(config: JobConfig) -> DataSet:
    """The job's data set, or its stand-in if the job asks for one; described, but not loaded."""
    real = DATASETS[config.data_set](config)
    return StandIn(real) if config.stand_in else real


# ---- the server's


def public_set(config: JobConfig) -> Samples:
    """The server's own samples: `public_data_set`, or training samples that no client has."""
    source = data_set(config)
    named = config.public_data_set
    if named is not None and named != config.data_set:
        ours = source
        # The job's data_dir is the folder of its own data set, not of this one.
        source = data_set(replace(config, data_set=named, data_dir=None))
        require(
            (source.shape, source.classes) == (ours.shape, ours.classes),
            "public_data_set",
            f"a data set with inputs of shape {ours.shape} and {ours.classes} classes",
            named,
        )
    splits = source.load()
    labels = splits.train_y.numpy()
    if named is None:
        rows = _public_rows(config, _used_rows(config, labels))
    else:
        shuffled = stream(config.seed, "public").permutation(len(labels))
        rows = shuffled[: config.public_samples]
    require(
        len(rows) > 0,
        "public_fraction",
        "enough for at least one sample: the selector needs a public set",
        config.public_fraction,
    )
    picked = torch.from_numpy(rows)
    return Samples(source.prepare(splits.train_x[picked]), splits.train_y[picked])


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
