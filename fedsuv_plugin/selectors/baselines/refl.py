"""REFL: of those online the ones least likely to be there next time; late updates are welcome.

Paper: A. M. Abdelmoniem, A. N. Sahu, M. Canini, S. A. Fahmy. "REFL: Resource-Efficient Federated
    Learning." EuroSys 2023. Its text was not at hand: the steps are those of the authors' code
    (github.com/ahmedcs/REFL, core/aggregator.py and core/client_manager.py) and, where that departs
    from what the paper is known to say, the paper's.

Symbol -> name here
    mu_t -> expected_round    D_t -> the time between two selections    a -> smoothing
    N_0 -> view.cohort_size    N_t -> what `_target` gives    B_t -> due
    tau_s -> late.staleness    Lambda_s -> late.deviation, up to a common factor    beta -> beta
Departures from the paper
    A client's forecast is the trace's own answer, made wrong with a probability of 1 - accuracy, or
        what the server has seen of it; in the paper each client trains a model of its own.
    Forecasts run past the end of the trace, which repeats.
    Without an availability trace everyone is always online, and so chosen at random.
    Shares that differ by less than a millionth tie, and ties are broken at random.
    The next slot is one deadline long, or, without a deadline, mu_t; in the first round it is then
        the median of the expected durations.
    Whoever was asked rests, in time or not, and may be asked again `rest` rounds later.
    Seats left when too few have rested go to those who rest, those nearest to its end first, then
        the least available.
    D_t is what the clock shows between two selections. mu_t is kept with a deadline too, for N_t.
    The adaptive target is off by default. With it everyone asked is waited for, so that without a
        deadline nobody is late and it has nothing to go by.
    In a round without a fresh update the late ones weigh by their staleness term alone. Where all
        deviations are 0 the other term is 0.
    The job's aggregation weights multiply these weights.
Departures of the published code, which are not followed
    It never adds late updates to the model: their weights enter the divisor, and no more.
    The weights look at whole models, so that what others changed meanwhile counts as deviation.
    Whoever is online all through the slot that begins now, but not all through the next one, comes
        first, at random. Some 10 % of those, and of the others, are left out as wrongly forecast.
    It merges an update a round after it has arrived, asks one client too few, passes over some of
        those who rest, and lets N_t fall to no less than half of N_0.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedsuv_plugin.params import Params, param
from fedsuv_plugin.randomness import uniforms
from fedsuv_plugin.selectors.base import (
    LATE_UPDATES,
    ClientTable,
    LateUpdates,
    RoundOutcome,
    RoundView,
    Selector,
    best,
)

HOUR = 3600.0  # seconds
HOURS = 24
DAY = HOURS * HOUR
DECIMALS = 6  # of a share, so that equal ones tie though rounding errors tell them apart
SHORTEST = 1e-3  # seconds of the slot that is forecast, in a world where rounds take no time
LARGEST = 1e300  # deviations are cut to this, so that each is a number
OLDEST = 100.0  # an exponential weight falls no further, as a sum of weights must not be 0

TRACE = "trace"
HISTORY = "history"


@dataclass(frozen=True, kw_only=True)
class ReflParams(Params):
    forecast: str = param(
        TRACE,
        "trace: when a client will be online is read from the availability trace; history: it is "
        "the share of the rounds of the same hour of the day at whose start it was online",
        choices=(TRACE, HISTORY),
    )
    accuracy: float = param(
        0.9,
        "probability that a forecast from the trace is right, else it is any number; 1: always, "
        "0: clients are chosen at random",
        low=0,
        high=1,
    )
    rest: int = param(
        5, "rounds until a client that was asked may be asked again; 0 or 1: the next one", low=0
    )
    adaptive_target: bool = param(
        False,
        "ask one client fewer for every late update that is expected within the round; for jobs "
        "with a deadline, as everyone asked is waited for",
    )
    smoothing: float = param(
        0.25,
        "a, the weight of the past in the expected duration of a round; 0: the last round alone, "
        "1: it stays 0",
        low=0,
        high=1,
    )
    late_weight: str = param(
        "deviation",
        "what an update that is tau rounds late weighs beside a fresh one, which weighs 1; "
        "deviation: (1 - beta) / (tau + 1) and more the further it is from the fresh ones; equal: "
        "1; inverse: 1 / (tau + 1); exponential: exp(-(tau + 1)); mean: 1 / the round's mean of "
        "tau + 1",
        choices=("deviation", "equal", "inverse", "exponential", "mean"),
    )
    beta: float = param(
        0.35,
        "share of an update's deviation in its weight; 0: staleness alone, 1: deviation alone",
        low=0,
        high=1,
    )


class Refl(Selector):
    """Used as `sample_mode: refl`, in a job with an availability trace and a deadline.

    >>> hours = by_hour(1.75 * HOUR, 2.5 * HOUR)  # a window from 1:45 to 2:30
    >>> [round(float(share), 3) for share in hours[:4]]
    [0.0, 0.333, 0.667, 0.0]
    """

    name = "refl"
    paper = "Abdelmoniem et al., REFL: Resource-Efficient Federated Learning, EuroSys 2023"
    Params = ReflParams
    protocol = LATE_UPDATES
    state = (
        "forecast_seed",
        "last_asked",
        "expected_round",
        "seen_round",
        "seen_clock",
        "visits",
        "sightings",
        "warned",
    )

    def __init__(self, params: ReflParams, clients: ClientTable, rng: np.random.Generator):
        super().__init__(params, clients, rng)
        n = len(clients)
        # A cohort that the adaptive target has made smaller is all that a round waits for.
        self.free_cohort = params.adaptive_target
        self.forecast_seed = int(rng.integers(2**63))  # of the errors of forecasts
        self.last_asked = np.zeros(n, np.int64)  # (n,) the round; 0: never
        self.expected_round = 0.0  # seconds
        self.seen_round = 0  # the round of the latest selection; 0: none
        self.seen_clock = 0.0  # its time
        hours = HOURS if params.forecast == HISTORY else 0
        # (24, n) how often it could be seen, by hour of the day, whether a client is online,
        self.visits = np.zeros((hours, n), np.int32)
        self.sightings = np.zeros((hours, n), np.int32)  # (24, n) and how often it was
        self.warned = False
        self._forget_selection()

    def _forget_selection(self) -> None:
        """Reset what `explain` and `diagnostics` say about the latest selection."""
        self.forecast = np.full(len(self.clients), np.nan)
        self.resting = np.zeros(len(self.clients), bool)
        self.pending = np.zeros(len(self.clients), bool)
        self._report: dict[str, Any] = {}

    # ---- a selection

    def select(self, view: RoundView, k: int) -> np.ndarray:
        self._forget_selection()
        self._measure_rounds(view)
        self.pending[view.pending] = True
        if self.params.forecast == HISTORY:
            self._note_who_is_online(view)
        window = self._window(view)
        self.forecast = self._forecast(view, window)
        left = self._rounds_to_rest(view.round)
        self.resting = left > 0
        target = self._target(view, k)
        # A share is at most 1, so that no one who rests comes before one who has rested longer.
        rank = 2.0 * left + self.forecast
        rows = view.online[best(-rank[view.online], target, self.rng)]
        self._report = {
            "target": target,
            "window": window,
            "resting": int(np.count_nonzero(self.resting)),
            "filled_up": int(np.count_nonzero(self.resting[rows])),
            "pending": len(view.pending),
            "mean_forecast": float(self.forecast[rows].mean()) if len(rows) else None,
        }
        return rows

    def _measure_rounds(self, view: RoundView) -> None:
        """mu_t = (1 - a) D_(t-1) + a mu_(t-1), from the time since the latest selection.

        Where rounds went by without one, as may be inside `filfl`, D is their mean."""
        rounds = view.round - self.seen_round
        if self.seen_round and rounds > 0:
            lasted = (view.clock - self.seen_clock) / rounds
            past = self.params.smoothing
            self.expected_round = (1 - past) * lasted + past * self.expected_round
        self.seen_round = view.round
        self.seen_clock = view.clock

    def _window(self, view: RoundView) -> float:
        """Seconds of the slot that begins now, and of the next one, which is forecast."""
        middle = float(np.median(self.clients.expected_duration)) if len(self.clients) else 0.0
        return max(view.deadline or self.expected_round or middle, SHORTEST)

    def _rounds_to_rest(self, now: int) -> np.ndarray:
        """How many rounds each client has still to rest, (n,)."""
        left = np.maximum(self.last_asked + self.params.rest - now, 0)
        return np.where(self.last_asked > 0, left, 0)

    def _target(self, view: RoundView, k: int) -> int:
        """How many to ask, of k: with the adaptive target N_t = max(1, N_0 - B_t).

        Late updates that are expected within the round take the places of as many clients."""
        wanted = k if view.cohort_size is None else view.cohort_size
        if not self.params.adaptive_target or k > wanted:  # more: a warm-up, which asks everyone
            return k
        due = int(np.count_nonzero(view.pending_seconds <= self.expected_round))
        return min(k, max(1, wanted - due))

    def update(self, outcome: RoundOutcome) -> None:
        """Whoever was asked rests, in time or not."""
        self.last_asked[outcome.rows] = outcome.round

    # ---- forecasts

    def _forecast(self, view: RoundView, window: float) -> np.ndarray:
        """The share of the slot after the coming one in which each will be online, (n,)."""
        start = view.clock + window
        end = start + window
        if self.params.forecast == HISTORY:
            return rounded(self._by_history(start, end))
        if view.online_share is None:
            self._warn_of_no_trace()
            return np.ones(len(self.clients))
        return self._answers(view.round, rounded(view.online_share(start, end)))

    def _answers(self, round_number: int, truth: np.ndarray) -> np.ndarray:
        """What the clients say: the truth (n,), or with probability 1 - accuracy any number.

        It depends on the client and the round alone, not on who else is asked."""
        accuracy = self.params.accuracy
        luck = uniforms(self.forecast_seed, "forecast", self.clients.ids, round_number)
        wrong = np.flatnonzero(luck > accuracy)
        truth[wrong] = (luck[wrong] - accuracy) / (1 - accuracy)  # again uniform
        return truth

    def _warn_of_no_trace(self) -> None:
        if not self.warned:
            logging.warning(
                "refl: without an availability trace (device_avail_file) everyone is always "
                "online, so clients are chosen at random"
            )
            self.warned = True

    def _note_who_is_online(self, view: RoundView) -> None:
        """Who is on the way with an update is not among those online, whether it is or not."""
        hour = int(view.clock % DAY // HOUR)
        self.visits[hour] += ~self.pending
        self.sightings[hour, view.online] += 1

    def _by_history(self, start: float, end: float) -> np.ndarray:
        """The share of the visits at which each was online, (n,), over the hours of a window.

        Hours count by how much of the window is in them. Where a client was never visited at an
        hour its share of all visits stands in."""
        always = shares(self.sightings.sum(axis=0), self.visits.sum(axis=0), np.array(0.0))
        found = np.zeros(len(self.clients))
        weights = by_hour(start, end)
        for hour in np.flatnonzero(weights):
            found += weights[hour] * shares(self.sightings[hour], self.visits[hour], always)
        return found

    # ---- late updates

    def late_weights(self, late: LateUpdates) -> np.ndarray:
        age = late.staleness + 1.0
        kind = self.params.late_weight
        if kind == "equal" or not len(age):
            return np.ones(len(age))
        if kind == "mean":
            return np.full(len(age), 1 / age.mean())
        if kind == "exponential":
            return np.exp(-np.minimum(age, OLDEST))
        if kind == "inverse" or not late.fresh:
            return 1 / age
        beta = self.params.beta
        return (1 - beta) / age + beta * boost(late.deviation)

    # ---- what it tells

    def explain(self) -> dict[str, np.ndarray]:
        """What the last selection knew; `forecast` is NaN before the first."""
        return {"forecast": self.forecast, "resting": self.resting, "pending": self.pending}

    def diagnostics(self) -> dict[str, Any]:
        return {"expected_round": self.expected_round, **self._report}


def rounded(share: np.ndarray) -> np.ndarray:
    """A copy of shares (n,), on a grid from 0 to 1."""
    return np.round(np.clip(share, 0.0, 1.0), DECIMALS)


def shares(part: np.ndarray, whole: np.ndarray, otherwise: np.ndarray) -> np.ndarray:
    """part / whole, (n,), and `otherwise` where the whole is 0."""
    return np.where(whole > 0, part / np.maximum(whole, 1), otherwise)


def by_hour(start: float, end: float) -> np.ndarray:
    """The share of the time from start to end that is in each hour of the day, (24,)."""

    def until(time: float) -> np.ndarray:
        """Seconds of each hour from time 0 on."""
        days, second = divmod(time, DAY)
        return days * HOUR + np.clip(second - HOUR * np.arange(HOURS), 0.0, HOUR)

    return (until(end) - until(start)) / (end - start)


def boost(deviation: np.ndarray) -> np.ndarray:
    """1 - exp(-Lambda / Lambda_max), (m,); 0 if nothing deviates.

    Deviations count beside their largest alone, so a factor common to all of them cancels."""
    finite = np.minimum(deviation, LARGEST)
    largest = finite.max()
    return -np.expm1(-finite / largest) if largest > 0 else np.zeros(len(finite))
