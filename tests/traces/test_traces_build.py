"""The synthetic population: reproducible, consistent with itself, and close to the real samples."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import spearmanr

from fedsuv_plugin.errors import UserError
from fedsuv_plugin.traces import build as module
from fedsuv_plugin.traces.availability import Availability
from fedsuv_plugin.traces.build import build_population
from fedsuv_plugin.traces.catalogues import DEFAULT_FOLDER, load_catalogues
from fedsuv_plugin.traces.clock import Work, durations, energy
from fedsuv_plugin.traces.files import read
from fedsuv_plugin.traces.population import Population
from fedsuv_plugin.traces.summary import (
    habits,
    online_by_hour,
    real_latencies,
    real_speeds,
    real_tests,
)

needs_data = pytest.mark.skipif(
    "FEDSUV_DATA" not in os.environ, reason="set FEDSUV_DATA to the folder of real data"
)
QUANTILES = (25, 50, 75, 95)


def real_folder() -> Path:
    return Path(os.environ["FEDSUV_DATA"]) / "device_traces"


@pytest.fixture(scope="module")
def population() -> Population:
    return build_population(20_000, 1, load_catalogues())


def availability_of(population: Population) -> Availability:
    assert population.availability is not None
    return population.availability


def test_the_shipped_population_is_what_the_command_builds() -> None:
    shipped = read(DEFAULT_FOLDER / "population_3500.npz").population()
    again = build_population(3500, 7, load_catalogues())
    assert shipped.columns.keys() == again.columns.keys()
    for name, values in again.columns.items():
        np.testing.assert_array_equal(shipped.column(name), values, err_msg=name)
    np.testing.assert_array_equal(shipped.position, again.position)
    np.testing.assert_array_equal(shipped.model, again.model)
    assert shipped.model_names == again.model_names
    for name in ("starts", "ends", "offsets", "periods"):
        np.testing.assert_array_equal(
            getattr(availability_of(shipped), name), getattr(availability_of(again), name)
        )
    assert (DEFAULT_FOLDER / "population_3500.npz").stat().st_size < 2e6


def test_another_seed_is_another_population() -> None:
    first, second = (build_population(100, seed, load_catalogues()) for seed in (1, 2))
    assert not np.array_equal(first.ms_per_sample, second.ms_per_sample)
    assert first.position is not None and second.position is not None
    assert not np.array_equal(first.position, second.position)


def test_blocks_join_seamlessly(monkeypatch: pytest.MonkeyPatch) -> None:
    # Blocks of 40: the first 80 clients of 100 are the 80 of 80, intervals and all; 100 ends with a
    # part of a block.
    monkeypatch.setattr(module, "BLOCK", 40)
    short, long = (build_population(n, 5, load_catalogues()) for n in (80, 100))
    assert len(long) == 100 and len(availability_of(long)) == 100
    np.testing.assert_array_equal(short.ms_per_sample, long.ms_per_sample[:80])
    for time in (0.0, 250_000.0):
        np.testing.assert_array_equal(short.online(time), long.online(time)[:80])


def test_every_client_is_complete_and_possible(population: Population) -> None:
    assert len(population.columns) == 10
    for name, values in population.columns.items():
        assert values.shape == (20_000,) and np.isfinite(values).all(), name
        assert (values >= 0).all(), name
    assert population.position is not None and population.position.shape == (20_000, 2)
    assert population.position.min() >= 0 and population.position.max() <= 1000
    # uniform in the square: the mean of 20,000 has standard error 289/141 = 2 m
    assert np.abs(population.position.mean(axis=0) - 500).max() < 10
    assert population.gpus is not None and population.gpu_gflops is not None
    assert ((population.gpus == 0) == (population.gpu_gflops == 0)).all()


def test_sessions_are_disjoint_whole_seconds_within_the_week(population: Population) -> None:
    trace = availability_of(population)
    assert (trace.lengths >= 1).all()  # FedScale fails on a user without a session
    assert (trace.ends > trace.starts).all()
    assert trace.starts.min() >= 0 and trace.ends.max() <= 7 * 86_400
    same = np.diff(np.repeat(np.arange(len(trace)), trace.lengths)) == 0
    assert ((trace.starts[1:] - trace.ends[:-1])[same] >= 2).all()
    assert (trace.starts == np.floor(trace.starts)).all()
    assert (trace.ends == np.floor(trace.ends)).all()


def test_specifications_predict_speed_but_not_perfectly(population: Population) -> None:
    # A faster SoC computes faster, with exceptions: strongly negative, but not -1.
    correlation = spearmanr(population.cpu_gflops, population.ms_per_sample).statistic
    assert -0.98 < correlation < -0.85
    assert population.model is not None
    # within one SoC the specification says nothing, the latency still spreads by its sigma of 0.12
    logs = np.log(population.ms_per_sample)
    for soc in range(3):
        own = population.model == np.argsort(-np.bincount(population.model))[soc]
        assert len(np.unique(np.asarray(population.cpu_gflops)[own])) == 1
        # the standard error of the deviation of >= 700 logs is 0.12/sqrt(1400) = 0.0032; five of
        # them
        assert abs(logs[own].std() - 0.12) < 0.016


def test_faster_phones_draw_more_and_still_spend_less(population: Population) -> None:
    rows = np.arange(len(population))
    work = Work(32, 20, 0.0, 0.0)
    computing, communicating = durations(population, work, rows)
    assert spearmanr(population.compute_w, population.ms_per_sample).statistic < -0.6
    spent = energy(population, rows, computing, communicating)
    # They spend less because they are done so much sooner.
    assert spearmanr(spent, population.ms_per_sample).statistic > 0.6


def test_specifications_predict_who_meets_a_deadline(population: Population) -> None:
    # What a selector knows of a device is useful: CPU and bandwidth tell most of those who are in
    # time from those who are not.
    rows = np.arange(len(population))
    times = np.add(*durations(population, Work(16, 10, 20_000.0, 20_000.0), rows))
    valid = times <= np.median(times)
    guess = -np.log(np.asarray(population.cpu_gflops)) - 0.3 * np.log(population.kbps_down)
    right = np.mean((guess <= np.median(guess)) == valid)
    assert 0.75 < right < 0.99


# ---- calibration


@needs_data
def test_latency_is_that_of_real_phones(population: Population) -> None:
    real = np.percentile(real_latencies(real_folder()), (5, *QUANTILES))
    ours = np.percentile(population.ms_per_sample, (5, *QUANTILES))
    np.testing.assert_allclose(ours, real, rtol=0.10)  # the catalogue has 42 phones for 978


@needs_data
def test_habits_are_those_of_real_users(population: Population) -> None:
    users = read(real_folder() / "client_behave_trace").users
    assert users is not None
    theirs = habits(users.availability)  # sessions per day, their length, share of time online
    ours = habits(availability_of(population))
    # There are 704 real users, so that a quantile of theirs is itself uncertain by 5 to 10 %.
    tolerances = (0.20, 0.15, 0.30)
    for (_, real), (_, made), tolerance in zip(theirs, ours, tolerances, strict=True):
        expected = np.percentile(real, QUANTILES)
        np.testing.assert_allclose(np.percentile(made, QUANTILES), expected, rtol=tolerance)
    hours = online_by_hour(availability_of(population))
    real_hours = online_by_hour(users.availability)
    assert np.abs(hours - real_hours).max() < 0.015  # of 0.077 to 0.114
    assert np.corrcoef(hours, real_hours)[0, 1] > 0.9


@needs_data
def test_bandwidth_follows_one_real_sample_each_below_and_above(population: Population) -> None:
    """The two samples disagree tenfold: a quarter is like one, three quarters are like the other.

    19 FLASH devices are the model of the slow quarter, the MobiPerf tests that of the rest. Between
    the two groups, at 15 Mbit/s, there is hardly anybody."""
    slow = population.kbps_down < 15_000
    assert slow.mean() == pytest.approx(0.25, abs=0.02)
    groups = [
        (population.kbps_down[slow], real_speeds(real_folder(), "down_u")),
        (population.kbps_up[slow], real_speeds(real_folder(), "up_u")),
        (population.kbps_down[~slow], real_tests(real_folder())),
    ]
    for ours, real in groups:
        np.testing.assert_allclose(
            np.percentile(ours, (25, 50, 75)), np.percentile(real, (25, 50, 75)), rtol=0.30
        )
    assert 40_000 < np.median(population.kbps_down[~slow]) < 46_000


def test_online_by_hour_by_hand() -> None:
    # One client, one day: online 0:30 to 2:15, and at 23:00 to 24:00: half of hour 0, all of 1, a
    # quarter of 2, all of 23. A second client with two days is online in hour 1 of the second: half
    # of its hours 1.
    hour = 3600.0
    trace = Availability(
        starts=np.array([0.5, 23.0, 25.0]) * hour,
        ends=np.array([2.25, 24.0, 26.0]) * hour,
        offsets=np.array([0, 2, 3]),
        periods=np.array([24.0, 48.0]) * hour,
    )
    shares = online_by_hour(trace)
    assert shares[[0, 1, 2, 3, 23]] == pytest.approx([0.25, 0.75, 0.125, 0.0, 0.5])


# ---- catalogues


def test_gflops_by_hand() -> None:
    # Snapdragon 855: (1 x 2.84 + 3 x 2.42) GHz x 16 + 4 x 1.78 GHz x 8 = 161.6 + 56.96 GFLOPS,
    # eight cores.
    phones = load_catalogues().phones
    row = next(i for i, name in enumerate(phones.names) if "(Snapdragon 855)" in name)
    assert phones.cpu_gflops[row] == pytest.approx(218.56) and phones.cores[row] == 8


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        (
            "phones.csv",
            "4xA78@2.85",
            "4xZ80@2.85",
            "phones.csv: line 6: cpu: expected clusters like 4xA76@2.84",
        ),
        (
            "phones.csv",
            ",61,4.8,",
            ",soon,4.8,",
            "phones.csv: line 6: ms_per_sample: expected a number >= 1e-09, got 'so",
        ),
        ("phones.csv", "soc,phone", "soc,telephone", "phones.csv: expected rows under soc,phone"),
        (
            "networks.csv",
            "2,1500,",
            "2,-1500,",
            "networks.csv: line 6: kbps_down: expected a number >= 1e-09, got '-15",
        ),
        ("hours.csv", "23,1.46\n", "", "hours.csv: expected 24 rows"),
        ("zones.csv", "-13", "nan", "zones.csv: line 5: hours: expected a number, got 'nan'"),
        (
            "sessions.csv",
            "blip,27",
            "blip,many",
            "sessions.csv: line 2: weight: expected a number >= 0, got 'many'",
        ),
        ("parameters.csv", "days,7", "weeks,1", "parameters.csv: expected the names days"),
    ],
)
def test_bad_catalogues_are_refused(
    tmp_path: Path, file: str, old: str, new: str, message: str
) -> None:
    for source in DEFAULT_FOLDER.glob("*.csv"):
        shutil.copy(source, tmp_path)
    text = (tmp_path / file).read_text()
    assert old in text
    (tmp_path / file).write_text(text.replace(old, new))
    with pytest.raises(UserError, match=message):
        load_catalogues(tmp_path)


def test_missing_catalogues(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no catalogues .* --catalogues"):
        load_catalogues(tmp_path)
