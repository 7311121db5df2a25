"""Accuracy and energy of every client: what `pczfl` selects by, and its paper's baselines too.

Paper: "Optimizing Federated Learning Client Selection via Multi-Objective Contextual Bandits",
    under review (PCZFL). Eq. (2) and section 5.3: in its baselines "utility scores" are replaced
    by "a weighted average of validated accuracy and energy consumption".

Paper symbol -> name here
    A_{t,i} -> accuracy on the interview set    1 - normalised E_{t,i} -> energy score
    the replaced utility score -> utility, weight * accuracy + (1 - weight) * energy score
Departures
    The paper says energy consumption. Taken at its word, who consumes most would be useful. Here it
        is the energy score, of which more is better, as in the paper's own contexts.
    The weight is not in the paper; it is 1/2 unless a job says otherwise.
    The energy score is 1 - energy / largest energy of all clients (`energy: trace`), or as in the
        paper's experiment uniform on [0.5, 1] and fixed (`energy: uniform`).
    A client's accuracy is that of its model when it last took part; before that, the untrained
        model's, for which one client is asked before the first round. Where nobody answers then,
        the first answer that comes stands in for it, for those who have not taken part by then.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedsuv_plugin.params import Params, param
from fedsuv_plugin.selectors.base import ClientTable, Probe, RoundOutcome, RoundView
from fedsuv_plugin.selectors.signals import INTERVIEW_ACCURACY

OWN = "own"
ACCURACY_ENERGY = "accuracy_energy"


def energy_param() -> Any:
    """The declaration of a selector's parameter `energy`."""
    return param(
        "trace",
        "energy scores: from the trace, or drawn uniformly from [0.5, 1] as in PCZFL's paper",
        choices=("trace", "uniform"),
    )


@dataclass(frozen=True, kw_only=True)
class UtilityParams(Params):
    """Parameters of a baseline of PCZFL's paper, beside its own."""

    utility: str = param(
        OWN,
        "own: that of its paper; accuracy_energy: the mean of accuracy on the interview set and "
        "energy score in its place, as in PCZFL's paper",
        choices=(OWN, ACCURACY_ENERGY),
    )
    accuracy_weight: float = param(
        0.5,
        "with accuracy_energy: the weight of the accuracy; 1: it alone, 0: the energy score alone",
        low=0,
        high=1,
    )
    energy: str = energy_param()


class AccuracyEnergy:
    """What is known of each client: its accuracy on the interview set and its energy score.

    It is a part of a selector, which passes its views and outcomes on and has it in `state`."""

    def __init__(self, energy: str, clients: ClientTable, rng: np.random.Generator):
        n = len(clients)
        score = uniform_scores(n, rng) if energy == "uniform" else trace_scores(clients.energy)
        self.context = np.column_stack([np.zeros(n), score])  # (n, 2)
        self.started = False  # the untrained model's accuracy is known
        self.took_part = np.zeros(n, bool)  # (n,) the accuracy is that of the client's own model

    def question(self, view: RoundView) -> Probe | None:
        """Ask one client how good the untrained model is on the interview set.

        One is enough: all clients have the same model and the same interview set."""
        if self.started or not len(view.online):
            return None
        return Probe(INTERVIEW_ACCURACY, view.online[:1])

    def hear(self, view: RoundView) -> np.ndarray:
        """Take in the answer to `question`, if the view has it; the rows whose accuracy it sets."""
        answer = view.probe
        if self.started or answer is None or answer.kind != INTERVIEW_ACCURACY:
            return np.zeros(0, np.int64)
        if not len(answer.values):
            return np.zeros(0, np.int64)
        rows = np.flatnonzero(~self.took_part)
        self.context[rows, 0] = np.clip(answer.values[0], 0, 1)
        self.started = True
        return rows

    def learn(self, outcome: RoundOutcome) -> np.ndarray:
        """Take in the accuracies of a round; the rows of those who told theirs."""
        told = outcome.signals.get(INTERVIEW_ACCURACY)
        if told is None:
            return np.zeros(0, np.int64)
        rows = outcome.rows[outcome.valid]
        self.context[rows, 0] = np.clip(told[outcome.valid], 0, 1)
        self.took_part[rows] = True
        return rows

    def state_dict(self) -> dict[str, Any]:
        return {
            "context": self.context,
            "started": self.started,
            "took_part": self.took_part,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.context = state["context"]
        self.started = state["started"]
        self.took_part = state["took_part"]


class MeanUtility(AccuracyEnergy):
    """The utility of PCZFL's baselines: a weighted mean of accuracy and energy score.

    >>> from fedsuv_plugin.selectors.base import ClientTable
    >>> three = np.array([3.0, 8.0, 10.0])
    >>> clients = ClientTable(
    ...     ids=np.arange(1, 4), samples=np.ones(3), round_samples=np.ones(3),
    ...     features=np.zeros((3, 0)), feature_names=(), expected_duration=np.ones(3),
    ...     energy=three, position=np.zeros((3, 2)),
    ... )
    >>> mean = MeanUtility(UtilityParams(utility="accuracy_energy"), clients, None)
    >>> mean.values.round(3).tolist()  # nobody's accuracy is known yet
    [0.35, 0.1, 0.0]
    """

    def __init__(self, params: UtilityParams, clients: ClientTable, rng: np.random.Generator):
        super().__init__(params.energy, clients, rng)
        self._weights = np.array([params.accuracy_weight, 1 - params.accuracy_weight])

    @property
    def values(self) -> np.ndarray:
        """The utility of every client, (n,), within [0, 1]."""
        return self.context @ self._weights


def mean_utility(
    params: UtilityParams, clients: ClientTable, rng: np.random.Generator
) -> MeanUtility | None:
    """The utility to select by in place of the selector's own; None where that one stays.

    To be made before the selector draws anything: with `energy: uniform`, selectors of one seed
    then have the same energy scores."""
    return None if params.utility == OWN else MeanUtility(params, clients, rng)


def signals_for(params: Params, own: str) -> frozenset[str]:
    """The signal that a selector's utility is made of: `own`, or interviews in its place."""
    assert isinstance(params, UtilityParams)
    return frozenset({own if params.utility == OWN else INTERVIEW_ACCURACY})


def trace_scores(joules: np.ndarray) -> np.ndarray:
    """1 - energy / largest energy; 1 for all where nobody spends any."""
    most = joules.max(initial=0)
    return 1 - joules / most if most > 0 else np.ones(len(joules))


def uniform_scores(n: int, rng: np.random.Generator) -> np.ndarray:
    """The paper's energy scores: on [0.5, 1], fixed per client."""
    return rng.uniform(0.5, 1, n)
