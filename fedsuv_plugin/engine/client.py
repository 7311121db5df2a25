"""A client's work: local SGD from tensors in memory, and the signals the selector asked for."""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch

from fedsuv_plugin.engine.model import ModelAdapter, flat
from fedsuv_plugin.engine.stock import TorchClient
from fedsuv_plugin.randomness import torch_seed
from fedsuv_plugin.selectors import signals as signal
from fedsuv_plugin.tasks.federated_data import Samples
from fedsuv_plugin.tasks.models import sample_losses

BATCH_NORMS = (torch.nn.BatchNorm1d, torch.nn.BatchNorm2d, torch.nn.BatchNorm3d)


class PluginClient(TorchClient):  # type: ignore[misc]  # FedScale has no types
    """FedScale's client without its DataLoader. `local_sgd` is the step to replace for another way of training."""

    def train(
        self, client_data: Samples, model: torch.nn.Module, conf: Namespace
    ) -> dict[str, Any]:
        """Train `model` in place from the weights it holds; FedScale's result dictionary, plus `signals`."""
        self._seed(torch_seed(conf.seed, "client", conf.client_id, conf.round))
        plan = Plan.of(conf, len(client_data))
        trained = min(len(client_data), plan.steps * conf.batch_size)  # different samples
        first_epoch = torch.randperm(len(client_data))
        needs = conf.needs
        received = (
            [p.detach().clone() for p in model.parameters()]
            if needs & {signal.DIRECTION} or conf.gradient_policy == "fed-prox"
            else []
        )

        seen = (
            client_data
            if trained == len(client_data)
            else Samples(client_data.x[first_epoch[:trained]], client_data.y[first_epoch[:trained]])
        )
        before = (
            evaluate(model, seen, conf.model, conf.test_bsz)
            if signal.ACCURACY_GAIN in needs
            else None
        )

        losses = self.local_sgd(client_data, model, conf, plan, first_epoch, received)
        if (
            before is None
        ):  # the losses met on the way through the first epoch, as Oort's clients report them
            squares = torch.cat(losses[: plan.steps_per_epoch]).double().square().mean().item()
        else:
            squares = before.mean_square_loss
        signals: dict[str, Any] = self._signals(model, conf, received)
        if before is not None:
            signals[signal.ACCURACY_GAIN] = np.float64(
                evaluate(model, seen, conf.model, conf.test_bsz).accuracy - before.accuracy
            )
        return {
            "client_id": conf.client_id,
            "moving_loss": self._moving_loss(losses[: plan.steps_per_epoch], conf),
            "trained_size": sum(len(loss) for loss in losses),
            "success": True,
            "utility": trained * math.sqrt(squares) if squares >= 0 else math.nan,
            "wall_duration": 0,
            "update_weight": {
                name: t.detach().cpu().numpy().copy() for name, t in model.state_dict().items()
            },
            "signals": signals,
        }

    def _seed(self, seed: int) -> None:
        """What `torch.manual_seed` does, but without the note it keeps of every call while CUDA is not in use."""
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
        received: list[torch.Tensor],
    ) -> list[torch.Tensor]:
        """The steps of mini-batch SGD; the sample losses of every step, each under the weights it met."""
        model.train()
        norms = [m for m in model.modules() if isinstance(m, BATCH_NORMS)]
        optimizer = self.get_optimizer(model, conf)
        parameters = list(model.parameters())
        losses = []
        for x, y in _batches(data, plan, first_epoch):
            for norm in (
                norms
            ):  # one sample has no spread: PyTorch refuses it, or divides by that within one image
                norm.train(len(y) > 1)
            loss = sample_losses(conf.model, model(x), y)
            optimizer.zero_grad()
            loss.mean().backward()
            if conf.gradient_policy == "fed-prox":
                # The proximal term's gradient, mu (w - w_received). (FedScale adds lr mu (w - w_received) to the
                # weights after the step, which drives them away from the received model.)
                for p, start in zip(parameters, received, strict=True):
                    if p.grad is not None:
                        p.grad.add_(p.detach() - start, alpha=conf.proxy_mu)
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

    @staticmethod
    def _signals(
        model: torch.nn.Module, conf: Namespace, received: list[torch.Tensor]
    ) -> dict[str, Any]:
        signals: dict[str, Any] = {}
        if signal.DIRECTION in conf.needs:
            signals[signal.DIRECTION] = (
                flat(received) - flat(model.parameters())
            ) / conf.learning_rate
        if signal.WEIGHTS in conf.needs:
            signals[signal.WEIGHTS] = flat(model.parameters())
        if signal.INTERVIEW_ACCURACY in conf.needs:
            signals[signal.INTERVIEW_ACCURACY] = np.float64(
                evaluate(model, conf.interview, conf.model, conf.test_bsz).accuracy
            )
        return signals

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


class Evaluation:
    """Counts and sums over a set of samples."""

    def __init__(self) -> None:
        self.n = self.correct = self.correct_5 = 0
        self.loss = self.square_loss = 0.0

    @property
    def accuracy(self) -> float:
        return self.correct / self.n if self.n else 0.0

    @property
    def mean_loss(self) -> float:
        return self.loss / self.n if self.n else 0.0

    @property
    def mean_square_loss(self) -> float:
        return self.square_loss / self.n if self.n else 0.0


@torch.no_grad()
def evaluate(model: torch.nn.Module, data: Samples, model_name: str, batch: int) -> Evaluation:
    """The model in evaluation mode on all of `data`."""
    model.eval()
    result = Evaluation()
    for x, y in zip(data.x.split(batch), data.y.split(batch), strict=True):
        if len(y):
            scores = model(x)
            losses = sample_losses(model_name, scores, y).double()
            hits = _best_five(scores).eq(y.unsqueeze(1))
            result.n += len(y)
            result.correct += int(hits[:, 0].sum())
            result.correct_5 += int(hits.sum())
            result.loss += float(losses.sum())
            result.square_loss += float(losses.square().sum())
    return result


@torch.no_grad()
def accuracies(
    model: torch.nn.Module, batches: Iterable[Samples], lengths: np.ndarray
) -> np.ndarray:
    """The model's accuracy on each of many sets that lie end to end in `batches`; set i has lengths[i] > 0 samples."""
    if not len(lengths):
        return np.zeros(0)
    model.eval()
    hits = (
        torch.cat([_best_five(model(batch.x))[:, 0].eq(batch.y) for batch in batches]).cpu().numpy()
    )
    return np.add.reduceat(hits, np.cumsum(lengths) - lengths, dtype=np.int64) / lengths


def _best_five(scores: torch.Tensor) -> torch.Tensor:
    """The classes with the highest scores, best first."""
    return scores.topk(min(5, scores.shape[1]), dim=1).indices


class Plan(NamedTuple):
    """How a client goes through its data."""

    batch: int
    steps_per_epoch: int
    steps: int

    @classmethod
    def of(cls, conf: Namespace, samples: int) -> Plan:
        """`local_epochs` take every sample, the last batch of each as small as it comes; `local_steps` take whole
        batches, and drop what an epoch leaves over, as FedScale's loader does."""
        batch = min(conf.batch_size, samples)
        if conf.local_epochs is None:
            return cls(batch, samples // batch, conf.local_steps)
        each = -(-samples // batch)
        return cls(batch, each, conf.local_epochs * each)


def _batches(
    data: Samples, plan: Plan, first_epoch: torch.Tensor
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The batches of a plan, every epoch in a new order. An epoch is put in order once, so that a batch is a view."""
    order, steps = first_epoch, plan.steps
    while True:
        picked = order[: min(plan.steps_per_epoch, steps) * plan.batch]
        yield from zip(
            data.x[picked].split(plan.batch), data.y[picked].split(plan.batch), strict=True
        )
        steps -= plan.steps_per_epoch
        if steps <= 0:
            return
        order = torch.randperm(len(data))
