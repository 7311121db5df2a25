"""Job keys of training and availability: local_epochs, momentum, weight decay, decay_factor, available_clients."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import ROOT, SMALL, install, records, run, run_killed_and_resumed, same_records
from fedsuv_plugin.job import fedscale_args
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsuv_plugin.config.argv import Place
from fedsuv_plugin.config.job import Job, make_job
from fedsuv_plugin.engine.client import Plan, PluginClient
from fedsuv_plugin.engine.client_manager import SelectorClientManager
from fedsuv_plugin.errors import UserError
from fedsuv_plugin.randomness import torch_seed
from fedsuv_plugin.selectors.base import RoundView, Selector
from fedsuv_plugin.tasks.federated_data import FederatedData, Samples, initial_model
from fedsuv_plugin.traces.clock import TRAINING_FACTOR, Work, durations, energy
from fedsuv_plugin.traces.files import write
from fedsuv_plugin.traces.population import load_population
from fedsuv_plugin.traces.tables import Trace

MakeJob = Callable[..., Job]
CPU = torch.device("cpu")
DEVICES = str(ROOT / "device_traces" / "population_3500.npz")


def trained(
    job: Job, data: Samples, client: int = 1, round_number: int = 1
) -> tuple[torch.nn.Module, dict[str, Any]]:
    args, model = fedscale_args(job, Place()), initial_model(job.config)
    return model, PluginClient(args).train(
        data, model, Namespace(**vars(args), client_id=client, round=round_number)
    )


def samples_of(n: int) -> Samples:
    torch.manual_seed(5)
    return Samples(torch.randn(n, 8), torch.randint(4, (n,)))


# ---- local_epochs


@settings(deadline=None, derandomize=True, max_examples=60)
@given(
    n=st.integers(1, 60),
    batch=st.integers(1, 20),
    epochs=st.integers(1, 4),
    steps=st.integers(1, 9),
)
def test_the_plan(n: int, batch: int, epochs: int, steps: int) -> None:
    from fedsuv_plugin.engine.client import _batches

    data = Samples(torch.arange(n), torch.arange(n))
    for conf in (
        Namespace(batch_size=batch, local_epochs=epochs, local_steps=steps),
        Namespace(batch_size=batch, local_epochs=None, local_steps=steps),
    ):
        plan = Plan.of(conf, n)
        batches = [x.tolist() for x, _ in _batches(data, plan, torch.randperm(n))]
        assert len(batches) == plan.steps
        for start in range(0, plan.steps, plan.steps_per_epoch):
            epoch = sum(batches[start : start + plan.steps_per_epoch], [])
            assert len(set(epoch)) == len(epoch)
            if conf.local_epochs is not None:
                assert sorted(epoch) == list(range(n))
        if conf.local_epochs is None:
            assert {len(b) for b in batches} == {min(batch, n)}
            assert plan.steps == steps
        else:
            assert sum(map(len, batches)) == epochs * n


@pytest.mark.parametrize(
    ("n", "keys"),
    [
        (19, {}),
        (19, {"momentum": 0.0, "weight_decay": 0.0}),
        (5, {}),
        (16, {"weight_decay": 0.1}),
        (19, {"gradient_policy": "fed-prox", "proxy_mu": 0.3}),
    ],
)
def test_local_epochs_are_a_plain_loop_of_sgd(
    job: MakeJob, n: int, keys: dict[str, object]
) -> None:
    """Batches of 8 of n samples for three epochs; momentum and weight decay as SGD has them: v = m v + g + w theta."""
    made, data = job(local_epochs=3, local_steps=50, learning_rate=0.1, **keys), samples_of(n)
    model, result = trained(made, data)
    config, reference = made.config, initial_model(made.config)
    start = [p.detach().clone() for p in reference.parameters()]
    velocity = [torch.zeros_like(p) for p in start]
    torch.manual_seed(torch_seed(config.seed, "client", 1, 1))
    losses = []
    for _ in range(3):
        for rows in torch.randperm(n).split(8):
            each = torch.nn.functional.cross_entropy(
                reference(data.x[rows]), data.y[rows], reduction="none"
            )
            losses.append(each.detach())
            gradients = torch.autograd.grad(each.mean(), list(reference.parameters()))
            with torch.no_grad():
                for i, (p, g) in enumerate(zip(reference.parameters(), gradients, strict=True)):
                    if config.gradient_policy == "fed-prox":
                        g = g + config.proxy_mu * (p - start[i])
                    velocity[i] = config.momentum * velocity[i] + g + config.weight_decay * p
                    p -= 0.1 * velocity[i]
    for ours, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        np.testing.assert_allclose(ours.detach().numpy(), theirs.detach().numpy(), atol=2e-6)
    assert result["trained_size"] == 3 * n
    first = torch.cat(losses[: -(-n // 8)]).double()
    assert len(first) == n
    assert result["utility"] == pytest.approx(n * float(first.square().mean().sqrt()), rel=1e-5)


def test_momentum_and_weight_decay_act(job: MakeJob) -> None:
    def weights(**keys: object) -> np.ndarray:
        model, _ = trained(job(learning_rate=0.1, **keys), samples_of(30))
        return torch.nn.utils.parameters_to_vector(model.parameters()).detach().numpy()

    plain = weights(momentum=0.0, weight_decay=0.0)
    assert np.abs(weights(momentum=0.9, weight_decay=0.0) - plain).max() > 1e-3
    assert np.linalg.norm(weights(momentum=0.0, weight_decay=1.0)) < np.linalg.norm(plain)


def test_the_learning_rate_decays_from_round_to_round(
    job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, float]] = []
    original = PluginClient.get_optimizer

    def spy(self: PluginClient, model: torch.nn.Module, conf: Namespace) -> torch.optim.Optimizer:
        optimizer = original(self, model, conf)
        seen.append((conf.round, optimizer.param_groups[0]["lr"]))
        return optimizer

    monkeypatch.setattr(PluginClient, "get_optimizer", spy)
    run(job(learning_rate=0.4, decay_factor=0.5, decay_round=2, min_learning_rate=0.15, rounds=5))
    assert dict(seen) == pytest.approx({1: 0.4, 2: 0.2, 3: 0.2, 4: 0.15, 5: 0.15})


def test_local_epochs_take_the_time_of_a_clients_own_samples() -> None:
    population, sizes = load_population(50, DEVICES, None), np.arange(50) * 7
    rows = np.array([3, 10, 49])
    computing, communicating = durations(
        population, Work(8, 99, 10.0, 10.0, epoch_samples=2 * sizes), rows
    )
    for i, row in enumerate(rows.tolist()):
        assert computing[i] == pytest.approx(
            TRAINING_FACTOR * 2 * 7 * row * population.ms_per_sample[row] / 1000
        )
    assert np.array_equal(communicating, durations(population, Work(8, 99, 10.0, 10.0), rows)[1])


class Looking(Selector):
    """Asks the first k, and keeps what it was shown."""

    name, paper = "looking", "none"
    views: list[RoundView]

    def select(self, view: RoundView, k: int) -> np.ndarray:
        if view.round == 1:
            type(self).views = []
        self.views.append(view)
        return view.online[:k]


class LookingClientManager(SelectorClientManager):
    selector_class = Looking


@pytest.fixture
def looking(job: MakeJob, monkeypatch: pytest.MonkeyPatch) -> MakeJob:
    """Jobs whose selector keeps its views."""
    install(monkeypatch, LookingClientManager)
    return lambda **keys: job(
        sample_mode="looking", overcommitment=1.0, duration_jitter=0.0, **keys
    )


def test_records_of_local_epochs(looking: MakeJob) -> None:
    """The table, the round's duration and its energy are those of the clients' own samples; holdout excluded."""
    made = looking(local_epochs=2, device_conf_file=DEVICES, holdout_fraction=0.2, rounds=1)
    line = records(run(made))[0]
    sizes = FederatedData(replace(made.config, holdout_fraction=0.2), CPU).getSize()["size"]
    table, population = Looking.views[0].clients, load_population(20, DEVICES, None)
    assert np.array_equal(table.samples, sizes)
    assert np.array_equal(table.round_samples, sizes)
    computing = TRAINING_FACTOR * 2 * sizes * population.ms_per_sample / 1000
    communicating = table.expected_duration - computing
    asked = np.array(line["asked"]) - 1
    assert line["duration"] == pytest.approx(table.expected_duration[asked].max())
    assert (communicating > 0).all()
    assert line["energy_joules"] == pytest.approx(
        energy(population, asked, computing[asked], communicating[asked]).sum()
    )


def test_a_foreign_manager_hears_of_local_epochs(
    job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedscale.cloud.client_manager import ClientManager

    from fedsuv_plugin import named

    told: dict[int, float] = {}

    class Foreign(ClientManager):  # type: ignore[misc]
        def registerDuration(
            self,
            client_id: int,
            batch_size: int,
            local_steps: float,
            upload_size: float,
            download_size: float,
        ) -> None:
            told[client_id] = batch_size * local_steps
            super().registerDuration(client_id, batch_size, local_steps, upload_size, download_size)

    monkeypatch.setattr(named, "client_manager_class", lambda name, points=None: Foreign)
    made = job(local_epochs=2, rounds=1)
    run(made)
    sizes = FederatedData(made.config, CPU).getSize()["size"]
    assert [told[i + 1] for i in range(20)] == pytest.approx((2 * sizes).tolist())
    with pytest.raises(UserError, match="available_clients: expected none with sample_mode random"):
        run(job(available_clients=5))


def test_traces_show_knows_local_epochs(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    from fedsuv_plugin.cli import main

    write(Trace.of(load_population(300, DEVICES, None)), tmp_path / "devices.npz")
    quickstart = str(ROOT / "configs" / "quickstart.yml")
    assert (
        main(
            [
                "traces",
                "show",
                str(tmp_path / "devices.npz"),
                "--job",
                quickstart,
                "--set",
                "local_epochs=2",
                "--set",
                "num_clients=40",
            ]
        )
        == 0
    )
    assert "40 clients, 2 epochs of a client's own samples" in capsys.readouterr().out


# ---- available_clients


def test_a_set_of_clients_is_there_for_some_rounds(looking: MakeJob) -> None:
    run(looking(available_clients=7, available_every=3, rounds=8))
    sets = [tuple(view.online) for view in Looking.views]
    assert [len(s) for s in sets] == [7] * 8
    assert len(set(sets[0:3])) == len(set(sets[3:6])) == len(set(sets[6:8])) == 1
    assert len({sets[0], sets[3], sets[6]}) == 3
    assert all(np.all(np.diff(s) > 0) for s in sets)


def test_who_is_there_depends_on_the_seed_and_the_period_alone(looking: MakeJob) -> None:
    def online(**keys: object) -> list[list[int]]:
        run(looking(available_clients=7, rounds=6, **keys))
        return [view.online.tolist() for view in Looking.views]

    first = online()
    assert first == online(num_participants=2, learning_rate=0.5, local_epochs=1)
    assert first != online(seed=4)
    assert online(available_every=1)[1] == first[5]  # period 1 of both


def test_everyone_gets_a_turn(looking: MakeJob) -> None:
    # 5 of 20 in each of 60 periods: a client is Binomial(60, 1/4), 15 on average; 5 standard deviations are 16.8.
    run(
        looking(
            available_clients=5, available_every=1, rounds=60, eval_interval=60, num_participants=1
        )
    )
    counts = np.bincount(np.concatenate([view.online for view in Looking.views]), minlength=20)
    assert counts.sum() == 300
    assert 1 <= counts.min() <= counts.max() < 32


def test_more_than_there_are_is_everyone(looking: MakeJob) -> None:
    run(looking(available_clients=99, rounds=1))
    assert len(Looking.views[0].online) == 20


def test_only_those_who_are_online_too(looking: MakeJob) -> None:
    keys: dict[str, Any] = {
        "rounds": 6,
        "device_avail_file": DEVICES,
        "device_conf_file": DEVICES,
        "num_clients": 300,
    }
    run(looking(available_clients=100, available_every=2, **keys))
    population = load_population(300, DEVICES, DEVICES)
    there: list[set[int]] = []
    for view in Looking.views:
        trace = set(np.flatnonzero(population.online(view.clock)).tolist())
        assert set(view.online.tolist()) <= trace
        assert 0 < len(view.online) < len(trace)
        there.append(set(view.online.tolist()))
    run(looking(available_clients=100, available_every=2, **{**keys, "device_avail_file": None}))
    assert all(
        seen <= set(view.online.tolist()) for seen, view in zip(there, Looking.views, strict=True)
    )


# ---- warmup_rounds


@pytest.mark.parametrize("mode", ["random", "oort", "pow_d", "gpfl", "filfl", "ucb"])
def test_everyone_takes_part_in_the_warm_up(job: MakeJob, mode: str) -> None:
    lines = records(
        run(
            job(sample_mode=mode, warmup_rounds=2, rounds=4, num_participants=3, overcommitment=1.0)
        )
    )
    assert [line["asked"] == line["valid"] == list(range(1, 21)) for line in lines] == [
        True,
        True,
        False,
        False,
    ]
    assert [len(line["asked"]) for line in lines[2:]] == [3, 3]


def test_the_warm_up_knows_deadlines_and_who_is_there(looking: MakeJob) -> None:
    late = looking(
        warmup_rounds=1, rounds=1, available_clients=7, device_conf_file=DEVICES, round_deadline=5.0
    )
    line = records(run(late))[0]
    assert line["asked"] == (Looking.views[0].online + 1).tolist()
    assert set(line["valid"]) < set(line["asked"])
    assert line["duration"] == 5.0


# ---- the same records, whatever happens

KEYS: dict[str, Any] = {
    "local_epochs": 2,
    "available_clients": 8,
    "available_every": 2,
    "data_fraction": 0.6,
    "test_samples": 70,
    "partition": "dirichlet_qp",
    "device_conf_file": DEVICES,
    "round_deadline": 60.0,
    "rounds": 7,
    "checkpoint_every": 3,
    "warmup_rounds": 2,
}


def test_a_killed_job_ends_with_the_same_records(job: MakeJob) -> None:
    same_records(run(job(**KEYS)), run_killed_and_resumed(job(**KEYS), last_round=5))


def test_both_launchers_give_the_same_records(job: MakeJob) -> None:
    same_records(run(job(**KEYS)), run(job(**KEYS), launcher="processes", executors=2))


def test_the_keys_survive_the_command_line(job: MakeJob) -> None:
    from fedsuv_plugin.config.argv import from_argv

    made = job(**KEYS)
    assert from_argv(made.to_argv())[0].config == made.config


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("local_epochs", 0, "local_epochs: expected an integer >= 1 or none, got 0"),
        ("data_fraction", 0, "data_fraction: expected a number > 0 and <= 1, got 0"),
        ("data_fraction", 1.5, "data_fraction: expected"),
        ("test_samples", 0, "test_samples: expected"),
        ("available_clients", 0, "available_clients: expected"),
        ("available_every", 0, "available_every: expected"),
    ],
)
def test_values_that_mean_nothing(key: str, value: object, message: str) -> None:
    with pytest.raises(UserError, match=message):
        make_job({**SMALL, key: value})


def test_filfl_filters_anew_when_others_are_there(job: MakeJob) -> None:
    """Its filtered set is always of those available."""
    path = run(
        job(
            sample_mode="filfl",
            available_clients=6,
            available_every=2,
            rounds=6,
            filfl__period=100,
            num_participants=3,
        )
    )
    asked = [set(line["asked"]) for line in records(path)]
    assert asked[0] | asked[1] != asked[2] | asked[3]
    assert all(len(asked[i] | asked[i + 1]) <= 6 for i in (0, 2, 4))
