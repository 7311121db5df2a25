"""NCCB: LSH's neural bandit, once every cluster of clients with similar data has been explored.

Paper: that of `lsh`, whose steps, symbols and departures these are too: see lsh.py. This module has
    what is left of the preprint's algorithm 1.

Preprint's symbol -> name here
    c -> clusters    C_un -> the clusters with a count of at most k    k -> explore
    counter of a cluster -> cluster_count
Departures
    Clusters are those of k-modes: k-means under Hamming distance (as PCZFL's paper, section 5.3,
        has it), where the centre is the majority of its members' bits. c, which is not given, is a
        third of the clients, at most 10.
    They are made once, when the bits of at least c clients are known. Until then nobody is
        explored. Who comes later joins the nearest.
    A cluster of which nobody is online is passed over.
    Whoever is asked counts for its cluster, valid or not, once there are clusters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedsuv_plugin.params import param
from fedsuv_plugin.selectors.base import ClientTable, RoundOutcome
from fedsuv_plugin.selectors.baselines.k_modes import k_modes, nearest
from fedsuv_plugin.selectors.baselines.lsh import Lsh, LshParams
from fedsuv_plugin.selectors.signals import FINGERPRINT_BITS

NONE = -1  # the cluster of those who have none


@dataclass(frozen=True, kw_only=True)
class NccbParams(LshParams):
    clusters: int | None = param(
        None, "clusters of clients, at most; none: a third of the clients, at most 10", low=1
    )
    explore: int = param(
        10,
        "k, a cluster is explored until more than so many of its clients were asked; 0: until one "
        "was",
        low=0,
        scales_with="rounds",
    )


class Nccb(Lsh):
    """Used as `sample_mode: nccb`; every client is asked for 64 bits of its data, once."""

    name = "nccb"
    paper = (
        "Pan et al., Contextual Client Selection for Efficient FL over Edge Devices, IEEE TMC 2024"
    )
    Params = NccbParams
    state = (*Lsh.state, "centres", "cluster", "cluster_count")

    def __init__(self, params: NccbParams, clients: ClientTable, rng: np.random.Generator):
        super().__init__(params, clients, rng)
        self.centres = np.zeros((0, FINGERPRINT_BITS), np.uint8)  # (c, 64), c is 0 until made
        self.cluster = np.full(len(clients), NONE)  # (n,)
        self.cluster_count = np.zeros(0, np.int64)  # (c,) clients that were asked

    def _forget_selection(self) -> None:
        super()._forget_selection()
        self.explored = np.zeros(len(self.clients), bool)

    def _explore(self, rows: np.ndarray, k: int) -> np.ndarray:
        """One random client each of k random clusters that are not explored yet, if so many."""
        self._place_newcomers()
        clustered = rows[self.cluster[rows] != NONE]
        there = np.unique(self.cluster[clustered])
        open_ones = there[self.cluster_count[there] <= self.params.explore]
        drawn = self.rng.permutation(open_ones)[:k].tolist()
        members = [clustered[self.cluster[clustered] == cluster] for cluster in drawn]
        chosen = np.array([self.rng.choice(each) for each in members], np.int64)
        self.explored[chosen] = True
        return chosen

    def _place_newcomers(self) -> None:
        """Make the clusters, once enough clients are known; put everyone known into one."""
        new = np.flatnonzero(self.known & (self.cluster == NONE))
        if len(self.centres):
            self.cluster[new] = nearest(self.bits[new], self.centres)
        elif len(new) >= self._wanted_clusters():
            bits = self.bits[new]
            self.centres, self.cluster[new] = k_modes(bits, self._wanted_clusters(), self.rng)
            self.cluster_count = np.zeros(len(self.centres), np.int64)

    def _wanted_clusters(self) -> int:
        if self.params.clusters is not None:
            return min(int(self.params.clusters), len(self.clients))
        return max(1, min(10, len(self.clients) // 3))

    def update(self, outcome: RoundOutcome) -> None:
        super().update(outcome)
        of = self.cluster[outcome.rows]
        self.cluster_count += np.bincount(of[of != NONE], minlength=len(self.cluster_count))

    def explain(self) -> dict[str, np.ndarray]:
        """What `lsh` says, and each client's cluster, how many of it were asked, and whether the
        client was chosen to explore it; a client without a cluster has -1 and a count of 0."""
        counts = np.append(self.cluster_count, 0)  # the last is that of NONE
        return {
            **super().explain(),
            "cluster": self.cluster,
            "cluster_count": counts[self.cluster],
            "explored": self.explored,
        }

    def diagnostics(self) -> dict[str, Any]:
        return {
            **super().diagnostics(),
            "clusters": len(self.centres),
            "unexplored_clusters": int(np.sum(self.cluster_count <= self.params.explore)),
            "explored": int(np.count_nonzero(self.explored)),
        }
