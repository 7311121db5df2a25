"""Devices: how long a round lasts, who makes it, what it costs, and whose upload is lost."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import DEVICES, MakeJob, records, run
from engine_worlds import Listener, data_of, listen, user, write_traces
from selector_worlds import five_sigma

from fedsuv_plugin.config.keys import JobConfig
from fedsuv_plugin.engine.client_manager import SelectorClientManager
from fedsuv_plugin.engine.devices import Devices
from fedsuv_plugin.engine.executor_pool import ExecutorPool
from fedsuv_plugin.engine.protocols.synchronous import Setting, Synchronous
from fedsuv_plugin.engine.rounds import Cohort, Judgement, Round
from fedsuv_plugin.errors import UserError
from fedsuv_plugin.tasks.federated_data import model_kbit
from fedsuv_plugin.traces.clock import TRAINING_FACTOR, Work, durations, energy, fluctuation
from fedsuv_plugin.traces.population import load_population

# ---- who makes it


def test_who_is_due_by_hand(tmp_path: Path) -> None:
    """Client c takes 3 x 2 x 5 x (10 + c) ms of computing, and 100 / 5000 s of transfer."""
    files: dict[str, Any] = write_traces(tmp_path, [user((0, 900))] * 4, n=4)
    keys = {"batch_size": 5, "local_steps": 2, "duration_jitter": 0.0, **files}
    seconds = np.array([0.03 * (10 + c) + 0.04 for c in (2, 3, 4)])
    cohort = Cohort(np.array([2, 3, 4]), 0.0)

    def settled(wanted: int | None, **more: Any) -> Any:
        config = JobConfig(**keys, **more)
        now = Round(1, 0.0, 3, 3, wanted, 0.1, Judgement())
        effort = Devices(config, np.array([9, 9, 9, 9]), 100.0).effort(now, cohort)
        return Synchronous(Setting(config, ExecutorPool(), None, [])).settle(now, cohort, effort)

    everyone = settled(None)
    assert everyone.times == pytest.approx(seconds)
    assert everyone.due.tolist() == [2, 3, 4]
    assert everyone.seconds == pytest.approx(seconds[2])
    first_two = settled(2)  # FedScale's rule: the round ends when enough have come
    assert first_two.due.tolist() == [2, 3]
    assert first_two.seconds == pytest.approx(seconds[1])
    in_time = settled(None, round_deadline=0.45)  # between the second and the third
    assert in_time.due.tolist() == [2, 3]
    assert in_time.seconds == 0.45
    assert settled(None, upload_success=0.0).due.tolist() == []


def test_a_round_nobody_completes_costs_its_time_and_the_job_goes_on(
    job: MakeJob, tmp_path: Path
) -> None:
    # Everyone is online for the first 0.1 s, when nobody can be done, and again from 50 s on.
    # Client c takes 3 x 8 x 3 x (10 + c) ms = 0.79 to 2.16 s of computing, so rounds before 50 s
    # come to nothing and later ones to 4.
    files = write_traces(tmp_path, [user((0, 0.1), (50, 900))] * 20)
    rounds = records(run(job(rounds=4, **files)))
    assert rounds[0]["valid"] == []
    assert rounds[0]["train_loss"] is None
    assert rounds[0]["duration"] > 0.79
    # At the second round nobody is online to be asked: it costs the idle minute.
    assert rounds[1]["asked"] == []
    assert rounds[1]["duration"] == 60.0
    assert [len(r["valid"]) for r in rounds] == [0, 0, 4, 4]


def test_a_deadline_decides_who_is_valid(job: MakeJob, tmp_path: Path) -> None:
    # Without jitter client c takes 0.072 (10 + c) s and a little for the transfer; at a deadline
    # of 1.5 s those up to about c = 10 make it. Nobody is asked on top, and the round lasts to the
    # deadline if anyone missed it.
    files = write_traces(tmp_path, [user((0, 900))] * 20)
    rounds = records(run(job(rounds=10, round_deadline=1.5, duration_jitter=0, **files)))
    for r in rounds:
        assert len(r["asked"]) == 4
        assert set(r["valid"]) == {c for c in r["asked"] if c <= 10}
        assert r["duration"] == 1.5 if len(r["valid"]) < 4 else r["duration"] < 1.5
    assert any(len(r["valid"]) < 4 for r in rounds)


# ---- what it costs


def test_energy_of_a_round_by_hand(job: MakeJob) -> None:
    """Power x time for everyone who was asked, in time or not, with the times of this round."""
    small = job(device_conf_file=DEVICES, round_deadline=10.0, rounds=2, num_participants=8)
    devices = load_population(20, DEVICES, None)
    kbit = model_kbit(small.config)
    assert devices.compute_w is not None
    assert devices.radio_w is not None
    for r in records(run(small)):
        joules = 0.0
        factors = fluctuation(3, 0.1, np.array(r["asked"]), r["round"])
        for client, factor in zip(r["asked"], factors, strict=True):
            i = client - 1
            computing = 3 * 8 * 3 * devices.ms_per_sample[i] / 1000
            sending = kbit / devices.kbps_up[i] + kbit / devices.kbps_down[i]
            joules += factor * (devices.compute_w[i] * computing + devices.radio_w[i] * sending)
        assert r["energy_joules"] == pytest.approx(joules)
        assert 0 < len(r["valid"]) < 8


def test_local_epochs_take_the_time_of_a_clients_own_samples() -> None:
    population = load_population(50, DEVICES, None)
    sizes = np.arange(50) * 7
    rows = np.array([3, 10, 49])
    work = Work(8, 99, 10.0, 10.0, epoch_samples=2 * sizes)
    computing, communicating = durations(population, work, rows)
    for i, row in enumerate(rows.tolist()):
        seconds = TRAINING_FACTOR * 2 * 7 * row * population.ms_per_sample[row] / 1000
        assert computing[i] == pytest.approx(seconds)
    assert np.array_equal(communicating, durations(population, Work(8, 99, 10.0, 10.0), rows)[1])


def test_records_of_local_epochs(job: MakeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """Table, duration and energy are those of the clients' own samples without the held-out."""
    listen(monkeypatch)
    keys = {"sample_mode": "listener", "overcommitment": 1.0, "duration_jitter": 0.0, "rounds": 1}
    made = job(**keys, local_epochs=2, device_conf_file=DEVICES, holdout_fraction=0.2)
    line = records(run(made))[0]
    sizes = data_of(made).getSize()["size"]
    table = Listener.views[0].clients
    population = load_population(20, DEVICES, None)
    assert np.array_equal(table.samples, sizes)
    assert np.array_equal(table.round_samples, sizes)
    computing = TRAINING_FACTOR * 2 * sizes * population.ms_per_sample / 1000
    communicating = table.expected_duration - computing
    asked = np.array(line["asked"]) - 1
    assert line["duration"] == pytest.approx(table.expected_duration[asked].max())
    assert (communicating > 0).all()
    spent = energy(population, asked, computing[asked], communicating[asked]).sum()
    assert line["energy_joules"] == pytest.approx(spent)


# ---- lost uploads


def test_uploads_are_lost_at_the_rate_given(job: MakeJob) -> None:
    # 40 rounds of 20 clients: Binomial(800, 0.75).
    lossy = {
        "upload_success": 0.75,
        "num_participants": 20,
        "overcommitment": 1.0,
        "rounds": 40,
        "local_steps": 1,
    }
    rounds = records(run(job(**lossy)))
    arrived = sum(len(r["valid"]) for r in rounds)
    assert all(len(r["asked"]) == 20 for r in rounds)
    assert abs(arrived - 600) < five_sigma(800, 0.75)
    # The luck depends on seed, client and round alone.
    other = records(run(job(**lossy, sample_mode="oort")))
    assert [r["valid"] for r in other] == [r["valid"] for r in rounds]


def test_a_lost_upload_changes_nothing_and_is_told(
    job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[bool] = []
    register = SelectorClientManager.register_feedback

    def listening(self: SelectorClientManager, *args: Any, **named: Any) -> None:
        told.append(named["success"])
        register(self, *args, **named)

    monkeypatch.setattr(SelectorClientManager, "register_feedback", listening)
    path = run(job(upload_success=0.0, rounds=2))
    assert told
    assert not any(told)
    accuracies = [m["accuracy"] for m in records(path, "metrics.jsonl")]
    assert accuracies[0] == accuracies[-1]


# ---- trace files


@pytest.mark.parametrize("key", ["device_conf_file", "device_avail_file"])
def test_a_missing_trace_file_stops_the_job(job: MakeJob, key: str) -> None:
    with pytest.raises(UserError, match=f"{key}: no such file: nowhere"):
        run(job(**{key: "nowhere"}))


def test_a_trace_that_would_run_code_is_refused(job: MakeJob, tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (tmp_path / "ran",))

    (tmp_path / "evil").write_bytes(pickle.dumps({1: Evil()}))
    with pytest.raises(UserError, match="refused pathlib"):
        run(job(device_conf_file=str(tmp_path / "evil")))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("selector", ["random", "oort"])
def test_3500_clients_with_fedscales_own_trace_formats(
    job: MakeJob, tmp_path: Path, selector: str
) -> None:
    rng = np.random.default_rng(0)
    milliseconds = rng.lognormal(4, 0.7, 3500)
    bandwidths = rng.lognormal(9, 1, 3500)
    capacity = {
        c: {"computation": float(ms), "communication": float(kbps)}
        for c, ms, kbps in zip(range(1, 3501), milliseconds, bandwidths, strict=True)
    }
    starts = np.sort(rng.uniform(0, 500, (700, 5)), axis=1)
    starts[:, 0] = 0  # everyone is online at first, and about 40 % at any later time
    users = {
        i: {
            "active": row.tolist(),
            "inactive": (row + 0.4 * np.diff(row, append=600)).tolist(),
            "finish_time": 600,
            "duration": 1,
            "model": "x",
        }
        for i, row in enumerate(starts)
    }
    (tmp_path / "capacity").write_bytes(pickle.dumps(capacity))
    (tmp_path / "behaviour").write_bytes(pickle.dumps(users))
    many = job(
        synthetic_samples=7000,
        num_clients=3500,
        partition="iid",
        num_participants=20,
        rounds=8,
        sample_mode=selector,
        device_conf_file=str(tmp_path / "capacity"),
        device_avail_file=str(tmp_path / "behaviour"),
    )
    rounds = records(run(many))
    assert all(len(r["asked"]) == 26 for r in rounds)
    assert len({c for r in rounds for c in r["asked"]}) > 100  # of 8 x 26 seats
    assert sum(len(r["valid"]) for r in rounds) > 40
