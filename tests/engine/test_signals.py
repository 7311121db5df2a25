"""Signals: each declared once, measured once, asked for by name, and worth what a hand gets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from conftest import MakeJob, checkpoint, run
from engine_worlds import Listener, client_conf, data_of, listen, model_with, samples_of, vector

from fedsuv_plugin.config.resolved import resolve
from fedsuv_plugin.engine.client import PluginClient
from fedsuv_plugin.engine.evaluation import evaluate
from fedsuv_plugin.engine.signals import BY_CLIENT, FOR_MANY, Local, Measurements
from fedsuv_plugin.engine.simhash import simhash
from fedsuv_plugin.selectors import signals as signal
from fedsuv_plugin.selectors.base import Probe, RoundView, Selector
from fedsuv_plugin.selectors.signals import NEEDS, PROBES, SHARES, SIGNALS
from fedsuv_plugin.tasks.federated_data import initial_model

# ---- declared once, measured once


def test_every_signal_of_a_client_has_one_measurement_and_no_other_has() -> None:
    asked_of_clients = {s.name for s in SIGNALS.values() if s.with_update or s.as_probe}
    assert BY_CLIENT.keys() | FOR_MANY.keys() == asked_of_clients
    assert not BY_CLIENT.keys() & FOR_MANY.keys()
    measurements = [*BY_CLIENT.values(), *FOR_MANY.values()]
    assert len(set(measurements)) == len(measurements)


def test_what_is_measured_for_many_at_once_is_a_probe_only() -> None:
    for name in FOR_MANY:
        assert SIGNALS[name].as_probe
        assert not SIGNALS[name].with_update


def test_the_server_s_signals_are_not_asked_of_clients() -> None:
    for declared in SIGNALS.values():
        assert declared.from_server != (declared.with_update or declared.as_probe)


def test_every_share_is_a_job_key_that_the_job_can_leave_open(job: MakeJob) -> None:
    assert SHARES.keys() == {"interview_fraction", "holdout_fraction", "public_fraction"}
    for key in SHARES:
        assert getattr(job().config, key) is None
        assert getattr(resolve(job()).config, key) == 0.0


@pytest.mark.parametrize(
    ("kind", "name"), [("needs", "losss"), ("needs", signal.OPINIONS), ("probes", "weight")]
)
def test_what_nobody_measures_is_refused_by_name_when_the_class_is_made(
    kind: str, name: str
) -> None:
    with pytest.raises(ValueError, match=rf"Greedy\.{kind}: expected some of .*, got '{name}'"):
        type("Greedy", (Selector,), {kind: frozenset({name})})


def test_an_unknown_question_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="probe: expected one of .*, got 'accuracy_gain'"):
        Probe(signal.ACCURACY_GAIN, np.array([0]))


# ---- measured


def test_only_what_is_needed_is_measured(job: MakeJob) -> None:
    conf = client_conf(job(), needs=frozenset({signal.LOSS}))
    result = PluginClient(conf).train(samples_of(10), initial_model(job().config), conf)
    assert result["signals"].keys() == {signal.LOSS}
    plain = client_conf(job())
    result = PluginClient(plain).train(samples_of(10), initial_model(job().config), plain)
    assert result["signals"] == {}


def test_a_measurement_is_taken_before_and_after_training(job: MakeJob) -> None:
    """Plain arrays: a model of zeros that training makes one of ones."""
    model = initial_model(job().config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    data = samples_of(12)
    conf = client_conf(job(learning_rate=0.5))
    measured = Measurements(Local(model, data, data, conf), {signal.DIRECTION, signal.LOSS})
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(1.0)
    values = measured.values()
    assert values[signal.DIRECTION] == pytest.approx(np.full(vector(model).shape, -2.0))
    assert values[signal.LOSS] == pytest.approx(np.log(4))  # of the zeros: four equal classes


def test_a_measurement_must_have_one_yield(job: MakeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    def twice(client: Local) -> Any:
        yield
        yield

    monkeypatch.setitem(BY_CLIENT, signal.LOSS, twice)
    data = samples_of(3)
    local = Local(initial_model(job().config), data, data, client_conf(job()))
    with pytest.raises(RuntimeError, match="one yield"):
        Measurements(local, {signal.LOSS}).values()


class Curious(Listener):
    """Asks for everything."""

    name = "curious"
    needs = frozenset(NEEDS)
    probes = frozenset(PROBES)
    ask = signal.LOSS

    def probe(self, view: RoundView) -> Probe | None:
        return Probe(self.ask, view.online[:5])


@pytest.fixture
def curious(monkeypatch: pytest.MonkeyPatch) -> type[Curious]:
    listen(monkeypatch, Curious)
    return Curious


def test_clients_compute_the_signals_that_are_asked_for(
    job: MakeJob, curious: type[Curious]
) -> None:
    small = job(sample_mode="curious", rounds=2, duration_jitter=0, overcommitment=1.0)
    run(small)
    outcome = curious.outcomes[0]
    assert set(outcome.signals) == {
        signal.ACCURACY_GAIN,
        signal.DIRECTION,
        signal.WEIGHTS,
        signal.LOSS,
        signal.INTERVIEW_ACCURACY,
    }
    assert outcome.valid.all()
    start = initial_model(small.config)
    # direction = (received - own) / learning rate, by its definition
    np.testing.assert_allclose(
        outcome.signals[signal.DIRECTION],
        (vector(start) - outcome.signals[signal.WEIGHTS]) / small.config.learning_rate,
        atol=1e-5,
    )
    # The rest, from the weights each client ended with and the data it has.
    data = data_of(small)
    small_clients = 0
    for i, row in enumerate(outcome.rows.tolist()):
        model = model_with(small, outcome.signals[signal.WEIGHTS][i])
        interview = evaluate(model, data.interview, "lr", 64)
        assert outcome.signals[signal.INTERVIEW_ACCURACY][i] == interview.accuracy
        own = data.training(row + 1)
        assert outcome.samples[i] == min(len(own), 24)
        # The loss is that of the received model on all the client's data, trained on or not.
        losses = torch.nn.functional.cross_entropy(start(own.x), own.y, reduction="none").detach()
        assert outcome.signals[signal.LOSS][i] == pytest.approx(float(losses.mean()), rel=1e-5)
        if len(own) <= 24:  # it trained on all it has: gain and utility can be worked out here
            small_clients += 1
            before = evaluate(start, own, "lr", 64)
            after = evaluate(model, own, "lr", 64)
            gain = outcome.signals[signal.ACCURACY_GAIN][i]
            assert gain == pytest.approx(after.accuracy - before.accuracy)
            root_mean_square = float(losses.double().square().mean().sqrt())
            assert outcome.utility[i] == pytest.approx(len(own) * root_mean_square)
    assert small_clients


@pytest.mark.parametrize("kind", PROBES)
def test_probes_answer_without_training_the_global_model(
    job: MakeJob, curious: type[Curious], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Over gRPC they go through test_named's package, whose selector probes in both launchers."""
    monkeypatch.setattr(curious, "ask", kind)
    small = job(sample_mode="curious", rounds=1, overcommitment=1.0)
    run(small)
    answer = curious.views[0].probe
    assert answer is not None
    assert answer.kind == kind
    assert answer.rows.tolist() == [0, 1, 2, 3, 4]
    data = data_of(small)
    start = initial_model(small.config)
    if kind == signal.LOSS:
        expected = [evaluate(start, data.training(c), "lr", 128).mean_loss for c in range(1, 6)]
        assert answer.values.tolist() == pytest.approx(expected)
    elif kind == signal.OPINIONS:
        expected = [evaluate(start, data.held_out(c), "lr", 128).accuracy for c in range(1, 6)]
        assert answer.values.tolist() == expected
    elif kind == signal.FINGERPRINT:
        bits_of = simhash(data)
        expected_bits = [bits_of(data.training(c)).tolist() for c in range(1, 6)]
        assert answer.values.tolist() == expected_bits
    elif (
        kind == signal.INTERVIEW_ACCURACY
    ):  # the same model for everyone: as a probe, nobody trains
        expected = [evaluate(start, data.interview, "lr", 128).accuracy] * 5
        assert answer.values.tolist() == expected
    else:  # the probe trains as the first round does: the first cohort's signals come out again
        signals = curious.outcomes[0].signals[kind]
        np.testing.assert_allclose(answer.values[:4], signals, atol=1e-6)


def test_pczfl_knows_the_untrained_model_and_what_clients_made_of_it(job: MakeJob) -> None:
    small = job(sample_mode="pczfl", rounds=1, pczfl__warmup_rounds=0, interview_fraction=0.3)
    ball = checkpoint(run(small))["client_manager"]["selector"]
    untrained = evaluate(initial_model(small.config), data_of(small).interview, "lr", 64).accuracy
    # The first round has one ball, so everyone takes part, and the ball's one reward is the mean
    # of what came of it.
    assert ball["known"]["started"]
    assert ball["mean"][0] == pytest.approx(ball["known"]["context"].mean(axis=0))
    assert ball["known"]["context"][:, 0].mean() > untrained
