"""Shakespeare, character by character: given 80 characters that a role speaks, which comes next.

Two layouts are read:
- LEAF's: <data_dir>/data/train/*.json and data/test/*.json, whose users are the roles; samples and
  split are taken as they are;
- <data_dir>/roles.jsonl: one JSON object a line with `play`, `role` and `text`. The last fifth of
  each role's text is for the test. A training sample starts at every character, as LEAF's do; a
  test sample at every 80th, which estimates the same accuracy from a set of ordinary size. No
  sample, its next character included, reaches from the training text into the test text.

Source: S. Caldas et al. "LEAF: A Benchmark for Federated Settings." arXiv:1812.01097, from "The
    Complete Works of William Shakespeare".
`data_dir` defaults to $FEDSUV_DATA/shakespeare. Clients are the roles of each play that have a
training sample.

Classes and vocabulary are LEAF's 80 characters. Others are read as blanks, LEAF's sign for an
unknown character; runs of blanks in roles.jsonl count as one, as LEAF has it.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import torch

from fedsuv_plugin.errors import UserError
from fedsuv_plugin.tasks.datasets import DATASETS, DataSet, Splits
from fedsuv_plugin.tasks.files import leaf_files, missing, numbered, read_leaf
from fedsuv_plugin.tasks.sources import Source

ALPHABET = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
LENGTH = 80
TEST_SHARE = 5  # one in so many characters of a role
# Code point -> number in the alphabet; the last entry stands for all code points from 255 up.
_CODES = np.full(256, ALPHABET.index(" "), np.uint8)
_CODES[[ord(character) for character in ALPHABET]] = np.arange(len(ALPHABET))


@DATASETS.add("shakespeare")
class Shakespeare(DataSet):
    shape = (LENGTH,)
    classes = len(ALPHABET)
    dtype = torch.int64
    folder = "shakespeare"
    clients = "speaking roles"
    samples_per_client = 3_700
    source = Source(
        "github.com/TalwalkarLab/leaf, data/shakespeare",
        by_hand="in data/shakespeare of github.com/TalwalkarLab/leaf run "
        "`./preprocess.sh -k 50 -t sample --tf 0.8` and put the folder data that it fills into "
        "{folder}; or put a roles.jsonl of play, role, text there",
    )

    def load(self) -> Splits:
        root = self.root()
        roles = root / "roles.jsonl"
        if leaf_files(root, "train"):
            x, y, owner = _leaf(root, "train")
            test_x, test_y, _ = _leaf(root, "test")
        elif roles.is_file():
            texts = _texts(roles)
            borders = [len(text) - len(text) // TEST_SHARE for text in texts]
            train = [text[:border] for text, border in zip(texts, borders, strict=True)]
            test = [text[border:] for text, border in zip(texts, borders, strict=True)]
            x, y, owner = _windows(train, stride=1)
            test_x, test_y, _ = _windows(test, stride=LENGTH)
        else:
            raise missing(f"{roles}, nor {root / 'data' / 'train'}/*.json (LEAF's layout)")
        if not len(y) or not len(test_y):
            raise UserError(
                f"data_dir: {root}: expected roles of at least {(LENGTH + 1) * TEST_SHARE} "
                "characters"
            )
        # Roles too short for a sample are no clients: the others are numbered without them.
        _, client = np.unique(owner, return_inverse=True)
        return Splits(
            torch.from_numpy(x),
            torch.from_numpy(y),
            torch.from_numpy(test_x),
            torch.from_numpy(test_y),
            client,
        )

    def prepare(self, x: torch.Tensor) -> torch.Tensor:
        return x.long()


def encode(text: str) -> np.ndarray:
    """Character numbers (n,) uint8; those outside the alphabet become blanks."""
    code_points = np.frombuffer(text.encode("utf-32-le", "replace"), "<u4")
    return _CODES[np.minimum(code_points, len(_CODES) - 1)]


def _texts(file: Path) -> list[np.ndarray]:
    texts: list[np.ndarray] = []
    try:
        with file.open(encoding="utf-8") as f:
            for line in f:
                texts.append(encode(re.sub("  +", " ", json.loads(line)["text"])))
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"data_dir: {file}: line {len(texts) + 1}: expected an object with play, role and text "
            f"({error!r})"
        ) from None
    return texts


def _windows(texts: list[np.ndarray], stride: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Samples (n, LENGTH) uint8, the character after each (n,) int64, and whose text it is (n,)."""
    of = [i for i, text in enumerate(texts) if len(text) > LENGTH]
    windows = [np.lib.stride_tricks.sliding_window_view(texts[i], LENGTH + 1)[::stride] for i in of]
    if not windows:
        return np.empty((0, LENGTH), np.uint8), np.empty(0, np.int64), np.empty(0, np.int64)
    x = np.concatenate([window[:, :LENGTH] for window in windows])
    y = np.concatenate([window[:, LENGTH] for window in windows]).astype(np.int64)
    return x, y, np.repeat(of, [len(window) for window in windows])


def _leaf(root: Path, part: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What `_windows` gives, from LEAF's files; LEAF's users are the texts."""
    users: list[str] = []
    x: list[str] = []
    y: list[str] = []
    for user, sequences, following in read_leaf(root, part, LENGTH):
        texts = all(isinstance(text, str) for text in sequences)
        characters = all(isinstance(text, str) and len(text) == 1 for text in following)
        if not (texts and characters):
            raise UserError(
                f"data_dir: {root}: user {user}: expected texts of {LENGTH} characters and for "
                "each the next one"
            )
        users += [user] * len(following)
        x += sequences
        y += following
    return (
        encode("".join(x)).reshape(-1, LENGTH),
        encode("".join(y)).astype(np.int64),
        numbered(users),
    )
