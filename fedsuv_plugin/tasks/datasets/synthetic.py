"""A seeded Gaussian mixture: one spherical cluster per class, at a distance that makes the task learnable, not trivial.

Made for tests and for timing: any size, no files. The world depends on the job's seed.
"""

from __future__ import annotations

import numpy as np
import torch

from fedsuv_plugin.randomness import stream
from fedsuv_plugin.tasks.datasets import DATASETS, DataSet, Splits

SPREAD = 1.5  # distance of a cluster's centre from the origin, in units of the clusters' standard deviation, times
#               sqrt(2): two centres are then about 3 standard deviations apart, whatever the dimension


@DATASETS.add("synthetic")
class Synthetic(DataSet):
    def load(self) -> Splits:
        config, rng = self.config, stream(self.config.seed, "data")
        dim, test = config.synthetic_dim, max(1, config.synthetic_samples // 5)
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
