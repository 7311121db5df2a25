"""FedCor: clients whose losses move with everybody's, by a Gaussian process of loss changes.

Paper: M. Tang, X. Ning, Y. Wang, J. Sun, Y. Wang, H. Li, Y. Chen. "FedCor: Correlation-Based
    Active Client Selection Strategy for Heterogeneous Federated Learning." CVPR 2022. The steps
    follow the authors' code (github.com/Yoruko-Tang/FedCor, src/GPR.py and src/federated_main.py);
    the paper's text was not at hand.

Model: the changes of all clients' losses in a round with a random cohort are N(mu, Sigma), with
Sigma = X'X + sigma_n^2 I. Every client has a learnt position, a column of X, in d dimensions.

Symbol -> name here
    X' -> positions, (n, d)    sigma_n -> noise    mu -> what `weighted_means` gives
    p_i -> weight, the client's share of the samples    alpha_k -> annealing
    beta -> beta    gamma -> gamma    Delta t -> interval    group_size -> history
    sigma_k^2 = Sigma_kk -> variance    sum_i p_i Sigma_ik -> reach
Departures
    A sample comes from a round that counts: every Delta t-th round has a random cohort. The
        published code trains such a cohort in an extra round and throws the result away, for which
        a selector has no means: each round it selects for moves the model.
    Losses are those of the clients' training data; published: of a fifth kept from training.
    A sample is of the clients that were online before and after it and answered both times.
    A round in which nobody was valid gives no sample: the model has not moved.
    The first training comes with the first round after the warm-up for which there is a sample.
    A change larger than 100 times the median size of its sample is shortened to that.
    Clients without a position, as they are in no sample yet, get seats last, at random, and no part
        in the weighted sum; before there is any sample (FedScale's own aggregator) all are such.
    The sum runs over all other clients, online or not; picks are of the online ones.
    Everyone asked is annealed, valid or not, or a client that is never in time stays the best.
    A gradient step takes O(n d^2) by Woodbury's identity, and a pick O(n d): Sigma is never formed.
    Adam runs in double precision; published: single.
    Ties are broken at random.

The defaults are those of the authors' README for FMNIST. For CIFAR-10 it has warmup 20, interval
50, beta 0.9, gamma 0.99 and history 500.

Positions are trained by Adam as published although the maximum is known in closed form where
everyone answers (probabilistic PCA). Adam's 1000 steps stop far from it, and at the maximum the
cohorts would be others than the published method's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedsuv_plugin.params import Params, param
from fedsuv_plugin.selectors.base import ClientTable, Probe, RoundOutcome, RoundView, Selector, best
from fedsuv_plugin.selectors.signals import LOSS

ABSURD = 100  # changes larger than so many times the median are not believed
LARGEST = 1e30  # losses are clipped to this size, so that no product of theirs overflows
BLOCK = 4096  # clients whose positions are moved at once: they fit into a cache
# Adam's decay rates and the number that keeps it from dividing by 0: its authors', and torch's.
FIRST_MOMENT = 0.9
SECOND_MOMENT = 0.999
EPSILON = 1e-8
NEVER = -1  # the round of the losses, where none are waiting for their change


@dataclass(frozen=True, kw_only=True)
class FedCorParams(Params):
    warmup: int = param(
        15,
        "random cohorts at the start, less one: with 0 there is one",
        low=0,
        scales_with="rounds",
    )
    interval: int = param(
        10,
        "after the warm-up a random cohort brings a sample every so many rounds; 0: never, "
        "1: in every round",
        low=0,
        scales_with="rounds",
    )
    beta: float = param(
        0.95,
        "a client's score is multiplied by this each time it is asked, until the next sample; "
        "1: never punished",
        above=0,
        high=1,
    )
    gamma: float = param(
        0.95, "a sample's weight, to the power of its age in rounds; 1: all alike", above=0, high=1
    )
    history: int = param(
        100,
        "samples older than so many rounds are dropped; 0: all but the latest",
        low=0,
        scales_with="rounds",
    )
    dimension: int = param(15, "coordinates of a client's position", low=1)
    noise: float = param(0.01, "standard deviation of a change that no position explains", low=1e-6)
    update_mean: bool = param(
        True,
        "true: the mean change of a client is that of its samples, and training begins after the "
        "warm-up; false: it is 0, and every sample of the warm-up is trained on",
    )
    first_steps: int = param(1000, "Adam's steps after the warm-up, with update_mean", low=1)
    warmup_steps: int = param(150, "Adam's steps in the warm-up, without update_mean", low=1)
    steps: int = param(100, "Adam's steps after each later sample", low=1)
    learning_rate: float = param(0.01, "Adam's step size", above=0)


class FedCor(Selector):
    """Used as `sample_mode: fedcor`; some rounds ask every online client for its loss."""

    name = "fedcor"
    paper = (
        "Tang et al., FedCor: Correlation-Based Active Client Selection Strategy for "
        "Heterogeneous FL, CVPR 2022"
    )
    probes = frozenset({LOSS})
    Params = FedCorParams
    state = (
        "positions",
        "placed",
        "annealing",
        "before",
        "before_known",
        "before_round",
        "sample_rounds",
        "changes",
        "answered",
        "trained",
        "log_likelihood",
    )

    def __init__(self, params: FedCorParams, clients: ClientTable, rng: np.random.Generator):
        super().__init__(params, clients, rng)
        n = len(clients)
        # (n, d), so that the expected squared length is 1
        self.positions = rng.normal(size=(n, params.dimension)) / math.sqrt(params.dimension)
        self.placed = np.zeros(n, bool)  # (n,) was trained on a sample, so that it has a position
        self.annealing = np.ones(n)  # (n,)
        self.before = np.zeros(n)  # (n,) losses at the start of round `before_round` ...
        self.before_known = np.zeros(n, bool)  # (n,) ... and who told them
        self.before_round = NEVER
        # The samples kept, oldest first. Rounds count from 0, as in the published code.
        self.sample_rounds = np.zeros(0, np.int64)  # (s,)
        self.changes = np.zeros((0, n))  # (s, n), 0 where a client did not answer
        self.answered = np.zeros((0, n), bool)  # (s, n)
        self.trained = False
        self.log_likelihood: float | None = None  # per change, after the latest training
        self._forget_selection()

    def _forget_selection(self) -> None:
        """Reset what `explain` and `diagnostics` say about the latest selection."""
        self.score = np.full(len(self.clients), np.nan)
        self.chosen_as = np.zeros(len(self.clients), np.int64)
        self._random = True

    # ---- samples

    def _draws_at_random(self, t: int) -> bool:
        """Whether round t = 0, 1, ... has a random cohort, and so gives a sample."""
        interval = self.params.interval
        return 0 <= t <= self.params.warmup or (t > 0 and interval > 0 and t % interval == 0)

    def probe(self, view: RoundView) -> Probe | None:
        """Ask everyone's loss before a sample, and again after it, a round later."""
        t = view.round - 1
        wanted = self._draws_at_random(t) or self._draws_at_random(t - 1)
        return Probe(LOSS, view.online) if wanted and len(view.online) else None

    def _take_losses(self, t: int, rows: np.ndarray, loss: np.ndarray) -> bool:
        """The losses at the start of round t; whether they complete the sample of the round before.

        Those of a round with a random cohort are kept, for its own sample."""
        now = np.zeros(len(self.clients))
        now[rows] = np.clip(loss, -LARGEST, LARGEST)
        known = np.zeros(len(self.clients), bool)
        known[rows] = True
        both = known & self.before_known
        complete = self.before_round == t - 1 and bool(both.any())
        if complete:
            self._add_sample(t - 1, np.where(both, now - self.before, 0.0), both)
        self.before_round = t if self._draws_at_random(t) else NEVER
        self.before = now
        self.before_known = known
        return complete

    def _add_sample(self, t: int, change: np.ndarray, answered: np.ndarray) -> None:
        believed = ABSURD * float(np.median(np.abs(change[answered])))
        if believed > 0:
            change = np.clip(change, -believed, believed)
        kept = self.sample_rounds + self.params.history >= t
        self.sample_rounds = np.append(self.sample_rounds[kept], t)
        self.changes = np.vstack([self.changes[kept], change])
        self.answered = np.vstack([self.answered[kept], answered])

    def update(self, outcome: RoundOutcome) -> None:
        t = outcome.round - 1
        if not outcome.valid.any():
            self.before_round = NEVER
        if t <= self.params.warmup:
            return
        if self._draws_at_random(t):
            self.annealing[:] = 1.0
        else:
            self.annealing[outcome.rows] *= self.params.beta

    # ---- training

    def _steps_due(self, t: int, fresh: bool) -> int:
        """Adam's steps before the selection of round t; `fresh`: a sample has just been added."""
        if not len(self.sample_rounds):
            return 0
        if not self.params.update_mean and self.sample_rounds[-1] <= self.params.warmup:
            return self.params.warmup_steps if fresh else 0
        if t <= self.params.warmup:
            return 0
        if not self.trained and self.params.update_mean:
            return self.params.first_steps
        return self.params.steps if fresh else 0

    def _train(self, steps: int) -> None:
        age = self.sample_rounds[-1] - self.sample_rounds
        weights = self.params.gamma ** age.astype(float)  # (s,)
        off = self.changes
        if self.params.update_mean:
            means = weighted_means(self.changes, self.answered, weights)
            off = np.where(self.answered, self.changes - means, 0.0)
        samples = Samples(off, self.answered, weights)
        self.placed |= self.answered.any(axis=0)
        self.positions = trained_positions(
            self.positions, samples, self.params.noise, steps, self.params.learning_rate
        )
        self.trained = True
        total = samples.log_likelihood(self.positions, self.params.noise)
        count = float(weights @ np.count_nonzero(self.answered, axis=1))
        self.log_likelihood = total / count

    # ---- choosing

    def select(self, view: RoundView, k: int) -> np.ndarray:
        self._forget_selection()
        t = view.round - 1
        fresh = False
        if view.probe is not None:
            fresh = self._take_losses(t, view.probe.rows, view.probe.values)
        steps = self._steps_due(t, fresh)
        if steps:
            self._train(steps)
        k = min(k, len(view.online))
        if self._draws_at_random(t):
            return self.rng.choice(view.online, k, replace=False)
        self._random = False
        known = self.placed[view.online]
        rows = view.online[known]
        others = view.online[~known]
        chosen = rows[self._greedy(rows, min(k, len(rows)))]
        self.chosen_as[chosen] = np.arange(1, len(chosen) + 1)
        more = others[best(np.zeros(len(others)), k - len(chosen), self.rng)]
        return np.concatenate([chosen, more])

    def _greedy(self, rows: np.ndarray, k: int) -> np.ndarray:
        """Places in `rows` of k clients, each the best given the losses of those before it."""
        weight = np.where(self.placed, self.clients.samples, 0).astype(float)  # (n,)
        weight /= max(float(weight.sum()), 1.0)
        seen = self.positions[rows]
        picks = Conditioned(seen, weight @ self.positions, weight[rows], self.params.noise)
        annealing = self.annealing[rows]
        chosen: list[int] = []
        while len(chosen) < k:
            score = picks.scores(annealing)
            if not chosen:
                self.score[rows] = score
            score[chosen] = -np.inf
            place = int(best(score, 1, self.rng)[0])
            chosen.append(place)
            picks.condition_on(place)
        return np.array(chosen, np.int64)

    def explain(self) -> dict[str, np.ndarray]:
        """What is believed of each client and what the last selection made of it.

        `sigma` is NaN where a client has no position; `score`, that of the first pick, also where
        it was offline or the cohort was random. `chosen_as` counts the picks by score from 1; 0:
        none of them."""
        variance = (self.positions**2).sum(axis=1) + self.params.noise**2
        return {
            "sigma": np.where(self.placed, np.sqrt(variance), np.nan),
            "annealing": self.annealing,
            "score": self.score,
            "chosen_as": self.chosen_as,
        }

    def diagnostics(self) -> dict[str, Any]:
        scores = self.score[np.isfinite(self.score)]
        return {
            "random_cohort": self._random,
            "samples": len(self.sample_rounds),
            "placed": int(np.count_nonzero(self.placed)),
            "log_likelihood": self.log_likelihood,
            "best_score": float(scores.max()) if len(scores) else None,
        }


class Conditioned:
    """The covariance of some clients, given the changes of those picked so far.

    Conditioning on client s takes Sigma_:s Sigma_s: / Sigma_ss away. Where Sigma is
    X' A X + sigma_n^2 I (A = I before the first pick), that gives for all but s the same form, with
    A - a a' / Sigma_ss in place of A, where a = A x_s."""

    def __init__(
        self, positions: np.ndarray, centre: np.ndarray, weight: np.ndarray, noise: float
    ) -> None:
        """`positions` (m, d) and `weight` (m,) are of those that may be picked.

        `centre` (d,) is the sum of weight * position over everyone that counts."""
        self._x = positions
        self._noise2 = noise**2
        self._a = np.eye(positions.shape[1])  # (d, d)
        self._variance = (positions**2).sum(axis=1) + self._noise2  # (m,)
        self._reach = positions @ centre + self._noise2 * weight  # (m,)

    def scores(self, annealing: np.ndarray) -> np.ndarray:
        """alpha_k / sigma_k * sum_i p_i Sigma_ik, (m,); of no use for those already picked."""
        return annealing / np.sqrt(self._variance) * self._reach

    def condition_on(self, place: int) -> None:
        """The covariance given the change of that client, which must not be picked again."""
        along = self._a @ self._x[place]  # (d,)
        variance = float(self._variance[place])
        column = self._x @ along  # (m,) its covariances with the others
        self._reach -= self._reach[place] / variance * column
        # No variance is below that of the noise but by rounding.
        self._variance = np.maximum(self._variance - column**2 / variance, self._noise2)
        self._a -= np.outer(along, along) / variance


def weighted_means(changes: np.ndarray, answered: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Each client's mean change (n,) over the samples it is in, by the samples' weights (s,).

    >>> changes = np.array([[-1.0, -2.0], [-4.0, 0.0]])
    >>> weighted_means(changes, np.array([[True, True], [True, False]]), np.array([0.5, 1.0]))
    array([-3., -2.])
    """
    total = weights @ answered
    summed = weights @ np.where(answered, changes, 0.0)
    return np.divide(summed, total, out=np.zeros(len(total)), where=total > 0)


class Samples:
    """Loss changes less their means, and their likelihood for given positions.

    Samples that the same clients answered have the same covariance, so they are grouped. With
    M = sigma_n^2 I + X X' (d x d, over those clients), which Woodbury's identity brings in,

        y' K^-1 y = (y'y - y'X' M^-1 X y) / sigma_n^2
        ln det K  = ln det M + (n - d) ln sigma_n^2
    """

    def __init__(self, off: np.ndarray, answered: np.ndarray, weights: np.ndarray) -> None:
        """`off` (s, n) is 0 where `answered` (s, n) is False; `weights` (s,)."""
        self.off = off
        self.weights = weights
        found: dict[bytes, list[int]] = {}
        for i, row in enumerate(answered):
            found.setdefault(row.tobytes(), []).append(i)
        self._members = [np.array(members) for members in found.values()]  # samples of a group
        self._masks = [answered[members[0]] for members in self._members]  # (n,) bool each

    def __len__(self) -> int:
        return len(self.weights)

    def groups(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """The samples of each group, and the mask (n,) of the clients that answered them."""
        return zip(self._members, self._masks, strict=True)

    def moments(self, positions: np.ndarray, part: slice) -> tuple[np.ndarray, np.ndarray]:
        """What the clients of one slice, with these positions, add to X X' and X y.

        The former is (groups, d, d), the latter (d, s)."""
        grams = np.empty((len(self._masks), positions.shape[1], positions.shape[1]))
        for g, mask in enumerate(self._masks):
            own = mask[part]
            there = positions if own.all() else positions[own]
            grams[g] = there.T @ there
        # `off` is 0 for those who did not answer, so that no mask is needed.
        return grams, positions.T @ self.off[:, part].T

    def log_likelihood(self, positions: np.ndarray, noise: float) -> float:
        """The sum over the samples of weight * ln N(off; 0, K)."""
        grams, products = self.moments(positions, slice(None))
        d = positions.shape[1]
        total = 0.0
        for (members, mask), gram in zip(self.groups(), grams, strict=True):
            n = np.count_nonzero(mask)
            m = noise**2 * np.eye(d) + gram
            explained = (products[:, members] * np.linalg.solve(m, products[:, members])).sum(0)
            squares = ((self.off[members] ** 2).sum(axis=1) - explained) / noise**2
            log_det = np.linalg.slogdet(m)[1] + (n - d) * math.log(noise**2)
            each = -0.5 * (squares + log_det + n * math.log(2 * math.pi))
            total += float(self.weights[members] @ each)
        return total

    def slopes(
        self, grams: np.ndarray, products: np.ndarray, noise: float
    ) -> tuple[np.ndarray, np.ndarray]:
        """What the gradient of the log-likelihood is made of: see `gradient`.

        For one sample of weight w the gradient in X' is w (K^-1 y y' K^-1 X' - K^-1 X'). As
        z = M^-1 X y is X K^-1 y, K^-1 y = (y - X' z) / sigma_n^2 and K^-1 X' = X' M^-1, it is
        y b' - X' c with b = w z / sigma_n^2 and c = w z z' / sigma_n^2 + w M^-1.

        Returns b of every sample, (s, d), and the sum of c over every group, (groups, d, d)."""
        d = grams.shape[1]
        b = np.empty((len(self), d))
        c = np.empty_like(grams)
        for g, members in enumerate(self._members):
            m_inverse = np.linalg.inv(noise**2 * np.eye(d) + grams[g])
            z = m_inverse @ products[:, members]  # (d, samples of the group)
            weighted = z * (self.weights[members] / noise**2)
            b[members] = weighted.T
            c[g] = weighted @ z.T + self.weights[members].sum() * m_inverse
        return b, c

    def gradient(
        self, positions: np.ndarray, part: slice, b: np.ndarray, c: np.ndarray
    ) -> np.ndarray:
        """The gradient of the log-likelihood for the positions of one slice of the clients."""
        slope = self.off[:, part].T @ b
        for mask, each in zip(self._masks, c, strict=True):
            own = mask[part]
            if own.all():
                slope -= positions @ each
            else:
                slope[own] -= positions[own] @ each
        return slope


def trained_positions(
    positions: np.ndarray, samples: Samples, noise: float, steps: int, learning_rate: float
) -> np.ndarray:
    """The positions (n, d) after so many steps of Adam up the samples' likelihood.

    The clients' gradients have little in common, only b and c of `Samples.slopes`. So one pass over
    the clients, block by block, moves them and collects what the next step's b and c need."""
    x = positions.copy()
    n, d = x.shape
    first = np.zeros_like(x)
    second = np.zeros_like(x)
    parts = [slice(start, min(start + BLOCK, n)) for start in range(0, n, BLOCK)]
    grams, products = samples.moments(x, slice(None))
    for step in range(1, steps + 1):
        b, c = samples.slopes(grams, products, noise)
        rate = learning_rate / (1 - FIRST_MOMENT**step)
        correction = math.sqrt(1 - SECOND_MOMENT**step)
        grams = np.zeros_like(grams)
        products = np.zeros_like(products)
        for part in parts:
            block = x[part]
            downhill = -samples.gradient(block, part, b, c)
            first[part] = FIRST_MOMENT * first[part] + (1 - FIRST_MOMENT) * downhill
            second[part] = SECOND_MOMENT * second[part] + (1 - SECOND_MOMENT) * downhill**2
            block -= rate * first[part] / (np.sqrt(second[part]) / correction + EPSILON)
            more_grams, more_products = samples.moments(block, part)
            grams += more_grams
            products += more_products
    return x
