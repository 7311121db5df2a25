"""Numbers for all clients at once, each a function of its client alone."""

from __future__ import annotations

import numpy as np
import pytest
from selector_worlds import five_sigma

from fedsuv_plugin.randomness import normals, uniforms

IDS = np.arange(1, 100_001)


def test_uniforms_are_uniform() -> None:
    # Binomial(100000, 1/20) in each twentieth.
    counts = np.histogram(uniforms(7, "luck", IDS, 3), np.linspace(0, 1, 21))[0]
    assert counts.sum() == len(IDS)
    assert np.abs(counts - 5000).max() < five_sigma(100_000, 1 / 20)


@pytest.mark.parametrize("draw", [uniforms, normals])
def test_a_number_depends_on_seed_name_client_and_number_alone(draw: type) -> None:
    luck = draw(7, "luck", IDS, 3)
    np.testing.assert_array_equal(draw(7, "luck", IDS[::-1], 3), luck[::-1])
    assert draw(7, "luck", np.array([500]), 3)[0] == luck[499]
    others = [
        draw(8, "luck", IDS, 3),
        draw(7, "fate", IDS, 3),
        draw(7, "luck", IDS, 4),
        draw(7, "luck", IDS + 1, 3),
    ]
    for other in others:  # a correlation of independent ones: five standard deviations of 1/sqrt(n)
        assert abs(np.corrcoef(luck, other)[0, 1]) < 5 / np.sqrt(len(IDS))


def test_normals_are_the_quantiles_of_the_uniforms() -> None:
    # The normal distribution function by its definition, at the numbers that came out.
    from math import erf, sqrt

    luck = uniforms(7, "luck", IDS[:100], 3)
    for u, z in zip(luck, normals(7, "luck", IDS[:100], 3), strict=True):
        assert (1 + erf(z / sqrt(2))) / 2 == pytest.approx(u, abs=1e-12)
