"""The models a job can name as `model`; one file each, and every classifier of torchvision by its name there."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from fedsuv_plugin.errors import UserError
from fedsuv_plugin.named import Catalogue

if TYPE_CHECKING:
    from fedsuv_plugin.config.keys import JobConfig

Build = Callable[
    ["JobConfig", tuple[int, ...], int], torch.nn.Module
]  # (config, input shape, classes) -> model
MODELS: Catalogue[Build] = Catalogue("model")
MODELS.discover(sys.modules[__name__])


def build_model(
    config: JobConfig, shape: tuple[int, ...], classes: int, dtype: torch.dtype = torch.float32
) -> torch.nn.Module:
    """The job's model, checked on two blank inputs, so that one that does not fit its data says so at once."""
    from fedsuv_plugin.tasks.models.torchvision_zoo import build_torchvision, torchvision_names

    if config.model not in MODELS and config.model not in torchvision_names():
        raise UserError(
            f"model: expected one of {', '.join(MODELS.names())} or a torchvision classifier "
            f"such as resnet18, got {config.model!r}"
        )
    build = MODELS[config.model] if config.model in MODELS else build_torchvision
    model = build(config, shape, classes)
    try:
        with torch.no_grad():
            fits = model.eval()(torch.zeros(2, *shape, dtype=dtype)).shape == (2, classes)
    except Exception as error:  # whatever a layer raises on inputs it cannot take
        raise UserError(
            f"model: {config.model} does not take inputs of shape {shape}: {error}"
        ) from error
    if not fits:
        raise UserError(
            f"model: {config.model} does not give {classes} scores for inputs of shape {shape}"
        )
    return model


def sample_losses(model_name: str, scores: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The loss of each sample: cross-entropy, or for the linear SVM the hinge losses against all other classes, summed
    as Weston and Watkins do (PyTorch's multi_margin_loss divides them by the number of classes)."""
    if model_name == "svm":
        return (
            torch.nn.functional.multi_margin_loss(scores, targets, reduction="none")
            * scores.shape[1]
        )
    return torch.nn.functional.cross_entropy(scores, targets, reduction="none")
