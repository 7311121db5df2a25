"""The data sets a job can name as `data_set`; one file each."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch

from fedsuv_plugin.named import Catalogue
from fedsuv_plugin.tasks.files import data_folder
from fedsuv_plugin.tasks.sources import Source

if TYPE_CHECKING:
    from fedsuv_plugin.config.keys import JobConfig


@dataclass(frozen=True)
class Splits:
    """A data set in memory, as compact as it comes; `DataSet.prepare` makes model inputs of it."""

    train_x: torch.Tensor
    train_y: torch.Tensor
    test_x: torch.Tensor
    test_y: torch.Tensor
    # (training samples,) int64: the natural client that each belongs to, 0, 1, ...; none: unknown
    owner: np.ndarray | None = None


class DataSet(ABC):
    """What a job must know of a data set without loading it, and how to load it."""

    shape: tuple[int, ...]  # of one prepared input
    classes: int
    dtype: torch.dtype = torch.float32  # of prepared inputs
    # Its default folder below $FEDSUV_DATA; "": nothing is read from disk.
    folder: ClassVar[str] = ""
    # Who its natural clients are; "": it has none.
    clients: ClassVar[str] = ""
    source: ClassVar[Source | None] = None
    # Its usual size, by which `--scale` chooses a data_fraction without loading anything: all
    # training samples, and the mean of a natural client. None: a smaller scale keeps every sample.
    training_samples: ClassVar[int | None] = None
    samples_per_client: ClassVar[int | None] = None

    def __init__(self, config: JobConfig):
        self.config = config

    @abstractmethod
    def load(self) -> Splits: ...

    def prepare(self, x: torch.Tensor) -> torch.Tensor:
        """Inputs as `dtype`, normalised.

        It is called on one client's samples at a time, so that the whole set stays compact."""
        return x.float()

    def root(self) -> Path:
        return data_folder(self.config.data_dir, self.folder)


class Images(DataSet):
    """Images of unsigned bytes (n, channels, height, width), normalised channel by channel."""

    mean: ClassVar[tuple[float, ...]]
    std: ClassVar[tuple[float, ...]]

    def prepare(self, x: torch.Tensor) -> torch.Tensor:
        if self.config.raw_pixels:
            return x.float()
        mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (self.mean, self.std))
        return x.float().div_(255).sub_(mean).div_(std)


DATASETS: Catalogue[type[DataSet]] = Catalogue("data_set")
DATASETS.discover(sys.modules[__name__])
