"""The small networks of the papers. Each says what its paper gives and what was filled in here."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from fedsuv_plugin.errors import require
from fedsuv_plugin.tasks.models import MODELS

if TYPE_CHECKING:
    from fedsuv_plugin.config.keys import JobConfig


@MODELS.add("gpfl_cnn")
def gpfl_cnn(config: JobConfig, shape: tuple[int, ...], classes: int) -> nn.Module:
    """GPFL on CIFAR-10: three convolutions of 32, 64 and 64 kernels, a dense layer of 64.

    The paper does not give the kernels' size (here 3 x 3, padded) and the pooling (here by two
    after each); both are as in FedCor, whose setup the paper follows. For images from 8 x 8 up.
    GPFL's network on FEMNIST is `mlp` with `mlp_hidden: 64,30`."""
    return _convolutions(config, shape, classes, kernels=(32, 64, 64), width=3, dense=64)


@MODELS.add("filfl_cnn")
def filfl_cnn(config: JobConfig, shape: tuple[int, ...], classes: int) -> nn.Module:
    """FilFL on FEMNIST: two convolutions, each with pooling and ReLU, and a dense layer of 2048.

    The paper does not give the kernels: 32 and 64 of 5 x 5, padded, are those of LEAF, whose model
    it takes."""
    return _convolutions(config, shape, classes, kernels=(32, 64), width=5, dense=2048)


@MODELS.add("pczfl_cnn")
def pczfl_cnn(config: JobConfig, shape: tuple[int, ...], classes: int) -> nn.Module:
    """PCZFL on CIFAR-10 and Fashion-MNIST: two convolutions and a dense layer of 512.

    The paper says no more than "convolutional neural network" and names another paper for the
    rest. This is the usual one of the field, with 32 and 64 kernels of 5 x 5: H. B. McMahan et al.,
    AISTATS 2017, section 3; 1,663,370 parameters on MNIST."""
    return _convolutions(config, shape, classes, kernels=(32, 64), width=5, dense=512)


def _convolutions(
    config: JobConfig,
    shape: tuple[int, ...],
    classes: int,
    kernels: tuple[int, ...],
    width: int,
    dense: int,
) -> nn.Module:
    """Padded convolutions, each with ReLU and halved by max-pooling, then a dense layer."""
    require(len(shape) == 3, "model", f"a data set of images for {config.model}", shape)
    channels, height, breadth = shape
    least = 2 ** len(kernels)
    require(
        min(height, breadth) >= least,
        "model",
        f"images from {least} x {least} up for {config.model}",
        shape,
    )
    layers: list[nn.Module] = []
    for n in kernels:
        layers += [nn.Conv2d(channels, n, width, padding=width // 2), nn.ReLU(), nn.MaxPool2d(2)]
        channels = n
        height //= 2
        breadth //= 2
    return nn.Sequential(
        *layers,
        nn.Flatten(),
        nn.Linear(channels * height * breadth, dense),
        nn.ReLU(),
        nn.Linear(dense, classes),
    )


@MODELS.add("char_lstm")
class CharLSTM(nn.Module):
    """FilFL on Shakespeare: characters embedded in 8 dimensions and two LSTM layers of 256.

    A dense layer scores the character that comes next. Inputs are sequences of characters as
    numbers below `classes`, the size of the alphabet."""

    hidden = 256
    layers = 2
    lighter = "char_lstm_small"

    def __init__(self, config: JobConfig, shape: tuple[int, ...], classes: int):
        super().__init__()
        require(len(shape) == 1, "model", "a data set of character sequences for char_lstm", shape)
        self.embedding = nn.Embedding(classes, 8)
        self.lstm = nn.LSTM(8, self.hidden, num_layers=self.layers, batch_first=True)
        self.scores = nn.Linear(self.hidden, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        states, _ = self.lstm(self.embedding(x.long()))
        scores: torch.Tensor = self.scores(states[:, -1])
        return scores


@MODELS.add("char_lstm_small")
class SmallCharLSTM(CharLSTM):
    """One layer of 64, for trying a job on a small machine.

    It takes a fortieth of the time of `char_lstm`, and no paper uses it."""

    hidden = 64
    layers = 1
