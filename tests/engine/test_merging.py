"""Merging: the updates that are due, and the global model -> the next one, by hand."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import MakeJob, checkpoint, run
from engine_worlds import data_of
from torch import cat
from torch.nn.functional import cross_entropy

from fedsuv_plugin.engine.merging import Merge, Update, WeightedAverage, Weights
from fedsuv_plugin.tasks.federated_data import initial_model

MODEL = [np.array([0.0, 10.0], np.float32), np.array(0)]


def test_average_by_hand() -> None:
    merge = WeightedAverage(MODEL)
    merge.add(Update(1, [np.array([1.0, 2.0], np.float32), np.array(3)], weight=1.0))
    merge.add(Update(2, [np.array([4.0, 8.0], np.float32), np.array(6)], weight=2.0))
    weights, count = merge.result()
    assert weights.tolist() == [3.0, 6.0]  # (1 + 2 x 4) / 3, (2 + 2 x 8) / 3
    assert weights.dtype == np.float32
    assert count == 5  # (3 + 12) / 3
    assert count.dtype.kind == "i"


def test_nothing_came_and_the_model_stays() -> None:
    assert WeightedAverage(MODEL).result() is MODEL


@pytest.mark.parametrize(("counts", "rounded"), [([1, 2, 2], 2), ([1, 1, 2], 1), ([10, 20], 15)])
def test_counts_are_rounded_and_not_cut_off(counts: list[int], rounded: int) -> None:
    merge = WeightedAverage(MODEL)
    for client, count in enumerate(counts):
        merge.add(Update(client, [np.zeros(2, np.float32), np.array(count)]))
    assert merge.result()[1] == rounded


def test_sums_are_in_double_precision() -> None:
    """In single precision 2^25 + 1 - 2^25 is 0."""
    merge = WeightedAverage([np.zeros(1, np.float32)])
    for value in (2.0**25, 1.0, -(2.0**25), 3.0):
        merge.add(Update(1, [np.array([value], np.float32)]))
    assert merge.result()[0].tolist() == [1.0]


def test_an_update_may_change_once_it_is_merged() -> None:
    merge = WeightedAverage(MODEL)
    sent = [np.array([2.0, 2.0], np.float32), np.array(4)]
    merge.add(Update(1, sent))
    sent[0][:] = 99.0
    assert merge.result()[0].tolist() == [2.0, 2.0]
    assert MODEL[0].tolist() == [0.0, 10.0]


class Stale(Merge):
    """A toy late policy: an update that is s rounds late moves the model by weight / (1 + s).

    next = model + sum of w (update - model) / sum of w, with w = weight / (1 + staleness)."""

    def __init__(self, model: Weights):
        super().__init__(model)
        self.seen: list[tuple[int, int]] = []
        self._moves = [np.zeros(np.shape(w)) for w in model]
        self._total = 0.0

    def add(self, update: Update) -> None:
        self.seen.append((update.client, update.staleness))
        say = update.weight / (1 + update.staleness)
        for move, new, old in zip(self._moves, update.weights, self.model, strict=True):
            move += say * (new - old)
        self._total += say

    def result(self) -> Weights:
        if not self._total:
            return self.model
        return [
            (old + move / self._total).astype(old.dtype)
            for old, move in zip(self.model, self._moves, strict=True)
        ]


def test_a_policy_weighs_late_updates_as_it_likes() -> None:
    """Two fresh ones and one that is three rounds late, with the global model at hand."""
    merge = Stale([np.array([0.0, 10.0], np.float32)])
    merge.add(Update(4, [np.array([4.0, 10.0], np.float32)], weight=1.0))
    merge.add(Update(2, [np.array([0.0, 18.0], np.float32)], weight=2.0))
    merge.add(Update(9, [np.array([8.0, 2.0], np.float32)], weight=4.0, staleness=3))
    # Their say is 1, 2 and 4 / 4 = 1: (4 + 0 + 8) / 4 = 3 and 10 + (0 + 16 - 8) / 4 = 12.
    assert merge.result()[0].tolist() == [3.0, 12.0]
    assert merge.seen == [(4, 0), (2, 0), (9, 3)]


def test_a_policy_to_which_nothing_comes_keeps_the_model() -> None:
    assert Stale(MODEL).result() is MODEL


def test_a_policy_without_its_two_methods_cannot_be_made() -> None:
    class Half(Merge):
        def add(self, update: Update) -> None: ...

    with pytest.raises(TypeError, match="abstract"):
        Half(MODEL)  # type: ignore[abstract]


def test_aggregation_by_samples_weighs_clients_by_their_data(job: MakeJob) -> None:
    """One step at a batch of all data is a gradient step on the clients' pooled samples."""
    everyone = job(
        aggregation_weights="samples",
        rounds=1,
        local_steps=1,
        batch_size=600,
        num_participants=20,
        overcommitment=1.0,
        momentum=0.0,
        weight_decay=0.0,
        learning_rate=0.5,
    )
    got = checkpoint(run(everyone))["model"]["weights"]
    model = initial_model(everyone.config)
    data = data_of(everyone)
    own = [data.training(c) for c in range(1, 21)]
    cross_entropy(model(cat([s.x for s in own])), cat([s.y for s in own])).backward()
    for parameter, array in zip(model.parameters(), got, strict=True):
        assert parameter.grad is not None
        expected = (parameter - 0.5 * parameter.grad).detach().numpy()
        np.testing.assert_allclose(array, expected, atol=1e-6)
