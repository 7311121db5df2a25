"""A seeded Gaussian mixture with one spherical cluster per class: learnable, but not trivial.

Made for tests and for timing: any size, no files. The clusters depend on the job's seed.
"""

from __future__ import annotations

import numpy as np
import torch

from fedsuv_plugin.randomness import stream
from fedsuv_plugin.tasks.datasets import DATASETS, DataSet, Splits

# Every centre is SPREAD * sqrt(2) standard deviations of a cluster away from the origin. Random
# directions are nearly orthogonal, so two centres are about 2 * SPREAD = 3 deviations apart.
SPREAD = 1.5


@DATASETS.add("synthetic")
class Synthetic(DataSet):
    def load(self) -> Splits:
        config = self.config
        rng = stream(config.seed, "data")
        dim = config.synthetic_dim
        test = max(1, config.synthetic_samples // 5)
        centres = rng.normal(size=(self.classes, dim))
        centres *= SPREAD * np.sqrt(2) / np.linalg.norm(centres, axis=1, keepdims=True)
        y = rng.integers(self.classes, size=config.synthetic_samples + test)
        x = torch.from_numpy((centres[y] + rng.normal(size=(len(y), dim))).astype(np.float32))
        labels = torch.from_numpy(y)
        return Splits(x[test:], labels[test:], x[:test], labels[:test])

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        return (self.config.synthetic_dim,)

    @property
    def classes(self) -> int:  # type: ignore[override]
        return self.config.synthetic_classes
