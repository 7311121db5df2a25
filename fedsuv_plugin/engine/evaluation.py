"""How good a model is on a set of samples."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch

from fedsuv_plugin.tasks.federated_data import Samples
from fedsuv_plugin.tasks.models import sample_losses


class Evaluation:
    """Counts and sums over a set of samples."""

    def __init__(self) -> None:
        self.n = 0
        self.correct = 0
        self.correct_5 = 0  # the label is among the five best
        self.loss = 0.0
        self.square_loss = 0.0

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
    """The model's accuracy on each of many sets that lie end to end in `batches`.

    Set i has lengths[i] > 0 samples."""
    if not len(lengths):
        return np.zeros(0)
    model.eval()
    right = [_best_five(model(batch.x))[:, 0].eq(batch.y) for batch in batches]
    hits = torch.cat(right).cpu().numpy()
    return np.add.reduceat(hits, np.cumsum(lengths) - lengths, dtype=np.int64) / lengths


def _best_five(scores: torch.Tensor) -> torch.Tensor:
    """The classes with the highest scores, best first."""
    return scores.topk(min(5, scores.shape[1]), dim=1).indices
