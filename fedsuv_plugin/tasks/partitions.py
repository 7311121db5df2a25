"""Who owns which training sample: a client's share is a slice of one index array."""
from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedsuv_plugin.catalogue import Catalogue
from fedsuv_plugin.errors import UserError


@dataclass(frozen=True)
class Partition:
    """Client i owns samples order[offsets[i] : offsets[i + 1]]."""

    order: np.ndarray    # (m,) int64, sample numbers
    offsets: np.ndarray  # (n + 1,) int64

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def sizes(self) -> np.ndarray:
        return np.diff(self.offsets)

    def samples(self, client: int) -> np.ndarray:
        return self.order[self.offsets[client]:self.offsets[client + 1]]

    def renumbered(self, numbers: np.ndarray) -> Partition:
        """The same shares where sample i is called numbers[i]; those called -1 are nobody's."""
        owner = np.repeat(np.arange(len(self)), self.sizes)
        order = numbers[self.order]
        return Partition(order[order >= 0], np.searchsorted(owner[order >= 0], np.arange(len(self) + 1)))

    def shuffled(self, rng: np.random.Generator) -> Partition:
        """The same owners, each one's samples in random order."""
        owner = np.repeat(np.arange(len(self)), self.sizes)
        return Partition(self.order[np.lexsort((rng.random(len(owner)), owner))], self.offsets)


def by_owner(owner: np.ndarray, n: int) -> Partition:
    """From the owner of each sample (-1: nobody), (m,) -> the samples of each owner, in their old order."""
    order = np.argsort(owner, kind="stable")
    order = order[np.searchsorted(owner[order], 0):]
    return Partition(order, np.searchsorted(owner[order], np.arange(n + 1)))


@dataclass(frozen=True)
class Skew:
    """How unlike each other clients are; a scheme reads what it knows."""

    alpha: float = 0.5
    shards_per_client: int = 2


Scheme = Callable[[np.ndarray, int, Skew, np.random.Generator], np.ndarray]
PARTITIONS: Catalogue[Scheme] = Catalogue("partition")


@PARTITIONS.add("iid")
def iid(labels: np.ndarray, n: int, skew: Skew, rng: np.random.Generator) -> np.ndarray:
    """Shuffled and dealt out: sizes differ by at most one."""
    return rng.permutation(np.arange(len(labels)) % n)


@PARTITIONS.add("dirichlet")
def dirichlet(labels: np.ndarray, n: int, skew: Skew, rng: np.random.Generator) -> np.ndarray:
    """Each class is shared out among the clients in proportions drawn from Dir(alpha): small alpha, few classes per
    client and unequal sizes; large alpha, iid. Every sample has one owner and every client at least one sample.

    T.-M. H. Hsu, H. Qi, M. Brown. arXiv:1909.06335, in the per-class form of Q. Li et al., ICDE 2022."""
    owner = np.empty(len(labels), np.int64)
    for label in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == label))
        cuts = np.floor(np.cumsum(rng.dirichlet(np.full(n, skew.alpha)))[:-1] * len(rows)).astype(np.int64)
        owner[rows] = np.searchsorted(cuts, np.arange(len(rows)), side="right")
    sizes = np.bincount(owner, minlength=n)
    for client in np.flatnonzero(sizes == 0):  # whoever came away empty gets one sample of the richest
        richest = int(np.argmax(sizes))
        owner[rng.choice(np.flatnonzero(owner == richest))] = client
        sizes[richest] -= 1
        sizes[client] = 1
    return owner


@PARTITIONS.add("shards")
def shards(labels: np.ndarray, n: int, skew: Skew, rng: np.random.Generator) -> np.ndarray:
    """Sorted by label, cut into pieces of equal size (to within one sample), `shards_per_client` of them to each client
    at random. A piece has one label, or two where the classes are not whole numbers of pieces. With fewer samples than
    pieces a client gets fewer.

    H. B. McMahan et al., AISTATS 2017, section 3."""
    each = min(skew.shards_per_client, len(labels) // n)
    order = np.lexsort((rng.random(len(labels)), labels))
    piece = np.arange(len(labels)) * (n * each) // len(labels)  # (m,) of each place in the order
    owner = np.empty(len(labels), np.int64)
    owner[order] = rng.permutation(np.arange(n * each) % n)[piece]
    return owner


def partition(labels: np.ndarray, scheme: str, n: int, alpha: float, rng: np.random.Generator,
              shards_per_client: int = 2) -> Partition:
    if n > len(labels):
        raise UserError(f"num_clients: expected at most {len(labels)}, the number of training samples, got {n}")
    return by_owner(PARTITIONS[scheme](labels, n, Skew(alpha, shards_per_client), rng), n)


def natural(owner: np.ndarray, n: int | None, rng: np.random.Generator) -> Partition:
    """The owners that the data set names, (m,) 0, 1, ..., as clients; n fewer than there are keeps n at random."""
    known = int(owner.max()) + 1
    n = known if n is None else n
    if n > known:
        raise UserError(f"num_clients: expected at most {known}, the natural clients of the data set, got {n}")
    number = np.full(known, -1)
    number[np.sort(rng.permutation(known)[:n])] = np.arange(n)
    return by_owner(number[owner], n)


def from_map_file(path: str, labels: np.ndarray, n: int | None) -> Partition:
    """FedScale's `data_map_file`: a CSV with a header, one row per training sample in the data set's order; the first
    column names the client, the last the label. Clients are numbered as they appear; n keeps the first n of them."""
    file = Path(path).expanduser()
    if not file.is_file():
        raise UserError(f"data_map_file: no such file: {path}")
    with file.open(newline="") as f:
        rows = [(row[0], row[-1]) for row in list(csv.reader(f))[1:] if row]
    if not rows or len(rows) > len(labels):
        raise UserError(f"data_map_file: {path}: expected 1 to {len(labels)} rows, one per training sample, "
                        f"got {len(rows)}")
    wrong = next((i for i, (_, label) in enumerate(rows) if label.isdigit() and int(label) != labels[i]), None)
    if wrong is not None:
        raise UserError(f"data_map_file: {path}: row {wrong + 2} says label {rows[wrong][1]}, the data set says "
                        f"{labels[wrong]}; the map belongs to other data")
    numbers: dict[str, int] = {}
    owner = np.array([numbers.setdefault(client, len(numbers)) for client, _ in rows])
    n = len(numbers) if n is None else n
    if n > len(numbers):
        raise UserError(f"num_clients: expected at most {len(numbers)}, the clients of {path}, got {n}")
    return by_owner(np.where(owner < n, owner, -1), n)
