"""The engine on small worlds: real FedScale objects, real gRPC, real files."""

from __future__ import annotations

import logging
import pickle
from argparse import Namespace
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import ROOT, install, records, run, same_records
from fedsuv_plugin.job import fedscale_args, run_job

from fedsuv_plugin.config.argv import Place
from fedsuv_plugin.config.job import Job
from fedsuv_plugin.engine.aggregator import JobFailed, PluginAggregator
from fedsuv_plugin.engine.client import PluginClient, evaluate
from fedsuv_plugin.engine.client_manager import SelectorClientManager
from fedsuv_plugin.engine.executor import PluginExecutor
from fedsuv_plugin.engine.grpc_service import LoopbackChannel
from fedsuv_plugin.engine.model import Average
from fedsuv_plugin.engine.stock import TorchClient
from fedsuv_plugin.errors import UserError
from fedsuv_plugin.records import RunDirectory
from fedsuv_plugin.selectors import base as signal
from fedsuv_plugin.selectors.base import Probe, RoundOutcome, RoundView, Selector
from fedsuv_plugin.selectors.signals import NEEDS
from fedsuv_plugin.tasks.federated_data import FederatedData, Samples, initial_model, model_kbit
from fedsuv_plugin.traces.clock import fluctuation
from fedsuv_plugin.traces.population import load_population

MakeJob = Callable[..., Job]
CPU = torch.device("cpu")


# ---- a job


def test_a_job_learns_and_records_every_round(job: MakeJob) -> None:
    path = run(job(rounds=20))
    rounds, metrics = records(path), records(path, "metrics.jsonl")
    assert [r["round"] for r in rounds] == list(range(1, 21))
    assert [m["round"] for m in metrics] == [0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20]
    # In this world the nearest class mean is as good as any rule gets. 20 short rounds on 20 % of the clients may be
    # 0.1 short of it; the untrained model is near guessing, 0.25.
    data = FederatedData(job().config, CPU)
    everyone = [data.training(c) for c in range(1, 21)]
    x, y = torch.cat([s.x for s in everyone]), torch.cat([s.y for s in everyone])
    means = torch.stack([x[y == label].mean(0) for label in range(4)])
    reachable = float((torch.cdist(data.test.x, means).argmin(1) == data.test.y).float().mean())
    assert metrics[0]["accuracy"] < 0.5
    assert metrics[-1]["accuracy"] > reachable - 0.1
    assert all(
        len(r["asked"]) == 5 and len(r["valid"]) == 4 and set(r["valid"]) < set(r["asked"])
        for r in rounds
    )
    clocks = np.cumsum([r["duration"] for r in rounds])
    assert [r["clock"] for r in rounds] == pytest.approx(clocks.tolist())
    assert {p.name for p in path.iterdir()} >= {
        "config.yml",
        "environment.json",
        "checkpoint",
        "tensorboard",
        "log",
    }
    assert any((path / "tensorboard").iterdir())


def test_the_same_seed_gives_the_same_records_and_another_seed_others(job: MakeJob) -> None:
    first, again, other = run(job()), run(job()), run(job(seed=4))
    for file in ("rounds.jsonl", "metrics.jsonl"):
        assert records(first, file) == records(again, file)
        assert records(first, file) != records(other, file)


@pytest.mark.parametrize(
    "values",
    [
        {"sample_mode": "fedsuv", "rounds": 14, "round_deadline": 0.8},
        {"sample_mode": "oort", "gradient_policy": "fed-yogi", "model": "mlp"},
    ],
)
def test_processes_give_the_numbers_of_loopback(job: MakeJob, values: dict[str, object]) -> None:
    """Two executors finish in any order; the sums do not depend on it."""
    same_records(run(job(**values)), run(job(**values), launcher="processes", executors=2))


@pytest.mark.parametrize("selector", ["random", "round_robin", "oort", "fedsuv"])
def test_swapping_the_selector_changes_only_the_selection(job: MakeJob, selector: str) -> None:
    path = run(job(sample_mode=selector, overcommitment=1.0, device_conf_file=None))
    assert (
        records(path, "metrics.jsonl")[0]
        == records(run(job(overcommitment=1.0)), "metrics.jsonl")[0]
    )
    assert len(records(path)) == 6


@pytest.mark.parametrize("policy", ["fed-avg", "fed-prox", "fed-yogi", "q-fedavg"])
@pytest.mark.parametrize("weights", ["equal", "samples"])
def test_every_gradient_policy_learns(job: MakeJob, policy: str, weights: str) -> None:
    path = run(job(gradient_policy=policy, aggregation_weights=weights, rounds=15, yogi_eta=0.05))
    metrics = records(path, "metrics.jsonl")
    assert metrics[-1]["loss"] < metrics[0]["loss"] * 0.8


@pytest.mark.parametrize("model", ["lr", "svm", "mlp", "cnn", "mnasnet0_5", "shufflenet_v2_x0_5"])
def test_every_model_trains_on_images(job: MakeJob, model: str) -> None:
    path = run(
        job(
            data_set="digits",
            model=model,
            rounds=1,
            num_participants=2,
            local_steps=1,
            eval_interval=1,
            gradient_policy="fed-yogi",
        )
    )
    assert len(records(path, "metrics.jsonl")) == 2


def test_a_model_that_does_not_fit_its_data_is_refused(job: MakeJob) -> None:
    with pytest.raises(UserError, match="model: expected a data set of images for cnn"):
        run(job(model="cnn"))
    with pytest.raises(UserError, match="model: alexnet does not take inputs of shape"):
        run(job(data_set="digits", model="alexnet"))
    with pytest.raises(
        UserError, match="model: expected one of char_lstm, .*cnn, .* or a torchvision classifier"
    ):
        run(job(model="resnet"))


def test_cuda_without_a_gpu_is_refused(job: MakeJob) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(UserError, match="use_cuda"):
        run(job(use_cuda=True))


# ---- what is mended in FedScale


def test_a_client_smaller_than_a_batch_trains_on_what_it_has(job: MakeJob) -> None:
    args = fedscale_args(job(), Place())
    client, conf = PluginClient(args), Namespace(**vars(args), client_id=1, round=1)
    model = initial_model(job().config)
    before = [p.clone() for p in model.parameters()]
    few = Samples(torch.randn(3, 8), torch.tensor([0, 1, 2]))  # a batch is 8
    result = client.train(few, model, conf)
    assert result["success"]
    assert result["trained_size"] == 3 * 3  # 3 steps of all 3 samples
    assert any(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_stock_fedscale_never_ends_on_such_a_client(job: MakeJob) -> None:
    """Its loader drops the incomplete batch and the client waits for a step that never comes."""

    class Stuck(Exception):
        pass

    class Counted(TorchClient):  # type: ignore[misc]
        passes = 0

        def train_step(self, *args: object) -> None:
            super().train_step(*args)
            self.passes += 1
            if self.passes > 100:
                raise Stuck

    few = torch.utils.data.TensorDataset(torch.randn(3, 8), torch.tensor([0, 1, 2]))
    args = Namespace(**vars(fedscale_args(job(), Place())), client_id=1, tokenizer=None)
    client = Counted(args)
    client.train(
        torch.utils.data.DataLoader(few, batch_size=8, drop_last=True),
        initial_model(job().config),
        args,
    )
    assert client.passes > 100
    assert client.completed_steps == 0


def test_fed_prox_holds_the_client_near_the_received_model(job: MakeJob) -> None:
    """mu (w - w0) in the gradient pulls back; FedScale's own rule pushes away."""

    def distance(mu: float) -> float:
        args = fedscale_args(job(gradient_policy="fed-prox", proxy_mu=mu, local_steps=30), Place())
        model = initial_model(job().config)
        start = [p.detach().clone() for p in model.parameters()]
        data = FederatedData(job().config, CPU).training(1)
        PluginClient(args).train(data, model, Namespace(**vars(args), client_id=1, round=1))
        return (
            sum(
                float((p.detach() - s).norm() ** 2)
                for p, s in zip(model.parameters(), start, strict=True)
            )
            ** 0.5
        )

    assert distance(5.0) < 0.5 * distance(0.5) < 0.5 * distance(0.0)


def write_traces(folder: Path, users: list[dict[str, Any]], n: int = 20) -> dict[str, object]:
    capacity = {c: {"computation": 10.0 + c, "communication": 5000.0} for c in range(1, n + 1)}
    (folder / "capacity").write_bytes(pickle.dumps(capacity))
    (folder / "behaviour").write_bytes(pickle.dumps(dict(enumerate(users, start=1))))
    return {
        "device_conf_file": str(folder / "capacity"),
        "device_avail_file": str(folder / "behaviour"),
    }


def user(*intervals: tuple[float, float], period: float = 1000.0) -> dict[str, Any]:
    return {
        "active": [a for a, _ in intervals],
        "inactive": [b for _, b in intervals],
        "finish_time": period,
        "duration": sum(b - a for a, b in intervals),
        "model": "unknown",
    }


def test_a_round_nobody_completes_costs_its_time_and_the_job_goes_on(
    job: MakeJob, tmp_path: Path
) -> None:
    # Everyone is online for the first 0.1 s, when nobody can be done, and again from 50 s on. Client c takes
    # 3 x 8 x 3 x (10 + c) ms = 0.79 to 2.16 s of computing, so rounds before 50 s come to nothing and later ones to 4.
    files = write_traces(tmp_path, [user((0, 0.1), (50, 900))] * 20)
    path = run(job(rounds=4, **files))
    rounds = records(path)
    assert rounds[0]["valid"] == []
    assert rounds[0]["train_loss"] is None
    assert rounds[0]["duration"] > 0.79
    # At the second round nobody is online to be asked: it costs the idle minute.
    assert rounds[1]["asked"] == []
    assert rounds[1]["duration"] == 60.0
    assert [len(r["valid"]) for r in rounds] == [0, 0, 4, 4]


def test_a_deadline_decides_who_is_valid(job: MakeJob, tmp_path: Path) -> None:
    # Without jitter client c takes 0.072 (10 + c) s and a little for the transfer; at a deadline of 1.5 s those up to
    # about c = 10 make it. Nobody is asked on top, and the round lasts to the deadline if anyone missed it.
    files = write_traces(tmp_path, [user((0, 900))] * 20)
    rounds = records(run(job(rounds=10, round_deadline=1.5, duration_jitter=0, **files)))
    for r in rounds:
        assert len(r["asked"]) == 4
        assert set(r["valid"]) == {c for c in r["asked"] if c <= 10}
        assert r["duration"] == 1.5 if len(r["valid"]) < 4 else r["duration"] < 1.5
    assert any(len(r["valid"]) < 4 for r in rounds)


def test_energy_of_a_round_by_hand(job: MakeJob) -> None:
    """Power x time for everyone who was asked, in time or not, with the times as this round has them."""
    trace = str(ROOT / "device_traces" / "population_3500.npz")
    small = job(device_conf_file=trace, round_deadline=10.0, rounds=2, num_participants=8)
    devices, kbit = load_population(20, trace, None), model_kbit(small.config)
    assert devices.compute_w is not None
    assert devices.radio_w is not None
    for r in records(run(small)):
        joules = 0.0
        for client, factor in zip(
            r["asked"], fluctuation(3, 0.1, np.array(r["asked"]), r["round"]), strict=True
        ):
            i = client - 1
            computing = 3 * 8 * 3 * devices.ms_per_sample[i] / 1000
            sending = kbit / devices.kbps_up[i] + kbit / devices.kbps_down[i]
            joules += factor * (devices.compute_w[i] * computing + devices.radio_w[i] * sending)
        assert r["energy_joules"] == pytest.approx(joules)
        assert 0 < len(r["valid"]) < 8


@pytest.mark.parametrize("key", ["device_conf_file", "device_avail_file"])
def test_a_missing_trace_file_stops_the_job(job: MakeJob, key: str) -> None:
    with pytest.raises(UserError, match=f"{key}: no such file: nowhere"):
        run(job(**{key: "nowhere"}))


def test_a_trace_that_would_run_code_is_refused(job: MakeJob, tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (tmp_path / "ran",))

    (tmp_path / "evil").write_bytes(pickle.dumps({1: Evil()}))
    with pytest.raises(UserError, match="refused pathlib"):
        run(job(device_conf_file=str(tmp_path / "evil")))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("selector", ["random", "oort"])
def test_3500_clients_with_fedscales_own_trace_formats(
    job: MakeJob, tmp_path: Path, selector: str
) -> None:
    rng = np.random.default_rng(0)
    capacity = {
        c: {"computation": float(ms), "communication": float(kbps)}
        for c, ms, kbps in zip(
            range(1, 3501), rng.lognormal(4, 0.7, 3500), rng.lognormal(9, 1, 3500), strict=True
        )
    }
    starts = np.sort(rng.uniform(0, 500, (700, 5)), axis=1)
    starts[:, 0] = 0  # everyone is online at first, and about 40 % at any later time
    users = {
        i: {
            "active": row.tolist(),
            "inactive": (row + 0.4 * np.diff(row, append=600)).tolist(),
            "finish_time": 600,
            "duration": 1,
            "model": "x",
        }
        for i, row in enumerate(starts)
    }
    (tmp_path / "capacity").write_bytes(pickle.dumps(capacity))
    (tmp_path / "behaviour").write_bytes(pickle.dumps(users))
    path = run(
        job(
            synthetic_samples=7000,
            num_clients=3500,
            partition="iid",
            num_participants=20,
            rounds=8,
            sample_mode=selector,
            device_conf_file=str(tmp_path / "capacity"),
            device_avail_file=str(tmp_path / "behaviour"),
        )
    )
    rounds = records(path)
    assert all(len(r["asked"]) == 26 for r in rounds)
    assert len({c for r in rounds for c in r["asked"]}) > 100  # of 8 x 26 seats
    assert sum(len(r["valid"]) for r in rounds) > 40


# ---- signals and probes


class Curious(Selector):
    """Asks for everything, and keeps what it was told."""

    name, paper = "curious", "this test"
    needs = frozenset(NEEDS)
    ask = signal.LOSS
    seen: list[RoundOutcome] = []
    answers: list[Any] = []

    def probe(self, view: RoundView) -> Probe | None:
        return Probe(self.ask, view.online[:5])

    def select(self, view: RoundView, k: int) -> np.ndarray:
        self.answers.append(view.probe)
        return view.online[:k]

    def update(self, outcome: RoundOutcome) -> None:
        self.seen.append(outcome)


class CuriousManager(SelectorClientManager):
    selector_class = Curious


@pytest.fixture
def curious(monkeypatch: pytest.MonkeyPatch) -> type[Curious]:
    """The selector above, installed for this test."""
    install(monkeypatch, CuriousManager)
    monkeypatch.setattr(Curious, "seen", [])
    monkeypatch.setattr(Curious, "answers", [])
    return Curious


def test_clients_compute_the_signals_that_are_asked_for(
    job: MakeJob, curious: type[Curious]
) -> None:
    small = job(sample_mode="curious", rounds=2, duration_jitter=0, overcommitment=1.0)
    run(small)
    outcome = curious.seen[0]
    assert set(outcome.signals) == {
        signal.ACCURACY_GAIN,
        signal.DIRECTION,
        signal.WEIGHTS,
        signal.INTERVIEW_ACCURACY,
    }
    assert outcome.valid.all()
    start = initial_model(small.config)
    flat_start = torch.cat([p.detach().reshape(-1) for p in start.parameters()]).numpy()
    # direction = (received - own) / learning rate, by its definition
    np.testing.assert_allclose(
        outcome.signals[signal.DIRECTION],
        (flat_start - outcome.signals[signal.WEIGHTS]) / small.config.learning_rate,
        atol=1e-5,
    )
    # The rest, from the weights each client ended with. 0.2 of its samples are held out, 0.2 of the test set too.
    data = FederatedData(replace(small.config, holdout_fraction=0.2, interview_fraction=0.2), CPU)
    for i, row in enumerate(outcome.rows.tolist()):
        model = initial_model(small.config)
        torch.nn.utils.vector_to_parameters(
            torch.from_numpy(outcome.signals[signal.WEIGHTS][i]).float(), model.parameters()
        )
        interview = evaluate(model, data.interview, "lr", 64)
        assert outcome.signals[signal.INTERVIEW_ACCURACY][i] == interview.accuracy
        own = data.training(row + 1)
        assert outcome.samples[i] == min(len(own), 24)
        if (
            len(own) <= 24
        ):  # then it trained on all it has, and gain and utility can be worked out here
            before, after = evaluate(start, own, "lr", 64), evaluate(model, own, "lr", 64)
            assert outcome.signals[signal.ACCURACY_GAIN][i] == pytest.approx(
                after.accuracy - before.accuracy
            )
            losses = torch.nn.functional.cross_entropy(
                start(own.x), own.y, reduction="none"
            ).detach()
            assert outcome.utility[i] == pytest.approx(
                len(own) * float(losses.double().square().mean().sqrt())
            )


@pytest.mark.parametrize("kind", [signal.LOSS, signal.OPINIONS, signal.DIRECTION])
def test_probes_answer_without_training_the_global_model(
    job: MakeJob, curious: type[Curious], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Over gRPC they go through test_registry's package of its own, whose selector probes in both launchers."""
    monkeypatch.setattr(curious, "ask", kind)
    small = job(sample_mode="curious", rounds=1, overcommitment=1.0)
    run(small)
    answer = curious.answers[0]
    assert answer.kind == kind
    assert answer.rows.tolist() == [0, 1, 2, 3, 4]
    data, start = (
        FederatedData(replace(small.config, holdout_fraction=0.2, interview_fraction=0.2), CPU),
        initial_model(small.config),
    )
    if kind == signal.LOSS:
        expected = [evaluate(start, data.training(c), "lr", 128).mean_loss for c in range(1, 6)]
        assert answer.values.tolist() == pytest.approx(expected)
    elif kind == signal.OPINIONS:
        expected = [evaluate(start, data.held_out(c), "lr", 128).accuracy for c in range(1, 6)]
        assert answer.values.tolist() == expected
    else:  # the probe trains as the first round does, so the first cohort's directions come out again
        np.testing.assert_allclose(
            answer.values[:4], curious.seen[0].signals[signal.DIRECTION], atol=1e-6
        )


def test_held_out_samples_are_not_trained_on(job: MakeJob) -> None:
    data = FederatedData(replace(job().config, holdout_fraction=0.25), CPU)
    whole = FederatedData(job().config, CPU)
    for client in range(1, 21):
        own, held, every = data.training(client), data.held_out(client), whole.training(client)
        assert len(held) == len(every) // 4
        assert sorted(torch.cat([own.x, held.x])[:, 0].tolist()) == sorted(every.x[:, 0].tolist())


# ---- nothing a client sends can break the job


def poisoned(
    monkeypatch: pytest.MonkeyPatch, spoil: Callable[[dict[str, Any]], None], clients: set[int]
) -> None:
    train = PluginClient.train

    def wrapped(
        self: PluginClient, data: Samples, model: torch.nn.Module, conf: Namespace
    ) -> dict[str, Any]:
        result = train(self, data, model, conf)
        if conf.client_id in clients:
            spoil(result)
        return result

    monkeypatch.setattr(PluginClient, "train", wrapped)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda r: r.update(moving_loss=float("nan")),
        lambda r: r.update(utility=float("inf")),
        lambda r: r.update(moving_loss=-1.0),
        lambda r: r["update_weight"].update(
            {k: np.full_like(v, np.nan) for k, v in r["update_weight"].items()}
        ),
        lambda r: r.update(update_weight={"x": np.zeros(3, np.float32)}),
        lambda r: r["signals"].update(direction=np.array([np.inf])),
    ],
)
def test_rubbish_counts_as_having_missed_the_round(
    job: MakeJob,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    spoil: Callable[[dict[str, Any]], None],
) -> None:
    bad = set(range(1, 11))
    poisoned(monkeypatch, spoil, bad)
    with caplog.at_level(logging.WARNING):
        path = run(job(sample_mode="oort", rounds=4))
    rounds = records(path)
    assert any(set(r["asked"]) & bad for r in rounds)
    assert not any(set(r["valid"]) & bad for r in rounds)
    assert all(np.isfinite(m["loss"]) for m in records(path, "metrics.jsonl"))
    assert "not finite or does not fit" in caplog.text


def test_an_executor_that_fails_ends_the_job_with_its_reason(
    job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(result: dict[str, Any]) -> None:
        raise ZeroDivisionError("a bug in training")

    poisoned(monkeypatch, broken, set(range(21)))
    with pytest.raises(JobFailed, match="executor 1 failed: ZeroDivisionError: a bug in training"):
        run(job())


# ---- pieces


def test_average_by_hand() -> None:
    average = Average()
    average.add([np.array([1.0, 2.0], np.float32), np.array(3)], 1.0)
    average.add([np.array([4.0, 8.0], np.float32), np.array(6)], 2.0)
    weights, count = average.result()
    assert weights.tolist() == [3.0, 6.0]  # (1 + 2 x 4) / 3, (2 + 2 x 8) / 3
    assert weights.dtype == np.float32
    assert count == 5  # (3 + 12) / 3
    assert count.dtype.kind == "i"


def test_aggregation_by_samples_weighs_clients_by_their_data(job: MakeJob) -> None:
    """One round of one step at batch >= all data is a gradient step on the clients' pooled samples."""
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
    directory = RunDirectory.create(everyone)
    assert run_job(directory)
    got = directory.load_checkpoint()["model"]["weights"]  # type: ignore[index]
    model, data = initial_model(everyone.config), FederatedData(everyone.config, CPU)
    own = [data.training(c) for c in range(1, 21)]
    x, y = torch.cat([s.x for s in own]), torch.cat([s.y for s in own])
    torch.nn.functional.cross_entropy(model(x), y).backward()
    for parameter, array in zip(model.parameters(), got, strict=True):
        assert parameter.grad is not None
        np.testing.assert_allclose(
            array, (parameter - 0.5 * parameter.grad).detach().numpy(), atol=1e-6
        )


def test_an_executor_that_registers_again_changes_nothing(job: MakeJob) -> None:
    directory = RunDirectory.create(job())
    args = fedscale_args(job(), Place(), directory.events)
    aggregator = PluginAggregator(job(), args, directory)
    executor = PluginExecutor(job(), args, LoopbackChannel(aggregator))
    aggregator.pump = executor.step
    executor.start()
    executor.start()
    aggregator.run()
    assert aggregator.num_of_clients == 20
    assert len(records(directory.path)) == 6


def test_yogi_leaves_batch_norm_statistics_to_the_clients(job: MakeJob) -> None:
    """Stock FedScale steps a running variance like a weight, and it can turn negative."""
    directory = RunDirectory.create(
        job(
            data_set="digits",
            model="shufflenet_v2_x0_5",
            gradient_policy="fed-yogi",
            yogi_eta=1.0,
            rounds=2,
            num_participants=2,
            local_steps=2,
            num_clients=10,
        )
    )
    assert run_job(directory)
    state = directory.load_checkpoint()
    assert state is not None
    names = list(initial_model(directory.job.config).state_dict())
    variances = [
        w
        for name, w in zip(names, state["model"]["weights"], strict=True)
        if name.endswith("running_var")
    ]
    assert variances
    assert all((v >= 0).all() for v in variances)
