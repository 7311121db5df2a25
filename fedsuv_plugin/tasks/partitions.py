"""Who owns which training sample: a client's share is a slice of one index array."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fedsuv_plugin.errors import UserError
from fedsuv_plugin.named import Catalogue


@dataclass(frozen=True)
class Partition:
    """Client i owns samples order[offsets[i] : offsets[i + 1]]."""

    order: np.ndarray  # (m,) int64, sample numbers
    offsets: np.ndarray  # (n + 1,) int64

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def sizes(self) -> np.ndarray:
        return np.diff(self.offsets)

    def samples(self, client: int) -> np.ndarray:
        return self.order[self.offsets[client] : self.offsets[client + 1]]

    def renumbered(self, numbers: np.ndarray) -> Partition:
        """The same shares where sample i is called numbers[i]; those called -1 are left out."""
        owner = np.repeat(np.arange(len(self)), self.sizes)
        order = numbers[self.order]
        kept = order >= 0
        return Partition(order[kept], np.searchsorted(owner[kept], np.arange(len(self) + 1)))

    def shuffled(self, rng: np.random.Generator) -> Partition:
        """The same owners, each one's samples in random order."""
        owner = np.repeat(np.arange(len(self)), self.sizes)
        return Partition(self.order[np.lexsort((rng.random(len(owner)), owner))], self.offsets)


def by_owner(owner: np.ndarray, n: int) -> Partition:
    """The samples of each owner, in their order, from the owner of each sample (m,), -1: nobody."""
    order = np.argsort(owner, kind="stable")
    order = order[np.searchsorted(owner[order], 0) :]
    return Partition(order, np.searchsorted(owner[order], np.arange(n + 1)))


@dataclass(frozen=True)
class Skew:
    """How unlike each other clients are. Each scheme reads the fields that concern it."""

    alpha: float = 0.5
    shards_per_client: int = 2


# (labels (m,), number of clients, skew, random stream) -> the owner of each sample, (m,)
Scheme = Callable[[np.ndarray, int, Skew, np.random.Generator], np.ndarray]
PARTITIONS: Catalogue[Scheme] = Catalogue("partition")


@PARTITIONS.add("iid")
def iid(labels: np.ndarray, n: int, skew: Skew, rng: np.random.Generator) -> np.ndarray:
    """Shuffled and dealt out: sizes differ by at most one."""
    return rng.permutation(np.arange(len(labels)) % n)


@PARTITIONS.add("dirichlet")
def dirichlet(labels: np.ndarray, n: int, skew: Skew, rng: np.random.Generator) -> np.ndarray:
    """Each class is shared out among the clients in proportions drawn from Dir(alpha).

    Small alpha: few classes per client and unequal sizes; large alpha: iid. Every sample has one
    owner and every client at least one sample.

    T.-M. H. Hsu, H. Qi, M. Brown. arXiv:1909.06335, in the per-class form of Q. Li et al., ICDE
    2022."""
    owner = np.empty(len(labels), np.int64)
    for label in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == label))
        shares = rng.dirichlet(np.full(n, skew.alpha))
        cuts = np.floor(np.cumsum(shares)[:-1] * len(rows)).astype(np.int64)
        owner[rows] = np.searchsorted(cuts, np.arange(len(rows)), side="right")
    return _nobody_empty(owner, n, rng)


def _nobody_empty(owner: np.ndarray, n: int, rng: np.random.Generator) -> np.ndarray:
    """Every client that has no sample gets one from the client that has most."""
    sizes = np.bincount(owner, minlength=n)
    for client in np.flatnonzero(sizes == 0):
        richest = int(np.argmax(sizes))
        owner[rng.choice(np.flatnonzero(owner == richest))] = client
        sizes[richest] -= 1
        sizes[client] = 1
    return owner


DRAWS = 10  # of all clients' proportions, before dirichlet_qp takes sizes that do not fit exactly


@PARTITIONS.add("dirichlet_qp")
def dirichlet_qp(labels: np.ndarray, n: int, skew: Skew, rng: np.random.Generator) -> np.ndarray:
    """Each client's label proportions are drawn from Dir(alpha p), p those of the whole data set.

    A client's mean is then p, and alpha is its total concentration (the paper's zeta, 0.2 there).
    Sizes x are those of least norm that share out every sample: min |x|^2 subject to
    sum_i x_i q_i = the samples of each class, x >= 0, where q_i are client i's proportions.

    What the paper leaves open: where no sizes fit (certain when there are about as many classes as
    clients) the proportions are drawn again, up to ten times in all; then sizes come as near as any
    can, and the samples of a class that are short or over are spread over the clients in proportion
    to what they have of it. Counts are rounded so that every sample has one owner, each within one
    of its target. Many sizes are zero: such a client gets one sample from the client that has most,
    as in `dirichlet`.

    S. Na et al., arXiv:2403.17833, appendix, setting "Dir"; the construction is that of M. Tang et
    al., "FedCor", CVPR 2022."""
    _, classes, totals = np.unique(labels, return_inverse=True, return_counts=True)
    for _ in range(DRAWS):
        proportions = rng.dirichlet(skew.alpha * totals / len(labels), size=n)
        sizes = least_norm_sizes(proportions, totals)
        targets = sizes[:, None] * proportions  # (n, classes)
        held = targets.sum(axis=0)
        if np.abs(held - totals).sum() <= 1e-6 * len(labels):
            break
    # Sizes that do not fit are stretched class by class; a class that nobody has is spread evenly.
    targets = np.where(held > 0, targets / np.where(held > 0, held, 1.0), 1 / n) * totals
    cuts = np.rint(np.cumsum(targets, axis=0))  # client i has a class's samples from cut i-1 to i
    owner = np.empty(len(labels), np.int64)
    for label, total in enumerate(totals.tolist()):
        rows = rng.permutation(np.flatnonzero(classes == label))
        owner[rows] = np.searchsorted(cuts[:-1, label], np.arange(total), side="right")
    return _nobody_empty(owner, n, rng)


# Weight of the norm of u, without which u could grow without bound where no sizes fit. It is so
# small that sizes fit to rounding where any do.
SLACK = 1e-10


def least_norm_sizes(proportions: np.ndarray, totals: np.ndarray) -> np.ndarray:
    """The sizes x >= 0, (n,), of least norm with Q' x = totals, or of least misfit if none fit.

    Q are the proportions, (n, classes). Newton's method on the dual problem, which has one unknown
    per class however many clients there are: x = max(0, Q u), where u maximises
    totals' u - |max(0, Q u)|^2 / 2 - SLACK |u|^2 / 2. That function is concave and made of
    quadratic pieces, so the steps end on the right piece."""
    scale = totals.sum() / len(proportions)
    wanted = totals / scale  # a client's mean size is then 1
    u = np.ones(len(totals))

    def gain(v: np.ndarray) -> float:
        sizes = np.maximum(proportions @ v, 0.0)
        return float(wanted @ v - np.square(sizes).sum() / 2 - SLACK * (v @ v) / 2)

    for _ in range(200):
        active = proportions[proportions @ u > 0]
        slope = wanted - active.T @ (active @ u) - SLACK * u
        if np.abs(slope).max() <= 1e-12 * wanted.max():
            break
        step = np.linalg.solve(active.T @ active + SLACK * np.eye(len(u)), slope)
        length = 1.0
        while (
            gain(u + length * step) < gain(u) + 1e-4 * length * float(slope @ step)
            and length > 1e-10
        ):
            length /= 2
        u = u + length * step
    return np.maximum(proportions @ u, 0.0) * scale


LABELS_KEPT = 0.6  # REFL's job files take 40 % of the labels away from each client


@PARTITIONS.add("label_subset")
def label_subset(labels: np.ndarray, n: int, skew: Skew, rng: np.random.Generator) -> np.ndarray:
    """Each client has its own random 60 % of the labels; those who have a label share it evenly.

    A label that nobody has is shared out to all.

    A. M. Abdelmoniem et al., "REFL", EuroSys 2023."""
    names, classes = np.unique(labels, return_inverse=True)
    kept = max(1, round(LABELS_KEPT * len(names)))
    has = np.argsort(rng.random((n, len(names))), axis=1) < kept  # (n, labels): `kept` in each row
    has[:, ~has.any(axis=0)] = True
    owner = np.empty(len(labels), np.int64)
    for label in range(len(names)):
        rows = np.flatnonzero(classes == label)
        holders = np.flatnonzero(has[:, label])
        owner[rows] = rng.permutation(np.resize(rng.permutation(holders), len(rows)))
    return _nobody_empty(owner, n, rng)


@PARTITIONS.add("shards")
def shards(labels: np.ndarray, n: int, skew: Skew, rng: np.random.Generator) -> np.ndarray:
    """Samples are sorted by label and cut into pieces, `shards_per_client` for each client.

    Pieces are of equal size, to within one sample, and dealt out at random. A piece has one label,
    or more where the classes are not whole numbers of pieces. With fewer samples than pieces a
    client gets fewer.

    H. B. McMahan et al., AISTATS 2017, section 3."""
    each = min(skew.shards_per_client, len(labels) // n)
    order = np.lexsort((rng.random(len(labels)), labels))
    piece = np.arange(len(labels)) * (n * each) // len(labels)  # (m,) the piece of order[i]
    owner = np.empty(len(labels), np.int64)
    owner[order] = rng.permutation(np.arange(n * each) % n)[piece]
    return owner


def partition(
    labels: np.ndarray,
    scheme: str,
    n: int,
    alpha: float,
    rng: np.random.Generator,
    shards_per_client: int = 2,
) -> Partition:
    if n > len(labels):
        raise UserError(
            f"num_clients: expected at most {len(labels)}, the number of training samples, got {n}"
        )
    return by_owner(PARTITIONS[scheme](labels, n, Skew(alpha, shards_per_client), rng), n)


def natural(owner: np.ndarray, n: int | None, rng: np.random.Generator) -> Partition:
    """The owners that the data set names, (m,) 0, 1, ..., as clients; n keeps n at random."""
    known = int(owner.max()) + 1
    n = known if n is None else n
    if n > known:
        raise UserError(
            f"num_clients: expected at most {known}, the natural clients of the data set, got {n}"
        )
    number = np.full(known, -1)
    number[np.sort(rng.permutation(known)[:n])] = np.arange(n)
    return by_owner(number[owner], n)
