"""The data sets a job can name as `data_set`; one file each."""
from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from fedsuv_plugin.catalogue import Catalogue

if TYPE_CHECKING:
    from fedsuv_plugin.config import JobConfig


@dataclass(frozen=True)
class Splits:
    """A data set in memory, as compact as it comes; `DataSet.prepare` turns inputs into what the model eats."""

    train_x: torch.Tensor
    train_y: torch.Tensor
    test_x: torch.Tensor
    test_y: torch.Tensor


class DataSet(ABC):
    """What the server must know of a data set without loading it, and how to load it."""

    shape: tuple[int, ...]  # of one prepared input
    classes: int

    def __init__(self, config: JobConfig):
        self.config = config

    @abstractmethod
    def load(self) -> Splits: ...

    def prepare(self, x: torch.Tensor) -> torch.Tensor:
        """Inputs as float32, normalised. Called on one client's samples at a time, so the whole set stays compact."""
        return x.float()


DATASETS: Catalogue[type[DataSet]] = Catalogue("data_set")
DATASETS.discover(sys.modules[__name__])
