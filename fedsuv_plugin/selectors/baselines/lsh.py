"""LSH: a neural bandit that knows each client by 64 hashed bits of its data.

Paper: Q. Pan, H. Cao, Y. Zhu, J. Liu, B. Li. "Contextual Client Selection for Efficient Federated
    Learning over Edge Devices." IEEE TMC 23(6), 2024. Its text was not at hand. The steps are those
    of its preprint: H. Cao, Q. Pan, Y. Zhu, J. Liu, "Birds of a Feather Help: Context-aware Client
    Selection for Efficient Federated Learning", without clusters (`nccb` has them), as a baseline
    of PCZFL's paper (section 5.3) has it: the clients of the largest upper bounds.

Preprint's symbol -> name here
    b_i(j) -> bits    x, the bits written twice -> `context` gives one of the two    N, m -> n, k
    f(x; theta), Z, U -> those of `bandit`: see neural_bandit.py    gamma, lambda -> gamma, lam
    r_i = |D_i| sqrt(mean of squared sample losses), eq. (2) -> outcome.utility
Departures
    Bits are those of engine/simhash.py: as in the preprint for texts (3-grams of characters, not
        words), by random hyperplanes for everything else.
    A context is scaled to length 1; at its full length the network does not train.
    U is that of NeuralUCB's code, in which the first width does not depend on lambda; Z is
        diagonal, and takes the gradients before the round's training, of valid participants only.
    Rewards are divided by the largest seen. One of more than 100 times the median of the clients'
        mean rewards is shortened to that.
    The network is trained once a round, as in NeuralUCB's code: single steps until the mean squared
        error is 0.001, at most 1000. A participation is learned with the mean reward of its client,
        whose participations have the same gradient with that in sum. So the state does not grow.
        A step is shorter than the rate where it would overshoot: see `NeuralBandit.fit`.
    Everyone is asked for its bits when first online, and again until the answer arrives.
    Clients without bits get seats last, at random, and what they do teaches nothing. All are such
        where nobody is asked (FedScale's own aggregator).
    With `utility: accuracy_energy`, as in PCZFL's paper, that utility is the reward: see
        accuracy_energy.py. It is within [0, 1] and not divided.
    Ties are broken at random.

Width, layers, lambda, gamma and training are not in the preprint: the defaults are NeuralUCB's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fedsuv_plugin.errors import require
from fedsuv_plugin.params import Params as AnyParams
from fedsuv_plugin.params import param
from fedsuv_plugin.selectors.accuracy_energy import UtilityParams, mean_utility, signals_for
from fedsuv_plugin.selectors.base import ClientTable, Probe, RoundOutcome, RoundView, Selector, best
from fedsuv_plugin.selectors.baselines.neural_bandit import NeuralBandit
from fedsuv_plugin.selectors.signals import FINGERPRINT, FINGERPRINT_BITS, INTERVIEW_ACCURACY

ABSURD = 100  # rewards larger than so many times the median are not believed
LARGEST = 1e30  # rewards are clipped to this size, so that no sum of them overflows
BLOCK = 4096  # clients whose bounds are computed at once: they fit into a cache
# Equal contexts come out with different last bits, depending on their place in a matrix product.
# Bounds that agree in so many decimals count as ties.
DECIMALS = 9


@dataclass(frozen=True, kw_only=True)
class LshParams(UtilityParams):
    gamma: float = param(
        1.0, "factor of the confidence width; 0: always the largest predictions", low=0
    )
    lam: float = param(
        0.001,
        "lambda, by which weights are held to where they started, and where Z starts; large: "
        "widths shrink slowly",
        low=1e-9,
    )
    width: int = param(100, "units of the network's hidden layer, an even number", low=2)
    steps: int = param(1000, "steps of training in a round, at most; 0: never trained", low=0)
    learning_rate: float = param(0.01, "size of a step, at most", above=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.width % 2 == 0, "width", "an even number", self.width)


class Lsh(Selector):
    """Used as `sample_mode: lsh`; every client is asked for 64 bits of its data, once."""

    name = "lsh"
    paper = (
        "Pan et al., Contextual Client Selection for Efficient FL over Edge Devices, IEEE TMC "
        "2024, without its clusters"
    )
    needs = frozenset({INTERVIEW_ACCURACY})
    probes = frozenset({FINGERPRINT})
    Params = LshParams
    state: ClassVar[tuple[str, ...]] = (
        "utility",
        "bits",
        "known",
        "bandit",
        "reward_sum",
        "times",
        "largest",
        "error",
    )

    def __init__(self, params: LshParams, clients: ClientTable, rng: np.random.Generator):
        super().__init__(params, clients, rng)
        n = len(clients)
        self.utility = mean_utility(params, clients, rng)  # none: the reward is the paper's own
        self.bits = np.zeros((n, FINGERPRINT_BITS), np.uint8)  # (n, 64) zeros and ones
        self.known = np.zeros(n, bool)  # (n,) whose bits have arrived
        self.bandit = NeuralBandit(FINGERPRINT_BITS, params.width, params.lam, rng)
        # (n,) all valid participations with bits: their rewards added up, and their number
        self.reward_sum = np.zeros(n)
        self.times = np.zeros(n, np.int64)
        self.largest = 0.0 if self.utility is None else 1.0  # what rewards are divided by
        self.error: float | None = None  # mean squared error at the end of the latest training
        self._forget_selection()

    def _forget_selection(self) -> None:
        """Reset what `explain` and `diagnostics` say about the latest selection."""
        self.predicted = np.full(len(self.clients), np.nan)
        self.upper = np.full(len(self.clients), np.nan)

    @classmethod
    def required(cls, params: AnyParams) -> frozenset[str]:
        return signals_for(params, FINGERPRINT) & cls.needs

    # ---- choosing

    def probe(self, view: RoundView) -> Probe | None:
        rows = view.online[~self.known[view.online]]
        return Probe(FINGERPRINT, rows) if len(rows) else None

    def select(self, view: RoundView, k: int) -> np.ndarray:
        self._forget_selection()
        if view.probe is not None:
            self.bits[view.probe.rows] = view.probe.values > 0.5
            self.known[view.probe.rows] = True
        k = min(k, len(view.online))
        known = self.known[view.online]
        rows = view.online[known]
        others = view.online[~known]
        self._bound(rows)
        first = self._explore(rows, k)
        left = rows[~np.isin(rows, first)]
        upper = self.upper[left].round(DECIMALS)
        chosen = left[best(upper, k - len(first), self.rng)]
        more = others[best(np.zeros(len(others)), k - len(first) - len(chosen), self.rng)]
        return np.concatenate([first, chosen, more])

    def _bound(self, rows: np.ndarray) -> None:
        """Predictions and upper bounds of these clients."""
        for start in range(0, len(rows), BLOCK):
            part = rows[start : start + BLOCK]
            found = self.bandit.bounds(context(self.bits[part]), self.params.gamma)
            self.predicted[part], self.upper[part] = found

    def _explore(self, rows: np.ndarray, k: int) -> np.ndarray:
        """At most k of these clients that are chosen whatever their upper bounds are."""
        return rows[:0]

    # ---- learning

    def update(self, outcome: RoundOutcome) -> None:
        rows, rewards = self._rewards(outcome)
        has_context = self.known[rows]
        rows = rows[has_context]
        if len(rows):
            self._book(rows, rewards[has_context])
            self.bandit.observe(context(self.bits[rows]))
            self._train()

    def _rewards(self, outcome: RoundOutcome) -> tuple[np.ndarray, np.ndarray]:
        """The valid participants (m,) and the reward of each, (m,)."""
        if self.utility is None:
            rows = outcome.rows[outcome.valid]
            return rows, np.clip(outcome.utility[outcome.valid], 0.0, LARGEST)
        rows = self.utility.learn(outcome)
        return rows, self.utility.values[rows]

    def _book(self, rows: np.ndarray, rewards: np.ndarray) -> None:
        seen = self.times > 0
        means = self.reward_sum[seen] / self.times[seen]
        believed = ABSURD * float(np.median(np.concatenate([means, rewards])))
        if believed > 0:
            rewards = np.minimum(rewards, believed)
        self.reward_sum[rows] += rewards
        self.times[rows] += 1
        self.largest = max(self.largest, float(rewards.max()))

    def _train(self) -> None:
        """One round's training, on all participations so far or as many as there are steps."""
        seen = np.flatnonzero(self.times)
        order = self.rng.permutation(np.repeat(seen, self.times[seen]))
        rows, places = np.unique(order[: self.params.steps], return_inverse=True)
        rewards = self.reward_sum[rows] / self.times[rows]
        if self.params.steps:
            self.error = self.bandit.fit(
                context(self.bits[rows]),
                rewards / (self.largest or 1.0),
                places,
                len(order),
                self.params.steps,
                self.params.learning_rate,
            )

    # ---- telling

    def explain(self) -> dict[str, np.ndarray]:
        """What the reward of each client was thought to be, and its upper bound.

        Both are shares of the largest reward, NaN where a client was offline or has no bits."""
        return {"predicted": self.predicted, "upper": self.upper}

    def diagnostics(self) -> dict[str, Any]:
        bounded = np.isfinite(self.upper)
        widths = self.upper[bounded] - self.predicted[bounded]
        return {
            "known": int(np.count_nonzero(self.known)),
            "participations": int(self.times.sum()),
            "largest_reward": self.largest,
            "squared_error": self.error,
            "mean_width": float(widths.mean()) if len(widths) else None,
        }


def context(bits: np.ndarray) -> np.ndarray:
    """The bits (n, 64) so scaled that written twice they have length 1; of no ones it is 0.

    >>> context(np.array([[1, 0, 1]], np.uint8)).tolist()
    [[0.5, 0.0, 0.5]]
    """
    ones = bits.sum(axis=1, keepdims=True)
    return np.asarray(bits / np.sqrt(2.0 * np.maximum(ones, 1)))
