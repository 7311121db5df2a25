"""The server's public set, and how good any parameters are on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from fedsuv_plugin.engine.evaluation import evaluate
from fedsuv_plugin.tasks.federated_data import Samples, initial_model

if TYPE_CHECKING:
    from fedsuv_plugin.config.keys import JobConfig

BATCH = 1024  # samples per forward pass


class PublicLoss:
    """Flat parameters -> mean loss on the public set.

    Parameters are all that varies: buffers, such as BatchNorm's statistics, are those of the
    global model, which are the average of its last round's clients. The server computes this
    itself, on its CPU, whatever the launcher: a filtering asks hundreds of times in a row, and each
    answer decides the next question."""

    def __init__(self, config: JobConfig, data: Samples):
        self._data = data
        self._name = config.model
        self._model = initial_model(config)

    def follow(self, model: torch.nn.Module) -> None:
        """Take over the global model's buffers."""
        for own, current in zip(self._model.buffers(), model.buffers(), strict=True):
            own.copy_(current)

    def __call__(self, parameters: np.ndarray) -> float:
        with torch.no_grad():
            torch.nn.utils.vector_to_parameters(
                torch.from_numpy(np.asarray(parameters, np.float32)), self._model.parameters()
            )
        return evaluate(self._model, self._data, self._name, BATCH).mean_loss
