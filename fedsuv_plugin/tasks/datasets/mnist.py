"""MNIST from its four official IDX files, in torchvision's layout: <data_dir>/MNIST/raw/*-ubyte[.gz].

Source: Y. LeCun, C. Cortes, C. J. C. Burges. "The MNIST database of handwritten digits."
`data_dir` defaults to $FEDSUV_DATA/mnist.
"""
from __future__ import annotations

import gzip
import os
from pathlib import Path

import numpy as np
import torch

from fedsuv_plugin.errors import UserError
from fedsuv_plugin.tasks.datasets import DATASETS, DataSet, Splits


@DATASETS.add("Mnist")
class Mnist(DataSet):
    shape, classes = (1, 28, 28), 10
    folder, raw = "mnist", "MNIST/raw"  # below $FEDSUV_DATA; below data_dir
    mean, std = 0.1307, 0.3081

    def load(self) -> Splits:
        raw = data_folder(self.config.data_dir, self.folder) / self.raw
        parts = [read_idx(raw / f"{part}-{kind}-ubyte")
                 for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")]
        train_x, train_y, test_x, test_y = (torch.from_numpy(part) for part in parts)
        return Splits(train_x.unsqueeze(1), train_y.long(), test_x.unsqueeze(1), test_y.long())

    def prepare(self, x: torch.Tensor) -> torch.Tensor:
        return x.float() if self.config.raw_pixels else x.float().div_(255).sub_(self.mean).div_(self.std)


def data_folder(data_dir: str | None, name: str) -> Path:
    """The folder a data set is read from: the job's `data_dir`, else <FEDSUV_DATA>/<name>."""
    if data_dir is not None:
        return Path(data_dir).expanduser()
    if root := os.environ.get("FEDSUV_DATA"):
        return Path(root) / name
    raise UserError(f"data_dir: this data set is read from disk; set data_dir to its folder, or the environment "
                    f"variable FEDSUV_DATA to a folder that holds {name}/")


def read_idx(path: Path) -> np.ndarray:
    """An IDX file of unsigned bytes, packed with gzip or not."""
    packed = path.with_name(path.name + ".gz")
    if path.is_file():
        content = path.read_bytes()
    elif packed.is_file():
        content = gzip.decompress(packed.read_bytes())
    else:
        raise UserError(f"data_dir: no such file: {path} (nor {packed.name})")
    header = np.frombuffer(content, ">u4", count=1 + content[3])
    if content[:3] != b"\0\0\x08" or len(content) != 4 * len(header) + header[1:].prod(dtype=np.int64):
        raise UserError(f"data_dir: {path}: not a complete IDX file of unsigned bytes")
    return np.frombuffer(content, np.uint8, offset=4 * len(header)).reshape(header[1:]).copy()
