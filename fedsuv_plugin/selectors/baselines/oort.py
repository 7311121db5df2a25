"""Oort: exploit clients whose data still teaches and who are fast enough, explore some new ones.

Paper: F. Lai, X. Zhu, H. V. Madhyastha, M. Chowdhury. "Oort: Efficient Federated Learning via Guided Participant
    Selection." OSDI 2021. Algorithm 1 and eq. (2), as FedScale's bundled Oort carries them out.

Paper symbol -> name here
    U(i) -> reward    D(i), t_i -> duration    L(i) -> time_stamp    R -> training_round    epsilon -> exploration
    T -> preferred_duration    alpha -> round_penalty    c -> cut_off_util    W -> pacer_step    Delta -> pacer_delta
    Util(i) -> score

Kept from FedScale where it differs from the paper
    A client's first reward is the number of samples it would train on. The first selection is uniformly random; the
    training round counts the later ones that had a choice (with no more clients online than asked for, all of them
    play and nothing moves). T is the `round_threshold` percentile of all clients' durations,
    and the pacer moves that percentile. Utility is clipped at the quantile `clip_bound` and scaled to about [0, 1]
    before the temporal term is added. A late client is booked with the mean utility of the valid ones.
    exploration_alpha is read by FedScale and has no effect on whom it selects, so it is no parameter here.
Departures from FedScale
    Everyone who missed a round is booked that way; FedScale forgets those that went offline.
    A reported utility over 100 times the median of the reported ones counts as the largest one that is not: FedScale
    divides by the range, which one absurd value would stretch until everybody else looks the same.
    There are always min(k, online) clients. Seats that neither exploiting nor exploring can fill go to the explored
    clients with the highest scores, and only then to blacklisted ones; FedScale returned fewer, repeated an old list
    of explored clients, online or not, or failed. Ties are broken at random, not by client id.
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

ABSURD = 100.0  # times the median reported utility; more than that is not believed
LARGEST = 1e100  # utilities end here on arrival, so that no sum of them overflows
NEVER = -1  # blacklist_rounds of nobody


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
        "percentile of all durations that a client may take unpunished, at the start; 100: speed never matters",
        low=0,
        high=100,
    )
    round_penalty: float = param(
        2.0,
        "exponent on preferred/actual duration of a slower client; 0: no penalty, large: as good as shut out",
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
        "new clients are drawn among this many times the seats, largest first; 1: exactly the largest",
        low=1,
    )
    clip_bound: float = param(
        0.9,
        "quantile of the utilities at which they are clipped; 1: no clipping, 0: all count the same",
        low=0,
        high=1,
    )
    cut_off_util: float = param(
        0.05,
        "share of the score of the first client left out that earns a chance; 0: all have one, 1: only the best "
        "(but ten times the seats are always considered)",
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
    """How rewards become utilities of about [0, 1]: (min(reward, clip) - low) / span."""

    low: float
    span: float
    clip: float


class Oort(Selector):
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
        self.reward = clients.round_samples.astype(
            np.float64
        )  # (n,) statistical utility, at first the size
        self.duration = clients.expected_duration.astype(
            np.float64
        )  # (n,) seconds, the latest known
        self.time_stamp = np.zeros(n, np.int64)  # (n,) round of the latest feedback
        self.count = np.zeros(n, np.int64)  # (n,) times asked; 0 = unexplored
        self.reported = np.zeros(
            n, bool
        )  # (n,) the reward is the client's own word, not booked for it
        self.selections = 0  # all calls of select ...
        self.training_round = 0  # ... and those that chose by score
        self.exploration: float = self.params.exploration_factor
        self.round_threshold: float = self.params.round_threshold
        self.exploit_history: list[
            float
        ] = []  # mean utility of the exploited, the last 2 * pacer_step rounds
        self.exploited = np.empty(
            0, np.int64
        )  # rows drawn by score in the latest selection of that kind
        self.heard = np.empty(0, np.int64)  # rows with feedback since then
        self._begin()

    def _begin(self) -> None:
        """Nothing is known of a selection that has not been made."""
        self.score = np.full(len(self.clients), np.nan)
        self.preferred_duration = math.inf
        self._parts = {"exploited": 0, "explored": 0, "filled_up": 0}

    def select(self, view: RoundView, k: int) -> np.ndarray:
        self._begin()
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
        explored, unexplored = online[seen], online[~seen]
        scale = self._scale(reward[online[~blacklisted[online]]])
        self.score[explored] = self._scores(explored, reward, scale)

        self.exploration = max(
            self.exploration * self.params.exploration_decay, self.params.exploration_min
        )
        self.exploited = self._exploit(
            explored[~blacklisted[explored]], k - int(k * self.exploration)
        )
        new = self._explore(unexplored, reward, k - len(self.exploited))
        more = self._fill_up(explored, blacklisted, k - len(self.exploited) - len(new))
        self._parts = {
            "exploited": len(self.exploited),
            "explored": len(new),
            "filled_up": len(more),
        }
        return np.concatenate([new, self.exploited, more])

    def _believed(self) -> np.ndarray:
        """The rewards (n,), absurd ones replaced by the largest that is not. One liar among many moves no median."""
        told = self.reward[self.reported & (self.reward > 0)]
        if not len(told):
            return self.reward
        middle = (len(told) - 1) // 2
        limit = ABSURD * float(np.partition(told, middle)[middle])
        absurd = (self.reward > limit) & (self.count > 0)
        return (
            np.where(absurd, told[told <= limit].max(), self.reward)
            if absurd.any()
            else self.reward
        )

    def _blacklist(self) -> np.ndarray:
        """Those asked too often, as a mask (n,); the most often asked where the list has no room for all."""
        mask = np.zeros(len(self.clients), bool)
        if self.params.blacklist_rounds != NEVER:
            over = np.flatnonzero(self.count > self.params.blacklist_rounds)
            room = int(self.params.blacklist_max_len * len(mask))
            if (
                len(over) > room
            ):  # counts are whole numbers: a fraction added breaks ties, and a partition will do
                over = over[
                    np.argpartition(-self.count[over] - self.rng.random(len(over)), room)[:room]
                ]
            mask[over] = True
        return mask

    def _pace(self, reward: np.ndarray) -> None:
        """Allow slower clients once the exploited utility no longer changes; ask for faster ones after a jump."""
        step, delta = self.params.pacer_step, self.params.pacer_delta
        gained = reward[self.exploited[np.isin(self.exploited, self.heard)]]
        self.exploit_history = [*self.exploit_history, float(gained.sum()) / (len(gained) + 1e-4)][
            -2 * step :
        ]
        self.heard = np.empty(0, np.int64)
        if self.training_round < 2 * step or self.training_round % step:
            return
        before, now = sum(self.exploit_history[:step]), sum(self.exploit_history[step:])
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
        """From the positive rewards of the clients that may be chosen, explored or not."""
        positive = rewards[rewards > 0]
        if not len(positive):
            return Scale(low=0.0, span=1.0, clip=0.0)
        place = min(int(len(positive) * self.params.clip_bound), len(positive) - 1)
        low = float(positive.min()) * 0.999
        return Scale(
            low, max(float(positive.max()) - low, 1e-4), float(np.partition(positive, place)[place])
        )

    def _scores(self, rows: np.ndarray, reward: np.ndarray, scale: Scale) -> np.ndarray:
        """Eq. (2): |(utility + sqrt(0.1 ln R / L)) * (T/t)^alpha where t > T|, shape (len(rows),)."""
        utility = (np.minimum(reward[rows], scale.clip) - scale.low) / scale.span
        uncertainty = np.sqrt(0.1 * math.log(self.training_round) / self.time_stamp[rows])
        return np.abs(self._punish_slow(rows, utility + uncertainty))

    def _punish_slow(self, rows: np.ndarray, values: np.ndarray) -> np.ndarray:
        duration = self.duration[rows]
        slow = duration > self.preferred_duration
        values[slow] *= (
            self.preferred_duration / np.maximum(1e-4, duration[slow])
        ) ** self.params.round_penalty
        return values

    def _exploit(self, rows: np.ndarray, seats: int) -> np.ndarray:
        """Draw by score among those near enough to the best; always consider more than ten times the seats."""
        seats = min(seats, len(rows))
        if not seats:
            return rows[:0]
        score = self.score[rows]
        place = max(len(rows) - 1 - seats, 0)  # ascending place of the first that would be left out
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
        """The explored clients left over, highest score first, the blacklisted after all others. No unexplored one is
        left when this is needed."""
        if not seats:
            return explored[:0]
        rest = explored[~np.isin(explored, self.exploited)]
        allowed, last = rest[~blacklisted[rest]], rest[blacklisted[rest]]
        allowed = allowed[best(self.score[allowed], seats, self.rng)]
        return np.concatenate(
            [allowed, last[best(self.score[last], seats - len(allowed), self.rng)]]
        )

    def update(self, outcome: RoundOutcome) -> None:
        rows, valid = outcome.rows, outcome.valid
        self.reward[rows[valid]] = np.clip(outcome.utility[valid], 0, LARGEST)
        self.reported[rows] = valid
        self.count[rows] += 1
        believed = self._believed()[rows[valid]]
        self.reward[rows[~valid]] = believed.mean() if len(believed) else 0.0
        self.duration[rows] = outcome.duration
        self.time_stamp[rows] = (
            outcome.round + ~valid
        )  # those who missed it are booked when it is over
        self.heard = np.union1d(self.heard, rows)

    def explain(self) -> dict[str, np.ndarray]:
        """`score` is NaN where a client was not online, not explored, or nobody was chosen by score."""
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
