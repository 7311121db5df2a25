"""A world without training: clients have an expected validity and utility, and a selector plays.

What a client does in a round depends on the seed, the client and the round alone, so that all
selectors meet the same luck.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedsuv_plugin.params import Params
from fedsuv_plugin.randomness import stream
from fedsuv_plugin.selectors.base import ClientTable, RoundOutcome, RoundView, Selector
from fedsuv_plugin.selectors.signals import ACCURACY_GAIN

ON_TIME = 1.0  # seconds of a client that makes the deadline
LATE = 2.0  # seconds of a client that misses it


@dataclass(frozen=True)
class World:
    """n clients: what a selector may know of them, and what it has to find out."""

    validity: np.ndarray  # (n,) chance of making a round's deadline
    utility: np.ndarray  # (n,) expected utility
    features: np.ndarray  # (n, d) context
    noise: float  # standard deviation of an observed utility

    def clients(self) -> ClientTable:
        n = len(self.validity)
        return ClientTable(
            ids=np.arange(1, n + 1),
            samples=np.ones(n, np.int64),
            round_samples=np.ones(n, np.int64),
            features=self.features,
            feature_names=tuple(f"x{j}" for j in range(self.features.shape[1])),
            expected_duration=np.full(n, ON_TIME),
            energy=np.zeros(n),
            position=np.zeros((n, 2)),
        )


@dataclass(frozen=True)
class Play:
    """What a selector did."""

    selected: np.ndarray  # (n,) times selected
    candidate: np.ndarray  # (n,) rounds in the selector's pool; all rounds, where it keeps none
    value: np.ndarray  # (rounds,) sum of validity x utility over the cohort, expectations


def play(
    world: World, selector_class: type[Selector], params: Params, rounds: int, k: int, seed: int
) -> Play:
    """Let a selector choose k clients a round, and tell it what became of them."""
    clients = world.clients()
    selector = selector_class(params, clients, stream(seed, "selector"))
    n = len(clients)
    selected = np.zeros(n, np.int64)
    candidate = np.zeros(n, np.int64)
    value = np.zeros(rounds)
    for t in range(1, rounds + 1):
        view = RoundView(
            round=t, total_rounds=rounds, clock=float(t), online=np.arange(n), clients=clients
        )
        rows = selector.select(view, k)
        # Luck is sampled for all clients, so that a client's does not depend on who was selected.
        luck = stream(seed, "world", t)
        valid = (luck.random(n) < world.validity)[rows]
        observed = (world.utility + world.noise * luck.standard_normal(n))[rows]
        utility = np.where(valid, observed, 0.0)
        selector.update(
            RoundOutcome(
                round=t,
                rows=rows,
                valid=valid,
                duration=np.where(valid, ON_TIME, LATE),
                loss=np.abs(utility),
                utility=utility,
                samples=valid.astype(np.int64),
                signals={ACCURACY_GAIN: valid.astype(float)},
            )
        )
        selected[rows] += 1
        candidate += selector.explain().get("candidate", np.ones(n, bool))
        value[t - 1] = (world.validity * world.utility)[rows].sum()
    return Play(selected, candidate, value)
