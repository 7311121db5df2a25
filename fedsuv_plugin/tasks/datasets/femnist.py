"""FEMNIST: handwritten digits and letters (62 classes), grey, 28 x 28, by writer. Either of

- FedScale's: <data_dir>/client_data_mapping/train.csv and test.csv (client_id, sample_path, label_name, label_id) and
  the image files they name, relative to <data_dir>; images of another size are scaled;
- LEAF's: <data_dir>/data/train/*.json and data/test/*.json.

Source: S. Caldas et al. "LEAF: A Benchmark for Federated Settings." arXiv:1812.01097, from NIST's special database 19.
`data_dir` defaults to $FEDSUV_DATA/femnist. Clients are the writers of training images.

In memory ink is bright on dark, as in MNIST, whichever way round the files have it, and MNIST's mean and deviation
normalise it, as in FedScale (which turns it into 32 x 32 colour images and flips them at random). What was read is kept
in <data_dir>/.fedsuv until the CSV or JSON files change, for reading hundreds of thousands of images takes minutes.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from PIL import Image

from fedsuv_plugin.errors import UserError
from fedsuv_plugin.tasks.datasets import DATASETS, Images, Splits
from fedsuv_plugin.tasks.files import (
    CLIENT_MAP,
    cached,
    leaf_files,
    missing,
    numbered,
    progress,
    read_client_map,
    read_leaf,
    state_of,
)
from fedsuv_plugin.tasks.sources import Download, Source

FORMAT = "femnist 1"  # changes whenever the same files give other arrays
SIDE = 28


@DATASETS.add("femnist")
class Femnist(Images):
    shape, classes = (1, SIDE, SIDE), 62
    folder, clients = "femnist", "writers"
    mean, std = (0.1307,), (0.3081,)
    source = Source(
        "github.com/SymbioticLab/FedScale, benchmark/dataset/femnist",
        (
            Download(
                ("https://fedscale.eecs.umich.edu/dataset/femnist.tar.gz",),
                "femnist.tar.gz",
                None,
                unpacked="client_data_mapping",
                inside="femnist",
            ),
        ),
        by_hand="in data/femnist of github.com/TalwalkarLab/leaf run `./preprocess.sh -k 64 -t sample` and put the "
        "folder data that it fills into {folder}",
    )

    def load(self) -> Splits:
        root = self.root()
        maps = [root / CLIENT_MAP.format(part=part) for part in ("train", "test")]
        files = (
            maps if maps[0].is_file() else [*leaf_files(root, "train"), *leaf_files(root, "test")]
        )
        if not files:
            raise missing(
                f"{maps[0]} (FedScale's layout), nor {root / 'data' / 'train'}/*.json (LEAF's)"
            )
        read = self._images if files is maps else self._leaf
        arrays = cached(
            root,
            "femnist",
            [FORMAT, *state_of(file for file in files if file.is_file())],
            lambda: {
                f"{part}_{name}": array
                for part in ("train", "test")
                for name, array in read(root, part).items()
            },
        )
        if np.mean(arrays["train_x"][:1000]) > 127:  # black on white
            for name in ("train_x", "test_x"):
                np.subtract(255, arrays[name], out=arrays[name])
        x, y, test_x, test_y = (
            torch.from_numpy(arrays[name]) for name in ("train_x", "train_y", "test_x", "test_y")
        )
        return Splits(
            x.view(-1, *self.shape),
            y.long(),
            test_x.view(-1, *self.shape),
            test_y.long(),
            arrays["train_owner"].astype(np.int64),
        )

    def _images(self, root: Path, part: str) -> dict[str, np.ndarray]:
        of = read_client_map(root / CLIENT_MAP.format(part=part), self.classes)
        x = np.empty((len(of.paths), SIDE, SIDE), np.uint8)
        for i, path in enumerate(progress(of.paths, f"reading the images of {root} ({part})")):
            x[i] = _image(root / path)
        return {
            "x": x,
            "y": of.labels.astype(np.uint8),
            "owner": numbered(of.clients).astype(np.int32),
        }

    def _leaf(self, root: Path, part: str) -> dict[str, np.ndarray]:
        users, x, y = [], [], []
        for user, pixels, labels in read_leaf(root, part, SIDE * SIDE):
            if not all(isinstance(label, int) and 0 <= label < self.classes for label in labels):
                raise UserError(
                    f"data_dir: {root}: user {user}: expected labels from 0 to {self.classes - 1}"
                )
            users += [user] * len(labels)
            grey = np.array(pixels, np.float32).reshape(-1, SIDE, SIDE)  # 0 to 1
            x.append(np.rint(grey * 255).astype(np.uint8))
            y.append(np.array(labels, np.uint8))
        return {
            "x": np.concatenate(x),
            "y": np.concatenate(y),
            "owner": numbered(users).astype(np.int32),
        }


def _image(file: Path) -> np.ndarray:
    try:
        with Image.open(file) as image:
            grey = image.convert("L")
            return np.asarray(grey if grey.size == (SIDE, SIDE) else grey.resize((SIDE, SIDE)))
    except FileNotFoundError:
        raise missing(file) from None
    except (
        OSError,
        SyntaxError,
    ) as error:  # what Pillow raises on files that are damaged or no images
        raise UserError(f"data_dir: {file}: not a complete image ({error})") from None
