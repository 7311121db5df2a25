"""CIFAR-10 and CIFAR-100 from the official Python batches.

Files: <data_dir>/cifar-10-batches-py/data_batch_1 ... 5, test_batch;
    <data_dir>/cifar-100-python/train, test (the 100 fine labels).
Source: A. Krizhevsky. "Learning Multiple Layers of Features from Tiny Images." 2009.
`data_dir` defaults to $FEDSUV_DATA/cifar10 and $FEDSUV_DATA/cifar100.

The batches are pickles; nothing but plain data is unpickled. Images are normalised by the training
set's channel means and deviations, and not augmented: FedScale crops and flips at random, test
images too.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import numpy as np
import torch

from fedsuv_plugin import safe_pickle
from fedsuv_plugin.errors import UserError
from fedsuv_plugin.tasks.datasets import DATASETS, Images, Splits
from fedsuv_plugin.tasks.files import missing
from fedsuv_plugin.tasks.sources import Download, Source

ABOUT = "www.cs.toronto.edu/~kriz/cifar.html"
SITE = "https://www.cs.toronto.edu/~kriz/"


@DATASETS.add("cifar10")
class Cifar10(Images):
    shape = (3, 32, 32)
    classes = 10
    training_samples = 50_000
    folder = "cifar10"
    label_key: ClassVar[str] = "labels"
    train: ClassVar[tuple[str, ...]] = tuple(
        f"cifar-10-batches-py/data_batch_{i}" for i in range(1, 6)
    )
    test: ClassVar[str] = "cifar-10-batches-py/test_batch"
    mean = (0.4914, 0.4822, 0.4465)
    std = (0.2470, 0.2435, 0.2616)
    source = Source(
        ABOUT,
        (
            Download(
                (SITE + "cifar-10-python.tar.gz",),
                "cifar-10-python.tar.gz",
                "md5:c58f30108f718f92721af3b95e74349a",
                unpacked=test,
            ),
        ),
        {
            train[0]: "md5:c99cafc152244af753f735de768cd75f",
            train[1]: "md5:d4bba439e000b95fd0a9bffe97cbabec",
            train[2]: "md5:54ebc095f3ab1f0389bbae665268c751",
            train[3]: "md5:634d18415352ddfa80567beed471001a",
            train[4]: "md5:482c414d41f54cd18b22e5b47cb7c3cb",
            test: "md5:40351d587109b95175f43aff81a1287e",
        },
    )

    def load(self) -> Splits:
        train = [self._batch(self.root() / name) for name in self.train]
        train_x = torch.cat([x for x, _ in train])
        train_y = torch.cat([y for _, y in train])
        test_x, test_y = self._batch(self.root() / self.test)
        return Splits(train_x, train_y, test_x, test_y)

    def _batch(self, file: Path) -> tuple[torch.Tensor, torch.Tensor]:
        if not file.is_file():
            raise missing(file)
        try:
            with file.open("rb") as f:
                content = safe_pickle.load(f)
        except safe_pickle.UnsafePickle as error:
            raise UserError(f"data_dir: {file}: not a batch of images: {error}") from None
        if not isinstance(content, dict):
            content = {}
        data = content.get("data")
        labels = content.get(self.label_key)
        if not (
            isinstance(data, np.ndarray)
            and data.dtype == np.uint8
            and isinstance(labels, list)
            and data.shape == (len(labels), 3072)
            and all(isinstance(label, int) and 0 <= label < self.classes for label in labels)
        ):
            raise UserError(
                f"data_dir: {file}: not a batch of images: expected `data`, 3072 bytes each, and "
                f"`{self.label_key}` below {self.classes}"
            )
        images = torch.from_numpy(data.copy()).view(-1, *self.shape)
        return images, torch.tensor(labels, dtype=torch.int64)


@DATASETS.add("cifar100")
class Cifar100(Cifar10):
    classes = 100
    folder = "cifar100"
    label_key = "fine_labels"
    train = ("cifar-100-python/train",)
    test = "cifar-100-python/test"
    mean = (0.5071, 0.4865, 0.4409)
    std = (0.2673, 0.2564, 0.2762)
    source = Source(
        ABOUT,
        (
            Download(
                (SITE + "cifar-100-python.tar.gz",),
                "cifar-100-python.tar.gz",
                "md5:eb9058c3a382ffc7106e4002c42a8d85",
                unpacked=test,
            ),
        ),
        {
            train[0]: "md5:16019d7e3df5f24257cddd939b257f8d",
            test: "md5:f0ef6b0ae62326f3e7ffdfab6717acfc",
        },
    )
