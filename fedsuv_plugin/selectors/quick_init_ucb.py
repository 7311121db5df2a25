"""Quick-Init UCB: arms are sets of clients; a few slots of play give every set a first estimate.

Paper: J. Tong, Z. Chen, L. Fu, J. Zhang, Z. Han. "From Learning to Analytics: Improving Model
    Efficacy with Goal-Directed Client Selection." Algorithm 1, eq. (8), (10), (11).

Paper symbol -> name here
    t -> slot    L -> slot_rounds    K^t, I_a^t -> cohort    r_{t,.} (eq. 8) -> reward
    t_0 = N/K -> groups    r-bar_{t,a}, Pi_{t,a} -> table.mean, table.count    Psi (eq. 11) -> index
Departures
    - The paper lists all C(N, K) arms and stops at N < 100; here no arm is listed, the pick is the
      same for any N, and memory is O(N + T K): see `_best_unplayed`.
    - The cold start plays ceil(N / K) groups; the last is filled up at random, and a client's value
      is that of its own group.
    - A group nobody gave an opinion on has the mean value of the others.
    - A set starts at the mean of its members' values, with count 1.
    - The model carries over from slot to slot; with `slot_start: restart` every slot trains anew,
      as in the paper's experiments (time_slots.py).
    - Each slot of the cold start begins at the initial model (`cold_start: restart`), because later
      groups would look better if the model carried over; `carry` lets it, and `gain` rewards the
      rise over the slot instead.
    - Rounds for everyone, which are part of no slot, count for no set: with `gain` opinions are
      asked for again after them, and a slot whose beginning nobody judged has no reward.
    - Sets with equal indices, which are many, since a client's value is its group's, are drawn from
      at random.
    - `ties: listed` takes the first in the order (1,2,3), (1,2,4), ..., as a program that lists the
      arms does; that favours low numbers, which are the IID clients in the paper's experiment.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedsuv_plugin.errors import require
from fedsuv_plugin.params import param
from fedsuv_plugin.selectors.base import ClientTable, ProbeAnswer, RoundView, best
from fedsuv_plugin.selectors.maths.set_table import SetTable
from fedsuv_plugin.selectors.time_slots import SlotParams, TimeSlotSelector

UNKNOWN = -1  # group of a client before there are groups


@dataclass(frozen=True, kw_only=True)
class QuickInitUCBParams(SlotParams):
    mu: float = param(
        1.0, "width of the confidence bound; 0: always the set with the best mean", low=0
    )
    cold_start: str = param(
        "restart",
        "restart: every cold-start slot begins at the initial model; carry: at the last slot's; "
        "gain: as carry, and the reward of every slot is the rise of the mean opinion",
        choices=("restart", "carry", "gain"),
    )
    ties: str = param(
        "random",
        "which of several best sets: random; listed: the first by client numbers, as a program "
        "that lists all sets would take",
        choices=("random", "listed"),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.slot_start == "carry" or self.cold_start == "restart",
            "cold_start",
            "restart where slot_start is restart",
            self.cold_start,
        )


class QuickInitUCB(TimeSlotSelector):
    """Used as `sample_mode: quick_init_ucb`; its cold start takes a job's first N / K slots."""

    name = "quick_init_ucb"
    paper = (
        "Tong et al., From Learning to Analytics: Goal-Directed Client Selection (Quick-Init UCB)"
    )
    Params = QuickInitUCBParams
    state = (
        *TimeSlotSelector.state,
        "group",
        "groups",
        "size",
        "value",
        "known",
        "times_played",
        "level",
        "level_before",
    )

    def __init__(self, params: QuickInitUCBParams, clients: ClientTable, rng: np.random.Generator):
        super().__init__(params, clients, rng)
        n = len(clients)
        self.group = np.full(n, UNKNOWN)  # (n,) cold-start group
        self.groups = 0  # how many groups there are
        self.size = 0  # clients in a set, K
        self.value = np.zeros(n)  # (n,) reward of the client's group
        self.known = np.zeros(n, bool)  # (n,) whether that group has had a reward
        self.times_played = np.zeros(n, np.int64)  # (n,) slots asked in, cold start included
        self.level: float | None = None  # mean opinion of the current model, where it is known
        self.level_before: float | None = None  # the same when the current slot began
        self.table = SetTable()  # sets played since the cold start
        self._indices: dict[str, float | None] = {"chosen_index": None, "best_unplayed_index": None}

    # ---- choosing

    def restart_model(self, view: RoundView) -> bool:
        next_is_cold = self.slot == 0 or self.slot < self.groups
        if self.params.cold_start == "restart" and next_is_cold and self._begins_trained(view):
            return True
        return super().restart_model(view)

    def opinions_before(self, view: RoundView) -> bool:
        """The rise over a slot needs the level it begins at."""
        unknown = self.params.cold_start == "gain" and self.level is None
        return unknown and self._begins(view)

    def hear_before(self, opinions: ProbeAnswer) -> None:
        self.level = float(opinions.values.mean())

    def everyone_plays(self) -> None:
        self.level = None

    def choose(self, online: np.ndarray, k: int) -> np.ndarray:
        if not self.groups:
            self._make_groups(k)
        self.level_before = self.level
        self.level = None  # until the slot has ended
        self._indices = {"chosen_index": None, "best_unplayed_index": None}
        chosen = self._next_group(online) if self.slot <= self.groups else self._best_set(online)
        self.times_played[chosen] += 1
        return chosen

    def _make_groups(self, k: int) -> None:
        n = len(self.clients)
        self.size = k
        self.groups = -(-n // k)  # rounded up
        self.group[self.rng.permutation(n)] = np.arange(n) // k

    def _next_group(self, online: np.ndarray) -> np.ndarray:
        """Algorithm 1, line 1: the group of this slot, filled up at random if it is short."""
        number = self.slot - 1
        members = np.flatnonzero(self.group == number)
        others = online[self.group[online] != number]
        fillers = self.rng.choice(others, self.size - len(members), replace=False)
        return np.concatenate([members, fillers])

    def _best_set(self, online: np.ndarray) -> np.ndarray:
        """Algorithm 1, lines 3-6: the set of online clients with the highest index.

        That is one of the sets played, or the best of all others."""
        is_online = np.zeros(len(self.clients), bool)
        is_online[online] = True
        played = self.table.within(is_online)
        bounds = self.table.upper_bounds(played, self.params.mu, self.slot)
        unplayed = self._best_unplayed(online, len(played))
        unplayed_index = -np.inf
        if unplayed is not None:
            bonus = self.params.mu * np.sqrt(np.log(self.slot))  # the count is 1
            unplayed_index = self._start(unplayed) + bonus
        indices = np.append(bounds, unplayed_index)

        def set_at(place: int) -> np.ndarray:
            if unplayed is None or place < len(played):
                return self.table.sets[played[place]]
            return unplayed

        place = int(best(indices, 1, self.rng)[0])
        if self.params.ties == "listed":
            equal = np.flatnonzero(indices == indices[place]).tolist()
            place = min(equal, key=lambda i: sorted(set_at(i).tolist()))
        self._indices = {
            "chosen_index": float(indices[place]),
            "best_unplayed_index": None if unplayed is None else float(indices[-1]),
        }
        return set_at(place)

    def _best_unplayed(self, online: np.ndarray, played: int) -> np.ndarray | None:
        """The set with the best cold-start mean among those not played, or None.

        Sets not played since the cold start all have count 1, so the mean alone ranks them. They
        are made one at a time, best first, until one is not in the table. At most `played` sets are
        passed over, and each step down the order moves one member one place, so only the best
        size + played clients can be in it."""
        values = self._values()
        most = self.size + played
        if self.params.ties == "listed":
            front = online[np.argsort(-values[online], kind="stable")[:most]]
            subsets = descending_subsets(values[front], self.size, front.tolist())
        else:
            front = online[best(values[online], most, self.rng)]
            subsets = descending_subsets(values[front], self.size)
        for places in subsets:
            if front[places] not in self.table:
                return front[places]
        return None

    def _values(self) -> np.ndarray:
        """Cold-start values (n,), the mean of the known ones where there is none."""
        if self.known.all():
            return self.value
        stand_in = self.value[self.known].mean() if self.known.any() else 0.0
        return np.where(self.known, self.value, stand_in)

    def _start(self, rows: np.ndarray) -> float:
        """The mean reward a set starts with."""
        return float(self._values()[rows].mean())

    # ---- learning

    def learn(self, opinions: ProbeAnswer) -> None:
        self.level = float(opinions.values.mean())  # eq. (8)
        reward = self.level
        if self.params.cold_start == "gain":
            if self.level_before is None:
                return
            reward -= self.level_before
        if self.slot <= self.groups:
            own = self.group == self.slot - 1
            self.value[own] = reward
            self.known[own] = True
        else:
            self.table.add(self.cohort, reward, mean=self._start(self.cohort), count=1)

    # ---- what it tells and keeps

    def explain(self) -> dict[str, np.ndarray]:
        """`cold_start_value` is NaN where a client's group has not been played."""
        return {
            "cold_start_value": np.where(self.known, self.value, np.nan),
            "times_played": self.times_played,
        }

    def diagnostics(self) -> dict[str, Any]:
        cold = self.slot <= self.groups
        return {
            **super().diagnostics(),
            "cold_start": cold,
            **self._indices,
            "sets_played": len(self.table),
        }

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "table": self.table.state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.table = SetTable(**state["table"])


def descending_subsets(
    values: np.ndarray, k: int, numbers: list[int] | None = None
) -> Iterator[np.ndarray]:
    """All k-subsets of places in `values`, which descends, by falling sum, made when asked for.

    Equal sums come in the order of their sorted `numbers` (none: of their places), which ascend
    where values are equal. Sums are rounded once, so that they do not depend on the way there.

    Start with the first k places. The last member moves down as far as it likes, then the one
    before it, and so on: every subset is reached in exactly one such way, and no move leads to a
    subset that is due earlier. So a subset on the heap has at most two children: the member that
    moved last moves on, or the one before it begins to move."""
    n = len(values)
    worth = values.tolist()
    if k > n:
        return

    def entry(
        places: tuple[int, ...], moving: int
    ) -> tuple[float, list[int], tuple[int, ...], int]:
        order = [] if numbers is None else sorted(numbers[place] for place in places)
        return -math.fsum(worth[place] for place in places), order, places, moving

    heap = [entry(tuple(range(k)), k - 1)]
    while heap:
        _, _, places, moving = heapq.heappop(heap)
        yield np.array(places)
        for member in (moving, moving - 1):
            if member < 0:
                continue
            place = places[member]
            next_taken = places[member + 1] if member + 1 < k else n
            may_move = member == moving or place == member  # has moved last, or not yet
            if may_move and place + 1 < next_taken:
                moved = (*places[:member], place + 1, *places[member + 1 :])
                heapq.heappush(heap, entry(moved, member))
