"""Virtual time by hand: durations, energy, fluctuation, the end of a round, deadlines."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedsuv_plugin.config.keys import JobConfig
from fedsuv_plugin.traces.availability import Availability
from fedsuv_plugin.traces.clock import (
    IDLE_SECONDS,
    Work,
    durations,
    energy,
    fluctuation,
    settle,
    transfers,
)
from fedsuv_plugin.traces.deadlines import SAMPLES, Participations, participations
from fedsuv_plugin.traces.population import Population

TWO = Population(
    ms_per_sample=np.array([100.0, 50.0]),
    kbps_up=np.array([1000.0, 500.0]),
    kbps_down=np.array([2000.0, 4000.0]),
    availability=None,
    compute_w=np.array([2.0, 4.0]),
    radio_w=np.array([1.0, 0.5]),
)
WORK = Work(batch_size=10, local_steps=5, upload_kbit=4000.0, download_kbit=4000.0)
BOTH = np.array([0, 1])


def test_durations_by_hand() -> None:
    # 3 x 10 samples x 5 steps x 100 ms = 15 s, x 50 ms = 7.5 s. Up 4000/1000 + down 4000/2000 = 6
    # s; 8 + 1 = 9 s.
    computing, communicating = durations(TWO, WORK, BOTH)
    assert computing == pytest.approx([15.0, 7.5])
    assert communicating == pytest.approx([6.0, 9.0])
    downloading, uploading = transfers(TWO, WORK, BOTH)
    assert downloading == pytest.approx([2.0, 1.0])
    assert uploading == pytest.approx([4.0, 8.0])


def test_a_resnet18_round_trip_takes_two_minutes() -> None:
    # 11.69 million weights of 4 bytes are 365,300 kbit of 1024 bits; both ways at FedScale's
    # example of 5648 kbit/s.
    kbit = 11_689_512 * 32 / 1024
    example = Population(np.array([162.0]), np.array([5648.1]), np.array([5648.1]), None)
    _, communicating = durations(example, Work(1, 1, kbit, kbit), np.array([0]))
    assert communicating[0] == pytest.approx(2 * 365_297 / 5648.1, rel=1e-4)
    assert 120 < communicating[0] < 135


def test_the_clock_may_count_other_work_than_is_trained() -> None:
    """10 samples instead of 10 x 5, or 2 epochs of one's own: a fifth of 15 s and of 7.5 s.

    What is trained stays what it is: selectors weigh by it."""
    steps = replace(WORK, clock_samples=10)
    epochs = replace(steps, epoch_samples=2 * np.array([7, 9]))
    for work in (steps, epochs):
        assert durations(TWO, work, BOTH)[0] == pytest.approx([3.0, 1.5])
    assert steps.samples(BOTH).tolist() == [50, 50]
    assert epochs.samples(BOTH).tolist() == [14, 18]


def test_the_work_of_a_job() -> None:
    sizes = np.array([7, 9])
    config = JobConfig(batch_size=4, local_steps=3)
    plain = Work.of(config, 100.0, sizes)
    assert (plain.upload_kbit, plain.download_kbit) == (100.0, 100.0)
    assert plain.timed_samples(BOTH).tolist() == [12, 12]
    epochs = Work.of(replace(config, local_epochs=2), 100.0, sizes)
    assert epochs.timed_samples(BOTH).tolist() == [14, 18]
    told = Work.of(replace(config, clock_kbit=5.0, clock_samples=6), 100.0, sizes)
    assert (told.upload_kbit, told.download_kbit) == (5.0, 5.0)
    assert told.timed_samples(BOTH).tolist() == [6, 6]
    assert told.samples(BOTH).tolist() == [12, 12]


def test_energy_by_hand() -> None:
    # 2 W x 15 s + 1 W x 6 s = 36 J;  4 W x 7.5 s + 0.5 W x 9 s = 34.5 J.
    computing, communicating = durations(TWO, WORK, BOTH)
    assert energy(TWO, BOTH, computing, communicating) == pytest.approx([36.0, 34.5])
    assert energy(TWO, BOTH[1:], computing[1:], communicating[1:]) == pytest.approx([34.5])


def test_energy_without_power_is_zero() -> None:
    plain = Population(TWO.ms_per_sample, TWO.kbps_up, TWO.kbps_down, None)
    assert energy(plain, BOTH, *durations(plain, WORK, BOTH)).tolist() == [0.0, 0.0]


def test_fluctuation_depends_on_seed_client_and_round_alone() -> None:
    ids = np.arange(1, 101)
    factors = fluctuation(5, 0.1, ids, 3)
    # It does not depend on which other clients are asked, or in which order.
    np.testing.assert_array_equal(fluctuation(5, 0.1, ids[::-1], 3), factors[::-1])
    np.testing.assert_array_equal(fluctuation(5, 0.1, ids[40:41], 3), factors[40:41])
    for other in (
        fluctuation(6, 0.1, ids, 3),
        fluctuation(5, 0.1, ids, 4),
        fluctuation(5, 0.1, ids + 100, 3),
    ):
        assert not np.isclose(other, factors).any()
    assert fluctuation(5, 0.0, ids, 3).tolist() == [1.0] * 100


def test_fluctuation_is_log_normal() -> None:
    # 40,000 draws: the mean of the logs has standard error 0.1/200 = 0.0005, their deviation
    # 0.1/283 = 0.00035, and the share within one sigma (0.6827) 0.0023; five of each.
    logs = np.log(fluctuation(1, 0.1, np.arange(40_000), 9))
    assert abs(logs.mean()) < 0.0025
    assert abs(logs.std() - 0.1) < 0.0018
    assert abs(np.mean(np.abs(logs) < 0.1) - 0.6827) < 0.012
    rounds = np.stack([np.log(fluctuation(1, 0.1, np.arange(200), r)) for r in range(200)])
    # neighbours in client and in round are unrelated: correlations of 40,000 pairs have standard
    # error 0.005
    assert abs(np.corrcoef(rounds[:, 1:].ravel(), rounds[:, :-1].ravel())[0, 1]) < 0.025
    assert abs(np.corrcoef(rounds[1:].ravel(), rounds[:-1].ravel())[0, 1]) < 0.025


TIMES = np.array([30.0, 10.0, 20.0, 40.0])
HERE = np.ones(4, bool)


def test_everyone_meets_the_deadline() -> None:
    done = settle(TIMES, HERE, 2, deadline=50.0)
    assert done.valid.all() and done.seconds == 40.0  # ends with the last, not with the deadline


def test_the_deadline_is_inclusive_and_is_waited_for() -> None:
    done = settle(TIMES, HERE, 2, deadline=30.0)
    assert done.valid.tolist() == [True, True, True, False] and done.seconds == 30.0


def test_gone_offline_is_late() -> None:
    done = settle(TIMES, np.array([True, False, True, True]), 2, deadline=50.0)
    assert done.valid.tolist() == [True, False, True, True] and done.seconds == 50.0


def test_nobody_valid_costs_the_deadline() -> None:
    done = settle(TIMES, HERE, 2, deadline=5.0)
    assert not done.valid.any() and done.seconds == 5.0


def test_overcommitment_takes_the_k_fastest() -> None:
    done = settle(TIMES, HERE, 2, deadline=None)
    assert done.valid.tolist() == [False, True, True, False] and done.seconds == 20.0
    # the fastest is gone: the next one takes its place
    done = settle(TIMES, np.array([True, False, True, True]), 2, deadline=None)
    assert done.valid.tolist() == [True, False, True, False] and done.seconds == 30.0


def test_overcommitment_with_fewer_than_k_and_with_nobody() -> None:
    assert settle(TIMES, HERE, 9, deadline=None).seconds == 40.0
    done = settle(TIMES, ~HERE, 2, deadline=None)
    # The server waited for the slowest in vain.
    assert not done.valid.any() and done.seconds == 40.0


def test_nobody_online_to_be_asked() -> None:
    nobody = np.zeros(0)
    assert settle(nobody, nobody.astype(bool), 3, deadline=7.0).seconds == 7.0
    assert settle(nobody, nobody.astype(bool), 3, deadline=None).seconds == IDLE_SECONDS


def test_deadline_curve_by_hand() -> None:
    # Five asked, one of whom (20 s) goes offline before it is done: at most 4/5 can be valid.
    seconds = np.array([10.0, 20.0, 30.0, 40.0, 50.0])
    asked = Participations(seconds, stays=np.array([True, False, True, True, True]))
    shares = asked.share_valid(np.array([9.0, 10.0, 29.0, 30.0, 100.0]))
    assert shares.tolist() == [0.0, 0.2, 0.2, 0.4, 0.8]
    deadlines = asked.deadline_for(np.array([0.2, 0.4, 0.41, 0.8, 0.9]))
    assert deadlines.tolist() == [10.0, 30.0, 40.0, 50.0, np.inf]
    nobody = Participations(np.zeros(0), np.zeros(0, bool))
    assert nobody.share_valid(np.array([1.0])).tolist() == [0.0]


def test_deadline_curve_of_always_online_clients() -> None:
    # Times are 21 s and 16.5 s, half of the asked each; without fluctuation the curve has two
    # steps.
    asked = participations(TWO, WORK, 0.0, seed=1)
    low, middle, high = asked.share_valid(np.array([16.4, 17.0, 21.1]))
    assert low == 0.0 and high == 1.0
    assert abs(middle - 0.5) < 5 * np.sqrt(0.25 / SAMPLES)
    # With fluctuation half of each half is done by its own time: P(T <= 16.5) = 0.5 x 0.5 + 0.5 x
    # P(21 f <= 16.5), and ln(16.5/21)/0.1 = -2.412 has probability 0.00794.
    asked = participations(TWO, WORK, 0.1, seed=1)
    assert abs(asked.share_valid(np.array([16.5]))[0] - 0.25397) < 5 * np.sqrt(0.25 / SAMPLES)


def test_deadline_curve_counts_those_who_leave() -> None:
    # Client 1 takes 21 s and is online 0..42 of 1000 s: asked in the first half of it, it stays.
    # Client 2 takes 16.5 s and is online 0..33 of 500 s, twice the share of time: 66/(66 + 42) of
    # those asked are client 2. Half of all stay.
    trace = Availability(
        starts=np.array([0.0, 0.0]),
        ends=np.array([42.0, 33.0]),
        offsets=np.array([0, 1, 2]),
        periods=np.array([1000.0, 500.0]),
    )
    asked = participations(replace(TWO, availability=trace), WORK, 0.0, seed=2)
    margin = 5 * np.sqrt(0.25 / SAMPLES)
    assert abs(np.mean(asked.seconds < 17) - 66 / 108) < margin
    assert abs(asked.share_valid(np.array([17.0]))[0] - 33 / 108) < margin
    assert abs(asked.share_valid(np.array([1e9]))[0] - 0.5) < margin


def test_deadline_curve_of_nobody() -> None:
    trace = Availability(np.zeros(0), np.zeros(0), np.array([0, 0, 0]), np.array([10.0, 10.0]))
    asked = participations(replace(TWO, availability=trace), WORK, 0.1, seed=2)
    assert asked.share_valid(np.array([1e9])).tolist() == [0.0]
