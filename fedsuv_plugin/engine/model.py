"""The model as arrays: FedScale's adapter without its copies.

Buffers are kept out of the server's optimizers. BatchNorm's running mean and variance are averaged
over the round's clients with the weights of their parameters (`aggregation_weights`), the count of
batches likewise, rounded; no gradient_policy moves them. A client that trains on batches of one
sample sends the statistics back as it got them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import compress
from typing import Any

import numpy as np
import torch

from fedsuv_plugin.engine.stock import TorchModelAdapter


class ModelAdapter(TorchModelAdapter):  # type: ignore[misc]  # FedScale has no types
    """Weights are lists of arrays in the order of the model's state_dict, buffers included."""

    def set_weights(
        self,
        weights: Sequence[np.ndarray],
        is_aggregator: bool = True,
        client_training_results: list[dict[str, Any]] | None = None,
    ) -> None:
        """Load weights; on the aggregator, step to them as the job's gradient_policy says."""
        state = list(self.model.state_dict().values())
        last = [t.clone() for t in state] if is_aggregator and self.optimizer else []
        new = [torch.from_numpy(np.asarray(w, order="C")) for w in weights]
        with torch.no_grad():
            for tensor, value in zip(state, new, strict=True):
                tensor.copy_(value)
            if last:
                self._step(last, new, client_training_results or [])

    def _step(
        self, last: list[torch.Tensor], new: list[torch.Tensor], results: list[dict[str, Any]]
    ) -> None:
        """Have FedScale's server optimizer see and step the parameters only.

        Buffers are statistics and stay the clients' average: a running variance that YoGi moved
        could turn negative, and q-fedavg would take BatchNorm's count of batches for the steepest
        gradient of all."""
        parameters = _Parameters(self.model)
        names = list(parameters.state_dict())
        stepped = self.learnt
        self.optimizer.update_round_gradient(
            list(compress(last, stepped)),
            list(compress(new, stepped)),
            parameters,
            [_only(names, result) for result in results if "update_weight" in result],
        )

    @property
    def learnt(self) -> list[bool]:
        """Of every entry of the weights, whether it is a parameter; the others are statistics."""
        parameters = dict(self.model.named_parameters())
        return [name in parameters for name in self.model.state_dict()]

    def get_weights(self) -> list[np.ndarray]:
        """A copy, so that an executor in the same process cannot see it change."""
        return [t.detach().cpu().numpy().copy() for t in self.model.state_dict().values()]

    def state_dict(self) -> dict[str, Any]:
        """For checkpoints: the weights and YoGi's moments."""
        yogi = getattr(self.optimizer, "gradient_controller", None)
        moments = None
        if yogi is not None:
            moments = {name: [t.cpu().numpy() for t in getattr(yogi, name)] for name in _MOMENTS}
        return {"weights": self.get_weights(), "yogi": moments}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.set_weights(state["weights"], is_aggregator=False)
        for name, arrays in (state["yogi"] or {}).items():
            tensors = [torch.from_numpy(a) for a in arrays]
            setattr(self.optimizer.gradient_controller, name, tensors)


_MOMENTS = ("v_t", "m_t")  # FedScale's names for YoGi's two moments


def _only(names: Iterable[str], result: dict[str, Any]) -> dict[str, Any]:
    """A client's result with these of its weights."""
    weights = result["update_weight"]
    return {**result, "update_weight": {name: weights[name] for name in names}}


def flat(tensors: Iterable[torch.Tensor]) -> np.ndarray:
    """Parameters end to end as one float32 vector; buffers are no part of an update."""
    return torch.cat([t.detach().reshape(-1) for t in tensors]).cpu().numpy()


class _Parameters:
    """The model's parameters, as what FedScale's server optimizers take for a whole model."""

    def __init__(self, model: torch.nn.Module):
        self._parameters = dict(model.named_parameters())

    def state_dict(self) -> dict[str, torch.nn.Parameter]:
        return self._parameters

    def load_state_dict(self, stepped: dict[str, torch.Tensor]) -> None:
        for name, parameter in self._parameters.items():
            parameter.copy_(stepped[name])
