"""Who is there: available_clients over a trace, as a pure function of the seed and the time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from conftest import DEVICES, MakeJob, records, run
from engine_worlds import Listener, forget, listen

from fedsuv_plugin.engine.roster import Roster
from fedsuv_plugin.traces.clock import Work
from fedsuv_plugin.traces.population import load_population


@pytest.fixture
def looking(job: MakeJob, monkeypatch: pytest.MonkeyPatch) -> MakeJob:
    """Jobs whose selector keeps its views, of the last job only."""
    listen(monkeypatch)

    def make(**keys: object) -> Any:
        forget(monkeypatch)
        plain = {"sample_mode": "listener", "overcommitment": 1.0, "duration_jitter": 0.0}
        return job(**plain, **keys)

    return make


def test_a_set_of_clients_is_there_for_some_rounds(looking: MakeJob) -> None:
    run(looking(available_clients=7, available_every=3, rounds=8))
    sets = [tuple(view.online) for view in Listener.views]
    assert [len(s) for s in sets] == [7] * 8
    assert len(set(sets[0:3])) == len(set(sets[3:6])) == len(set(sets[6:8])) == 1
    assert len({sets[0], sets[3], sets[6]}) == 3
    assert all(np.all(np.diff(s) > 0) for s in sets)


def test_who_is_there_depends_on_the_seed_and_the_period_alone(looking: MakeJob) -> None:
    def online(**keys: object) -> list[list[int]]:
        run(looking(available_clients=7, rounds=6, **keys))
        return [view.online.tolist() for view in Listener.views]

    first = online()
    assert first == online(num_participants=2, learning_rate=0.5, local_epochs=1)
    assert first != online(seed=4)
    assert online(available_every=1)[1] == first[5]  # period 1 of both


def test_everyone_gets_a_turn(looking: MakeJob) -> None:
    # 5 of 20 in each of 60 periods: a client is Binomial(60, 1/4), 15 on average; 5 standard
    # deviations are 16.8.
    turns = {"available_clients": 5, "available_every": 1, "rounds": 60, "eval_interval": 60}
    run(looking(**turns, num_participants=1))
    counts = np.bincount(np.concatenate([view.online for view in Listener.views]), minlength=20)
    assert counts.sum() == 300
    assert 1 <= counts.min() <= counts.max() < 32


def test_more_than_there_are_is_everyone(looking: MakeJob) -> None:
    run(looking(available_clients=99, rounds=1))
    assert len(Listener.views[0].online) == 20


def test_only_those_who_are_online_too(looking: MakeJob) -> None:
    keys: dict[str, Any] = {
        "rounds": 6,
        "device_avail_file": DEVICES,
        "device_conf_file": DEVICES,
        "num_clients": 300,
        "available_clients": 100,
        "available_every": 2,
    }
    run(looking(**keys))
    population = load_population(300, DEVICES, DEVICES)
    there: list[set[int]] = []
    for view in Listener.views:
        trace = set(np.flatnonzero(population.online(view.clock)).tolist())
        assert set(view.online.tolist()) <= trace
        assert 0 < len(view.online) < len(trace)
        there.append(set(view.online.tolist()))
    run(looking(**{**keys, "device_avail_file": None}))
    assert len(there) == len(Listener.views) == 6
    for seen, view in zip(there, Listener.views, strict=True):
        assert seen <= set(view.online.tolist())


def test_filfl_filters_anew_when_others_are_there(job: MakeJob) -> None:
    """Its filtered set is always of those available."""
    small = job(
        sample_mode="filfl",
        available_clients=6,
        available_every=2,
        rounds=6,
        filfl__period=100,
        num_participants=3,
    )
    asked = [set(line["asked"]) for line in records(run(small))]
    assert asked[0] | asked[1] != asked[2] | asked[3]
    assert all(len(asked[i] | asked[i + 1]) <= 6 for i in (0, 2, 4))


def test_rows_of_clients_that_were_left_out() -> None:
    """Ids have gaps where filter_less left somebody out; a client keeps the device of its id."""
    population = load_population(9, DEVICES, None)
    ids = np.array([2, 5, 9])
    roster = Roster(ids, np.array([10, 20, 30]), population, Work(8, 3, 10.0, 10.0), seed=0)
    assert roster.rows([9, 2]).tolist() == [2, 0]
    for unknown in (1, 3, 10):
        with pytest.raises(KeyError, match=f"client {unknown} is not registered"):
            roster.rows([5, unknown])
    computing, communicating = roster.seconds(5, Work(8, 3, 10.0, 10.0))
    assert roster.clients.expected_duration[1] == pytest.approx(computing + communicating)
    assert computing == pytest.approx(3 * 8 * 3 * population.ms_per_sample[4] / 1000)


def test_stock_client_metadata_answers_by_who_asked_before() -> None:
    """Why availability is a pure look-up here: FedScale's moves one interval each time."""
    from fedscale.cloud.internal.client_metadata import ClientMetadata

    trace = {"active": [0, 10, 20], "inactive": [5, 15, 25], "finish_time": 30}
    client = ClientMetadata(1, 1, {"computation": 1.0, "communication": 1.0}, trace)
    assert [client.is_active(22) for _ in range(3)] == [False, True, True]  # the same question
