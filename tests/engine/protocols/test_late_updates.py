"""Late updates: when they arrive, what they weigh, and that nothing changes without any."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from conftest import (
    DEVICES,
    MakeJob,
    checkpoint,
    install,
    records,
    run,
    run_killed_and_resumed,
    same_records,
)
from protocol_worlds import rounds_of
from selector_worlds import table

from fedsuv_plugin.engine.client_manager import SelectorClientManager
from fedsuv_plugin.errors import UserError
from fedsuv_plugin.params import NoParams
from fedsuv_plugin.selectors.base import LATE_UPDATES, LateUpdates, RoundView, Selector


class Patient(Selector):
    """Chooses at random, and takes late updates: each weighs half of what a fresh one does."""

    name = "patient"
    paper = "these tests"
    protocol = LATE_UPDATES
    heard: list[LateUpdates] = []

    def select(self, view: RoundView, k: int) -> np.ndarray:
        return self.rng.permutation(view.online)[:k]

    def late_weights(self, late: LateUpdates) -> np.ndarray:
        self.heard.append(late)
        return np.full(len(late.rows), 0.5)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> type[Patient]:
    manager = type("PatientManager", (SelectorClientManager,), {"selector_class": Patient})
    install(monkeypatch, manager)
    monkeypatch.setattr(Patient, "heard", [])
    return Patient


def world(train: Any, sizes: list[int], **keys: Any) -> Any:
    made = Patient(NoParams(), table(len(sizes)), np.random.default_rng(0))
    return rounds_of(made, sizes, train, **keys)


# ---- by hand


def test_two_rounds_by_hand(patient: type[Patient]) -> None:
    """Training adds 2, 5 and 4. Samples are 1, 2, 1; the late one weighs half of its samples."""
    adds = {1: 2.0, 2: 5.0, 3: 4.0}

    def train(client: int, start: float, number: int) -> float:
        return start + adds[client]

    with world(train, [1, 2, 1], model=10.0, round_deadline=10.0) as rounds:
        settled, trained, _ = rounds.play({1: 4.0, 2: 15.0, 3: 5.0})
        assert (settled.due.tolist(), settled.late.tolist(), settled.seconds) == ([1, 3], [2], 10.0)
        assert rounds.model == 10 + (2 + 4) / 2
        assert trained.late is not None
        assert trained.late.on_the_way == (2,)
        assert trained.late.under_way.client_time == 15.0
        assert trained.late.under_way.energy_joules == 30.0
        # Client 2 arrives 5 s into the second round with what it changed, +5. Client 1 is in time.
        # Both are added to the model of this round, 13: (1 * 15 + 0.5 * 2 * 18) / (1 + 1) = 16.5.
        settled, trained, pending = rounds.play({1: 6.0})
        assert (pending.clients.tolist(), pending.seconds.tolist()) == ([2], [5.0])
        assert settled.arrived.tolist() == [2]
        assert rounds.model == 16.5
        assert trained.late is not None
        (merged,) = trained.late.merged
        assert (merged.client, merged.asked_in, merged.staleness, merged.weight) == (2, 1, 1, 0.5)
        assert list(trained.reports) == [1]
        # The fresh update is +2, the late one +5: |2 - 5|^2 / |2|^2.
        (late,) = patient.heard
        assert (late.round, late.rows.tolist(), late.staleness.tolist()) == (2, [1], [1])
        assert (late.deviation.tolist(), late.fresh) == ([2.25], 1)


def test_r5_an_update_comes_in_the_round_in_which_it_arrives(patient: type[Patient]) -> None:
    """Asked in round 3 at 200 s, takes 250 s, rounds of 100 s: in round 5 with staleness 2."""
    with world(lambda *_: 1.0, [1, 1], round_deadline=100.0) as rounds:
        for _ in range(2):
            rounds.play({2: 100.0})
        rounds.play({1: 250.0, 2: 100.0})
        assert rounds.play({2: 100.0})[1].late.merged == ()
        (update,) = rounds.play({2: 100.0})[1].late.merged
        assert (rounds.number, update.asked_in, update.staleness) == (5, 3, 2)


def test_a_round_without_fresh_updates_merges_the_late_ones(patient: type[Patient]) -> None:
    with world(lambda client, start, _: start + client, [1, 1], round_deadline=10.0) as rounds:
        rounds.play({2: 15.0})
        assert rounds.model == 0.0
        rounds.play({})
        assert rounds.model == 2.0
        assert (patient.heard[0].fresh, patient.heard[0].deviation.tolist()) == (0, [0.0])


def test_who_is_offline_when_done_is_lost(patient: type[Patient]) -> None:
    with world(lambda *_: 1.0, [1, 1], round_deadline=10.0) as rounds:
        settled, trained, _ = rounds.play({1: 15.0, 2: 5.0}, away=(1, 2))
        assert not len(settled.late)
        assert trained.model is None
        assert rounds.play({})[2].clients.tolist() == []


def test_weights_that_are_no_weights_are_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Patient, "late_weights", lambda self, late: np.array([-1.0]))
    with world(lambda *_: 1.0, [1], round_deadline=10.0) as rounds:
        rounds.play({1: 15.0})
        with pytest.raises(RuntimeError, match="selector 'patient' weighed late updates"):
            rounds.play({})


# ---- whole jobs

LATE: dict[str, Any] = {
    "sample_mode": "patient",
    "device_conf_file": DEVICES,
    "round_deadline": 14.37,  # half of the 20 clients are expected to meet it
    "rounds": 9,
    "num_participants": 8,
    "checkpoint_every": 3,
}


def test_with_nobody_late_nothing_differs_to_the_bit(
    job: MakeJob, patient: type[Patient], monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = {**LATE, "round_deadline": 1000.0}
    late = run(job(**keys))
    monkeypatch.setattr(Patient, "protocol", Selector.protocol)
    plain = run(job(**keys))
    assert records(late, "metrics.jsonl") == records(plain, "metrics.jsonl")
    for a, b in zip(
        checkpoint(late)["model"]["weights"], checkpoint(plain)["model"]["weights"], strict=True
    ):
        np.testing.assert_array_equal(a, b)
    extra = {"late", "undrafted", "on_the_way"}
    rounds = [{k: v for k, v in r.items() if k not in extra} for r in records(late)]
    assert rounds == records(plain)


def test_a_job_in_which_half_are_late(job: MakeJob, patient: type[Patient]) -> None:
    small = job(**LATE)
    whole = run(small)
    rounds = records(whole)
    valid = np.mean([len(r["valid"]) / max(1, len(r["asked"])) for r in rounds])
    assert 0.3 < valid < 0.8
    merged = [update for r in rounds for update in r["late"]]
    assert len(merged) >= 10
    assert {u["staleness"] for u in merged} >= {1, 2}
    for before, after in zip(rounds, rounds[1:], strict=False):
        assert not set(before["on_the_way"]["clients"]) & set(after["asked"])
    asked_and_lost = [c for r in rounds for c in r["asked"] if c not in r["valid"]]
    still = rounds[-1]["on_the_way"]["clients"]
    # Nobody goes offline in this world: who was not in time came late or is still on the way.
    assert sorted(asked_and_lost) == sorted([*[u["client"] for u in merged], *still])
    assert all(r["wasted"]["client_time"] == 0 for r in rounds)
    # Killed with updates on the way, and gone on with from the checkpoint of round 6.
    assert rounds[5]["on_the_way"]["clients"]
    same_records(run_killed_and_resumed(small, 8), whole)


@pytest.mark.parametrize("executors", [2, 3])
def test_any_number_of_executors_gives_the_same(job: MakeJob, executors: int) -> None:
    keys = {**LATE, "sample_mode": "refl", "rounds": 5}
    same_records(run(job(**keys), launcher="processes", executors=executors), run(job(**keys)))


def test_a_file_in_place_of_memory_gives_the_same(job: MakeJob, patient: type[Patient]) -> None:
    same_records(run(job(**LATE)), run(job(**LATE, late_budget_mb=0)))


@pytest.mark.parametrize("policy", ["fed-yogi", "fed-prox"])
def test_the_gradient_policy_follows_on_the_average(
    job: MakeJob, patient: type[Patient], policy: str
) -> None:
    small = job(**LATE, gradient_policy=policy)
    same_records(run_killed_and_resumed(small, 8), run(small))


def test_q_fedavg_is_refused(job: MakeJob, patient: type[Patient]) -> None:
    with pytest.raises(UserError, match="sample_mode patient, whose updates may come late"):
        run(job(**LATE, gradient_policy="q-fedavg"))
