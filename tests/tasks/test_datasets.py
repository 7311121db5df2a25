"""Data sets read from disk, in the formats of their official distributions, and their clients."""

from __future__ import annotations

import gzip
import math
import os
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from data_files import (
    LeafUser,
    pixels_of,
    python2_pickle,
    tone,
    write_cifar10,
    write_fedscale,
    write_leaf,
    write_leaf_femnist,
    write_roles,
    write_speech,
    write_wav,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from fedsuv_plugin.config.job import Job
from fedsuv_plugin.errors import UserError
from fedsuv_plugin.tasks.datasets import DATASETS, DataSet, Splits
from fedsuv_plugin.tasks.datasets import google_speech as speech
from fedsuv_plugin.tasks.datasets import shakespeare as plays
from fedsuv_plugin.tasks.datasets.mnist import read_idx
from fedsuv_plugin.tasks.federated_data import FederatedData, initial_model
from fedsuv_plugin.tasks.files import cached, numbered
from fedsuv_plugin.tasks.models import MODELS
from fedsuv_plugin.tasks.partitions import natural

MakeJob = Callable[..., Job]
MakeSet = Callable[..., DataSet]
CPU = torch.device("cpu")


@pytest.fixture
def data_set(job: MakeJob, tmp_path: Path) -> MakeSet:
    """A data set in tmp_path."""

    def make(name: str, **values: object) -> DataSet:
        return DATASETS[name](job(data_set=name, **{"data_dir": str(tmp_path), **values}).config)

    return make


# ---- CIFAR


def test_cifar10_of_python_2(data_set: MakeSet, tmp_path: Path) -> None:
    data, labels = write_cifar10(tmp_path, np.random.default_rng(0))
    spec = data_set("cifar10")
    splits = spec.load()
    assert splits.train_y.tolist() + splits.test_y.tolist() == labels
    assert splits.train_x.dtype == torch.uint8  # compact until prepared
    assert splits.train_x.shape == (10, 3, 32, 32)
    pixels = torch.cat([splits.train_x, splits.test_x]).numpy()
    assert np.array_equal(pixels.reshape(12, 3072), data)
    assert splits.owner is None
    # The first byte is the red of the upper left pixel; (value / 255 - mean) / deviation.
    red = spec.prepare(splits.train_x)[0, 0, 0, 0].item()
    assert red == pytest.approx((data[0, 0] / 255 - 0.4914) / 0.2470, 1e-5)
    raw = data_set("cifar10", raw_pixels=True).prepare(splits.train_x)
    assert raw[0, 2, 31, 31].item() == data[0, -1]


def test_cifar100_has_the_fine_labels(data_set: MakeSet, tmp_path: Path) -> None:
    folder = tmp_path / "cifar-100-python"
    folder.mkdir()
    data = np.zeros((3, 3072), np.uint8)
    (folder / "train").write_bytes(python2_pickle(data, [0, 99, 7], "fine_labels"))
    # written by Python 3, as conversions are
    (folder / "test").write_bytes(pickle.dumps({"data": data[:1], "fine_labels": [42]}, protocol=2))
    splits = data_set("cifar100").load()
    assert (splits.train_y.tolist(), splits.test_y.tolist()) == ([0, 99, 7], [42])
    (folder / "test").write_bytes(pickle.dumps({"data": data[:1], "fine_labels": [100]}))
    with pytest.raises(
        UserError, match="test: not a batch of images: expected .* `fine_labels` below 100"
    ):
        data_set("cifar100").load()


class Harmful:
    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, ("harm",)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (pickle.dumps({"data": Harmful(), "labels": []}), "refused posix.mkdir"),
        (
            python2_pickle(np.zeros((1, 3072), np.uint8), [3], "labels")[:2000],
            "not a readable pickle",
        ),
        (pickle.dumps([1, 2]), "expected `data`, 3072 bytes each"),
        (
            pickle.dumps({"data": np.zeros((2, 3072), np.uint8), "labels": [1]}),
            "expected `data`, 3072 bytes each",
        ),
        (b"", "not a readable pickle"),
    ],
)
def test_pickles_that_are_no_images(
    data_set: MakeSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write_cifar10(tmp_path, np.random.default_rng(0))
    (tmp_path / "cifar-10-batches-py" / "data_batch_3").write_bytes(content)
    with pytest.raises(UserError, match=f"data_batch_3: not a batch of images: {message}"):
        data_set("cifar10").load()
    assert not (tmp_path / "harm").exists()


@pytest.mark.parametrize(
    "name", ["cifar10", "cifar100", "femnist", "google_speech", "shakespeare", "Mnist"]
)
def test_an_empty_folder_says_how_to_get_the_data(data_set: MakeSet, name: str) -> None:
    with pytest.raises(UserError, match="data_dir: no such file: .*fedsuv data fetch <name>"):
        data_set(name).load()


def test_real_cifar10(job: MakeJob, data_root: Path) -> None:
    spec = DATASETS["cifar10"](job(data_set="cifar10").config)
    splits = spec.load()
    assert (len(splits.train_y), len(splits.test_y)) == (50_000, 10_000)
    assert splits.train_y.bincount().tolist() == [5000] * 10
    pixels = spec.prepare(splits.train_x[::7])  # the published constants are those of the originals
    assert pixels.mean(dim=(0, 2, 3)).tolist() == pytest.approx([0, 0, 0], abs=0.02)
    assert pixels.std(dim=(0, 2, 3)).tolist() == pytest.approx([1, 1, 1], abs=0.03)


# ---- FEMNIST


def test_femnist_in_fedscales_layout(data_set: MakeSet, tmp_path: Path) -> None:
    write_fedscale(tmp_path)
    splits = data_set("femnist").load()
    assert splits.train_y.tolist() == [5, 61, 0, 17]
    assert splits.owner is not None and splits.owner.tolist() == [0, 0, 0, 1]
    assert np.array_equal(splits.train_x[1, 0].numpy(), 255 - pixels_of(61))  # ink is bright
    assert (splits.test_x.shape, splits.test_y.tolist()) == ((1, 1, 28, 28), [3])


def test_femnist_in_leafs_layout_gives_the_same_samples(data_set: MakeSet, tmp_path: Path) -> None:
    for name, write in (("fedscale", write_fedscale), ("leaf", write_leaf_femnist)):
        (tmp_path / name).mkdir()
        write(tmp_path / name)
    one, other = (
        data_set("femnist", data_dir=str(tmp_path / name)).load() for name in ("fedscale", "leaf")
    )

    def samples(splits: Splits) -> set[tuple[object, ...]]:
        pairs = zip(splits.train_x, splits.train_y, strict=True)
        return {(int(y), x.numpy().tobytes()) for x, y in pairs}

    assert samples(one) == samples(other)  # LEAF's files are read in the order of their names
    assert one.owner is not None and other.owner is not None
    assert sorted(np.bincount(one.owner)) == sorted(np.bincount(other.owner)) == [1, 3]
    assert torch.equal(one.test_x, other.test_x)


def test_femnist_is_read_once_until_its_map_changes(data_set: MakeSet, tmp_path: Path) -> None:
    write_fedscale(tmp_path)
    first = data_set("femnist").load()
    (tmp_path / "train_w2_61.png").unlink()
    assert torch.equal(data_set("femnist").load().train_x, first.train_x)
    with (tmp_path / "client_data_mapping" / "train.csv").open("a") as f:
        f.write("w3,test_w9_3.png,x,3\n")
    with pytest.raises(UserError, match="no such file: .*train_w2_61.png"):
        data_set("femnist").load()
    Image.new("RGB", (128, 128), "white").save(tmp_path / "train_w2_61.png")
    splits = data_set("femnist").load()
    assert len(splits.train_y) == 5
    assert int(splits.train_x[1].max()) == 0  # scaled to 28 x 28, all white


def test_a_damaged_cache_is_made_again(tmp_path: Path) -> None:
    made = []

    def make() -> dict[str, np.ndarray]:
        made.append(1)
        return {"a": np.arange(3)}

    for damage in (None, b"", b"PK\x03\x04 and no more"):
        if damage is not None:
            (tmp_path / ".fedsuv" / "x.npz").write_bytes(damage)
        assert cached(tmp_path, "x", ["key"], make)["a"].tolist() == [0, 1, 2]
    assert len(made) == 3
    assert cached(tmp_path, "x", ["key"], make)["a"].tolist() == [0, 1, 2]
    assert len(made) == 3
    cached(tmp_path, "x", ["other"], make)
    assert len(made) == 4
    assert [file.name for file in (tmp_path / ".fedsuv").iterdir()] == ["x.npz"]


def test_nothing_to_keep_a_cache_in_is_no_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / ".fedsuv").write_text("a file where the folder should be")
    assert cached(tmp_path, "x", ["key"], lambda: {"a": np.arange(3)})["a"].tolist() == [0, 1, 2]
    assert "not kept for next time" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("train_w1_17.png", b"\x89PNG\r\n\x1a\n", "train_w1_17.png: not a complete image"),
        (
            "client_data_mapping/train.csv",
            b"client_id,sample_path,label_name,label_id\nw,a.png,x,62\n",
            "row 2: expected client, path, label name and a label below 62, got 'w,a.png,x,62'",
        ),
        (
            "client_data_mapping/train.csv",
            b"client_id,sample_path,label_name,label_id\n",
            "expected a row per sample",
        ),
    ],
)
def test_femnist_files_that_are_damaged(
    data_set: MakeSet, tmp_path: Path, file: str, content: bytes, message: str
) -> None:
    write_fedscale(tmp_path)
    (tmp_path / file).write_bytes(content)
    with pytest.raises(UserError, match=message):
        data_set("femnist").load()
    assert not (tmp_path / ".fedsuv").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text[:200], "not a complete LEAF file"),
        (lambda text: "[]", "not a complete LEAF file"),
        (
            lambda text: text.replace('"y": [17]', '"y": [17, 18]'),
            "user w1: expected inputs of 784 values and a label for",
        ),
        (
            lambda text: text.replace('"y": [17]', '"y": [62]'),
            "user w1: expected labels from 0 to 61",
        ),
    ],
)
def test_leaf_files_that_are_damaged(
    data_set: MakeSet, tmp_path: Path, change: Callable[[str], str], message: str
) -> None:
    write_leaf_femnist(tmp_path)
    file = tmp_path / "data" / "train" / "all_data_w1_train.json"
    file.write_text(change(file.read_text()))
    with pytest.raises(UserError, match=message):
        data_set("femnist").load()


# ---- Google Speech


def test_google_speech_in_googles_layout(data_set: MakeSet, tmp_path: Path) -> None:
    write_speech(tmp_path)
    (tmp_path / "testing_list.txt").write_text("yes/bb_nohash_0.wav\n")
    (tmp_path / "validation_list.txt").write_text("no/cc_nohash_1.wav\n")
    spec = data_set("google_speech")
    splits = spec.load()
    words = [speech.WORDS[label] for label in splits.train_y.tolist()]
    assert words == ["bed", "no", "no", "yes"]  # sorted by file name
    assert splits.owner is not None and splits.owner.tolist() == [0, 1, 2, 1]  # dd aa cc aa
    assert [speech.WORDS[label] for label in splits.test_y.tolist()] == ["yes"]
    prepared = spec.prepare(splits.train_x)
    assert prepared.shape == (4, *spec.shape) == (4, 1, 32, 32)
    # -1 is 80 dB below the loudest, 1 is the loudest.
    assert (float(prepared.min()), float(prepared.max())) == (-1, 1)
    loudest = splits.train_x[:, 0].float().mean(dim=2).argmax(dim=1).tolist()
    assert loudest[0] > loudest[1] >= loudest[2] > loudest[3]  # 2000, 900, 910, 300 Hz
    assert spec.classes == len(set(speech.WORDS)) == 35


def test_without_lists_every_tenth_speaker_is_for_testing(
    data_set: MakeSet, tmp_path: Path
) -> None:
    for i in range(40):
        for n in range(2):
            write_wav(tmp_path / "go" / f"{i:08x}_nohash_{n}.wav", tone(400))
    splits = data_set("google_speech").load()
    assert splits.owner is not None
    testing = 40 - len(np.unique(splits.owner))
    assert testing == len(splits.test_y) // 2  # with both of their clips
    assert 1 <= testing <= 12  # Binomial(40, 0.1)


def test_google_speech_in_fedscales_layout(data_set: MakeSet, tmp_path: Path) -> None:
    (tmp_path / "client_data_mapping").mkdir()
    for part, names in (
        ("train", ["up_a_nohash_0", "bed_b_nohash_0"]),
        ("test", ["go_c_nohash_0"]),
    ):
        rows = ["client_id,sample_path,label_name,label_id"]
        for i, name in enumerate(names):
            write_wav(tmp_path / part / f"{name}.wav", tone(300))
            rows.append(f"{10 - i},{name}.wav,{name.partition('_')[0]},0")
        (tmp_path / "client_data_mapping" / f"{part}.csv").write_text("\n".join(rows))
    splits = data_set("google_speech").load()
    # The word counts: FedScale numbers the labels differently.
    assert [speech.WORDS[y] for y in splits.train_y.tolist()] == ["up", "bed"]
    assert splits.owner is not None and splits.owner.tolist() == [0, 1]
    (tmp_path / "train" / "bed_b_nohash_0.wav").unlink()
    with pytest.raises(UserError, match="no such file: .*bed_b_nohash_0.wav"):
        data_set("google_speech").load()


def test_clips_of_other_kinds(tmp_path: Path) -> None:
    plain = tone(440)
    write_wav(tmp_path / "short.wav", plain[:4000])
    write_wav(tmp_path / "long.wav", np.concatenate([plain, plain]))
    write_wav(tmp_path / "slow.wav", tone(440, rate=8000), rate=8000)
    write_wav(tmp_path / "coarse.wav", plain, width=1)
    write_wav(tmp_path / "stereo.wav", np.stack([plain, 0 * plain], axis=1).ravel(), channels=2)
    read = {file.stem: speech.read_clip(file) for file in tmp_path.iterdir()}
    assert {sound.shape for sound in read.values()} == {(16_000,)}
    assert {sound.dtype for sound in read.values()} == {np.dtype(np.float32)}
    assert not read["short"][4000:].any()
    np.testing.assert_allclose(read["short"][:4000], plain[:4000], atol=1e-4)
    np.testing.assert_allclose(read["long"], plain, atol=1e-4)
    np.testing.assert_allclose(read["coarse"], plain, atol=2e-2)
    np.testing.assert_allclose(read["stereo"], plain / 2, atol=1e-4)
    # At the ends the filter of the resampling shows.
    np.testing.assert_allclose(read["slow"][100:-100], plain[100:-100], atol=1e-2)


def test_damaged_clips(data_set: MakeSet, tmp_path: Path) -> None:
    write_speech(tmp_path)
    (tmp_path / "testing_list.txt").write_text("yes/bb_nohash_0.wav\n")
    file = tmp_path / "no" / "aa_nohash_0.wav"
    whole = file.read_bytes()
    for content in (whole[:20_000], whole[:30], b"RIFF", b"no sound"):
        file.write_bytes(content)
        with pytest.raises(UserError, match="aa_nohash_0.wav: not a complete WAV file"):
            data_set("google_speech").load()
    assert not (tmp_path / ".fedsuv").exists()


def log_mel_by_the_book(sound: np.ndarray) -> np.ndarray:
    """(32, 32) from the definition: explicit frames, an explicit Fourier sum, a loop over bands."""

    def hertz(mel: float) -> float:
        return 200 * mel / 3 if mel < 15 else 1000 * math.exp((mel - 15) * math.log(6.4) / 27)

    top = 15 + 27 * math.log(8) / math.log(6.4)  # 8 kHz in mel
    corners = [hertz(top * i / 33) for i in range(34)]
    n = np.arange(2048)
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * n / 2048)
    padded = np.concatenate([np.zeros(1024), sound, np.zeros(1024)])
    k = np.arange(1025)
    waves = np.exp(-2j * np.pi * np.outer(k, n) / 2048)
    mel = np.zeros((32, 32))
    for frame in range(32):
        power = np.abs(waves @ (padded[512 * frame : 512 * frame + 2048] * hann)) ** 2
        for band in range(32):
            left, centre, right = corners[band : band + 3]
            f = k * 16_000 / 2048
            rising = (f - left) / (centre - left)
            falling = (right - f) / (right - centre)
            weight = np.where(f <= centre, rising, falling).clip(0)
            mel[band, frame] = 2 / (right - left) * (weight * power).sum()
    decibels = 10 * np.log10(mel.clip(1e-10))
    return np.maximum(decibels - decibels.max(), -80)


def test_log_mel_is_that_of_the_definition() -> None:
    rng = np.random.default_rng(0)
    noise = rng.normal(size=16_000) * 0.1
    noisy_tone = tone(700) + 0.01 * rng.normal(size=16_000)
    sounds = np.stack([noise, noisy_tone]).astype(np.float32)
    expected = np.stack([log_mel_by_the_book(sound) for sound in sounds])
    found = speech.log_mel(torch.from_numpy(sounds)).numpy()
    np.testing.assert_allclose(found, expected, atol=2e-3)


def test_silence_is_finite() -> None:
    assert speech.log_mel(torch.zeros(1, 16_000)).abs().max() == 0  # all bands equally loud


def test_real_speech(job: MakeJob, data_root: Path) -> None:
    config = job(data_set="google_speech", partition="natural", num_clients=None).config
    splits = DATASETS["google_speech"](config).load()
    assert len(splits.train_y) + len(splits.test_y) == 4074
    assert len(torch.cat([splits.train_y, splits.test_y]).unique()) == 10  # of 35 words
    data = FederatedData(config, CPU)
    sizes = data.getSize()["size"]
    assert (len(sizes), sizes.min(), sizes.max(), sizes.sum()) == (191, 1, 117, len(splits.train_y))
    own = data.training(1)
    assert own.x.shape[1:] == (1, 32, 32)
    assert bool(own.x.isfinite().all())


# ---- Shakespeare


def test_the_alphabet_has_eighty_characters() -> None:
    assert len(set(plays.ALPHABET)) == len(plays.ALPHABET) == 80
    codes = plays.encode("To be,\n\u00e9\u2014\U0001f3ad@!")
    assert "".join(plays.ALPHABET[code] for code in codes) == "To be,\n    !"


@settings(max_examples=40, deadline=None, derandomize=True)
@given(lengths=st.lists(st.integers(0, 700), min_size=1, max_size=5), seed=st.integers(0, 99))
def test_sequences_never_reach_over_the_border(lengths: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    texts = [rng.integers(80, size=n).astype(np.uint8) for n in lengths]
    for stride in (1, 80):
        x, y, owner = plays._windows(texts, stride)
        expected = [
            (text[i : i + 80].tolist(), int(text[i + 80]), who)
            for who, text in enumerate(texts)
            for i in range(0, len(text) - 80, stride)
        ]
        found = zip(x.tolist(), y.tolist(), owner.tolist(), strict=True)
        assert list(found) == expected


def test_shakespeare_by_roles(data_set: MakeSet, tmp_path: Path) -> None:
    # 1000 characters: 800 for training, so 720 samples, and 200 for testing, so samples at 0 and
    # 80. The second role is too short for any; it is no client.
    text = "".join(plays.ALPHABET[2:][i * i % 70] for i in range(1000))
    write_roles(tmp_path, [text, "To be, or not to be.", text[::-1]])
    spec = data_set("shakespeare")
    splits = spec.load()
    assert splits.owner is not None and np.bincount(splits.owner).tolist() == [720, 720]
    assert len(splits.test_y) == 4
    assert "".join(plays.ALPHABET[code] for code in splits.train_x[719]) == text[719:799]
    assert plays.ALPHABET[int(splits.train_y[719])] == text[799]
    assert "".join(plays.ALPHABET[code] for code in splits.test_x[1]) == text[880:960]
    assert plays.ALPHABET[int(splits.test_y[1])] == text[960]
    assert splits.train_x.dtype == torch.uint8
    assert spec.prepare(splits.train_x).dtype == torch.int64
    assert spec.shape == (80,)


def test_blanks_run_together(data_set: MakeSet, tmp_path: Path) -> None:
    write_roles(tmp_path, [("a" * 40 + "   ") * 20])
    assert len(data_set("shakespeare").load().train_y) == 41 * 20 * 4 // 5 - 80


def test_shakespeare_of_leaf(data_set: MakeSet, tmp_path: Path) -> None:
    line = ("Now is the winter of our discontent made glorious summer " * 2)[:82]
    richard: LeafUser = ([line[:80], line[1:81]], [line[80], line[81]])
    anne: LeafUser = ([" " * 80], ["@"])
    test: dict[str, LeafUser] = {"RICHARD": ([line[2:82]], ["}"])}
    write_leaf(tmp_path, {"train": {"RICHARD": richard, "ANNE": anne}, "test": test})
    splits = data_set("shakespeare").load()
    # Files are read in the order of their names: ANNE comes first.
    assert splits.owner is not None and splits.owner.tolist() == [0, 1, 1]
    assert "".join(plays.ALPHABET[code] for code in splits.train_x[2]) == line[1:81]
    assert [plays.ALPHABET[code] for code in splits.train_y] == [" ", line[80], line[81]]
    assert splits.test_y.tolist() == [79]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            '{"text": "To be"}\n{"text": "or',
            "roles.jsonl: line 2: expected an object with play, role and text",
        ),
        ('{"role": "HAMLET"}', "line 1: expected"),
        ("[1]", "line 1: expected"),
        ('{"text": 3}', "line 1: expected"),
        ('{"text": "To be"}', "expected roles of at least 405 characters"),
        ("", "expected roles of at least 405"),
    ],
)
def test_roles_that_are_damaged(
    data_set: MakeSet, tmp_path: Path, content: str, message: str
) -> None:
    (tmp_path / "roles.jsonl").write_text(content)
    with pytest.raises(UserError, match=message):
        data_set("shakespeare").load()


def test_a_model_is_tried_on_inputs_of_the_data_sets_type(
    job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    def embedding(config: object, shape: tuple[int, ...], classes: int) -> torch.nn.Module:
        return torch.nn.Sequential(
            torch.nn.Embedding(80, 8), torch.nn.Flatten(), torch.nn.Linear(8 * shape[0], classes)
        )

    monkeypatch.setitem(MODELS._entries, "embedding", embedding)  # refuses floats
    model = initial_model(job(data_set="shakespeare", model="embedding").config)
    assert len(list(model.parameters())) == 3
    with pytest.raises(UserError, match="model: embedding does not take inputs of shape"):
        initial_model(job(data_set="synthetic", model="embedding").config)


def test_real_shakespeare(job: MakeJob, data_root: Path) -> None:
    config = job(data_set="shakespeare", partition="natural", num_clients=143).config
    spec = DATASETS["shakespeare"](config)
    splits = spec.load()
    assert splits.owner is not None and len(np.unique(splits.owner)) == 794
    letters = np.bincount(splits.train_y.numpy(), minlength=80)
    assert plays.ALPHABET[int(letters.argmax())] == " "
    assert "".join(plays.ALPHABET[i] for i in np.argsort(-letters)[1:4]) == "eto"  # as in English
    data = FederatedData(config, CPU)
    sizes = data.getSize()["size"]
    assert len(sizes) == 143
    assert set(sizes) <= set(np.bincount(splits.owner))
    assert data.training(143).x.dtype == torch.int64


# ---- natural clients


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    owner=st.lists(st.integers(0, 8), min_size=1, max_size=60),
    seed=st.integers(0, 99),
    data=st.data(),
)
def test_natural_clients(owner: list[int], seed: int, data: st.DataObject) -> None:
    of = numbered(map(str, owner))
    known = len(set(owner))
    n = data.draw(st.none() | st.integers(1, known))
    parts = natural(of, n, np.random.default_rng(seed))
    assert len(parts) == (n or known)
    assert parts.sizes.min() >= 1
    kept = [set(of[parts.samples(client)].tolist()) for client in range(len(parts))]
    assert all(len(one) == 1 for one in kept)  # a client is one owner
    numbers = [one.pop() for one in kept]
    assert numbers == sorted(set(numbers))  # and no two are the same, in their order
    all_that_they_own = np.flatnonzero(np.isin(of, numbers)).tolist()
    assert sorted(parts.order.tolist()) == all_that_they_own
    again = natural(of, n, np.random.default_rng(seed))
    assert np.array_equal(parts.order, again.order)


def test_which_natural_clients_are_kept_depends_on_the_seed_and_is_fair() -> None:
    # 3 of 10 owners, 1000 seeds: each is kept Binomial(1000, 0.3) times; allow 5 standard
    # deviations of 14.5.
    counts = np.zeros(10)
    for seed in range(1000):
        counts[natural(np.arange(10), 3, np.random.default_rng(seed)).order] += 1
    assert np.abs(counts - 300).max() < 73


def test_natural_partitions_that_cannot_be(job: MakeJob, tmp_path: Path) -> None:
    message = (
        r"partition: natural: this synthetic does not say whose its samples are; expected another "
        r"partition, or one of Mnist \(writers, .*femnist \(writers\), google_speech \(speakers\)"
    )
    with pytest.raises(UserError, match=message):
        FederatedData(job(partition="natural").config, CPU)
    write_fedscale(tmp_path)
    here = {"data_set": "femnist", "data_dir": str(tmp_path), "partition": "natural"}
    with pytest.raises(
        UserError,
        match="num_clients: expected at most 2, the natural clients of the data set, got 3",
    ):
        FederatedData(job(**here, num_clients=3).config, CPU)
    everyone = FederatedData(job(**here, num_clients=None).config, CPU)
    assert everyone.getSize()["size"].tolist() == [3, 1]


def test_the_servers_public_samples_are_taken_from_natural_clients(
    job: MakeJob, tmp_path: Path
) -> None:
    write_fedscale(tmp_path)
    keys = {"data_set": "femnist", "data_dir": str(tmp_path), "partition": "natural"}
    config = job(**keys, num_clients=None).config
    assert sum(FederatedData(replace(config, public_fraction=0.5), CPU).getSize()["size"]) == 2


def test_real_mnist_has_its_writers_for_clients(job: MakeJob, data_root: Path) -> None:
    file = data_root / "mnist" / "client_data_mapping" / "train.csv"
    by_writer, by_map = (
        FederatedData(job(data_set="Mnist", num_clients=None, **keys).config, CPU)
        for keys in ({"partition": "natural"}, {"data_map_file": str(file)})
    )
    assert np.array_equal(by_writer.getSize()["size"], by_map.getSize()["size"])
    assert torch.equal(by_writer.training(539).x, by_map.training(539).x)


@pytest.mark.parametrize(
    "content", [b"", b"\0\0\x08", b"\0\0\x08\3\0\0", b"\0\0\x08\0", b"<html>an error page</html>"]
)
def test_idx_files_that_are_damaged(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(UserError, match="a: not a complete IDX file"):
        read_idx(tmp_path / "a")
    for packed in (content, gzip.compress(bytes(1000))[:-4]):
        (tmp_path / "b.gz").write_bytes(packed)
        with pytest.raises(UserError, match=r"b(\.gz)?: not a complete (gzip|IDX) file"):
            read_idx(tmp_path / "b")


def test_a_map_of_other_images_gives_no_writers(
    job: MakeJob, tmp_path: Path, data_root: Path
) -> None:
    (tmp_path / "MNIST").symlink_to(data_root / "mnist" / "MNIST")
    (tmp_path / "client_data_mapping").mkdir()
    (tmp_path / "client_data_mapping" / "train.csv").write_text(
        "client_id,sample_path,label_name,label_id\n1,0,5,5\n"
    )
    keys = {"data_set": "Mnist", "data_dir": str(tmp_path)}
    message = "train.csv: expected the labels of the 60000 training images"
    with pytest.raises(UserError, match=message):
        FederatedData(job(**keys, partition="natural").config, CPU)
    FederatedData(job(**keys, partition="iid").config, CPU)  # which needs no writers
