"""One contract for every client manager we register, through FedScale's own calls and ours."""

from __future__ import annotations

import json
import logging
import pickle
from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fedscale.cloud.client_manager import ClientManager
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsuv_plugin import named, wire
from fedsuv_plugin.engine.client_manager import SelectorClientManager
from fedsuv_plugin.engine.fedscale_env import parser_module
from fedsuv_plugin.engine.feedback import Feedback, Keep, ModelFacts
from fedsuv_plugin.params import Params, param
from fedsuv_plugin.selectors.base import Probe, RoundOutcome, RoundView, Selector
from fedsuv_plugin.selectors.baselines.oort import OortParams
from fedsuv_plugin.selectors.signals import DIRECTION, LOSS, OPINIONS

OURS = sorted(
    name for name, point in named.installed().items() if point.value.startswith("fedsuv_plugin.")
)


def args(**values: object) -> Namespace:
    """What FedScale passes, when only FedScale is at work."""
    return Namespace(**{**vars(parser_module().parser.parse_args([])), **values})


def manager(name: str, sizes: list[int], **values: object) -> Any:
    """Made and filled as FedScale's aggregator does it."""
    given = args(sample_mode=name, filter_less=1, **values)
    made = named.client_manager_class(name)(name, args=given)
    for i, size in enumerate(sizes, start=1):
        made.register_client(1, i, size=size, speed={"computation": 1.0, "communication": 1.0})
        made.registerDuration(
            i, batch_size=10, local_steps=2, upload_size=100.0, download_size=100.0
        )
    return made


def play(made: Any, k: int, rounds: int, seed: int = 0) -> list[list[int]]:
    """Rounds as FedScale's aggregator plays them: select, then feedback for each client."""
    rng = np.random.default_rng(seed)
    picks = []
    for t in range(1, rounds + 1):
        chosen = made.select_participants(k, cur_time=float(t))
        picks.append(chosen)
        for client in chosen:
            made.register_feedback(
                client,
                float(rng.random() * 50),
                auxi=float(rng.random()),
                time_stamp=t,
                duration=float(rng.random()),
                success=bool(rng.random() < 0.8),
            )
    return picks


@pytest.mark.parametrize("name", OURS)
def test_each_is_a_fedscale_client_manager(name: str) -> None:
    assert issubclass(named.client_manager_class(name), ClientManager)
    assert manager(name, [5, 6]).getDataInfo() == {
        "total_feasible_clients": 2,
        "total_num_samples": 11,
    }


@pytest.mark.parametrize("name", OURS)
@settings(max_examples=25, deadline=None, derandomize=True)
@given(n=st.integers(1, 30), k=st.integers(1, 35), seed=st.integers(0, 99))
def test_min_k_n_distinct_plain_ints(name: str, n: int, k: int, seed: int) -> None:
    made = manager(name, [10] * n)
    for picks in play(made, k, 5, seed):
        if made.selector_class.free_cohort:
            # It sets the size itself: all in pczfl's warm-up, and by oracle's default.
            assert sorted(picks) == list(range(1, n + 1))
        else:
            assert len(picks) == len(set(picks)) == min(k, n)
        assert all(type(client) is int and 1 <= client <= n for client in picks)


@pytest.mark.parametrize("name", OURS)
def test_the_same_seed_gives_the_same_picks(name: str) -> None:
    first, again, other = (play(manager(name, [10] * 30, seed=seed), 5, 8) for seed in (1, 1, 2))
    assert first == again
    if not named.client_manager_class(name).selector_class.free_cohort:  # type: ignore[attr-defined]
        assert first != other  # where everyone is asked no seed can matter


@pytest.mark.parametrize("name", OURS)
def test_only_online_clients_are_asked(name: str, tmp_path: Path) -> None:
    # FedScale gives client c the trace at place c mod n, so with 4 traces clients 1, 5, 9, ... have
    # the one at place 1.
    on = {"active": [0], "inactive": [100], "finish_time": 100}
    off = {"active": [90], "inactive": [100], "finish_time": 100}
    (tmp_path / "trace").write_bytes(pickle.dumps({0: off, 1: on, 2: off, 3: off}))
    made = manager(name, [10] * 12, device_avail_file=str(tmp_path / "trace"))
    assert made.getFeasibleClients(50.0) == [1, 5, 9]
    assert [made.isClientActive(c, 50.0) for c in (1, 2)] == [True, False]
    assert sorted(made.select_participants(10, cur_time=50.0)) == [1, 5, 9]
    seats = 12 if made.selector_class.free_cohort else 10
    assert len(made.select_participants(10, cur_time=195.0)) == seats


@pytest.mark.parametrize("name", OURS)
def test_feedback_for_a_client_never_seen_fails_clearly(name: str) -> None:
    made = manager(name, [10] * 5)
    made.select_participants(2)
    made.register_feedback(77, 1.0)
    with pytest.raises(KeyError, match="client 77 is not registered"):
        made.select_participants(2)


@pytest.mark.parametrize("name", OURS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_rubbish_leaves_the_state_finite(name: str, bad: float) -> None:
    made = manager(name, [10] * 6)
    for t in range(1, 6):
        for i, client in enumerate(made.select_participants(3)):
            made.register_feedback(
                client,
                bad if i == 0 else 1.0,
                auxi=bad if i == 1 else 1.0,
                time_stamp=t,
                duration=bad if i == 2 else 1.0,
            )
    made.select_participants(3)
    for value in made.state_dict()["selector"].values():
        if isinstance(value, np.ndarray) and value.dtype.kind == "f":
            assert np.isfinite(value).all()


@pytest.mark.parametrize("name", OURS)
def test_a_resumed_manager_goes_on_as_if_nothing_had_happened(name: str) -> None:
    whole = manager(name, [10] * 30)
    play(whole, 5, 6)
    whole.finish_round([], 6, None, None)
    state = wire.decode(wire.encode(whole.state_dict()))
    resumed = manager(name, [10] * 30)
    resumed.load_state_dict(state)
    assert play(resumed, 5, 6, seed=9) == play(whole, 5, 6, seed=9)


@pytest.mark.parametrize("name", OURS)
def test_what_it_explains_is_over_all_clients_and_what_it_records_is_json(name: str) -> None:
    made = manager(name, [10] * 30)
    play(made, 5, 4)
    assert all(len(values) == 30 for values in made.selector.explain().values())
    json.dumps(made.diagnostics(), allow_nan=False)


def test_size_limits_are_fedscales() -> None:
    made = manager("random", [1, 40, 5, 400], filter_more=100)
    made.filter_less = 5
    assert made.getFeasibleClients(0.0) == [2, 3]


def test_registering_again_changes_nothing() -> None:
    made = manager("random", [10] * 4)
    made.select_participants(2)
    made.register_client(1, 5, size=10, speed={"computation": 1.0, "communication": 1.0})
    assert made.getDataInfo()["total_feasible_clients"] == 4


def test_completion_time_is_fedscales_formula() -> None:
    # The default device has 10 ms a sample and 10,000 kbit/s: 3 x 20 x 5 x 10 ms = 3 s, and
    # (300 + 200) / 10,000 = 0.05 s.
    cost = manager("random", [10]).get_completion_time(1, 20, 5, 300.0, 200.0)
    assert cost == {"computation": pytest.approx(3.0), "communication": pytest.approx(0.05)}


# ---- what a selector sees of all this


@dataclass(frozen=True, kw_only=True)
class RecorderParams(Params):
    size: int = param(3, "a number that somebody may set", low=1)


class Recorder(Selector):
    """Keeps what it is shown and told; `pick` and `ask` say what it answers."""

    name = "recorder"
    paper = "this test"
    probes = frozenset({LOSS, DIRECTION})
    Params = RecorderParams
    pick: Any = None
    ask: Any = None

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.views: list[RoundView] = []
        self.outcomes: list[RoundOutcome] = []
        self.received: list[tuple[int, list[float]]] = []

    def probe(self, view: RoundView) -> Probe | None:
        return None if self.ask is None else self.ask(view)

    def receive(self, row: int, value: np.ndarray) -> None:
        self.received.append((row, value.tolist()))

    def select(self, view: RoundView, k: int) -> np.ndarray:
        self.views.append(view)
        return view.online[:k] if self.pick is None else self.pick(view)

    def update(self, outcome: RoundOutcome) -> None:
        self.outcomes.append(outcome)


class RecorderManager(SelectorClientManager):
    selector_class = Recorder


def recorder(n: int = 4, **values: object) -> tuple[RecorderManager, Recorder]:
    """A manager of n clients and its selector; client i has 15 i samples."""
    given = args(filter_less=1, local_steps=2, batch_size=10, **values)
    made = RecorderManager("recorder", args=given)
    for i in range(1, n + 1):
        made.register_client(1, i, size=15 * i, speed={"computation": 1.0, "communication": 1.0})
    selector = made.selector
    assert isinstance(selector, Recorder)
    return made, selector


def test_one_round_of_calls_is_one_outcome() -> None:
    made, selector = recorder()
    assert made.select_participants(3, cur_time=7.0) == [1, 2, 3]
    feedback = [
        Feedback(2, 1.5, 8.0, 9.0, {DIRECTION: np.array([3.0, 4.0])}),
        Feedback(1, 2.5, 5.0, 4.0, {DIRECTION: np.array([1.0, 2.0])}),
        Feedback(3, 9.0, 6.5, None),
    ]
    made.finish_round(feedback, 1, 0.5, 1.25)
    made.select_participants(3)  # nothing is handed over twice
    (outcome,) = selector.outcomes
    assert outcome.round == 1
    assert outcome.rows.tolist() == [1, 0, 2]
    assert outcome.valid.tolist() == [True, True, False]
    assert outcome.duration.tolist() == [1.5, 2.5, 9.0]
    assert outcome.loss.tolist() == [9.0, 4.0, 0.0]
    assert outcome.utility.tolist() == [8.0, 5.0, 0.0]
    assert outcome.samples.tolist() == [20, 15, 0]  # at most 2 steps of 10
    assert outcome.signals[DIRECTION].tolist() == [[3.0, 4.0], [1.0, 2.0], [0.0, 0.0]]
    assert (outcome.accuracy, outcome.test_loss) == (0.5, 1.25)
    first = selector.views[0]
    assert (first.round, first.clock, first.online.tolist()) == (1, 7.0, [0, 1, 2, 3])


def test_fedscales_own_calls_give_the_same_outcome() -> None:
    """Stock FedScale reports client by client; its `auxi` is the square root of the loss."""
    made, selector = recorder()
    made.select_participants(3, cur_time=7.0)
    made.register_feedback(2, 8.0, auxi=3.0, time_stamp=1, duration=1.5)
    made.register_feedback(1, 5.0, auxi=2.0, time_stamp=1, duration=2.5)
    made.register_feedback(3, 6.5, time_stamp=1, duration=9.0, success=False)
    assert not selector.outcomes
    made.select_participants(3)
    (outcome,) = selector.outcomes
    assert outcome.rows.tolist() == [1, 0, 2]
    assert outcome.valid.tolist() == [True, True, False]
    assert outcome.loss.tolist() == [9.0, 4.0, 0.0]
    assert outcome.utility.tolist() == [8.0, 5.0, 0.0]
    assert (outcome.signals, outcome.accuracy, outcome.test_loss) == ({}, None, None)


def test_a_round_in_our_calls() -> None:
    """begin_round makes the view, probed adds the answers, choose picks from it."""
    made, selector = recorder()
    selector.ask = lambda view: Probe(LOSS, np.array([3, 1]))
    selector.pick = lambda view: view.probe.rows[view.probe.values.argsort()]
    weights = np.zeros(2)
    asked: list[tuple[str, list[int]]] = []

    def ask(kind: str, clients: np.ndarray, keep: Keep) -> dict[int, np.ndarray]:
        asked.append((kind, clients.tolist()))
        return {c: keep(c, np.array(10.0 - c)) for c in clients.tolist()}

    view = made.begin_round(3, 12.0, ModelFacts(0.5, 1.5, weights))
    assert (view.round, view.clock, view.seats, view.total_rounds) == (1, 12.0, 3, made.args.rounds)
    assert (view.accuracy, view.test_loss, view.probe) == (0.5, 1.5, None)
    assert view.weights is weights
    view = made.probed(view, ask)
    assert asked == [(LOSS, [4, 2])]
    assert view.probe is not None
    assert (view.probe.rows.tolist(), view.probe.values.tolist()) == ([3, 1], [6.0, 8.0])
    assert made.choose(view, 3) == [4, 2]
    assert selector.views == [view]
    assert made.begin_round(9, 12.0, ModelFacts()).seats == 4  # no more than there are online
    assert made.begin_round(9, 12.0, ModelFacts()).round == 2


def test_the_selector_may_ask_again_and_hear_answers_one_by_one() -> None:
    made, selector = recorder()
    rows = [np.array([3, 1]), np.array([0])]
    selector.ask = lambda view: Probe(
        DIRECTION, rows[view.probe is not None], one_by_one=True, more=view.probe is None
    )

    def ask(kind: str, clients: np.ndarray, keep: Keep) -> dict[int, np.ndarray]:
        return {c: keep(c, np.array([float(c), 0.5])) for c in clients.tolist()}

    view = made.probed(made.begin_round(2, 0.0, ModelFacts()), ask)
    assert selector.received == [(3, [4.0, 0.5]), (1, [2.0, 0.5]), (0, [1.0, 0.5])]
    assert view.probe is not None
    assert view.probe.rows.tolist() == [0]  # of the second question
    assert view.probe.values.shape == (1, 0)


@pytest.mark.parametrize("one_by_one", [True, False])
def test_an_answer_that_is_not_finite_is_left_out(
    one_by_one: bool, caplog: pytest.LogCaptureFixture
) -> None:
    made, selector = recorder(3)
    selector.ask = lambda view: Probe(DIRECTION, view.online, one_by_one=one_by_one)

    def ask(kind: str, clients: np.ndarray, keep: Keep) -> dict[int, np.ndarray]:
        bad = np.array([1.0, np.nan])
        return {c: keep(c, bad if c == 2 else np.ones(2)) for c in clients.tolist()}

    with caplog.at_level(logging.WARNING):
        view = made.probed(made.begin_round(2, 0.0, ModelFacts()), ask)
    assert view.probe is not None
    assert view.probe.rows.tolist() == [0, 2]
    assert view.probe.values.shape == (2, 0 if one_by_one else 2)
    assert [row for row, _ in selector.received] == ([0, 2] if one_by_one else [])
    assert "1 of 3 answers to probe direction are not finite" in caplog.text


def test_a_selector_that_asks_for_answers_one_by_one_must_take_them() -> None:
    _, selector = recorder()
    with pytest.raises(NotImplementedError, match="recorder wants answers one by one"):
        Selector.receive(selector, 0, np.zeros(1))


def test_a_probe_that_was_not_declared_is_refused_by_name() -> None:
    """Nothing would have been kept for it: the answers would be empty without a word."""
    made, selector = recorder()
    selector.ask = lambda view: Probe(OPINIONS, view.online)
    with pytest.raises(RuntimeError, match="'recorder' asks for opinions: not in `probes`"):
        made.probed(made.begin_round(2, 0.0, ModelFacts()), lambda kind, clients, keep: {})


def test_parameters_are_those_of_the_job_or_the_defaults() -> None:
    _, chosen = recorder(selector_params={"recorder": RecorderParams(size=7)})
    assert chosen.params.size == 7
    for values in ({}, {"selector_params": {"oort": OortParams()}}, {"recorder.size": 9}):
        _, selector = recorder(**values)
        assert selector.params.size == 3


@pytest.mark.parametrize(
    ("pick", "problem"),
    [
        (lambda view: np.array([0, 0]), "a row twice"),
        (lambda view: np.array([0, 9]), "rows that are not online"),
        (lambda view: np.array([0.0, 1.0]), "an array of float64"),
        (lambda view: np.array([[0, 1]]), r"of shape \(1, 2\)"),
    ],
)
def test_a_selector_that_breaks_the_contract_is_named(pick: Any, problem: str) -> None:
    made, selector = recorder()
    selector.pick = pick
    with pytest.raises(RuntimeError, match=f"selector 'recorder' returned .*{problem}"):
        made.select_participants(2)
