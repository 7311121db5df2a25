"""Pickles that may be read, and those that are refused."""

from __future__ import annotations

import pickle
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from fedsuv_plugin import safe_pickle
from fedsuv_plugin.config.job import Job


def test_what_may_be_sent_arrives_as_it_was() -> None:
    array = np.arange(6.0).reshape(2, 3)[:, ::-1]
    plain = [np.float64(1.5), np.array(3), b"x", None, True, (1, "y")]
    sent = {
        "a": array,
        "b": plain,
        "t": torch.arange(4),
        "p": torch.nn.Parameter(torch.ones(2)),
        "s": {1, 2},
        "n": float("nan"),
    }
    for protocol in range(2, 6):
        got = safe_pickle.loads(pickle.dumps(sent, protocol))
        np.testing.assert_array_equal(got["a"], array)
        assert got["b"] == plain
        assert torch.equal(got["t"], torch.arange(4))
        assert torch.equal(got["p"], torch.ones(2))
        assert got["s"] == {1, 2}
        assert np.isnan(got["n"])


@pytest.mark.parametrize(
    "value", [print, subprocess.Popen, eval, Path("x"), np.random.default_rng, torch.load, Job]
)
def test_what_may_not_be_sent(value: object) -> None:
    with pytest.raises(safe_pickle.UnsafePickle, match="refused"):
        safe_pickle.loads(pickle.dumps(value))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"garbage",
        pickle.dumps([1, 2])[:-3],
        b"\x80\x05c_codecs\nencode\nX\x01\x00\x00\x00aX\x06\x00\x00\x00rot-13\x86R.",
    ],
)
def test_what_is_no_pickle(data: bytes) -> None:
    with pytest.raises(safe_pickle.UnsafePickle):
        safe_pickle.loads(data)
