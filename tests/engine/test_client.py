"""What a client does with its data: local SGD by epochs or steps, and FedProx's pull."""

from __future__ import annotations

from argparse import Namespace

import numpy as np
import pytest
import torch
from conftest import MakeJob, run
from engine_worlds import client_conf, data_of, samples_of, trained, vector
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsuv_plugin.engine.client import Plan, PluginClient, _batches
from fedsuv_plugin.engine.stock import TorchClient
from fedsuv_plugin.randomness import torch_seed
from fedsuv_plugin.tasks.federated_data import Samples, initial_model

# ---- how a client goes through its data


@settings(deadline=None, derandomize=True, max_examples=60)
@given(
    n=st.integers(1, 60),
    batch=st.integers(1, 20),
    epochs=st.integers(1, 4),
    steps=st.integers(1, 9),
)
def test_the_plan(n: int, batch: int, epochs: int, steps: int) -> None:
    data = Samples(torch.arange(n), torch.arange(n))
    for local_epochs in (epochs, None):
        conf = Namespace(batch_size=batch, local_epochs=local_epochs, local_steps=steps)
        plan = Plan.of(conf, n)
        batches = [x.tolist() for x, _ in _batches(data, plan, torch.randperm(n))]
        assert len(batches) == plan.steps
        for start in range(0, plan.steps, plan.steps_per_epoch):
            epoch = sum(batches[start : start + plan.steps_per_epoch], [])
            assert len(set(epoch)) == len(epoch)
            if local_epochs is not None:
                assert sorted(epoch) == list(range(n))
        if local_epochs is None:
            assert {len(b) for b in batches} == {min(batch, n)}
            assert plan.steps == steps
        else:
            assert sum(map(len, batches)) == epochs * n


@pytest.mark.parametrize(
    ("n", "keys"),
    [
        (19, {}),
        (19, {"momentum": 0.0, "weight_decay": 0.0}),
        (5, {}),
        (16, {"weight_decay": 0.1}),
        (19, {"gradient_policy": "fed-prox", "proxy_mu": 0.3}),
    ],
)
def test_local_epochs_are_a_plain_loop_of_sgd(
    job: MakeJob, n: int, keys: dict[str, object]
) -> None:
    """Batches of 8 of n samples for three epochs; SGD steps by v = m v + g + w theta."""
    made = job(local_epochs=3, local_steps=50, learning_rate=0.1, **keys)
    data = samples_of(n)
    model, result = trained(made, data)
    config = made.config
    reference = initial_model(config)
    start = [p.detach().clone() for p in reference.parameters()]
    velocity = [torch.zeros_like(p) for p in start]
    torch.manual_seed(torch_seed(config.seed, "client", 1, 1))
    losses = []
    for _ in range(3):
        for rows in torch.randperm(n).split(8):
            each = torch.nn.functional.cross_entropy(
                reference(data.x[rows]), data.y[rows], reduction="none"
            )
            losses.append(each.detach())
            gradients = torch.autograd.grad(each.mean(), list(reference.parameters()))
            with torch.no_grad():
                for i, (p, g) in enumerate(zip(reference.parameters(), gradients, strict=True)):
                    if config.gradient_policy == "fed-prox":
                        g = g + config.proxy_mu * (p - start[i])
                    velocity[i] = config.momentum * velocity[i] + g + config.weight_decay * p
                    p.sub_(0.1 * velocity[i])
    for ours, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        np.testing.assert_allclose(ours.detach().numpy(), theirs.detach().numpy(), atol=2e-6)
    assert result["trained_size"] == 3 * n
    first = torch.cat(losses[: -(-n // 8)]).double()
    assert len(first) == n
    assert result["utility"] == pytest.approx(n * float(first.square().mean().sqrt()), rel=1e-5)


def test_momentum_and_weight_decay_act(job: MakeJob) -> None:
    def weights(**keys: object) -> np.ndarray:
        return vector(trained(job(learning_rate=0.1, **keys), samples_of(30))[0])

    plain = weights(momentum=0.0, weight_decay=0.0)
    assert np.abs(weights(momentum=0.9, weight_decay=0.0) - plain).max() > 1e-3
    assert np.linalg.norm(weights(momentum=0.0, weight_decay=1.0)) < np.linalg.norm(plain)


def test_the_learning_rate_decays_from_round_to_round(
    job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, float]] = []
    original = PluginClient.get_optimizer

    def spy(self: PluginClient, model: torch.nn.Module, conf: Namespace) -> torch.optim.Optimizer:
        optimizer = original(self, model, conf)
        seen.append((conf.round, optimizer.param_groups[0]["lr"]))
        return optimizer

    monkeypatch.setattr(PluginClient, "get_optimizer", spy)
    run(job(learning_rate=0.4, decay_factor=0.5, decay_round=2, min_learning_rate=0.15, rounds=5))
    assert dict(seen) == pytest.approx({1: 0.4, 2: 0.2, 3: 0.2, 4: 0.15, 5: 0.15})


# ---- what is mended in FedScale


def test_a_client_smaller_than_a_batch_trains_on_what_it_has(job: MakeJob) -> None:
    few = Samples(torch.randn(3, 8), torch.tensor([0, 1, 2]))  # a batch is 8
    model, result = trained(job(), few)
    assert result["success"]
    assert result["trained_size"] == 3 * 3  # 3 steps of all 3 samples
    assert not np.array_equal(vector(model), vector(initial_model(job().config)))


def test_stock_fedscale_never_ends_on_such_a_client(job: MakeJob) -> None:
    """Its loader drops the incomplete batch and the client waits for a step that never comes."""

    class Stuck(Exception):
        pass

    class Counted(TorchClient):  # type: ignore[misc]
        passes = 0

        def train_step(self, *args: object) -> None:
            super().train_step(*args)
            self.passes += 1
            if self.passes > 100:
                raise Stuck

    few = torch.utils.data.TensorDataset(torch.randn(3, 8), torch.tensor([0, 1, 2]))
    loader = torch.utils.data.DataLoader(few, batch_size=8, drop_last=True)
    conf = client_conf(job(), tokenizer=None)
    client = Counted(conf)
    client.train(loader, initial_model(job().config), conf)
    assert client.passes > 100
    assert client.completed_steps == 0


def test_fed_prox_holds_the_client_near_the_received_model(job: MakeJob) -> None:
    """mu (w - w0) in the gradient pulls back; FedScale's own rule pushes away."""
    start = vector(initial_model(job().config))
    data = data_of(job()).training(1)

    def distance(mu: float) -> float:
        made = job(gradient_policy="fed-prox", proxy_mu=mu, local_steps=30)
        model, _ = trained(made, data)
        return float(np.linalg.norm(vector(model) - start))

    assert distance(5.0) < 0.5 * distance(0.5) < 0.5 * distance(0.0)
