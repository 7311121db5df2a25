"""Every classifier of torchvision, untrained, by its name there (`resnet18`, `mobilenet_v2`, ...)."""
from __future__ import annotations

import importlib
import sys
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING

import torch

from fedsuv_plugin.errors import require

if TYPE_CHECKING:
    from fedsuv_plugin.config import JobConfig


@cache
def import_torchvision() -> ModuleType:
    """torchvision, also beside a CPU-only torch, whose build does not load torchvision's compiled operators.

    Only the schemas are missed at import; models, transforms and data sets never call the operators."""
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
    torchvision._schemas = schemas  # type: ignore[attr-defined]  # the schemas go when their library is collected
    return torchvision


class AsColour(torch.nn.Module):
    """Grey images repeated over three channels, which is what torchvision's models expect."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.expand(-1, 3, -1, -1) if x.shape[1] == 1 else x


@cache
def torchvision_names() -> frozenset[str]:
    models = import_torchvision().models
    return frozenset(models.list_models(module=models))


def build_torchvision(config: JobConfig, shape: tuple[int, ...], classes: int) -> torch.nn.Module:
    require(len(shape) == 3, "model", f"a data set of images for {config.model}", shape)
    model: torch.nn.Module = import_torchvision().models.get_model(config.model, weights=None, num_classes=classes)
    return torch.nn.Sequential(AsColour(), model)
