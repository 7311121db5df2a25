"""Every classifier of torchvision, untrained, by its name there (`resnet18`, `mobilenet_v2`, ...).

They are made for photographs of 224 pixels and colour. ResNets, MobileNet-V2 and ShuffleNet-V2 are
fitted to the data:
- the first convolution has as many input channels as the data, so a spectrogram stays one channel;
- for inputs of at most 64 pixels it is 3 x 3 with stride 1, and the max-pooling after it (ResNet,
  ShuffleNet) is left out: 32 x 32 pixels would otherwise be 8 x 8 before the first block. Larger
  inputs keep torchvision's.
All others are as torchvision has them, and grey images are repeated over three channels.
"""

from __future__ import annotations

import importlib
import sys
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch

from fedsuv_plugin.errors import require

if TYPE_CHECKING:
    from fedsuv_plugin.config.keys import JobConfig


@cache
def import_torchvision() -> ModuleType:
    """torchvision, also beside a CPU-only torch, which does not load its compiled operators.

    The import needs no more than the operators' schemas, so these are defined here; models,
    transforms and data sets never call the operators themselves."""
    try:
        return importlib.import_module("torchvision")
    except RuntimeError as error:
        if "torchvision::nms" not in str(error):
            raise
    for name in [m for m in sys.modules if m.partition(".")[0] == "torchvision"]:
        del sys.modules[name]
    schemas = torch.library.Library("torchvision", "DEF")
    for operator in ("nms", "qnms"):
        schemas.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    torchvision = importlib.import_module("torchvision")
    # PyTorch forgets the schemas when their library is collected, so torchvision keeps it.
    torchvision._schemas = schemas  # type: ignore[attr-defined]
    return torchvision


SMALL = 64  # pixels
# family -> its first convolution
FIRST = {"ResNet": "conv1", "MobileNetV2": "features.0.0", "ShuffleNetV2": "conv1.0"}
# heavy model -> what stands in for it at a smaller scale. One training sample of 32 x 32 pixels
# takes 9 to 55 ms of one core with these, and 1 ms with gpfl_cnn.
LIGHTER = dict.fromkeys(("resnet18", "resnet34", "mobilenet_v2", "shufflenet_v2_x2_0"), "gpfl_cnn")


class AsColour(torch.nn.Module):
    """Grey images repeated over three channels."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.expand(-1, 3, -1, -1) if x.shape[1] == 1 else x


@cache
def torchvision_names() -> frozenset[str]:
    models = import_torchvision().models
    return frozenset(models.list_models(module=models))


def build_torchvision(config: JobConfig, shape: tuple[int, ...], classes: int) -> torch.nn.Module:
    require(len(shape) == 3, "model", f"a data set of images for {config.model}", shape)
    model: torch.nn.Module = import_torchvision().models.get_model(
        config.model, weights=None, num_classes=classes
    )
    if type(model).__name__ not in FIRST:
        return torch.nn.Sequential(AsColour(), model)
    small = max(shape[1:]) <= SMALL
    if small and hasattr(model, "maxpool"):
        model.maxpool = torch.nn.Identity()
    if small or shape[0] != 3:
        _replace_first(model, FIRST[type(model).__name__], shape[0], small)
    return model


def _replace_first(model: torch.nn.Module, path: str, channels: int, small: bool) -> None:
    old = model.get_submodule(path)
    assert isinstance(old, torch.nn.Conv2d)
    geometry: dict[str, Any]
    if small:
        geometry = {"kernel_size": 3, "stride": 1, "padding": 1}
    else:
        geometry = {"kernel_size": old.kernel_size, "stride": old.stride, "padding": old.padding}
    new = torch.nn.Conv2d(channels, old.out_channels, bias=False, **geometry)
    # The new layer starts as torchvision starts the old one, which for ShuffleNet is PyTorch's way.
    if type(model).__name__ != "ShuffleNetV2":
        torch.nn.init.kaiming_normal_(new.weight, mode="fan_out", nonlinearity="relu")
    parent, _, name = path.rpartition(".")
    setattr(model.get_submodule(parent), name, new)
