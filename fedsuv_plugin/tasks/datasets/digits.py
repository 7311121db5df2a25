"""scikit-learn's digits: 1,797 handwritten digits of 8 x 8 pixels.

They come with scikit-learn, so there is nothing to download.

Source: E. Alpaydin, C. Kaynak. "Optical Recognition of Handwritten Digits", UCI Machine Learning
    Repository, 1998.
"""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits

from fedsuv_plugin.randomness import stream
from fedsuv_plugin.tasks.datasets import DATASETS, DataSet, Splits

TEST_SAMPLES = 360  # a fifth


@DATASETS.add("digits")
class Digits(DataSet):
    shape = (1, 8, 8)
    classes = 10

    def load(self) -> Splits:
        data = load_digits()
        # The split is part of the data set, so it does not depend on the job's seed.
        order = stream(0, "digits split").permutation(len(data.target))
        x = torch.from_numpy(data.images[order]).to(torch.uint8).unsqueeze(1)  # 0..16
        y = torch.from_numpy(data.target[order]).long()
        return Splits(x[TEST_SAMPLES:], y[TEST_SAMPLES:], x[:TEST_SAMPLES], y[:TEST_SAMPLES])

    def prepare(self, x: torch.Tensor) -> torch.Tensor:
        return x.float().div_(8).sub_(1)
