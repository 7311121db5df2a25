"""Accuracy and losses by hand, and many small sets at once."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from conftest import MakeJob
from engine_worlds import data_of

from fedsuv_plugin.engine.evaluation import Evaluation, accuracies, evaluate
from fedsuv_plugin.tasks.federated_data import Samples, initial_model


class Scores(torch.nn.Module):
    """A model whose scores are its inputs."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


def test_counts_and_losses_by_hand() -> None:
    # Six classes; the label's score is the highest, the second and the lowest of six.
    scores = torch.tensor([[9.0, 1, 2, 3, 4, 5], [9.0, 1, 2, 3, 4, 5], [9.0, 1, 2, 3, 4, 5]])
    labels = torch.tensor([0, 5, 1])
    losses = torch.logsumexp(scores, 1) - scores[torch.arange(3), labels]
    for batch in (1, 2, 3, 64):
        result = evaluate(Scores(), Samples(scores, labels), "lr", batch)
        assert (result.n, result.correct, result.correct_5) == (3, 1, 2)
        assert result.accuracy == pytest.approx(1 / 3)
        assert result.mean_loss == pytest.approx(float(losses.mean()))
        assert result.mean_square_loss == pytest.approx(float(losses.square().mean()))


def test_nothing_to_evaluate_is_zero_and_no_error() -> None:
    nothing = Samples(torch.zeros(0, 6), torch.zeros(0, dtype=torch.int64))
    result = evaluate(Scores(), nothing, "lr", 64)
    assert (result.n, result.accuracy, result.mean_loss, result.mean_square_loss) == (0, 0, 0, 0)
    assert Evaluation().accuracy == 0


@pytest.mark.parametrize("batch", [7, 64, 4096])
def test_opinions_in_bulk_are_those_one_by_one(job: MakeJob, batch: int) -> None:
    small = job(num_clients=40, holdout_fraction=0.2)  # some of them have nothing to hold out
    data = data_of(small)
    model = initial_model(small.config)
    clients, lengths, batches = data.held_out_together(np.arange(1, 41), batch)
    assert 0 < len(clients) < 40
    expected = [evaluate(model, data.held_out(c), "lr", 128).accuracy for c in clients.tolist()]
    assert accuracies(model, batches, lengths).tolist() == expected
    assert all(len(data.held_out(c)) == 0 for c in set(range(1, 41)) - set(clients.tolist()))


def test_nobody_holds_anything_out(job: MakeJob) -> None:
    clients, lengths, batches = data_of(job()).held_out_together(np.arange(1, 21), 64)
    assert len(clients) == len(accuracies(initial_model(job().config), batches, lengths)) == 0
