"""Small models: logistic regression, linear SVM, multi-layer perceptron, a small CNN."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING

from torch import nn

from fedsuv_plugin.errors import require
from fedsuv_plugin.tasks.models import MODELS

if TYPE_CHECKING:
    from fedsuv_plugin.config.keys import JobConfig


@MODELS.add("lr", "svm")  # the same linear scores; the loss differs
def linear(config: JobConfig, shape: tuple[int, ...], classes: int) -> nn.Module:
    """One linear layer: logistic regression, or an SVM, which starts at zero.

    On raw pixels PyTorch's random start gives scores of some 50. Raw pixels need small steps, and
    with these it would take thousands of rounds to unlearn such scores."""
    layer = nn.Linear(math.prod(shape), classes)
    if config.model == "svm":
        nn.init.zeros_(layer.weight)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(nn.Flatten(), layer)


@MODELS.add("mlp")
def mlp(config: JobConfig, shape: tuple[int, ...], classes: int) -> nn.Module:
    """Hidden layers as in `mlp_hidden`, ReLU between them."""
    try:
        hidden = [int(width) for width in config.mlp_hidden.split(",")]
    except ValueError:
        hidden = [0]
    require(min(hidden) >= 1, "mlp_hidden", "widths such as '64,30'", config.mlp_hidden)
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in pairwise([math.prod(shape), *hidden]):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(hidden[-1], classes))


@MODELS.add("cnn")
def cnn(config: JobConfig, shape: tuple[int, ...], classes: int) -> nn.Module:
    """Two 3 x 3 convolutions (16, 32), each halved by pooling, and a dense layer of 64.

    For images from 8 x 8 up."""
    require(len(shape) == 3, "model", "a data set of images for cnn", shape)
    channels, height, width = shape
    return nn.Sequential(
        nn.Conv2d(channels, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * (height // 4) * (width // 4), 64),
        nn.ReLU(),
        nn.Linear(64, classes),
    )
