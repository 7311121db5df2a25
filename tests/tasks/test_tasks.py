"""Data sets, partitions and models."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from data_files import write_idx
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsuv_plugin.config.job import Job
from fedsuv_plugin.errors import UserError
from fedsuv_plugin.tasks.datasets import DATASETS
from fedsuv_plugin.tasks.datasets.mnist import read_idx
from fedsuv_plugin.tasks.federated_data import FederatedData, initial_model, model_kbit
from fedsuv_plugin.tasks.map_file import from_map_file
from fedsuv_plugin.tasks.models import sample_losses
from fedsuv_plugin.tasks.partitions import PARTITIONS, by_owner, partition

MakeJob = Callable[..., Job]
CPU = torch.device("cpu")


# ---- partitions


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    scheme=st.sampled_from(PARTITIONS.names()),
    n=st.integers(1, 40),
    classes=st.integers(1, 6),
    alpha=st.sampled_from([0.01, 0.5, 100.0]),
    seed=st.integers(0, 999),
    extra=st.integers(0, 60),
)
def test_every_sample_has_one_owner_and_every_client_a_sample(
    scheme: str, n: int, classes: int, alpha: float, seed: int, extra: int
) -> None:
    rng = np.random.default_rng(seed)
    labels = rng.integers(classes, size=n + extra)
    parts = partition(labels, scheme, n, alpha, np.random.default_rng(seed))
    assert len(parts) == n
    assert sorted(parts.order.tolist()) == list(range(n + extra))
    assert parts.sizes.min() >= 1
    assert parts.sizes.sum() == n + extra
    if scheme == "iid":
        assert np.ptp(parts.sizes) <= 1
    again = partition(labels, scheme, n, alpha, np.random.default_rng(seed))
    assert np.array_equal(parts.order, again.order)


def test_by_owner_by_hand() -> None:
    parts = by_owner(np.array([1, 0, -1, 1, 2]), 4)
    assert [parts.samples(c).tolist() for c in range(4)] == [[1], [0, 3], [4], []]


def test_small_alpha_means_few_classes_per_client() -> None:
    # Mean number of classes that hold 90 % of a client's samples: near 10 when iid, near 1 at
    # alpha 0.01.
    labels = np.repeat(np.arange(10), 500)

    def classes(alpha: float) -> float:
        parts = partition(labels, "dirichlet", 20, alpha, np.random.default_rng(0))
        counts = [np.bincount(labels[parts.samples(c)], minlength=10) for c in range(20)]
        commonest_first = np.sort(counts, axis=1)[:, ::-1]
        nine_tenths = 0.9 * commonest_first.sum(axis=1, keepdims=True)
        missing = np.cumsum(commonest_first, axis=1) < nine_tenths
        return float(np.mean(missing.sum(axis=1) + 1))

    assert classes(0.01) < 2.5 < 5 < classes(1.0) < classes(1000.0)
    assert classes(1000.0) > 8.5


def test_dirichlet_shares_follow_their_law() -> None:
    """A client's share of a class is Beta(alpha, alpha (n - 1)).

    Its mean is 1/n, its variance (n - 1)/(n^2 (n alpha + 1)). With n = 10, alpha = 0.5 over 400
    classes that is 0.1 and 0.015; the sample mean is exact by construction, the sample variance
    over 4,000 shares has a relative error of a few per cent."""
    labels = np.repeat(np.arange(400), 1000)
    parts = partition(labels, "dirichlet", 10, 0.5, np.random.default_rng(1))
    counts = [np.bincount(labels[parts.samples(c)], minlength=400) for c in range(10)]
    shares = np.array(counts) / 1000
    assert shares.mean() == pytest.approx(0.1)
    assert shares.var() == pytest.approx(0.015, rel=0.15)


def test_more_clients_than_samples_is_refused() -> None:
    with pytest.raises(UserError, match="num_clients: expected at most 5"):
        partition(np.zeros(5, int), "iid", 6, 1.0, np.random.default_rng(0))


def map_file(path: Path, rows: list[tuple[str, int]]) -> str:
    lines = [f"{client},x,y,{label}\n" for client, label in rows]
    path.write_text("client_id,sample_path,label_name,label_id\n" + "".join(lines))
    return str(path)


def test_fedscales_map_file(tmp_path: Path) -> None:
    labels = np.array([3, 1, 3, 2, 0])
    path = map_file(tmp_path / "map.csv", [("b", 3), ("a", 1), ("b", 3), ("c", 2)])
    parts = from_map_file(path, labels, None)
    # Clients are numbered as they appear.
    assert [parts.samples(c).tolist() for c in range(3)] == [[0, 2], [1], [3]]
    two = from_map_file(path, labels, 2)
    assert [two.samples(c).tolist() for c in range(2)] == [[0, 2], [1]]


@pytest.mark.parametrize(
    ("rows", "n", "message"),
    [
        ([("a", 3), ("a", 2)], None, "row 3 says label 2, the data set says 1"),
        ([], None, "expected 1 to 2 rows"),
        ([("a", 3)] * 3, None, "expected 1 to 2 rows, one per training sample, got 3"),
        ([("a", 3)], 2, "num_clients: expected at most 1"),
    ],
)
def test_map_files_that_do_not_fit(
    tmp_path: Path, rows: list[tuple[str, int]], n: int | None, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        from_map_file(map_file(tmp_path / "map.csv", rows), np.array([3, 1]), n)


# ---- data sets


@pytest.mark.parametrize("name", ["digits", "synthetic"])
def test_prepared_inputs_have_the_shape_the_server_expects(job: MakeJob, name: str) -> None:
    config = job(data_set=name).config
    spec = DATASETS[name](config)
    own = FederatedData(config, CPU).training(1)
    assert own.x.shape[1:] == spec.shape
    assert own.x.dtype == torch.float32
    assert 0 <= int(own.y.min()) <= int(own.y.max()) < spec.classes


def test_unknown_names_list_the_known_ones(job: MakeJob) -> None:
    with pytest.raises(
        UserError, match="data_set: expected one of Mnist, .*digits, .*, got 'mnist'"
    ):
        FederatedData(job(data_set="mnist").config, CPU)
    with pytest.raises(
        UserError, match="partition: expected one of dirichlet, .*natural.*, got 'dir'"
    ):
        FederatedData(job(partition="dir").config, CPU)


def test_digits_and_synthetic_do_not_overlap_train_and_test(job: MakeJob) -> None:
    data = FederatedData(job(data_set="digits", num_clients=1, partition="iid").config, CPU)
    assert len(data.training(1)) + len(data.test) == 1797


def test_the_interview_set_is_not_in_the_test_set(job: MakeJob) -> None:
    whole = FederatedData(job().config, CPU)
    split = FederatedData(replace(job().config, interview_fraction=0.2), CPU)
    assert len(split.interview) == len(whole.test) // 5
    together = torch.cat([split.interview.x, split.test.x])[:, 0].sort().values
    assert torch.equal(together, whole.test.x[:, 0].sort().values)


def test_idx_files(tmp_path: Path) -> None:
    array = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    write_idx(tmp_path / "a", array)
    assert np.array_equal(read_idx(tmp_path / "a"), array)
    (tmp_path / "b.gz").write_bytes(gzip.compress((tmp_path / "a").read_bytes()))
    assert np.array_equal(read_idx(tmp_path / "b"), array)
    (tmp_path / "c").write_bytes((tmp_path / "a").read_bytes()[:-1])
    with pytest.raises(UserError, match="not a complete IDX file"):
        read_idx(tmp_path / "c")
    with pytest.raises(UserError, match="no such file"):
        read_idx(tmp_path / "d")


def test_mnist_without_data_says_what_to_set(job: MakeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEDSUV_DATA", raising=False)
    with pytest.raises(
        UserError, match="set data_dir to its folder, or the environment variable FEDSUV_DATA"
    ):
        FederatedData(job(data_set="Mnist").config, CPU)


def test_real_mnist(job: MakeJob, data_root: Path) -> None:
    data = FederatedData(job(data_set="Mnist", num_clients=100).config, CPU)
    assert sum(data.getSize()["size"]) == 60_000
    assert len(data.test) == 10_000
    pixels = torch.cat([data.training(c).x for c in range(1, 101)])
    # They are normalised by the published mean and deviation.
    assert float(pixels.mean()) == pytest.approx(0, abs=2e-3)
    assert float(pixels.std()) == pytest.approx(1, abs=2e-3)


def test_real_mnist_by_its_writers(job: MakeJob, data_root: Path) -> None:
    file = data_root / "mnist" / "client_data_mapping" / "train.csv"
    config = job(data_set="Mnist", num_clients=None, data_map_file=str(file)).config
    sizes = FederatedData(config, CPU).getSize()["size"]
    assert len(sizes) == 539  # people
    assert (sizes.min(), sizes.max(), sizes.sum()) == (19, 131, 60_000)


# ---- models


def test_the_initial_model_depends_on_the_seed_alone(job: MakeJob) -> None:
    def weights(seed: int) -> torch.Tensor:
        torch.rand(3)  # whatever was drawn before
        model = initial_model(job(seed=seed).config)
        return torch.nn.utils.parameters_to_vector(model.parameters())

    assert torch.equal(weights(1), weights(1))
    assert not torch.equal(weights(1), weights(2))


def test_building_a_model_leaves_the_global_generator_alone(job: MakeJob) -> None:
    torch.default_generator.manual_seed(7)
    expected = torch.rand(1)
    torch.default_generator.manual_seed(7)
    initial_model(job().config)
    assert torch.equal(torch.rand(1), expected)


def test_model_size_by_hand(job: MakeJob) -> None:
    # weights and biases of 784-64-30-10, 32 bits each, in units of 1024 bits
    n = 784 * 64 + 64 + 64 * 30 + 30 + 30 * 10 + 10
    assert model_kbit(job(data_set="Mnist", model="mlp").config) == n * 32 / 1024


@pytest.mark.parametrize("hidden", ["", "64,x", "0", "-3"])
def test_bad_widths(job: MakeJob, hidden: str) -> None:
    with pytest.raises(UserError, match="mlp_hidden: expected widths such as '64,30'"):
        initial_model(job(model="mlp", mlp_hidden=hidden).config)


def test_losses_by_hand() -> None:
    scores, targets = torch.tensor([[2.0, 0.0, 1.5]]), torch.tensor([0])
    # hinge: the sum of max(0, 1 - (2 - score)) over the two wrong classes = 0 + 0.5
    assert sample_losses("svm", scores, targets).item() == pytest.approx(0.5)
    cross_entropy = -2 + np.log(np.exp(2) + np.exp(0) + np.exp(1.5))
    assert sample_losses("lr", scores, targets).item() == pytest.approx(cross_entropy)
