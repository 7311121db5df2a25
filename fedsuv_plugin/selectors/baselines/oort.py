"""Oort: exploit clients whose data still teaches and who are fast enough, explore some new ones.

Paper: F. Lai, X. Zhu, H. V. Madhyastha, M. Chowdhury. "Oort: Efficient Federated Learning via
    Guided Participant Selection." OSDI 2021. Algorithm 1 and eq. (2), as FedScale's bundled Oort
    carries them out.

Paper symbol -> name here
    U(i) -> reward    D(i), t_i -> duration    L(i) -> time_stamp    R -> training_round
    epsilon -> exploration    T -> preferred_duration    alpha -> round_penalty
    c -> cut_off_util    W -> pacer_step    Delta -> pacer_delta    Util(i) -> score
Departures from the paper, as in FedScale's Oort
    A client's first reward is the number of samples it would train on.
    The first selection is uniformly random.
    R counts only the later selections that had a choice (more clients online than seats).
    T is the `round_threshold` percentile of all durations; the pacer moves that percentile.
    Utility is clipped at the quantile `clip_bound` and scaled to about [0, 1] before the temporal
        term is added.
    A late client is booked with the mean utility of the clients that were in time.
Departures from FedScale's Oort
    Everyone who missed a round is booked that way; FedScale forgets those that went offline.
    A reported utility over 100 times the median counts as the largest that is not: see `_believed`.
    The cohort always has min(k, online) clients; FedScale's could have fewer, or some offline.
    Seats left go to the explored clients with the highest scores, the blacklisted last.
    Ties are broken at random, not by client id.
    `exploration_alpha` is no parameter, because FedScale reads it and then makes no use of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedsuv_plugin.params import Params, param
from fedsuv_plugin.selectors.base import (
    ClientTable,
    RoundOutcome,
    RoundView,
    Selector,
    best,
    sample_by_weight,
)

ABSURD = 100.0  # times the median reported utility: a report above that is not believed
LARGEST = 1e100  # utilities are clipped to this on arrival, so that no sum of them overflows
NEVER = -1  # the value of blacklist_rounds with which nobody is ever blacklisted


@dataclass(frozen=True, kw_only=True)
class OortParams(Params):
    exploration_factor: float = param(
        0.9, "share of the cohort that explores at first; 0: none, 1: all", low=0, high=1
    )
    exploration_decay: float = param(
        0.98,
        "factor on that share every round; 1: it stays, 0: straight to exploration_min",
        low=0,
        high=1,
    )
    exploration_min: float = param(
        0.3,
        "where its decay stops; 0: exploring may cease, 1: everyone is explored first",
        low=0,
        high=1,
    )
    round_threshold: float = param(
        30.0,
        "percentile of all durations that a client may take unpunished, at the start; "
        "100: speed never matters",
        low=0,
        high=100,
    )
    round_penalty: float = param(
        2.0,
        "exponent on preferred/actual duration of a slower client; "
        "0: no penalty, large: as good as shut out",
        low=0,
    )
    pacer_delta: float = param(
        5.0,
        "percentile points by which the pacer moves round_threshold; 0: it stays",
        low=0,
        high=100,
    )
    pacer_step: int = param(
        20, "rounds the pacer looks at before it moves; 1: it compares single rounds", low=1
    )
    sample_window: float = param(
        5.0,
        "new clients are drawn among this many times the seats, largest first; "
        "1: exactly the largest",
        low=1,
    )
    clip_bound: float = param(
        0.9,
        "quantile of the utilities at which they are clipped; "
        "1: no clipping, 0: all count the same",
        low=0,
        high=1,
    )
    cut_off_util: float = param(
        0.05,
        "share of the score of the first client left out that earns a chance; "
        "0: all have one, 1: only the best (but ten times the seats are always considered)",
        low=0,
        high=1,
    )
    blacklist_rounds: int = param(
        NEVER, "participations after which a client is blacklisted; -1: never", low=NEVER
    )
    blacklist_max_len: float = param(
        0.3,
        "largest share of all clients on the blacklist; 0: nobody, 1: everybody may be",
        low=0,
        high=1,
    )


@dataclass(frozen=True)
class Scale:
    """How rewards are scaled to about [0, 1]: (min(reward, clip) - low) / span."""

    low: float
    span: float
    clip: float


class Oort(Selector):
    """Exploits explored clients with high scores and explores others, fewer every round."""

    name = "oort"
    paper = (
        "Lai et al., Oort: Efficient Federated Learning via Guided Participant Selection, OSDI 2021"
    )
    Params = OortParams
    state = (
        "reward",
        "duration",
        "time_stamp",
        "count",
        "reported",
        "selections",
        "training_round",
        "exploration",
        "round_threshold",
        "exploit_history",
        "exploited",
        "heard",
    )

    def __init__(self, params: OortParams, clients: ClientTable, rng: np.random.Generator):
        super().__init__(params, clients, rng)
        n = len(clients)
        # (n,) statistical utility; until a client has reported, the number of samples
        self.reward = clients.round_samples.astype(np.float64)
        # (n,) seconds, the latest known
        self.duration = clients.expected_duration.astype(np.float64)
        self.time_stamp = np.zeros(n, np.int64)  # (n,) round of the latest feedback
        self.count = np.zeros(n, np.int64)  # (n,) times asked; 0: unexplored
        self.reported = np.zeros(n, bool)  # (n,) whether the reward is what the client reported
        self.selections = 0  # all calls of select ...
        self.training_round = 0  # ... and those that chose by score
        self.exploration: float = self.params.exploration_factor
        self.round_threshold: float = self.params.round_threshold
        # Mean utility of the exploited clients in each of the last 2 * pacer_step rounds.
        self.exploit_history: list[float] = []
        # Rows drawn by score in the latest selection of that kind, and rows with feedback since.
        self.exploited = np.empty(0, np.int64)
        self.heard = np.empty(0, np.int64)
        self._forget_selection()

    def _forget_selection(self) -> None:
        """Reset what `explain` and `diagnostics` say about the latest selection."""
        self.score = np.full(len(self.clients), np.nan)
        self.preferred_duration = math.inf
        self._parts = {"exploited": 0, "explored": 0, "filled_up": 0}

    def select(self, view: RoundView, k: int) -> np.ndarray:
        self._forget_selection()
        self.selections += 1
        k = min(k, len(view.online))
        if k in (0, len(view.online)):
            return view.online[:k].copy()
        if self.selections == 1:
            return self.rng.choice(view.online, k, replace=False)
        return self._select_by_score(view.online, k)

    def _select_by_score(self, online: np.ndarray, k: int) -> np.ndarray:
        """Algorithm 1, SelectParticipant."""
        self.training_round += 1
        reward = self._believed()
        blacklisted = self._blacklist()
        self._pace(reward)
        self.preferred_duration = self._quantile_of_durations()
        seen = self.count[online] > 0
        explored = online[seen]
        unexplored = online[~seen]
        scale = self._scale(reward[online[~blacklisted[online]]])
        self.score[explored] = self._scores(explored, reward, scale)

        decayed = self.exploration * self.params.exploration_decay
        self.exploration = max(decayed, self.params.exploration_min)
        allowed = explored[~blacklisted[explored]]
        self.exploited = self._exploit(allowed, k - int(k * self.exploration))
        new = self._explore(unexplored, reward, k - len(self.exploited))
        more = self._fill_up(explored, blacklisted, k - len(self.exploited) - len(new))
        self._parts = {
            "exploited": len(self.exploited),
            "explored": len(new),
            "filled_up": len(more),
        }
        return np.concatenate([new, self.exploited, more])

    def _believed(self) -> np.ndarray:
        """The rewards (n,), absurd ones replaced by the largest reported one that is not.

        FedScale divides utilities by their range, which one absurd value would stretch until all
        others look the same. The limit is a multiple of the median, which a single false report
        among many does not move."""
        told = self.reward[self.reported & (self.reward > 0)]
        if not len(told):
            return self.reward
        middle = (len(told) - 1) // 2
        limit = ABSURD * float(np.partition(told, middle)[middle])
        absurd = (self.reward > limit) & (self.count > 0)
        if not absurd.any():
            return self.reward
        return np.where(absurd, told[told <= limit].max(), self.reward)

    def _blacklist(self) -> np.ndarray:
        """The clients asked too often, as a mask (n,).

        If the list has no room for all of them, it holds those asked most often."""
        mask = np.zeros(len(self.clients), bool)
        if self.params.blacklist_rounds == NEVER:
            return mask
        over = np.flatnonzero(self.count > self.params.blacklist_rounds)
        room = int(self.params.blacklist_max_len * len(mask))
        if len(over) > room:
            # Counts are whole numbers, so that adding a random fraction only breaks ties.
            key = -self.count[over] - self.rng.random(len(over))
            over = over[np.argpartition(key, room)[:room]]
        mask[over] = True
        return mask

    def _pace(self, reward: np.ndarray) -> None:
        """Move the percentile of durations that go unpunished: the pacer of Algorithm 1.

        Slower clients are allowed once the utility of the exploited ones no longer changes, and
        faster ones are asked for after it has jumped."""
        step = self.params.pacer_step
        delta = self.params.pacer_delta
        gained = reward[self.exploited[np.isin(self.exploited, self.heard)]]
        average = float(gained.sum()) / (len(gained) + 1e-4)
        self.exploit_history = [*self.exploit_history, average][-2 * step :]
        self.heard = np.empty(0, np.int64)
        if self.training_round < 2 * step or self.training_round % step:
            return
        before = sum(self.exploit_history[:step])
        now = sum(self.exploit_history[step:])
        if abs(now - before) <= 0.1 * before:
            self.round_threshold = min(100.0, self.round_threshold + delta)
        elif abs(now - before) >= 5 * before:
            self.round_threshold = max(delta, self.round_threshold - delta)

    def _quantile_of_durations(self) -> float:
        """The duration that `round_threshold` percent of all clients, online or not, stay below."""
        if self.round_threshold >= 100:
            return math.inf
        n = len(self.duration)
        place = min(int(n * self.round_threshold / 100), n - 1)
        return float(np.partition(self.duration, place)[place])

    def _scale(self, rewards: np.ndarray) -> Scale:
        """The scale for utilities, from the positive rewards of the clients that may be chosen."""
        positive = rewards[rewards > 0]
        if not len(positive):
            return Scale(low=0.0, span=1.0, clip=0.0)
        place = min(int(len(positive) * self.params.clip_bound), len(positive) - 1)
        low = float(positive.min()) * 0.999
        span = max(float(positive.max()) - low, 1e-4)
        return Scale(low, span, clip=float(np.partition(positive, place)[place]))

    def _scores(self, rows: np.ndarray, reward: np.ndarray, scale: Scale) -> np.ndarray:
        """Eq. (2), (len(rows),): |utility + sqrt(0.1 ln R / L)|, times (T/t)^alpha where t > T."""
        utility = (np.minimum(reward[rows], scale.clip) - scale.low) / scale.span
        uncertainty = np.sqrt(0.1 * math.log(self.training_round) / self.time_stamp[rows])
        return np.abs(self._punish_slow(rows, utility + uncertainty))

    def _punish_slow(self, rows: np.ndarray, values: np.ndarray) -> np.ndarray:
        """The values, in place, less a penalty for clients slower than the preferred duration."""
        duration = self.duration[rows]
        slow = duration > self.preferred_duration
        ratio = self.preferred_duration / np.maximum(1e-4, duration[slow])
        values[slow] *= ratio**self.params.round_penalty
        return values

    def _exploit(self, rows: np.ndarray, seats: int) -> np.ndarray:
        """Draw by score among those near enough to the best.

        If those are no more than ten times the seats, draw among that many of the best instead."""
        seats = min(seats, len(rows))
        if not seats:
            return rows[:0]
        score = self.score[rows]
        # In ascending order, the place of the best client that would be left out.
        place = max(len(rows) - 1 - seats, 0)
        near = np.flatnonzero(score >= self.params.cut_off_util * np.partition(score, place)[place])
        if len(near) <= 10 * seats:
            near = best(score, 10 * seats + 1, self.rng)
        return rows[near[sample_by_weight(score[near], seats, self.rng)]]

    def _explore(self, rows: np.ndarray, reward: np.ndarray, seats: int) -> np.ndarray:
        """Draw new clients by size and speed among `sample_window` times the seats."""
        seats = min(seats, len(rows))
        value = self._punish_slow(rows, reward[rows])
        window = best(value, int(self.params.sample_window * seats), self.rng)
        return rows[window[sample_by_weight(value[window], seats, self.rng)]]

    def _fill_up(self, explored: np.ndarray, blacklisted: np.ndarray, seats: int) -> np.ndarray:
        """The explored clients left over, highest score first, the blacklisted after all others.

        This is needed only when no unexplored client is left."""
        if not seats:
            return explored[:0]
        rest = explored[~np.isin(explored, self.exploited)]
        allowed = rest[~blacklisted[rest]]
        allowed = allowed[best(self.score[allowed], seats, self.rng)]
        last = rest[blacklisted[rest]]
        last = last[best(self.score[last], seats - len(allowed), self.rng)]
        return np.concatenate([allowed, last])

    def update(self, outcome: RoundOutcome) -> None:
        rows = outcome.rows
        valid = outcome.valid
        self.reward[rows[valid]] = np.clip(outcome.utility[valid], 0, LARGEST)
        self.reported[rows] = valid
        self.count[rows] += 1
        believed = self._believed()[rows[valid]]
        self.reward[rows[~valid]] = believed.mean() if len(believed) else 0.0
        self.duration[rows] = outcome.duration
        # Those who missed the round are booked when it is over, which is in the next one.
        self.time_stamp[rows] = outcome.round + ~valid
        self.heard = np.union1d(self.heard, rows)

    def explain(self) -> dict[str, np.ndarray]:
        """What is known of each client.

        `score` is NaN where a client was offline or unexplored, or nobody was chosen by score."""
        return {
            "score": self.score,
            "reward": self._believed(),
            "duration": self.duration,
            "count": self.count,
        }

    def diagnostics(self) -> dict[str, Any]:
        finite = math.isfinite(self.preferred_duration)
        return {
            "exploration": self.exploration,
            "round_threshold": self.round_threshold,
            "preferred_duration": self.preferred_duration if finite else None,
            "unexplored": int(np.count_nonzero(self.count == 0)),
            **self._parts,
        }
