"""Small data sets on disk, in the formats of the official distributions, for tests to read."""

from __future__ import annotations

import json
import struct
import wave
from pathlib import Path

import numpy as np
from PIL import Image


def write_idx(path: Path, array: np.ndarray) -> None:
    """An array of unsigned bytes as an IDX file, MNIST's format."""
    head = bytes([0, 0, 8, array.ndim]) + b"".join(int(n).to_bytes(4, "big") for n in array.shape)
    path.write_bytes(head + array.tobytes())


def python2_pickle(data: np.ndarray, labels: list[int], key: str) -> bytes:
    """{"data": data, key: labels} as Python 2 pickled it.

    Texts are byte strings, and so is an array's content."""

    def text(content: bytes) -> bytes:
        return b"T" + struct.pack("<i", len(content)) + content

    def numbers(*values: int) -> bytes:
        return b"".join(b"J" + struct.pack("<i", value) for value in values)

    dtype = b"cnumpy\ndtype\n(" + text(b"u1") + numbers(0, 1) + b"tR("
    dtype += numbers(3) + text(b"|") + b"NNN" + numbers(-1, -1, 0) + b"tb"
    array = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n("
    array += numbers(0) + b"t" + text(b"b") + b"tR("
    array += numbers(1) + b"(" + numbers(*data.shape) + b"t" + dtype + b"\x89"
    array += text(data.tobytes()) + b"tb"
    content = text(b"data") + array
    content += text(key.encode()) + b"](" + numbers(*labels) + b"e"
    content += text(b"batch_label") + text(b"caf\xe9")
    return b"\x80\x02}(" + content + b"u."


def write_cifar10(folder: Path, rng: np.random.Generator) -> tuple[np.ndarray, list[int]]:
    """Two images a batch; all of them, the test batch last."""
    data = rng.integers(256, size=(12, 3072), dtype=np.uint8)
    labels = rng.integers(10, size=12).tolist()
    (folder / "cifar-10-batches-py").mkdir()
    for i, name in enumerate([*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]):
        rows = slice(2 * i, 2 * i + 2)
        (folder / "cifar-10-batches-py" / name).write_bytes(
            python2_pickle(data[rows], labels[rows], "labels")
        )
    return data, labels


# writer -> labels of the images
HANDS = {"w2": [5, 61, 0], "w1": [17]}


def pixels_of(label: int) -> np.ndarray:
    """Something on white, another for each label."""
    image = np.full((28, 28), 255, np.uint8)
    image[label % 20 : label % 20 + 4, 5:20] = label
    return image


def write_fedscale(folder: Path) -> None:
    """FEMNIST in FedScale's layout: images and maps of who wrote them."""
    (folder / "client_data_mapping").mkdir()
    for part, hands in (("train", HANDS), ("test", {"w9": [3]})):
        rows = ["client_id,sample_path,label_name,label_id"]
        for writer, labels in hands.items():
            for label in labels:
                name = f"{part}_{writer}_{label}.png"
                Image.fromarray(pixels_of(label)).save(folder / name)
                rows.append(f"{writer},{name},x,{label}")
        (folder / "client_data_mapping" / f"{part}.csv").write_text("\n".join(rows) + "\n")


LeafUser = tuple[list[object], list[object]]  # inputs and labels


def write_leaf(folder: Path, parts: dict[str, dict[str, LeafUser]]) -> None:
    """LEAF's JSON, a file for every user."""
    for part, users in parts.items():
        (folder / "data" / part).mkdir(parents=True)
        for user, (x, y) in users.items():
            data = {user: {"x": x, "y": y}}
            content = {"users": [user], "num_samples": [len(y)], "user_data": data}
            file = folder / "data" / part / f"all_data_{user}_{part}.json"
            file.write_text(json.dumps(content))


def write_leaf_femnist(folder: Path) -> None:
    """The same images as `write_fedscale`, in LEAF's layout."""

    def user(labels: list[int]) -> LeafUser:
        return [(pixels_of(label).ravel() / 255).tolist() for label in labels], list(labels)

    train = {writer: user(labels) for writer, labels in HANDS.items()}
    write_leaf(folder, {"train": train, "test": {"w9": user([3])}})


def write_wav(
    file: Path, samples: np.ndarray, rate: int = 16_000, width: int = 2, channels: int = 1
) -> None:
    """Samples from -1 to 1 as a WAV file of `width` bytes a sample."""
    file.parent.mkdir(parents=True, exist_ok=True)
    if width == 2:
        numbers = (np.asarray(samples) * 32767).astype("<i2")
    else:
        numbers = (np.asarray(samples) * 127 + 128).astype(np.uint8)
    with wave.open(str(file), "wb") as f:
        f.setparams((channels, width, rate, 0, "NONE", ""))
        f.writeframes(numbers.tobytes())


def tone(hertz: float, seconds: float = 1.0, rate: int = 16_000) -> np.ndarray:
    return 0.5 * np.sin(2 * np.pi * hertz * np.arange(int(seconds * rate)) / rate)


def write_speech(folder: Path) -> None:
    """Google's layout: six clips of four speakers, and noise that is no clip."""
    for name, hertz in (
        ("yes/aa_nohash_0", 300),
        ("yes/bb_nohash_0", 310),
        ("no/aa_nohash_0", 900),
        ("no/cc_nohash_0", 910),
        ("no/cc_nohash_1", 920),
        ("bed/dd_nohash_0", 2000),
        ("_background_noise_/pink", 50),
    ):
        write_wav(folder / f"{name}.wav", tone(hertz))


def write_roles(folder: Path, texts: list[str]) -> None:
    """Shakespeare as roles.jsonl, a role for each text."""
    roles = [{"play": "Hamlet", "role": f"ROLE {i}", "text": text} for i, text in enumerate(texts)]
    (folder / "roles.jsonl").write_text("".join(json.dumps(role) + "\n" for role in roles))
