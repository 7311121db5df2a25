"""Whole jobs on small worlds: they learn, record, repeat and resume."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import MakeJob, records, run, run_killed_and_resumed, same_records
from engine_worlds import MANY_KEYS, data_of, user

from fedsuv_plugin.errors import UserError


def test_a_job_learns_and_records_every_round(job: MakeJob) -> None:
    path = run(job(rounds=20))
    rounds = records(path)
    metrics = records(path, "metrics.jsonl")
    assert [r["round"] for r in rounds] == list(range(1, 21))
    assert [m["round"] for m in metrics] == [0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20]
    # In this world the nearest class mean is as good as any rule gets. 20 short rounds on 20 % of
    # the clients may be 0.1 short of it; the untrained model is near guessing, 0.25.
    data = data_of(job())
    everyone = [data.training(c) for c in range(1, 21)]
    x = torch.cat([s.x for s in everyone])
    y = torch.cat([s.y for s in everyone])
    means = torch.stack([x[y == label].mean(0) for label in range(4)])
    reachable = float((torch.cdist(data.test.x, means).argmin(1) == data.test.y).float().mean())
    assert metrics[0]["accuracy"] < 0.5
    assert metrics[-1]["accuracy"] > reachable - 0.1
    for r in rounds:
        assert (len(r["asked"]), len(r["valid"])) == (5, 4)
        assert set(r["valid"]) < set(r["asked"])
    clocks = np.cumsum([r["duration"] for r in rounds])
    assert [r["clock"] for r in rounds] == pytest.approx(clocks.tolist())
    kept = {"config.yml", "environment.json", "checkpoint", "tensorboard", "log"}
    assert {p.name for p in path.iterdir()} >= kept
    assert any((path / "tensorboard").iterdir())


def test_the_same_seed_gives_the_same_records_and_another_seed_others(job: MakeJob) -> None:
    first = run(job())
    again = run(job())
    other = run(job(seed=4))
    for file in ("rounds.jsonl", "metrics.jsonl"):
        assert records(first, file) == records(again, file)
        assert records(first, file) != records(other, file)


@pytest.mark.parametrize("selector", ["random", "round_robin", "oort", "fedsuv"])
def test_swapping_the_selector_changes_only_the_selection(job: MakeJob, selector: str) -> None:
    path = run(job(sample_mode=selector, overcommitment=1.0, device_conf_file=None))
    other = run(job(overcommitment=1.0))
    assert records(path, "metrics.jsonl")[0] == records(other, "metrics.jsonl")[0]
    assert len(records(path)) == 6


@pytest.mark.parametrize("model", ["lr", "svm", "mlp", "cnn", "mnasnet0_5", "shufflenet_v2_x0_5"])
def test_every_model_trains_on_images(job: MakeJob, model: str) -> None:
    short = {"rounds": 1, "num_participants": 2, "local_steps": 1, "eval_interval": 1}
    path = run(job(data_set="digits", model=model, gradient_policy="fed-yogi", **short))
    assert len(records(path, "metrics.jsonl")) == 2


def test_a_model_that_does_not_fit_its_data_is_refused(job: MakeJob) -> None:
    with pytest.raises(UserError, match="model: expected a data set of images for cnn"):
        run(job(model="cnn"))
    with pytest.raises(UserError, match="model: alexnet does not take inputs of shape"):
        run(job(data_set="digits", model="alexnet"))
    message = "model: expected one of char_lstm, .*cnn, .* or a torchvision classifier"
    with pytest.raises(UserError, match=message):
        run(job(model="resnet"))


# ---- resumed jobs


@pytest.mark.parametrize(
    "values",
    [{"sample_mode": "gpfl"}, {"sample_mode": "pow_d"}, MANY_KEYS],
    ids=["gpfl", "pow_d", "keys"],
)
def test_a_resumed_job_ends_with_the_same_records(job: MakeJob, values: dict[str, object]) -> None:
    small = job(rounds=7, checkpoint_every=3, **values)
    same_records(run_killed_and_resumed(small, 5), run(small))


@pytest.mark.parametrize(
    "values",
    [
        {"sample_mode": "bp_ucb", "bp_ucb__slot_rounds": 2, "bp_ucb__mu": 0.5},
        {"sample_mode": "ucb", "ucb__slot_rounds": 2},
        {
            "sample_mode": "pczfl",
            "pczfl__warmup_rounds": 2,
            "pczfl__a_b": 0.1,
            "pczfl__energy": "uniform",
        },
    ],
    ids=["bp_ucb", "ucb", "pczfl"],
)
def test_a_job_in_slots_or_balls_is_resumed_exactly(
    job: MakeJob, values: dict[str, object]
) -> None:
    small = job(rounds=10, checkpoint_every=3, **values)
    whole = run(small)
    same_records(run_killed_and_resumed(small, 8), whole)
    assert len({tuple(r["asked"]) for r in records(whole)}) > 1


# ---- selectors that ask the server or probe


@pytest.mark.parametrize(
    "selector", ["gpfl", "pow_d", "divfl", "filfl", "afl", "fedcor", "nccb", "refl"]
)
def test_rounds_without_anyone_online_change_nothing_for_later(
    job: MakeJob, tmp_path: Path, selector: str
) -> None:
    """Nobody is online at first and again later; whoever comes then is asked as at the start."""
    online = user((100, 130), (200, 230), period=300)
    (tmp_path / "trace").write_bytes(pickle.dumps({0: online}))
    small = job(
        sample_mode=selector,
        rounds=8,
        device_avail_file=str(tmp_path / "trace"),
        filfl__period=1,
        overcommitment=1.0,
    )
    rounds = records(run(small))
    assert not rounds[0]["asked"]
    assert any(r["valid"] for r in rounds)
    if selector == "gpfl":
        assert rounds[-1]["selector"]["projection_quantiles"][-1] > 0  # the probe took place


def test_gpfl_learns_and_reports(job: MakeJob) -> None:
    path = run(job(sample_mode="gpfl", rounds=15, overcommitment=1.0))
    rounds = records(path)
    metrics = records(path, "metrics.jsonl")
    assert metrics[-1]["loss"] < metrics[0]["loss"] * 0.9
    coverage = [len({c for r in rounds[:t] for c in r["asked"]}) for t in range(1, 16)]
    assert [r["selector"]["coverage"] for r in rounds] == coverage
    for r in rounds:
        assert len(r["selector"]["projection_quantiles"]) == 5
        assert len(r["selector"]["index_quantiles"]) == 5
