"""The server's public set and the loss of any parameters on it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from conftest import MakeJob, run
from engine_worlds import Listener, data_of, listen, model_with, vector

from fedsuv_plugin.config.resolved import resolve
from fedsuv_plugin.engine.evaluation import evaluate
from fedsuv_plugin.engine.public_loss import PublicLoss
from fedsuv_plugin.selectors.signals import PUBLIC_LOSS
from fedsuv_plugin.tasks.federated_data import initial_model, public_set


class Filtering(Listener):
    name = "filtering"
    needs = frozenset({PUBLIC_LOSS})


def test_it_is_that_of_the_given_parameters_on_samples_no_client_has(
    job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    listen(monkeypatch, Filtering)
    small = job(sample_mode="filtering", rounds=2)
    run(small)
    data = data_of(small)
    public = public_set(resolve(small).config)
    assert len(public) == 30  # 5 % of 600
    clients = torch.cat([data.training(c).x for c in range(1, 21)])
    assert len(clients) == 570
    assert not set(clients[:, 0].tolist()) & set(public.x[:, 0].tolist())
    assert len(Filtering.views) == 2
    for view in Filtering.views:
        assert view.public_loss is not None
        assert view.weights is not None
        for candidate in (view.weights, 0.5 * view.weights, np.zeros_like(view.weights)):
            by_hand = evaluate(model_with(small, candidate), public, "lr", 64).mean_loss
            assert view.public_loss(candidate.astype(float)) == pytest.approx(by_hand)
        assert view.public_loss(0 * view.weights) == pytest.approx(np.log(4))  # four classes


def test_it_takes_the_global_models_batch_norm_statistics(job: MakeJob) -> None:
    config = job(data_set="digits", model="shufflenet_v2_x0_5", public_fraction=0.02).config
    public = public_set(config)
    model = initial_model(config)
    loss = PublicLoss(config, public)
    before = loss(vector(model))
    model.train()
    model(public.x)  # moves the statistics
    loss.follow(model)
    by_hand = evaluate(model, public, config.model, 64).mean_loss
    assert loss(vector(model)) == pytest.approx(by_hand, rel=1e-5)
    assert loss(vector(model)) != before
