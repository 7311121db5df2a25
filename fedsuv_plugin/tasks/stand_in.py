"""Made-up samples with the shape, classes and kind of clients of a data set that is not here (`stand_in: true`).

They are for seeing that a job runs: each class is noise around a point of its own, sequences end in their label. What
is learnt from them says nothing of the data set, and the job's record says that they were used.
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
        self.shape, self.classes, self.dtype = real.shape, real.classes, real.dtype
        self._natural = bool(real.clients)

    def load(self) -> Splits:
        config, rng = self.config, stream(self.config.seed, "stand-in")
        test = max(1, config.synthetic_samples // 5)
        y = rng.permutation(np.arange(config.synthetic_samples + test) % self.classes)
        if self.dtype.is_floating_point:
            centres = rng.normal(size=(self.classes, *self.shape)).astype(np.float32)
            x = centres[y] + rng.normal(size=(len(y), *self.shape)).astype(np.float32)
        else:
            x = rng.integers(self.classes, size=(len(y), *self.shape))
            x[..., -1] = y
        owner = None
        if self._natural:
            owner = rng.permutation(
                np.arange(config.synthetic_samples) % (config.num_clients or OWNERS)
            )
        inputs, labels = torch.from_numpy(x), torch.from_numpy(y)
        return Splits(inputs[test:], labels[test:], inputs[:test], labels[:test], owner)

    def prepare(self, x: torch.Tensor) -> torch.Tensor:
        return x.to(self.dtype)
