"""Models as arrays: what the server's optimizers may move, and what checkpoints keep."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from conftest import MakeJob, checkpoint, records, run
from engine_worlds import CPU, client_conf, samples_of

from fedsuv_plugin.engine.model import ModelAdapter, flat
from fedsuv_plugin.engine.stock import TorchServerOptimizer
from fedsuv_plugin.tasks.federated_data import initial_model


@pytest.mark.parametrize("policy", ["fed-avg", "fed-prox", "fed-yogi", "q-fedavg"])
@pytest.mark.parametrize("weights", ["equal", "samples"])
def test_every_gradient_policy_learns(job: MakeJob, policy: str, weights: str) -> None:
    path = run(job(gradient_policy=policy, aggregation_weights=weights, rounds=15, yogi_eta=0.05))
    metrics = records(path, "metrics.jsonl")
    assert metrics[-1]["loss"] < metrics[0]["loss"] * 0.8


def test_yogi_leaves_batch_norm_statistics_to_the_clients(job: MakeJob) -> None:
    """Stock FedScale steps a running variance like a weight, and it can turn negative."""
    small = job(
        data_set="digits",
        model="shufflenet_v2_x0_5",
        gradient_policy="fed-yogi",
        yogi_eta=1.0,
        rounds=2,
        num_participants=2,
        local_steps=2,
        num_clients=10,
    )
    weights = checkpoint(run(small))["model"]["weights"]
    names = list(initial_model(small.config).state_dict())
    entries = zip(names, weights, strict=True)
    variances = [w for name, w in entries if name.endswith("running_var")]
    assert variances
    assert all((v >= 0).all() for v in variances)


def test_weights_are_a_copy_and_flat_is_parameters_only() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    adapter = ModelAdapter(model)
    weights = adapter.get_weights()
    weights[0][:] = 99.0
    assert not (adapter.get_weights()[0] == 99.0).any()
    assert len(weights) == 2 + 5  # a weight and a bias each, and BatchNorm's three buffers
    assert flat(model.parameters()).shape == (2 * 3 + 3 + 3 + 3,)


def test_a_resumed_yogi_steps_as_if_nothing_had_happened(job: MakeJob) -> None:
    made = job(gradient_policy="fed-yogi")

    def adapter() -> ModelAdapter:
        conf = client_conf(made)
        optimizer = TorchServerOptimizer("fed-yogi", conf, CPU)
        return ModelAdapter(initial_model(made.config), optimizer=optimizer)

    def step(on: ModelAdapter, size: float) -> None:
        on.set_weights([w + size for w in on.get_weights()], client_training_results=[])

    whole = adapter()
    for size in (0.1, -0.2):
        step(whole, size)
    resumed = adapter()
    resumed.load_state_dict(whole.state_dict())
    for on in (whole, resumed):
        step(on, 0.3)
    for ours, theirs in zip(resumed.get_weights(), whole.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    fresh = adapter()
    fresh.set_weights(whole.get_weights(), is_aggregator=False)
    for on in (whole, fresh):
        step(on, 0.3)
    assert not np.array_equal(fresh.get_weights()[0], whole.get_weights()[0])  # it has no moments


def test_an_executor_loads_weights_without_a_step(job: MakeJob) -> None:
    model = initial_model(job().config)
    adapter = ModelAdapter(model)
    weights = [w + 1 for w in adapter.get_weights()]
    adapter.set_weights(weights, is_aggregator=False)
    for ours, theirs in zip(adapter.get_weights(), weights, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert model(samples_of(2).x).shape == (2, 4)
