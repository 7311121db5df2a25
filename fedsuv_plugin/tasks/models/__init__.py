"""The models a job can name as `model`: ours, a few in each file, and torchvision's."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from fedsuv_plugin.errors import UserError
from fedsuv_plugin.named import Catalogue

if TYPE_CHECKING:
    from fedsuv_plugin.config.keys import JobConfig

# (config, input shape, classes) -> model. One that takes long to train may have an attribute
# `lighter`: the name of the model that stands in for it at a smaller scale.
Build = Callable[["JobConfig", tuple[int, ...], int], torch.nn.Module]
MODELS: Catalogue[Build] = Catalogue("model")
MODELS.discover(sys.modules[__name__])


def build_model(
    config: JobConfig, shape: tuple[int, ...], classes: int, dtype: torch.dtype = torch.float32
) -> torch.nn.Module:
    """The job's model, tried on two blank inputs, so that one that does not fit says so at once."""
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
    except Exception as error:  # a layer may raise anything on inputs it cannot take
        raise UserError(
            f"model: {config.model} does not take inputs of shape {shape}: {error}"
        ) from error
    if not fits:
        raise UserError(
            f"model: {config.model} does not give {classes} scores for inputs of shape {shape}"
        )
    return model


def lighter(name: str) -> str:
    """The model that stands in for `name` where that would take too long; most need none.

    >>> lighter("resnet18"), lighter("mlp")
    ('gpfl_cnn', 'mlp')
    """
    from fedsuv_plugin.tasks.models.torchvision_zoo import LIGHTER

    if name in MODELS:
        return getattr(MODELS[name], "lighter", name)
    return LIGHTER.get(name, name)


def sample_losses(model_name: str, scores: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The loss of each sample: cross-entropy, or for the linear SVM a sum of hinge losses.

    The hinge losses are those against all other classes, summed as Weston and Watkins do; PyTorch's
    multi_margin_loss divides them by the number of classes."""
    if model_name == "svm":
        mean_hinge = torch.nn.functional.multi_margin_loss(scores, targets, reduction="none")
        return mean_hinge * scores.shape[1]
    return torch.nn.functional.cross_entropy(scores, targets, reduction="none")
