"""Google Speech Commands v0.02: which of 35 words is said in one second of sound.

Two layouts are read:
- Google's: <data_dir>/<word>/<speaker>_nohash_<n>.wav, with testing_list.txt and
  validation_list.txt. Clips listed for testing are the test set, those for validation are left
  out, the others are for training. Without testing_list.txt every tenth speaker, by the CRC-32 of
  the speaker's id, is for testing;
- FedScale's: <data_dir>/client_data_mapping/train.csv and test.csv (client_id, sample_path,
  label_name, label_id) and the files they name in <data_dir>/train and <data_dir>/test.

Source: P. Warden. "Speech Commands: A Dataset for Limited-Vocabulary Speech Recognition."
    arXiv:1804.03209.
`data_dir` defaults to $FEDSUV_DATA/speech_commands. Clients are the speakers, or the map's clients.
There are 35 classes, in FedScale's order, however many of the words are on disk.

A clip becomes a log-mel spectrogram of 32 bands x 32 frames, as FedScale makes it for testing:
- 16 kHz (other rates are resampled), cut or filled with silence to one second;
- Hann windows of 2048 samples every 512, centred, with silence beyond the ends;
- power spectrum, in 32 triangular bands of equal area from 0 to 8 kHz on Slaney's mel scale;
- in dB below the clip's loudest, at least -80 dB, and from there linearly to -1 .. 1.
Training clips are not augmented (FedScale's are). The spectrograms are kept in <data_dir>/.fedsuv
until the files change; they take 2 kB a clip, 217 MB in all.
"""

from __future__ import annotations

import os
import wave
import zlib
from functools import cache
from pathlib import Path

import numpy as np
import torch
from scipy.signal import resample_poly

from fedsuv_plugin.errors import UserError
from fedsuv_plugin.tasks.datasets import DATASETS, DataSet, Splits
from fedsuv_plugin.tasks.files import (
    CLIENT_MAP,
    cached,
    missing,
    numbered,
    progress,
    read_client_map,
)
from fedsuv_plugin.tasks.sources import Download, Source

WORDS = (
    "up two sheila zero yes five one happy marvin no go seven eight tree stop down forward learn "
    "house three six backward dog cat wow left off on four visual nine bird right follow bed"
).split()
RATE = 16_000  # samples a second
WINDOW = 2048  # samples
HOP = 512  # samples from one window to the next
BANDS = 32
FLOOR_DB = 80.0  # nothing is further than this below the loudest
CLIPS_AT_ONCE = 128  # bounds the memory that a batch of clips takes
ARCHIVE = "speech_commands_v0.02.tar.gz"
FORMAT = "log-mel 1"  # changes whenever the same clips give other spectrograms


@DATASETS.add("google_speech")
class GoogleSpeech(DataSet):
    shape = (1, BANDS, RATE // HOP + 1)
    classes = len(WORDS)
    folder = "speech_commands"
    clients = "speakers"
    samples_per_client = 30
    source = Source(
        "arXiv:1804.03209",
        (
            Download(
                (
                    f"https://storage.googleapis.com/download.tensorflow.org/data/{ARCHIVE}",
                    f"http://download.tensorflow.org/data/{ARCHIVE}",
                ),
                ARCHIVE,
                "sha256:af14739ee7dc311471de98f5f9d2c9191b18aedfe957f4a6ff791c709868ff58",
                unpacked="testing_list.txt",
            ),
        ),
    )

    def load(self) -> Splits:
        root = self.root()
        has_map = (root / CLIENT_MAP.format(part="train")).is_file()
        clips = _mapped(root) if has_map else _found(root)
        train = np.array([part == "train" for part, *_ in clips])
        if not train.any() or train.all():
            raise UserError(
                f"data_dir: {root}: expected clips for training and for testing, got "
                f"{train.sum()} and {(~train).sum()}"
            )
        made = _spectrograms(root, [path for _, path, _, _ in clips])
        spectrograms = torch.from_numpy(made).unsqueeze(1)
        labels = torch.tensor([word for _, _, word, _ in clips])
        owner = numbered(speaker for part, _, _, speaker in clips if part == "train")
        return Splits(
            spectrograms[train], labels[train], spectrograms[~train], labels[~train], owner
        )

    def prepare(self, x: torch.Tensor) -> torch.Tensor:
        return x.float().div_(FLOOR_DB / 2).add_(1)


Clip = tuple[str, str, int, str]  # train or test, path below the data set's folder, class, speaker


def _found(root: Path) -> list[Clip]:
    """Google's layout, in the order of the names."""
    files = sorted(
        f"{word}/{name}"
        for word in WORDS
        if (root / word).is_dir()
        for name in os.listdir(root / word)
        if name.endswith(".wav")
    )
    if not files:
        raise missing(root / "<word>" / "<speaker>_nohash_<n>.wav")
    testing, validation = (_listed(root / f"{name}_list.txt") for name in ("testing", "validation"))
    clips = []
    for file in files:
        word, _, name = file.partition("/")
        speaker = name.partition("_")[0]
        is_test = file in testing if testing is not None else zlib.crc32(speaker.encode()) % 10 == 0
        if validation is None or file not in validation:
            clips.append(("test" if is_test else "train", file, WORDS.index(word), speaker))
    return clips


def _listed(file: Path) -> frozenset[str] | None:
    return frozenset(file.read_text().split()) if file.is_file() else None


def _mapped(root: Path) -> list[Clip]:
    """FedScale's layout, in the order of its maps. As in FedScale, the label is told by its name:
    numbers of labels in a map are not those of WORDS."""
    clips = []
    for part in ("train", "test"):
        file = root / CLIENT_MAP.format(part=part)
        of = read_client_map(file, len(WORDS))
        for client, path, word in zip(of.clients, of.paths, of.label_names, strict=True):
            if word not in WORDS:
                raise UserError(
                    f"data_dir: {file}: expected one of the {len(WORDS)} words as label, "
                    f"got {word!r}"
                )
            clips.append((part, f"{part}/{path}", WORDS.index(word), client))
    return clips


def _spectrograms(root: Path, files: list[str]) -> np.ndarray:
    """The spectrogram of each file, (n, bands, frames) float16 in dB."""

    def make() -> dict[str, np.ndarray]:
        made = np.empty((len(files), *GoogleSpeech.shape[1:]), np.float16)
        starts = list(range(0, len(files), CLIPS_AT_ONCE))
        for start in progress(starts, f"spectrograms of {len(files):,} clips in {root}"):
            some = slice(start, start + CLIPS_AT_ONCE)
            sound = np.stack([read_clip(root / file) for file in files[some]])
            made[some] = log_mel(torch.from_numpy(sound)).numpy()
        return {"spectrograms": made}

    try:
        states = [
            f"{file} {stat.st_size} {stat.st_mtime_ns}"
            for file in files
            for stat in [os.stat(root / file)]
        ]
    except FileNotFoundError as error:
        raise missing(error.filename) from None
    return cached(root, "log_mel", [FORMAT, *states], make)["spectrograms"]


def read_clip(file: Path) -> np.ndarray:
    """The first second of a WAV file, (RATE,) float32 in -1 .. 1; channels are averaged."""
    try:
        with wave.open(str(file)) as f:
            rate = f.getframerate()
            width = f.getsampwidth()
            channels = f.getnchannels()
            frames = f.getnframes()
            content = f.readframes(frames)
    except (wave.Error, EOFError) as error:
        raise UserError(f"data_dir: {file}: not a complete WAV file ({error})") from None
    if width not in (1, 2) or not frames or len(content) < frames * width * channels:
        raise UserError(
            f"data_dir: {file}: not a complete WAV file of 8 or 16 bits: {len(content)} bytes for "
            f"{frames} samples of {8 * width} bits"
        )
    if width == 2:
        samples = np.frombuffer(content, "<i2").astype(np.float32) / 32768
    else:
        samples = np.frombuffer(content, np.uint8).astype(np.float32) / 128 - 1
    sound = samples.reshape(-1, channels).mean(axis=1)
    if rate != RATE:
        sound = resample_poly(sound, RATE, rate).astype(np.float32)
    return np.pad(sound[:RATE], (0, max(0, RATE - len(sound))))


def log_mel(sound: torch.Tensor) -> torch.Tensor:
    """Spectrograms in dB below each one's loudest: (n, RATE) -> (n, BANDS, RATE // HOP + 1)."""
    spectrum = torch.stft(
        sound,
        WINDOW,
        HOP,
        window=torch.hann_window(WINDOW),
        center=True,
        pad_mode="constant",
        return_complex=True,
    )  # (n, WINDOW / 2 + 1, frames)
    power = spectrum.real.square() + spectrum.imag.square()
    decibels = 10 * torch.log10((mel_bands() @ power).clamp_min(1e-10))
    return (decibels - decibels.amax(dim=(1, 2), keepdim=True)).clamp_min(-FLOOR_DB)


@cache
def mel_bands() -> torch.Tensor:
    """Weights (BANDS, WINDOW / 2 + 1): triangles whose corners are equally far apart in mel."""
    frequencies = np.linspace(0, RATE / 2, WINDOW // 2 + 1)
    corners = _hertz(np.linspace(0, _mel(RATE / 2), BANDS + 2))
    left = corners[:-2, None]
    centre = corners[1:-1, None]
    right = corners[2:, None]
    rising = (frequencies - left) / (centre - left)
    falling = (right - frequencies) / (right - centre)
    triangles = np.maximum(0, np.minimum(rising, falling))
    return torch.from_numpy((triangles * 2 / (right - left)).astype(np.float32))


# Slaney's mel: 3 mel per 200 Hz up to 1 kHz, then 27 mel for every factor of 6.4.
def _mel(hertz: float) -> float:
    return hertz * 3 / 200 if hertz < 1000 else 15 + 27 * float(np.log(hertz / 1000) / np.log(6.4))


def _hertz(mel: np.ndarray) -> np.ndarray:
    return np.where(mel < 15, mel * 200 / 3, 1000 * 6.4 ** ((mel - 15) / 27))
