"""What the server itself computes for a selector: the global model's accuracy, the public set's loss, probes in a
stream, and a selector around another one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import install, records, run, run_killed_and_resumed, same_records

from fedsuv_plugin.config.job import Job
from fedsuv_plugin.engine.client import evaluate
from fedsuv_plugin.engine.client_manager import SelectorClientManager
from fedsuv_plugin.engine.public_loss import PublicLoss
from fedsuv_plugin.errors import UserError
from fedsuv_plugin.selectors import base as signal
from fedsuv_plugin.selectors.base import Probe, RoundOutcome, RoundView, Selector
from fedsuv_plugin.tasks.federated_data import (
    FederatedData,
    initial_model,
    noisy_clients,
    public_set,
)

MakeJob = Callable[..., Job]
CPU = torch.device("cpu")


class Watcher(Selector):
    """Keeps every view and outcome, and asks twice a round for directions, in a stream."""

    name, paper = "watcher", "this test"
    needs = frozenset({signal.GLOBAL_ACCURACY, signal.PUBLIC_LOSS, signal.DIRECTION})
    views: list[RoundView] = []
    outcomes: list[RoundOutcome] = []
    received: list[tuple[int, int, np.ndarray]] = []

    def probe(self, view: RoundView) -> Probe | None:
        first = view.probe is None
        return Probe(
            signal.DIRECTION,
            view.online[[3, 1]] if first else view.online[:1],
            one_by_one=True,
            more=first,
        )

    def receive(self, row: int, value: np.ndarray) -> None:
        self.received.append((len(self.views), row, value))

    def select(self, view: RoundView, k: int) -> np.ndarray:
        self.views.append(view)
        return view.online[:k]

    def update(self, outcome: RoundOutcome) -> None:
        self.outcomes.append(outcome)


class WatcherManager(SelectorClientManager):
    selector_class = Watcher


@pytest.fixture
def watcher(monkeypatch: pytest.MonkeyPatch) -> type[Watcher]:
    install(monkeypatch, WatcherManager)
    for kept in ("views", "outcomes", "received"):
        monkeypatch.setattr(Watcher, kept, [])
    return Watcher


def parameters(model: torch.nn.Module) -> np.ndarray:
    return torch.nn.utils.parameters_to_vector(model.parameters()).detach().numpy()


@pytest.mark.parametrize("samples", [None, 50])
def test_the_global_model_is_evaluated_every_round_for_a_selector_that_needs_it(
    job: MakeJob, watcher: type[Watcher], samples: int | None
) -> None:
    small = job(sample_mode="watcher", rounds=5, eval_interval=3, selector_test_samples=samples)
    path = run(small)
    metrics = records(path, "metrics.jsonl")
    assert [m["round"] for m in metrics] == [
        0,
        3,
        5,
    ]  # as eval_interval says, on the whole test set
    assert [o.accuracy is not None and o.test_loss is not None for o in watcher.outcomes] == [
        True
    ] * 5
    # The view of a round is the outcome of the one before.
    assert [v.accuracy for v in watcher.views[1:]] == [o.accuracy for o in watcher.outcomes[:-1]]
    # Every number belongs to the weights the same view gives.
    test = FederatedData(small.config, CPU).test
    for view in watcher.views:
        model = initial_model(small.config)
        torch.nn.utils.vector_to_parameters(torch.from_numpy(view.weights), model.parameters())
        own = evaluate(model, type(test)(test.x[:samples], test.y[:samples]), "lr", 64)
        assert view.accuracy == pytest.approx(own.accuracy)
        assert view.test_loss == pytest.approx(own.mean_loss)
    if samples is None:
        assert watcher.outcomes[2].accuracy == pytest.approx(metrics[1]["accuracy"])


def test_nothing_is_evaluated_or_handed_out_unless_it_is_needed(
    job: MakeJob, watcher: type[Watcher], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watcher, "needs", frozenset())
    monkeypatch.setattr(watcher, "probe", lambda self, view: None)
    run(job(sample_mode="watcher", rounds=4, eval_interval=2))
    assert [o.accuracy is None for o in watcher.outcomes] == [True, False, True, False]
    assert all(v.weights is None and v.public_loss is None for v in watcher.views)


def test_the_public_loss_is_that_of_the_given_parameters_on_samples_no_client_has(
    job: MakeJob, watcher: type[Watcher]
) -> None:
    small = job(sample_mode="watcher", rounds=2)
    run(small)
    data, public = (
        FederatedData(replace(small.config, public_fraction=0.05), CPU),
        public_set(replace(small.config, public_fraction=0.05)),
    )
    assert len(public) == 30  # 5 % of 600
    clients = torch.cat([data.training(c).x for c in range(1, 21)])
    assert len(clients) == 570
    assert not set(clients[:, 0].tolist()) & set(public.x[:, 0].tolist())
    for view in watcher.views:
        assert view.public_loss is not None and view.weights is not None
        for candidate in (view.weights, 0.5 * view.weights, np.zeros_like(view.weights)):
            model = initial_model(small.config)
            torch.nn.utils.vector_to_parameters(torch.from_numpy(candidate), model.parameters())
            assert view.public_loss(candidate.astype(float)) == pytest.approx(
                evaluate(model, public, "lr", 64).mean_loss
            )
    assert watcher.views[0].public_loss(0 * watcher.views[0].weights) == pytest.approx(np.log(4))  # type: ignore[operator, misc]


def test_the_public_loss_takes_the_global_models_batch_norm_statistics(job: MakeJob) -> None:
    config = job(data_set="digits", model="shufflenet_v2_x0_5").config
    public, model = public_set(replace(config, public_fraction=0.02)), initial_model(config)
    loss = PublicLoss(config, public)
    before = loss(parameters(model))
    model.train()
    model(public.x)  # moves the statistics
    loss.follow(model)
    assert loss(parameters(model)) == pytest.approx(
        evaluate(model, public, config.model, 64).mean_loss, rel=1e-5
    )
    assert loss(parameters(model)) != before


def test_a_public_set_from_a_named_data_set(job: MakeJob) -> None:
    config = job(data_set="synthetic", public_data_set="synthetic", public_samples=17).config
    assert len(public_set(replace(config, public_fraction=0.0))) == 17
    with pytest.raises(
        UserError, match="public_data_set: expected a data set with inputs of shape"
    ):
        public_set(replace(job(public_data_set="digits").config, public_fraction=0.0))
    with pytest.raises(UserError, match="public_fraction: expected enough for at least one sample"):
        public_set(replace(job().config, public_fraction=0.0))


def test_a_map_file_keeps_its_owners_without_the_public_samples(
    job: MakeJob, tmp_path: Path
) -> None:
    (tmp_path / "map.csv").write_text(
        "client_id,label_id\n" + "".join(f"{i % 7},x\n" for i in range(600))
    )
    config = job(data_map_file=str(tmp_path / "map.csv"), num_clients=7).config
    whole, carved = (
        FederatedData(config, CPU),
        FederatedData(replace(config, public_fraction=0.1), CPU),
    )
    assert carved.getSize()["size"].sum() == 540
    for c in range(1, 8):
        assert set(carved.training(c).x[:, 0].tolist()) < set(whole.training(c).x[:, 0].tolist())


def test_streamed_answers_come_one_by_one_in_order_and_the_selector_may_ask_again(
    job: MakeJob, watcher: type[Watcher]
) -> None:
    run(job(sample_mode="watcher", rounds=2, overcommitment=1.0))
    assert [(t, row) for t, row, _ in watcher.received] == [
        (0, 3),
        (0, 1),
        (0, 0),
        (1, 3),
        (1, 1),
        (1, 0),
    ]
    answer = watcher.views[0].probe
    assert answer is not None
    assert answer.rows.tolist() == [0]  # of the second probe
    assert answer.values.shape == (1, 0)
    # The probe trains as the round does: the first cohort's directions come out again.
    by_row = {row: value for t, row, value in watcher.received if t == 0}
    for i, row in enumerate(watcher.outcomes[0].rows.tolist()):
        np.testing.assert_allclose(
            watcher.outcomes[0].signals[signal.DIRECTION][i], by_row[row], atol=1e-6
        )
        if i == 1:
            break
    assert watcher.views[0].seats == 4


def test_a_streamed_answer_that_is_not_finite_is_left_out() -> None:
    made = stocked()
    taken: list[int] = []
    made.selector.receive = lambda row, value: taken.append(row)
    answers = {
        c: made.stream_answer(c, np.array([1.0, np.nan if c == 2 else 1.0])) for c in (1, 2, 3)
    }
    made.answer_probe(signal.DIRECTION, answers)
    assert taken == [0, 2]
    assert made._answer.rows.tolist() == [0, 2]
    assert made._answer.values.shape == (2, 0)


def stocked() -> Any:
    from fedsuv_plugin.engine.fedscale_env import parser_module

    made = WatcherManager("watcher", args=parser_module().parser.parse_args([]))
    made.filter_less = 1
    for i in range(1, 4):
        made.register_client(1, i, size=10, speed={"computation": 1.0, "communication": 1.0})
    return made


def test_a_selector_that_asks_for_a_stream_must_take_it() -> None:
    made = stocked()
    with pytest.raises(NotImplementedError, match="watcher asks for a stream"):
        Selector.receive(made.selector, 0, np.zeros(1))


# ---- clients with wrong labels


def test_label_noise_shifts_every_label_of_the_chosen_clients(job: MakeJob) -> None:
    clean = FederatedData(replace(job().config, holdout_fraction=0.2), CPU)
    noisy = FederatedData(replace(job(label_noise_clients=0.25).config, holdout_fraction=0.2), CPU)
    wrong = noisy_clients(job(label_noise_clients=0.25).config, 20)
    assert len(wrong) == 5
    assert not noisy_clients(job().config, 20)
    for c in range(1, 21):
        shift = int(c in wrong)
        for part in ("training", "held_out"):
            before, after = getattr(clean, part)(c), getattr(noisy, part)(c)
            assert torch.equal(after.x, before.x)
            assert torch.equal(after.y, (before.y + shift) % 4)
    assert torch.equal(noisy.test.y, clean.test.y)
    assert wrong != noisy_clients(job(label_noise_clients=0.25, seed=4).config, 20)


# ---- the selectors that use all this


def test_processes_give_the_numbers_of_loopback(job: MakeJob) -> None:
    values = {"sample_mode": "gpfl", "rounds": 5, "selector_test_samples": 60}
    same_records(run(job(**values)), run(job(**values), launcher="processes", executors=2))


@pytest.mark.parametrize("selector", ["gpfl", "pow_d"])
def test_a_resumed_job_ends_with_the_same_records(job: MakeJob, selector: str) -> None:
    values = {"sample_mode": selector, "rounds": 7, "checkpoint_every": 3}
    same_records(run_killed_and_resumed(job(**values), 5), run(job(**values)))


@pytest.mark.parametrize("selector", ["gpfl", "pow_d", "divfl", "filfl"])
def test_rounds_without_anyone_online_change_nothing_for_later(
    job: MakeJob, tmp_path: Path, selector: str
) -> None:
    """Nobody is online at first and again later; whoever comes then is asked as at the start."""
    import pickle

    (tmp_path / "trace").write_bytes(
        pickle.dumps(
            {
                0: {
                    "active": [100, 200],
                    "inactive": [130, 230],
                    "finish_time": 300,
                    "duration": 1,
                    "model": "x",
                }
            }
        )
    )
    rounds = records(
        run(
            job(
                sample_mode=selector,
                rounds=8,
                device_avail_file=str(tmp_path / "trace"),
                filfl__period=1,
                overcommitment=1.0,
            )
        )
    )
    assert not rounds[0]["asked"]
    assert any(r["valid"] for r in rounds)
    if selector == "gpfl":
        assert rounds[-1]["selector"]["projection_quantiles"][-1] > 0  # the probe took place


def test_gpfl_learns_and_reports(job: MakeJob) -> None:
    path = run(job(sample_mode="gpfl", rounds=15, overcommitment=1.0))
    rounds, metrics = records(path), records(path, "metrics.jsonl")
    assert metrics[-1]["loss"] < metrics[0]["loss"] * 0.9
    assert [r["selector"]["coverage"] for r in rounds] == [
        len({c for r in rounds[:t] for c in r["asked"]}) for t in range(1, 16)
    ]
    assert all(
        len(r["selector"]["projection_quantiles"]) == len(r["selector"]["index_quantiles"]) == 5
        for r in rounds
    )


# ---- shards


def test_shards_by_hand() -> None:
    from fedsuv_plugin.tasks.partitions import partition

    labels = np.repeat(np.arange(10), 60)
    parts = partition(labels, "shards", 20, 0.5, np.random.default_rng(0), shards_per_client=2)
    assert set(parts.sizes.tolist()) == {30}  # 40 shards of 15, 4 to a class
    assert all(len(np.unique(labels[parts.samples(c)])) <= 2 for c in range(20))
    one = partition(labels, "shards", 20, 0.5, np.random.default_rng(0), shards_per_client=1)
    assert all(len(np.unique(labels[one.samples(c)])) == 1 for c in range(20))
