"""The papers' models: sizes, shapes, first layers that fit; BatchNorm trained and averaged."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedsuv_plugin.config.argv import Place
from fedsuv_plugin.config.job import Job, make_job
from fedsuv_plugin.config.resolved import resolve
from fedsuv_plugin.engine import fedscale_env
from fedsuv_plugin.engine.client import BATCH_NORMS, PluginClient
from fedsuv_plugin.engine.launchers import run_job
from fedsuv_plugin.engine.merging import Update, WeightedAverage
from fedsuv_plugin.engine.model import ModelAdapter
from fedsuv_plugin.engine.stock import TorchServerOptimizer
from fedsuv_plugin.errors import UserError
from fedsuv_plugin.run_directory import RunDirectory
from fedsuv_plugin.tasks.federated_data import Samples
from fedsuv_plugin.tasks.models import build_model, sample_losses

MakeJob = Callable[..., Job]
CIFAR = (3, 32, 32)
GREY = (1, 28, 28)
SPECTROGRAM = (1, 32, 32)
TEXT = (80,)


def build(name: str, shape: tuple[int, ...], classes: int) -> nn.Module:
    return build_model(make_job({"model": name}).config, shape, classes)


def parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


# torchvision's published counts for 1,000 classes and three channels, less their last layer and
# first convolution, plus ours. Last layers are (width + 1) x classes; first ones 64 x 7 x 7 x 3 =
# 9,408 in a ResNet, 32 or 24 x 3 x 3 x 3 in the others.
RESNET18 = 11_689_512 - 513 * 1000 - 9408
RESNET34 = 21_797_672 - 513 * 1000 - 9408
SIZES = [
    ("resnet18", CIFAR, 10, RESNET18 + 513 * 10 + 64 * 9 * 3),
    ("resnet18", GREY, 62, RESNET18 + 513 * 62 + 64 * 9),
    ("resnet34", SPECTROGRAM, 35, RESNET34 + 513 * 35 + 64 * 9),
    # MobileNet's and ShuffleNet's first convolutions were 3 x 3 before.
    ("mobilenet_v2", CIFAR, 10, 3_504_872 - 1281 * 1000 + 1281 * 10),
    ("shufflenet_v2_x1_0", CIFAR, 100, 2_278_604 - 1025 * 1000 + 1025 * 100),
    ("shufflenet_v2_x2_0", GREY, 100, 7_393_996 - 2049 * 1000 + 2049 * 100 - 24 * 9 * 2),
    # 3 -> 32 -> 64 -> 64 kernels of 3 x 3, 32 pixels halved three times: 4 x 4 x 64 -> 64 -> 10
    ("gpfl_cnn", CIFAR, 10, 28 * 32 + 289 * 64 + 577 * 64 + 1025 * 64 + 65 * 10),
    # LEAF's: 1 -> 32 -> 64 kernels of 5 x 5, 28 pixels halved twice: 7 x 7 x 64 -> 2048 -> 62, in
    # all 6,603,710
    ("filfl_cnn", GREY, 62, 26 * 32 + 801 * 64 + 3137 * 2048 + 2049 * 62),
    ("pczfl_cnn", GREY, 10, 1_663_370),  # as McMahan et al. count it
    ("pczfl_cnn", CIFAR, 10, 76 * 32 + 801 * 64 + 4097 * 512 + 513 * 10),
    # 80 x 8; two layers of 4 gates of 256 with two biases each, from 8 and from 256; 256 -> 80
    ("char_lstm", TEXT, 80, 80 * 8 + 4 * 256 * (8 + 258) + 4 * 256 * (256 + 258) + 257 * 80),
    ("mlp", GREY, 10, 785 * 64 + 65 * 30 + 31 * 10),  # GPFL's on MNIST
]


@pytest.mark.parametrize(("name", "shape", "classes", "count"), SIZES)
def test_parameters_counted_by_hand_and_trained_for_a_step(
    name: str, shape: tuple[int, ...], classes: int, count: int
) -> None:
    torch.manual_seed(0)
    model = build(name, shape, classes)
    assert parameters(model) == count
    x = torch.randint(classes, (4, *shape)) if name == "char_lstm" else torch.randn(4, *shape)
    y = torch.tensor([0, 1, 2, 3])
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    losses = sample_losses(name, model(x), y)
    assert losses.shape == (4,)
    losses.mean().backward()
    for parameter in model.parameters():  # everything takes part
        assert parameter.grad is not None
        assert torch.isfinite(parameter.grad).all()
    optimizer.step()


def maps_before_pooling(name: str, shape: tuple[int, ...]) -> tuple[int, int]:
    """Height and width of what the last convolution gives."""
    model = build(name, shape, 10)
    seen = []
    last = [m for m in model.modules() if isinstance(m, nn.Conv2d)][-1]
    last.register_forward_hook(lambda module, inputs, output: seen.append(tuple(output.shape[2:])))
    model.eval()(torch.zeros(1, *shape))
    return seen[0]


@pytest.mark.parametrize(
    ("name", "small", "large"),
    [("resnet18", 4, 4), ("mobilenet_v2", 2, 4), ("shufflenet_v2_x0_5", 4, 4)],
)
def test_small_images_are_not_shrunk_by_the_first_layers(name: str, small: int, large: int) -> None:
    """The blocks halve three times (MobileNet's four).

    Before them, torchvision's first layers halve twice (MobileNet's once)."""
    assert maps_before_pooling(name, (3, 32, 32)) == (small, small)
    assert maps_before_pooling(name, (3, 64, 64)) == (2 * small, 2 * small)
    assert maps_before_pooling(name, (3, 128, 128)) == (large, large)


def test_the_first_convolution_has_the_datas_channels() -> None:
    def first(name: str, shape: tuple[int, ...], path: str) -> tuple[int, ...]:
        weight = build(name, shape, 10).get_submodule(path).weight
        assert isinstance(weight, torch.Tensor)
        return tuple(weight.shape)

    assert first("resnet34", (1, 32, 32), "conv1") == (64, 1, 3, 3)
    assert first("resnet18", (1, 128, 128), "conv1") == (64, 1, 7, 7)
    assert first("mobilenet_v2", (2, 32, 32), "features.0.0") == (32, 2, 3, 3)
    assert first("shufflenet_v2_x0_5", (1, 32, 32), "conv1.0") == (24, 1, 3, 3)


def test_large_colour_images_get_torchvisions_own_model() -> None:
    from fedsuv_plugin.tasks.models.torchvision_zoo import import_torchvision

    torch.manual_seed(0)
    ours = build("resnet18", (3, 96, 96), 10)
    torch.manual_seed(0)
    theirs = import_torchvision().models.resnet18(num_classes=10)
    x = torch.randn(2, 3, 96, 96)
    assert torch.equal(ours.eval()(x), theirs.eval()(x))


def test_the_lstm_scores_what_follows_the_last_character() -> None:
    torch.manual_seed(0)
    model = build("char_lstm", TEXT, 80)
    x = torch.randint(80, (1, 80))
    other = x.clone()
    other[0, -1] = (x[0, -1] + 1) % 80
    scores = model(x)
    assert scores.shape == (1, 80)
    assert not torch.allclose(scores, model(other))
    # Characters are numbers, in whatever type they come.
    assert torch.equal(scores, model(x.float()))


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("char_lstm", (1, 8, 8), "a data set of character sequences for char_lstm"),
        ("gpfl_cnn", (80,), "a data set of images for gpfl_cnn"),
        ("resnet18", (80,), "a data set of images for resnet18"),
        ("gpfl_cnn", (1, 4, 4), "expected images from 8 x 8 up for gpfl_cnn"),
    ],
)
def test_data_that_does_not_fit(name: str, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(UserError, match=message):
        build(name, shape, 10)


# ---- BatchNorm


def statistics(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: buffer.clone() for name, buffer in model.named_buffers()}


def train(job: Job, model: nn.Module, samples: int) -> dict[str, Any]:
    args = fedscale_env.namespace(resolve(job), Place())
    torch.manual_seed(1)
    data = Samples(torch.randn(samples, 1, 8, 8), torch.randint(10, (samples,)))
    return PluginClient(args).train(data, model, Namespace(**vars(args), client_id=1, round=1))


@pytest.mark.parametrize("keys", [{"batch_size": 1}, {"batch_size": 8}])
def test_batches_of_one_sample_train_without_moving_the_statistics(
    job: MakeJob, keys: dict[str, int]
) -> None:
    """8 x 8 pixels end as maps of one pixel: PyTorch's BatchNorm refuses one such sample."""
    model = build("resnet18", (1, 8, 8), 10)
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        model.train()(torch.zeros(1, 1, 8, 8))
    received = build("resnet18", (1, 8, 8), 10)
    weights = nn.utils.parameters_to_vector(model.parameters()).clone()
    model.load_state_dict(received.state_dict())
    resnet18 = job(data_set="digits", model="resnet18", learning_rate=1e-3, **keys)
    result = train(resnet18, model, samples=1)
    assert np.isfinite([result["utility"], result["moving_loss"]]).all()
    assert not torch.equal(nn.utils.parameters_to_vector(model.parameters()), weights)
    for name, before in statistics(received).items():
        assert torch.equal(statistics(model)[name], before)


def test_only_the_batch_of_one_is_left_out_of_the_statistics(job: MakeJob) -> None:
    # 9 samples in batches of 4, two epochs: 4, 4, 1, 4, 4, 1. Four of the six batches are counted.
    model = build("shufflenet_v2_x0_5", (1, 8, 8), 10)
    keys = {"data_set": "digits", "model": "shufflenet_v2_x0_5", "local_epochs": 2, "batch_size": 4}
    train(job(**keys), model, samples=9)
    counts = {int(m.num_batches_tracked) for m in model.modules() if isinstance(m, BATCH_NORMS)}  # type: ignore
    assert counts == {4}


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))


def client_weights(mean: float, batches: int) -> list[np.ndarray]:
    """What a client sends whose parameters all are `mean`."""
    model = normed()
    for parameter in model.parameters():
        parameter.data.fill_(mean)
    model[1].running_mean.fill_(mean)  # type: ignore
    model[1].running_var.fill_(2 * mean)  # type: ignore
    model[1].num_batches_tracked.fill_(batches)  # type: ignore
    return [t.numpy() for t in model.state_dict().values()]


@pytest.mark.parametrize("policy", [None, "fed-yogi", "q-fedavg"])
def test_statistics_are_averaged_as_the_weights_are(job: MakeJob, policy: str | None) -> None:
    # Clients with weights 3 and 1: (3 x 1 + 1 x 5) / 4 = 2, variance 4, batches
    # (3 x 10 + 1 x 20) / 4 = 12.5 -> 12.
    args = fedscale_env.namespace(resolve(job(gradient_policy=policy)), Place())
    clients = [client_weights(1.0, 10), client_weights(5.0, 20)]
    average = WeightedAverage(clients[0])
    average.add(Update(1, clients[0], weight=3.0))
    average.add(Update(2, clients[1], weight=1.0))
    adapter = ModelAdapter(
        normed(), optimizer=TorchServerOptimizer(policy, args, torch.device("cpu"))
    )
    before = adapter.get_weights()
    names = list(normed().state_dict())
    adapter.set_weights(
        average.result(),
        client_training_results=[
            {"update_weight": dict(zip(names, weights, strict=True)), "moving_loss": 1.0}
            for weights in clients
        ],
    )
    after = dict(zip(names, adapter.get_weights(), strict=True))
    assert after["1.running_mean"] == pytest.approx(np.full(3, 2.0))
    assert after["1.running_var"] == pytest.approx(np.full(3, 4.0))
    assert after["1.num_batches_tracked"] == 12
    moved = after["0.weight"] - before[0]
    assert (moved != 0).all()
    if policy is None:
        assert after["0.weight"] == pytest.approx(np.full((3, 2), 2.0))


def test_q_fedavg_takes_no_count_for_a_gradient(job: MakeJob) -> None:
    """How many batches the clients have counted does not change the step of the parameters."""
    args = fedscale_env.namespace(resolve(job(gradient_policy="q-fedavg")), Place())
    names = list(normed().state_dict())

    def stepped(batches: int) -> np.ndarray:
        torch.manual_seed(0)
        adapter = ModelAdapter(
            normed(), optimizer=TorchServerOptimizer("q-fedavg", args, torch.device("cpu"))
        )
        weights = client_weights(1.0, batches)
        adapter.set_weights(
            weights,
            client_training_results=[
                {"update_weight": dict(zip(names, weights, strict=True)), "moving_loss": 1.0}
            ],
        )
        return adapter.get_weights()[0]

    assert np.array_equal(stepped(0), stepped(1000))


@pytest.mark.parametrize("policy", ["fed-avg", "fed-yogi"])
def test_a_job_whose_clients_have_one_sample_each(job: MakeJob, policy: str) -> None:
    directory = RunDirectory.create(
        job(
            data_set="digits",
            model="shufflenet_v2_x0_5",
            partition="iid",
            num_clients=50,
            data_fraction=50 / 1437,
            rounds=2,
            num_participants=2,
            overcommitment=1.0,
            local_steps=1,
            gradient_policy=policy,
            test_samples=20,
        )
    )
    assert run_job(directory)
    state = directory.load_checkpoint()
    assert state is not None
    assert all(np.isfinite(w).all() for w in state["model"]["weights"])
