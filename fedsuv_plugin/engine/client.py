"""A client's work: local SGD from tensors in memory, and the signals the selector asked for."""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from fedsuv_plugin.engine.evaluation import evaluate
from fedsuv_plugin.engine.model import ModelAdapter
from fedsuv_plugin.engine.signals import Local, Measurements
from fedsuv_plugin.engine.stock import TorchClient
from fedsuv_plugin.randomness import torch_seed
from fedsuv_plugin.tasks.federated_data import Samples
from fedsuv_plugin.tasks.models import sample_losses

BATCH_NORMS = (torch.nn.BatchNorm1d, torch.nn.BatchNorm2d, torch.nn.BatchNorm3d)


class PluginClient(TorchClient):  # type: ignore[misc]  # FedScale has no types
    """FedScale's client without its DataLoader.

    `local_sgd` is the step to replace for another way of training."""

    def train(
        self, client_data: Samples, model: torch.nn.Module, conf: Namespace
    ) -> dict[str, Any]:
        """Train `model` in place; FedScale's result dictionary, plus `signals`."""
        self._seed(torch_seed(conf.seed, "client", conf.client_id, conf.round))
        plan = Plan.of(conf, len(client_data))
        distinct = min(len(client_data), plan.steps * conf.batch_size)  # samples trained on
        first_epoch = torch.randperm(len(client_data))
        seen = client_data
        if distinct < len(client_data):
            picked = first_epoch[:distinct]
            seen = Samples(client_data.x[picked], client_data.y[picked])
        local = Local(model, client_data, seen, conf)
        measurements = Measurements(local, conf.needs)
        losses = self.local_sgd(client_data, model, conf, plan, first_epoch)
        first = losses[: plan.steps_per_epoch]
        if local.received is None:  # as Oort's clients report it: the losses met on the way
            squares = torch.cat(first).double().square().mean().item()
        else:
            squares = local.received.mean_square_loss
        return {
            "client_id": conf.client_id,
            "moving_loss": self._moving_loss(first, conf),
            "trained_size": sum(len(loss) for loss in losses),
            "success": True,
            "utility": distinct * math.sqrt(squares) if squares >= 0 else math.nan,
            "wall_duration": 0,
            "update_weight": {
                name: tensor.detach().cpu().numpy().copy()
                for name, tensor in model.state_dict().items()
            },
            "signals": measurements.values(),
        }

    def _seed(self, seed: int) -> None:
        """Seed torch. `torch.manual_seed` would also note every call until CUDA is up."""
        torch.default_generator.manual_seed(seed)
        if self.args.use_cuda:
            torch.cuda.manual_seed(seed)

    def get_model_adapter(self, model: torch.nn.Module) -> ModelAdapter:
        return ModelAdapter(model)

    def local_sgd(
        self,
        data: Samples,
        model: torch.nn.Module,
        conf: Namespace,
        plan: Plan,
        first_epoch: torch.Tensor,
    ) -> list[torch.Tensor]:
        """The steps of mini-batch SGD; every step's sample losses, under the weights it met."""
        model.train()
        norms = [m for m in model.modules() if isinstance(m, BATCH_NORMS)]
        optimizer = self.get_optimizer(model, conf)
        pull = _ProximalPull(model, conf.proxy_mu) if conf.gradient_policy == "fed-prox" else None
        losses = []
        for x, y in _batches(data, plan, first_epoch):
            # One sample has no spread: PyTorch refuses it, or normalises within one image.
            for norm in norms:
                norm.train(len(y) > 1)
            loss = sample_losses(conf.model, model(x), y)
            optimizer.zero_grad()
            loss.mean().backward()
            if pull is not None:
                pull.add_gradient()
            optimizer.step()
            losses.append(loss.detach())
        return losses

    def get_optimizer(self, model: torch.nn.Module, conf: Namespace) -> torch.optim.Optimizer:
        return torch.optim.SGD(
            model.parameters(),
            lr=conf.learning_rate,
            momentum=conf.momentum,
            weight_decay=conf.weight_decay,
            fused=True,
        )

    @staticmethod
    def _moving_loss(losses: list[torch.Tensor], conf: Namespace) -> float:
        """FedScale's moving average of the batch losses of the first epoch."""
        means = torch.stack([loss.mean() for loss in losses]).tolist()
        moving = means[0]
        for mean in means[1:]:
            moving = (1.0 - conf.loss_decay) * moving + conf.loss_decay * mean
        return moving

    def test(
        self, client_data: Samples, model: torch.nn.Module, conf: Namespace
    ) -> dict[str, float]:
        """FedScale's test result of one chunk of the test set."""
        result = evaluate(model, client_data, conf.model, conf.test_bsz)
        return {
            "top_1": result.correct,
            "top_5": result.correct_5,
            "test_loss": result.loss,
            "test_len": result.n,
        }


class _ProximalPull:
    """The gradient of FedProx's term, mu (w - w_received).

    FedScale adds lr mu (w - w_received) to the weights after the step, which drives them away from
    the received model."""

    def __init__(self, model: torch.nn.Module, mu: float):
        self._mu = mu
        self._parameters = list(model.parameters())
        self._received = [p.detach().clone() for p in self._parameters]

    def add_gradient(self) -> None:
        for p, start in zip(self._parameters, self._received, strict=True):
            if p.grad is not None:
                p.grad.add_(p.detach() - start, alpha=self._mu)


class Plan(NamedTuple):
    """How a client goes through its data."""

    batch: int
    steps_per_epoch: int
    steps: int

    @classmethod
    def of(cls, conf: Namespace, samples: int) -> Plan:
        """The plan of a client with so many samples.

        `local_epochs` take every sample, the last batch of each as small as it comes;
        `local_steps` take whole batches, and drop what an epoch leaves over, as FedScale does."""
        batch = min(conf.batch_size, samples)
        if conf.local_epochs is None:
            return cls(batch, samples // batch, conf.local_steps)
        each = -(-samples // batch)
        return cls(batch, each, conf.local_epochs * each)


def _batches(
    data: Samples, plan: Plan, first_epoch: torch.Tensor
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The batches of a plan, every epoch in a new order.

    An epoch is put in order once, so that a batch is a view."""
    order = first_epoch
    steps = plan.steps
    while True:
        picked = order[: min(plan.steps_per_epoch, steps) * plan.batch]
        yield from zip(
            data.x[picked].split(plan.batch), data.y[picked].split(plan.batch), strict=True
        )
        steps -= plan.steps_per_epoch
        if steps <= 0:
            return
        order = torch.randperm(len(data))
