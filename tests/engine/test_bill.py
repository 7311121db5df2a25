"""What probing costs: every kind by hand, and in the records of real jobs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import DEVICES, MakeJob, records, run, run_killed_and_resumed, same_records

from fedsuv_plugin.config.keys import JobConfig
from fedsuv_plugin.engine.bill import Prices
from fedsuv_plugin.engine.rounds import Bill, Judgement, Round
from fedsuv_plugin.selectors.signals import (
    ACCURACY_GAIN,
    DIRECTION,
    FINGERPRINT,
    GLOBAL_ACCURACY,
    INTERVIEW_ACCURACY,
    LOSS,
    NEEDS,
    OPINIONS,
    PROBES,
    WEIGHTS,
)
from fedsuv_plugin.tasks.federated_data import model_kbit
from fedsuv_plugin.traces.clock import Work
from fedsuv_plugin.traces.population import Population

NOW = Round(1, 0.0, 2, 2, None, 0.1, Judgement())
MODEL = 1000.0  # kbit: 128,000 bytes
# Two clients: 10 and 20 ms a sample, 500 and 1000 kbit/s up, 1000 and 2000 down, 2 and 4 W of
# computing, 1 W of radio each; 40 and 100 training samples.
POPULATION = Population(
    ms_per_sample=np.array([10.0, 20.0]),
    kbps_up=np.array([500.0, 1000.0]),
    kbps_down=np.array([1000.0, 2000.0]),
    availability=None,
    compute_w=np.array([2.0, 4.0]),
    radio_w=np.array([1.0, 1.0]),
)
BOTH = np.array([1, 2])
NUMBER = 64 / 1024  # kbit of eight bytes


def prices(**keys: Any) -> Prices:
    config = JobConfig(duration_jitter=0.0, batch_size=10, local_steps=6, **keys)
    sizes = np.array([40, 100])
    return Prices(config, POPULATION, Work.of(config, MODEL, sizes), sizes)


def assert_bill(bill: Bill, clients: int, seconds: float, joules: float, megabytes: float) -> None:
    found = (bill.clients, bill.client_time, bill.energy_joules, bill.megabytes)
    assert found == pytest.approx((clients, seconds, joules, megabytes))


def test_a_loss_is_a_pass_over_all_training_samples_and_a_number_sent() -> None:
    # Computing: 40 x 10 ms = 0.4 s and 100 x 20 ms = 2 s, at 2 and 4 W: 0.8 + 8 J.
    # Radio: the model down, 1 s and 0.5 s; a number up, NUMBER/500 and NUMBER/1000 s; at 1 W.
    radio = 1.5 + NUMBER / 500 + NUMBER / 1000
    traffic = 2 * (128_000 + 8) / 1e6
    assert_bill(prices().of_probe(NOW, LOSS, BOTH), 2, 2.4 + radio, 8.8 + radio, traffic)


@pytest.mark.parametrize("kind", [DIRECTION, WEIGHTS])
def test_weights_outside_a_round_cost_a_whole_participation(kind: str) -> None:
    # Training: 3 x 60 samples x 10 and 20 ms = 1.8 and 3.6 s, 3.6 + 14.4 J. The model down, 1 and
    # 0.5 s, and up, 2 and 1 s.
    bill = prices().of_probe(NOW, kind, BOTH)
    assert_bill(bill, 2, 5.4 + 4.5, 18.0 + 4.5, 4 * 0.128)


def test_an_opinion_is_a_pass_over_what_is_held_out() -> None:
    # A fifth is held out: beside 40 and 100 training samples that is 10 and 25.
    radio = 1.5 + NUMBER / 500 + NUMBER / 1000
    bill = prices(holdout_fraction=0.2).of_probe(NOW, OPINIONS, BOTH)
    assert_bill(bill, 2, 0.1 + 0.5 + radio, 0.2 + 2.0 + radio, 2 * 128_008 / 1e6)


def test_a_fingerprint_is_eight_bytes_sent_and_no_model_received() -> None:
    radio = NUMBER / 500 + NUMBER / 1000
    assert_bill(prices().of_probe(NOW, FINGERPRINT, BOTH), 2, radio, radio, 2 * 8 / 1e6)


def test_the_server_can_interview_by_itself() -> None:
    assert prices().of_probe(NOW, INTERVIEW_ACCURACY, BOTH) == Bill()
    assert prices().of_signals(NOW, [INTERVIEW_ACCURACY], BOTH) == Bill()


def test_an_accuracy_gain_is_two_passes_over_what_is_trained_on() -> None:
    # 60 samples are trained on, but the first client has only 40 different ones.
    # 2 x 40 x 10 ms = 0.8 s, 2 x 60 x 20 ms = 2.4 s; 1.6 + 9.6 J; nothing more is sent.
    assert_bill(prices().of_signals(NOW, [ACCURACY_GAIN], BOTH), 2, 3.2, 11.2, 0.0)


def test_a_loss_along_with_an_update_is_a_pass() -> None:
    assert_bill(prices().of_signals(NOW, [LOSS], BOTH), 2, 2.4, 8.8, 0.0)


def test_what_is_part_of_the_update_or_the_servers_work_is_free() -> None:
    assert prices().of_signals(NOW, [DIRECTION, WEIGHTS, GLOBAL_ACCURACY], BOTH) == Bill()


def test_nobody_asked_costs_nothing() -> None:
    nobody = np.zeros(0, np.int64)
    for kind in PROBES:
        assert prices().of_probe(NOW, kind, nobody) == Bill()
    assert prices().of_signals(NOW, NEEDS, nobody) == Bill()


def test_a_client_is_as_slow_in_its_answers_as_in_the_round() -> None:
    config = JobConfig(duration_jitter=0.5, seed=4)
    slow = Prices(
        config, POPULATION, Work.of(config, MODEL, np.array([40, 100])), np.array([40, 100])
    )
    one = slow.of_probe(NOW, LOSS, BOTH[:1]).client_time
    other = slow.of_probe(Round(2, 0.0, 2, 2, None, 0.1, Judgement()), LOSS, BOTH[:1])
    assert one != other.client_time
    assert slow.of_probe(NOW, LOSS, BOTH[:1]).client_time == one


# ---- in the records


WORLD: dict[str, Any] = {"device_conf_file": DEVICES, "rounds": 4}


def test_selectors_that_ask_nothing_have_no_bill(job: MakeJob) -> None:
    for line in records(run(job(sample_mode="random", **WORLD))):
        assert line["probing"] == {
            "clients": 0,
            "client_time": 0.0,
            "energy_joules": 0.0,
            "megabytes": 0.0,
        }


def test_power_of_choice_pays_for_its_losses(job: MakeJob) -> None:
    chosen = job(sample_mode="pow_d", pow_d__d=7, **WORLD)
    kbit = model_kbit(chosen.config)
    for line in records(run(chosen)):
        assert line["probing"]["clients"] == 7
        assert line["probing"]["client_time"] > 0
        assert line["probing"]["energy_joules"] > 0
        # Everyone gets the model and answers with a number.
        assert line["probing"]["megabytes"] == pytest.approx(7 * (kbit * 128 + 8) / 1e6)


def test_fedsuv_pays_for_what_is_measured_along(job: MakeJob) -> None:
    for line in records(run(job(sample_mode="fedsuv", round_deadline=60, **WORLD))):
        assert line["probing"]["clients"] == len(line["valid"])
        assert line["probing"]["megabytes"] == 0.0


def test_a_round_says_what_it_cost_and_what_was_wasted(job: MakeJob) -> None:
    chosen = job(sample_mode="random", round_deadline=8, **WORLD)
    lines = records(run(chosen))
    kbit = model_kbit(chosen.config)
    assert any(line["valid"] != line["asked"] for line in lines)
    for line in lines:
        asked = len(line["asked"])
        assert line["megabytes"] == pytest.approx(asked * 2 * kbit * 128 / 1e6)
        late = set(line["asked"]) - set(line["valid"])
        for cost in ("client_time", "energy_joules"):
            if not late:
                assert line["wasted"][cost] == 0
            elif len(late) == asked:
                assert line["wasted"][cost] == pytest.approx(line[cost])
            else:
                assert 0 < line["wasted"][cost] < line[cost]


@pytest.mark.parametrize("selector", ["pow_d", "gpfl"])
def test_the_bill_is_the_same_everywhere(job: MakeJob, selector: str, tmp_path: Path) -> None:
    chosen = job(sample_mode=selector, checkpoint_every=2, **WORLD)
    here = run(chosen)
    same_records(here, run(chosen, launcher="processes", executors=2))
    same_records(here, run_killed_and_resumed(chosen, 3))
