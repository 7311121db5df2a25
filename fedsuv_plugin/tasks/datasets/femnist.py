"""FEMNIST: handwritten digits and letters (62 classes), grey, 28 x 28, by writer.

Two layouts are read:
- FedScale's: <data_dir>/client_data_mapping/train.csv and test.csv (client_id, sample_path,
  label_name, label_id) and the image files they name, relative to <data_dir>; images of another
  size are scaled;
- LEAF's: <data_dir>/data/train/*.json and data/test/*.json.

Source: S. Caldas et al. "LEAF: A Benchmark for Federated Settings." arXiv:1812.01097, from NIST's
    special database 19.
`data_dir` defaults to $FEDSUV_DATA/femnist. Clients are the writers of training images.

In memory ink is bright on dark, as in MNIST, whichever way round the files have it, and MNIST's
mean and deviation normalise it, as in FedScale (which turns it into 32 x 32 colour images and flips
them at random). Reading hundreds of thousands of images takes minutes, so what was read is kept in
<data_dir>/.fedsuv until the CSV or JSON files change.
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
    shape = (1, SIDE, SIDE)
    classes = 62
    folder = "femnist"
    clients = "writers"
    training_samples = 700_000
    samples_per_client = 200
    mean = (0.1307,)
    std = (0.3081,)
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
        by_hand="in data/femnist of github.com/TalwalkarLab/leaf run "
        "`./preprocess.sh -k 64 -t sample` and put the folder data that it fills into {folder}",
    )

    def load(self) -> Splits:
        root = self.root()
        maps = [root / CLIENT_MAP.format(part=part) for part in ("train", "test")]
        if maps[0].is_file():
            read = self._images
            files = [file for file in maps if file.is_file()]
        else:
            read = self._leaf
            files = [*leaf_files(root, "train"), *leaf_files(root, "test")]
        if not files:
            raise missing(
                f"{maps[0]} (FedScale's layout), nor {root / 'data' / 'train'}/*.json (LEAF's)"
            )

        def read_all() -> dict[str, np.ndarray]:
            return {
                f"{part}_{name}": array
                for part in ("train", "test")
                for name, array in read(root, part).items()
            }

        arrays = cached(root, "femnist", [FORMAT, *state_of(files)], read_all)
        black_on_white = np.mean(arrays["train_x"][:1000]) > 127
        if black_on_white:
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
        users: list[str] = []
        x: list[np.ndarray] = []
        y: list[np.ndarray] = []
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
    # Pillow raises these on files that are damaged or no images.
    except (OSError, SyntaxError) as error:
        raise UserError(f"data_dir: {file}: not a complete image ({error})") from None
