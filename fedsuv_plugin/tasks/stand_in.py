"""Made-up samples like those of a data set that is not here (`stand_in: true`).

They have its shape, classes and kind of clients, and serve to see that a job runs: each class is
noise around a point of its own; a sequence ends in its label. What is learnt from them says nothing
of the data set, and the job's record says that they were used.
"""

from __future__ import annotations

import numpy as np
import torch

from fedsuv_plugin.randomness import stream
from fedsuv_plugin.tasks.datasets import DataSet, Splits

OWNERS = 100  # natural clients, where the job does not say how many


class StandIn(DataSet):
    def __init__(self, real: DataSet):
        super().__init__(real.config)
        self.shape = real.shape
        self.classes = real.classes
        self.dtype = real.dtype
        self._natural = bool(real.clients)

    def load(self) -> Splits:
        rng = stream(self.config.seed, "stand-in")
        train = self.config.synthetic_samples
        test = max(1, train // 5)
        y = rng.permutation(np.arange(train + test) % self.classes)
        if self.dtype.is_floating_point:
            centres = rng.normal(size=(self.classes, *self.shape)).astype(np.float32)
            x = centres[y] + rng.normal(size=(len(y), *self.shape)).astype(np.float32)
        else:
            x = rng.integers(self.classes, size=(len(y), *self.shape))
            x[..., -1] = y
        owner = None
        if self._natural:
            owner = rng.permutation(np.arange(train) % (self.config.num_clients or OWNERS))
        inputs = torch.from_numpy(x)
        labels = torch.from_numpy(y)
        return Splits(inputs[test:], labels[test:], inputs[:test], labels[:test], owner)

    def prepare(self, x: torch.Tensor) -> torch.Tensor:
        return x.to(self.dtype)
