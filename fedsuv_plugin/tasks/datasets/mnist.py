"""MNIST from its four official IDX files, in torchvision's layout.

Files: <data_dir>/MNIST/raw/*-ubyte[.gz].
Source: Y. LeCun, C. Cortes, C. J. C. Burges. "The MNIST database of handwritten digits."
`data_dir` defaults to $FEDSUV_DATA/mnist.

MNIST itself does not say who wrote a digit. Where a FedScale client map does, in
<data_dir>/client_data_mapping/train.csv, with one row per training image in the official order, the
writers are natural clients. They are known from QMNIST.
"""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch

from fedsuv_plugin.errors import UserError
from fedsuv_plugin.tasks.datasets import DATASETS, Images, Splits
from fedsuv_plugin.tasks.files import CLIENT_MAP, missing, numbered, read_client_map
from fedsuv_plugin.tasks.sources import Download, Source

NAMES = tuple(
    f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")
)


def idx_source(about: str, urls: tuple[str, ...], raw: str, md5: tuple[str, ...]) -> Source:
    """The four files at any of the urls, packed, with their checksums in the order of NAMES."""
    packed = [f"{name}.gz" for name in NAMES]
    return Source(
        about,
        tuple(
            Download(tuple(url + name for url in urls), f"{raw}/{name}", f"md5:{digest}")
            for name, digest in zip(packed, md5, strict=True)
        ),
    )


@DATASETS.add("Mnist")
class Mnist(Images):
    shape = (1, 28, 28)
    classes = 10
    folder = "mnist"
    raw = "MNIST/raw"
    clients = "writers, with a client map"
    training_samples = 60_000
    samples_per_client: ClassVar[int | None] = 110
    mean = (0.1307,)
    std = (0.3081,)
    source = idx_source(
        "yann.lecun.com/exdb/mnist",
        ("https://ossci-datasets.s3.amazonaws.com/mnist/", "http://yann.lecun.com/exdb/mnist/"),
        raw,
        (
            "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "d53e105ee54ea40749a09fcbcd1e9432",
            "9fb629c4189551a2d022fa330f9573f3",
            "ec29112dd5afa0611ce80d1b7f02629c",
        ),
    )

    def load(self) -> Splits:
        raw = self.root() / self.raw
        train_x, train_y, test_x, test_y = (torch.from_numpy(read_idx(raw / n)) for n in NAMES)
        return Splits(
            train_x.unsqueeze(1),
            train_y.long(),
            test_x.unsqueeze(1),
            test_y.long(),
            self._owner(train_y.numpy()),
        )

    def _owner(self, labels: np.ndarray) -> np.ndarray | None:
        file = self.root() / CLIENT_MAP.format(part="train")
        # Only a job that asks for the writers needs the map: otherwise it may be of any kind, for
        # example of some of the images.
        if self.config.partition != "natural" or not self.clients or not file.is_file():
            return None
        of = read_client_map(file, self.classes)
        if not np.array_equal(of.labels, labels):
            raise UserError(
                f"data_dir: {file}: expected the labels of the {len(labels)} training images, in "
                "their order; the map belongs to other data"
            )
        return numbered(of.clients)


def read_idx(path: Path) -> np.ndarray:
    """An IDX file of unsigned bytes, packed with gzip or not."""
    packed = path.with_name(path.name + ".gz")
    try:
        content = path.read_bytes() if path.is_file() else gzip.decompress(packed.read_bytes())
    except FileNotFoundError:
        raise missing(f"{path} (nor {packed.name})") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"data_dir: {packed}: not a complete gzip file ({error})") from None
    dimensions = content[3] if content[:3] == b"\0\0\x08" and len(content) > 3 else 0
    start = 4 + 4 * dimensions
    shape = [int.from_bytes(content[i : i + 4], "big") for i in range(4, start, 4)]
    if not dimensions or len(content) != start + math.prod(shape):
        raise UserError(f"data_dir: {path}: not a complete IDX file of unsigned bytes")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape).copy()
