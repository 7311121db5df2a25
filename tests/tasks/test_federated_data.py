"""Who has which samples: held out, public, wrongly labelled, in shards, as raw pixels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import MakeJob
from engine_worlds import data_of

from fedsuv_plugin.errors import UserError
from fedsuv_plugin.tasks.datasets import DATASETS
from fedsuv_plugin.tasks.federated_data import noisy_clients, public_set
from fedsuv_plugin.tasks.partitions import partition


def test_held_out_samples_are_not_trained_on(job: MakeJob) -> None:
    data = data_of(job(holdout_fraction=0.25))
    whole = data_of(job())
    for client in range(1, 21):
        own = data.training(client)
        held = data.held_out(client)
        every = whole.training(client)
        assert len(held) == len(every) // 4
        assert sorted(torch.cat([own.x, held.x])[:, 0].tolist()) == sorted(every.x[:, 0].tolist())


# ---- the public set


def test_a_public_set_from_a_named_data_set(job: MakeJob) -> None:
    named = job(public_data_set="synthetic", public_samples=17, public_fraction=0.0)
    assert len(public_set(named.config)) == 17
    with pytest.raises(
        UserError, match="public_data_set: expected a data set with inputs of shape"
    ):
        public_set(job(public_data_set="digits", public_fraction=0.0).config)
    with pytest.raises(UserError, match="public_fraction: expected enough for at least one sample"):
        public_set(job(public_fraction=0.0).config)


def test_a_map_file_keeps_its_owners_without_the_public_samples(
    job: MakeJob, tmp_path: Path
) -> None:
    rows = "".join(f"{i % 7},x\n" for i in range(600))
    (tmp_path / "map.csv").write_text("client_id,label_id\n" + rows)
    keys = {"data_map_file": str(tmp_path / "map.csv"), "num_clients": 7}
    whole = data_of(job(**keys))
    carved = data_of(job(**keys, public_fraction=0.1))
    assert carved.getSize()["size"].sum() == 540
    for c in range(1, 8):
        assert set(carved.training(c).x[:, 0].tolist()) < set(whole.training(c).x[:, 0].tolist())


# ---- clients with wrong labels


def test_label_noise_shifts_every_label_of_the_chosen_clients(job: MakeJob) -> None:
    made = job(label_noise_clients=0.25, holdout_fraction=0.2)
    clean = data_of(job(holdout_fraction=0.2))
    noisy = data_of(made)
    wrong = noisy_clients(made.config, 20)
    assert len(wrong) == 5
    assert not noisy_clients(job().config, 20)
    for c in range(1, 21):
        shift = int(c in wrong)
        for part in ("training", "held_out"):
            before = getattr(clean, part)(c)
            after = getattr(noisy, part)(c)
            assert torch.equal(after.x, before.x)
            assert torch.equal(after.y, (before.y + shift) % 4)
    assert torch.equal(noisy.test.y, clean.test.y)
    assert wrong != noisy_clients(job(label_noise_clients=0.25, seed=4).config, 20)


# ---- shards and pixels


def test_shards_by_hand() -> None:
    labels = np.repeat(np.arange(10), 60)
    parts = partition(labels, "shards", 20, 0.5, np.random.default_rng(0), shards_per_client=2)
    assert set(parts.sizes.tolist()) == {30}  # 40 shards of 15, 4 to a class
    assert all(len(np.unique(labels[parts.samples(c)])) <= 2 for c in range(20))
    one = partition(labels, "shards", 20, 0.5, np.random.default_rng(0), shards_per_client=1)
    assert all(len(np.unique(labels[one.samples(c)])) == 1 for c in range(20))


@pytest.mark.parametrize(("name", "folder"), [("Mnist", "mnist"), ("fmnist", "fashion_mnist")])
def test_raw_pixels(job: MakeJob, data_root: Path, name: str, folder: str) -> None:
    if not (data_root / folder).is_dir():
        pytest.skip(f"no {folder} in FEDSUV_DATA")
    raw = DATASETS[name](job(data_set=name, raw_pixels=True).config)
    normal = DATASETS[name](job(data_set=name, raw_pixels=False).config)
    splits = raw.load()
    assert splits.train_x.shape == (60000, 1, 28, 28)
    assert splits.test_y.bincount().tolist()[:1] == [{"Mnist": 980, "fmnist": 1000}[name]]
    x = splits.train_x[:20000]
    assert (float(raw.prepare(x).min()), float(raw.prepare(x).max())) == (0.0, 255.0)
    # The constants are the training set's; 20,000 images are near enough to see it.
    prepared = normal.prepare(x)
    assert float(prepared.mean()) == pytest.approx(0, abs=0.02)
    assert float(prepared.std()) == pytest.approx(1, abs=0.02)
