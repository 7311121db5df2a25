"""Random: every online client is as likely as any other.

Paper: H. B. McMahan, E. Moore, D. Ramage, S. Hampson, B. Aguera y Arcas. "Communication-Efficient
    Learning of Deep Networks from Decentralized Data." AISTATS 2017. Algorithm 1, the line
    "S_t <- random set of m clients".

Paper symbol -> name here
    m -> k    S_t -> the rows that `select` returns
Departures
    none (FedScale's mode of this name leaves one client out when it shuffles; here nobody is)
"""

from __future__ import annotations

import numpy as np

from fedsuv_plugin.selectors.base import RoundView, Selector


class Random(Selector):
    """A uniformly random cohort."""

    name = "random"
    paper = "McMahan et al., Communication-Efficient Learning of Deep Networks, AISTATS 2017"

    def select(self, view: RoundView, k: int) -> np.ndarray:
        return self.rng.choice(view.online, min(k, len(view.online)), replace=False)
