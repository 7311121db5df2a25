"""GPFL's partition, shards, samples that a job leaves out, and the map file of a partition."""

from __future__ import annotations

import csv
from argparse import Namespace
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import ROOT
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import minimize, nnls

from fedsuv_plugin.cli import main
from fedsuv_plugin.cli.partition import BARS, label_counts, plot_partition
from fedsuv_plugin.config.job import Job
from fedsuv_plugin.errors import UserError
from fedsuv_plugin.tasks.federated_data import FederatedData, describe_partition, public_set
from fedsuv_plugin.tasks.map_file import from_map_file, to_map_file
from fedsuv_plugin.tasks.partitions import (
    PARTITIONS,
    Skew,
    by_owner,
    dirichlet_qp,
    least_norm_sizes,
    partition,
)

MakeJob = Callable[..., Job]
CPU = torch.device("cpu")
properties = settings(deadline=None, derandomize=True, max_examples=40)


# ---- sizes by the quadratic programme


@properties
@given(
    seed=st.integers(0, 9999),
    n=st.integers(2, 12),
    classes=st.integers(1, 4),
    alpha=st.sampled_from([0.2, 1.0, 10.0]),
)
def test_sizes_are_scipys(seed: int, n: int, classes: int, alpha: float) -> None:
    """Where some sizes fit, SLSQP finds the same ones.

    Where none do, the misfit is that of non-negative least squares."""
    rng = np.random.default_rng(seed)
    proportions = rng.dirichlet(np.full(classes, alpha), size=n)
    totals = rng.integers(20, 200, size=classes).astype(float)
    sizes = least_norm_sizes(proportions, totals)
    assert sizes.min() >= 0
    some, misfit = nnls(proportions.T, totals)
    assert np.linalg.norm(proportions.T @ sizes - totals) == pytest.approx(
        misfit, abs=1e-5 * totals.sum()
    )
    if misfit < 1e-9 * totals.sum():
        theirs = minimize(
            lambda x: x @ x / 2,
            some,
            jac=lambda x: x,
            bounds=[(0, None)] * n,
            method="SLSQP",
            constraints={
                "type": "eq",
                "fun": lambda x: proportions.T @ x - totals,
                "jac": lambda x: proportions.T,
            },
            options={"maxiter": 500, "ftol": 1e-12},
        )
        assert np.linalg.norm(sizes) <= np.linalg.norm(some) * (1 + 1e-6)
        if theirs.success:
            np.testing.assert_allclose(sizes, theirs.x, atol=1e-3 * totals.sum() / n)


@properties
@given(seed=st.integers(0, 9999), n=st.integers(20, 60), classes=st.integers(1, 8))
def test_sizes_meet_the_conditions_of_the_optimum(seed: int, n: int, classes: int) -> None:
    """Karush-Kuhn-Tucker: there are prices u of the classes with x = max(0, Q u).

    They are found from the clients with x > 0 alone, and must then hold for the others."""
    rng = np.random.default_rng(seed)
    proportions = rng.dirichlet(np.full(classes, 0.5), size=n)
    totals = rng.dirichlet(np.full(classes, 5.0)) * 1000
    sizes = least_norm_sizes(proportions, totals)
    if np.abs(proportions.T @ sizes - totals).sum() > 1e-6 * 1000:
        return
    held = sizes > 1e-6
    prices, _, rank, _ = np.linalg.lstsq(proportions[held], sizes[held], rcond=None)
    np.testing.assert_allclose(proportions[held] @ prices, sizes[held], atol=1e-4)
    if rank == classes:
        assert (proportions[~held] @ prices).max(initial=0.0) <= 1e-4


def test_sizes_by_hand() -> None:
    # One client of class 0, two of class 1, one of halves: x0 + x3/2 = 30, x1 + x2 + x3/2 = 60.
    # By the prices u, v: x = (u, v, v, (u + v)/2), so 5u/4 + v/4 = 30 and u/4 + 9v/4 = 60;
    # u = 210/11, v = 270/11, x3 = 240/11.
    proportions = np.array([[1, 0], [0, 1], [0, 1], [0.5, 0.5]])
    assert least_norm_sizes(proportions, np.array([30, 60])) == pytest.approx(
        np.array([210, 270, 270, 240]) / 11
    )
    # Class 0 is scarce: the mixed client, which would bring too much of it, gets nothing.
    assert least_norm_sizes(
        np.array([[0.9, 0.1], [0.1, 0.9]]), np.array([10, 90])
    ) == pytest.approx([0, 100], abs=1e-6)


# ---- the partition


@properties
@given(
    seed=st.integers(0, 9999),
    n=st.integers(1, 50),
    classes=st.integers(1, 12),
    alpha=st.sampled_from([0.05, 0.2, 1.0, 100.0]),
    extra=st.integers(0, 500),
)
def test_every_sample_is_used_once(
    seed: int, n: int, classes: int, alpha: float, extra: int
) -> None:
    labels = np.random.default_rng(seed).integers(classes, size=n + extra)
    parts = partition(labels, "dirichlet_qp", n, alpha, np.random.default_rng(seed))
    assert sorted(parts.order.tolist()) == list(range(n + extra))
    assert parts.sizes.min() >= 1
    assert np.array_equal(label_counts(parts, labels).sum(axis=0), np.bincount(labels))


def test_counts_are_the_targets_to_within_a_sample() -> None:
    """A case in which the first draw's sizes fit and every client gets more than one sample."""
    labels = np.repeat(np.arange(10), 500)
    parts = partition(labels, "dirichlet_qp", 100, 1.0, np.random.default_rng(4))
    totals = np.full(10, 500)
    proportions = np.random.default_rng(4).dirichlet(totals / 5000, size=100)
    sizes = least_norm_sizes(proportions, totals)
    assert proportions.T @ sizes == pytest.approx(totals)
    assert parts.sizes.min() > 1
    assert np.abs(label_counts(parts, labels) - sizes[:, None] * proportions).max() < 1 + 1e-6


def test_proportions_follow_their_law() -> None:
    """A client's share of class j is Beta(zeta p_j, zeta (1 - p_j)).

    Its mean is p_j, its variance p_j (1 - p_j) / (zeta + 1). With 5 classes of a fifth each and
    zeta 0.2 that is 0.16 / 1.2 = 0.133; over 300 clients x 5 classes the sample's relative error is
    some per cent."""
    labels = np.repeat(np.arange(5), 60_000)
    parts = partition(labels, "dirichlet_qp", 300, 0.2, np.random.default_rng(0))
    counts = label_counts(parts, labels)
    shares = counts / counts.sum(axis=1, keepdims=True)
    assert shares.mean(axis=0) == pytest.approx(np.full(5, 0.2), abs=0.06)
    assert shares.var(axis=0).mean() == pytest.approx(0.133, rel=0.1)


def test_as_many_classes_as_clients_still_use_every_sample() -> None:
    # 62 classes and 100 clients at zeta 0.2: no sizes fit any draw, so what is left over is spread.
    labels = np.repeat(np.arange(62), np.linspace(50, 400, 62).astype(int))
    owner = dirichlet_qp(labels, 100, Skew(alpha=0.2), np.random.default_rng(0))
    assert owner.min() >= 0
    assert np.unique(owner).size == 100


def test_many_clients_and_classes() -> None:
    rng = np.random.default_rng(0)
    labels = rng.choice(62, size=300_000, p=rng.dirichlet(np.full(62, 3.0)))
    parts = partition(labels, "dirichlet_qp", 3000, 0.2, rng)
    assert len(parts) == 3000
    assert parts.sizes.sum() == 300_000
    # Ten times the mean: the least norm keeps the samples from gathering on few clients.
    assert parts.sizes.max() < 10 * 100


@pytest.mark.parametrize(("each", "labels_each"), [(1, 1), (2, 2)])
def test_shards_of_one_label(each: int, labels_each: int) -> None:
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 100))
    parts = partition(labels, "shards", 50, 0.5, np.random.default_rng(1), shards_per_client=each)
    held = (label_counts(parts, labels) > 0).sum(axis=1)
    assert parts.sizes.tolist() == [20] * 50
    assert held.max() == labels_each
    assert each == 1 or (held == 1).sum() < 25  # two shards of one label are rare


def test_label_subset_leaves_everyone_its_own_labels() -> None:
    """6 of 10 labels each; about 30 of 50 clients share the 500 of a label, some 17 each.

    With fewer samples than holders no client is empty, and every sample still has one owner."""
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 500))
    parts = partition(labels, "label_subset", 50, 0.5, np.random.default_rng(1))
    counts = label_counts(parts, labels)
    assert counts.sum() == 5000
    assert ((counts > 0).sum(axis=1) == 6).all()
    assert len({tuple(row) for row in (counts > 0).tolist()}) > 40
    for label in range(10):
        held = counts[:, label][counts[:, label] > 0]
        assert held.max() - held.min() <= 1


# ---- what a job leaves out


@properties
@given(
    labels=arrays(np.int64, st.integers(1, 300), elements=st.integers(0, 5)),
    fraction=st.floats(0.01, 0.99),
    seed=st.integers(0, 99),
)
def test_a_fraction_of_every_label(labels: np.ndarray, fraction: float, seed: int) -> None:
    from fedsuv_plugin.tasks.federated_data import _used_rows

    config = Namespace(data_fraction=fraction, seed=seed)
    rows = _used_rows(config, labels)  # type: ignore[arg-type]
    assert np.all(np.diff(rows) > 0)
    for label in np.unique(labels):
        assert (labels[rows] == label).sum() == max(1, round(fraction * (labels == label).sum()))
    assert np.array_equal(rows, _used_rows(config, labels))  # type: ignore[arg-type]


def test_a_job_on_less_data(job: MakeJob) -> None:
    whole = FederatedData(job(data_set="digits").config, CPU)
    config = job(data_set="digits", data_fraction=0.25, test_samples=50).config
    less = FederatedData(replace(config, interview_fraction=0.2, public_fraction=0.1), CPU)
    _, labels = describe_partition(replace(config, public_fraction=0.1))
    kept = np.maximum(np.rint(np.bincount(labels) * 0.25), 1).sum()
    public = public_set(replace(config, public_fraction=0.1))
    assert less.getSize()["size"].sum() + len(public) == kept
    assert (len(less.interview), len(less.test)) == (10, 40)
    rows = {x.numpy().tobytes() for x in whole.test.x}
    assert all(x.numpy().tobytes() in rows for x in less.test.x)
    more_than_there_is = job(data_set="digits", test_samples=10_000).config
    assert len(FederatedData(more_than_there_is, CPU).test) == len(whole.test)


def test_a_job_on_less_data_of_a_map_file(job: MakeJob, tmp_path: Path) -> None:
    config = job(data_set="digits").config
    parts, labels = describe_partition(replace(config, public_fraction=0.0))
    to_map_file(tmp_path / "map.csv", parts, labels)
    less, _ = describe_partition(
        job(data_set="digits", data_fraction=0.5, data_map_file=str(tmp_path / "map.csv")).config
    )
    assert len(less) == len(parts)
    assert all(set(less.samples(c)) <= set(parts.samples(c)) for c in range(len(parts)))
    assert less.sizes.sum() == pytest.approx(0.5 * len(labels), abs=10)


# ---- map files


@properties
@given(
    owner=arrays(np.int64, st.integers(1, 80), elements=st.integers(-1, 6)), more=st.integers(0, 3)
)
def test_an_export_comes_back_as_it_was(
    owner: np.ndarray, more: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Samples without an owner and clients without samples included."""
    n = max(1, int(owner.max()) + 1) + more
    labels = np.arange(len(owner)) % 3
    parts = by_owner(owner, n)
    path = tmp_path_factory.mktemp("map") / "map.csv"
    to_map_file(path, parts, labels)
    back = from_map_file(str(path), labels, None)
    assert np.array_equal(back.order, parts.order)
    assert np.array_equal(back.offsets, parts.offsets)


@pytest.mark.parametrize("scheme", PARTITIONS.names())
def test_a_job_on_its_own_export_is_the_same_job(job: MakeJob, tmp_path: Path, scheme: str) -> None:
    config = job(partition=scheme, data_fraction=0.5).config
    parts, labels = describe_partition(replace(config, public_fraction=0.1))
    to_map_file(tmp_path / "map.csv", parts, labels)
    with_map = job(
        partition=scheme, data_fraction=0.5, data_map_file=str(tmp_path / "map.csv")
    ).config
    back, _ = describe_partition(replace(with_map, public_fraction=0.1))
    assert np.array_equal(back.order, parts.order)
    assert np.array_equal(back.offsets, parts.offsets)


def test_fedscale_reads_an_export(tmp_path: Path) -> None:
    from fedscale.dataloaders.divide_data import DataPartitioner

    labels = np.random.default_rng(0).integers(4, size=200)
    full = partition(labels, "dirichlet", 10, 0.3, np.random.default_rng(1))
    parts = full.renumbered(np.where(np.arange(200) % 7 == 0, -1, np.arange(200)))
    to_map_file(tmp_path / "map.csv", parts, labels)

    class Data:
        targets = labels.tolist()

        def __len__(self) -> int:
            return len(self.targets)

    theirs = DataPartitioner(Data(), Namespace(), numOfClass=4)
    theirs.partition_data_helper(0, data_map_file=str(tmp_path / "map.csv"))
    ours = {tuple(parts.samples(c)) for c in range(10)} | {tuple(range(0, 200, 7))}
    assert {tuple(p) for p in theirs.partitions} == ours
    assert sorted(theirs.getClientLabel()) == sorted(len(set(labels[list(rows)])) for rows in ours)


def test_names_that_only_look_like_ours_are_names(tmp_path: Path) -> None:
    labels = np.zeros(3, int)

    def sizes(*names: str) -> list[int]:
        rows = "".join(f"{name},x,y,0\n" for name in names)
        (tmp_path / "map.csv").write_text(f"client_id,sample_path,label_name,label_id\n{rows}")
        return from_map_file(str(tmp_path / "map.csv"), labels, None).sizes.tolist()

    assert sizes("2/3", "2/3", "nobody/3") == [0, 2, 0]
    assert sizes("2/3", "2/4", "2/3") == [2, 1]  # not of one partition
    assert sizes("9/3", "2/3", "9/3") == [2, 1]  # no such client
    assert sizes("0/3", "2/3", "0/3") == [2, 1]


# ---- the command

QUICKSTART = str(ROOT / "configs" / "quickstart.yml")


def test_the_command_shows_plots_and_exports(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = ["--set", "num_clients=30", "--set", "partition=dirichlet_qp"]
    command = ["data", "partition", QUICKSTART, *keys]
    files = ["--plot", str(tmp_path / "a.png"), "--export", str(tmp_path / "map.csv")]
    assert main([*command, *files]) == 0
    first = capsys.readouterr().out
    assert "dirichlet_qp: 30 clients share 1,437 of 1,437 samples, 10 labels" in first
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    with (tmp_path / "map.csv").open() as f:
        rows = list(csv.reader(f))
    assert rows[0] == ["client_id", "sample_path", "label_name", "label_id"]
    assert len(rows) == 1438
    assert main([*command, "--set", f"data_map_file={tmp_path / 'map.csv'}"]) == 0
    assert capsys.readouterr().out.splitlines()[2:] == first.splitlines()[2:7]  # the same quantiles


def test_the_command_leaves_the_public_set_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "partition", QUICKSTART, "--set", "public_fraction=0.5"]) == 0
    assert "100 clients share 719 of 1,437 samples" in capsys.readouterr().out


def test_what_the_command_is_told_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "partition", QUICKSTART, "--set", "partition=natrual"]) == 2
    assert "partition: expected one of" in capsys.readouterr().err
    nowhere = str(tmp_path / "no" / "map.csv")
    assert main(["data", "partition", QUICKSTART, "--export", nowhere]) == 2
    assert "cannot be written" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_many_clients_become_a_heat_map(tmp_path: Path) -> None:
    counts = np.random.default_rng(0).poisson(1.0, size=(BARS + 1, 4))
    plot_partition(counts, "many", str(tmp_path / "many.png"))
    assert (tmp_path / "many.png").read_bytes().startswith(b"\x89PNG")


def test_more_clients_than_the_fraction_leaves_are_refused(job: MakeJob) -> None:
    message = "num_clients: expected at most 62, the number of training samples"
    with pytest.raises(UserError, match=message):
        describe_partition(job(data_fraction=0.1, num_clients=100, synthetic_samples=620).config)
