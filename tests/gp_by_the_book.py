"""A Gaussian process with plain inverses, to compare the fast one with."""

from __future__ import annotations

import numpy as np

from fedsuv_plugin.selectors.maths.marginal_likelihood import Hyper


def kernel_by_the_book(a: np.ndarray, b: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Matern 5/2 between all rows of a and b."""
    distance = np.sqrt((((a[:, None, :] - b[None, :, :]) / lengths) ** 2).sum(-1))
    return (1 + np.sqrt(5) * distance + 5 / 3 * distance**2) * np.exp(-np.sqrt(5) * distance)


def posterior_by_the_book(
    inputs: np.ndarray, places: np.ndarray, values: np.ndarray, hyper: Hyper
) -> tuple[np.ndarray, np.ndarray]:
    """Mean and deviation at all inputs; repeated observations of a place are separate rows."""
    observed = inputs[places]
    k_all = hyper.signal * kernel_by_the_book(inputs, observed, hyper.lengths)
    k_observed = hyper.signal * kernel_by_the_book(observed, observed, hyper.lengths)
    inverse = np.linalg.inv(k_observed + hyper.noise * np.eye(len(places)))
    mean = hyper.mean + k_all @ inverse @ (values - hyper.mean)
    deviation = np.sqrt(hyper.signal - np.einsum("np,pq,nq->n", k_all, inverse, k_all))
    return mean, deviation
