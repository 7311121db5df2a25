"""Fingerprints: every bit by hand, on numbers and on texts, and close where the data are alike."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import MakeJob
from engine_worlds import data_of

from fedsuv_plugin.engine.simhash import GRAM, Tokens, grams, simhash, token_bits
from fedsuv_plugin.randomness import stream
from fedsuv_plugin.tasks.federated_data import Samples

MASK = 2**64 - 1


def texts_of(*lines: str) -> Samples:
    x = torch.tensor([[ord(character) for character in line] for line in lines])
    return Samples(x, torch.zeros(len(lines), dtype=torch.int64))


# ---- texts


def test_weighted_tokens_by_hand() -> None:
    # Bits from the highest: +2 -1 +3 = 4, -2 +1 +3 = 2, -2 +1 -3 = -4, +2 +1 -3 = 0. A sum of 0
    # gives 0. In all other bits the three tokens have zeros.
    hashed = np.array([0b1001, 0b0111, 0b1100], np.uint64)
    bits = token_bits(hashed, np.array([2, 1, 3]))
    assert bits.tolist() == [0, 0, 1, 1] + [0] * 60
    assert bits.dtype == np.uint8


def split_mix(x: int) -> int:
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def text_bits_by_the_book(lines: list[str], seed: int) -> list[int]:
    """Eq. (6) and (7) of the preprint, token by token, over a hash of 64 bits."""
    start = int(stream(seed, "fingerprint").integers(2**64 - 1, dtype=np.uint64))
    sums = [0] * 64
    for line in lines:
        for i in range(max(1, len(line) - GRAM + 1)):
            key = 0
            for character in line[i : i + GRAM]:
                key = key * 2**21 + ord(character)
            hashed = split_mix(split_mix((key * 0x9E3779B97F4A7C15 + start) & MASK))
            for j in range(64):
                sums[j] += 1 if hashed >> j & 1 else -1
    return [int(total > 0) for total in sums]


@pytest.mark.parametrize("seed", [0, 7])
def test_a_text_s_bits_by_the_book(seed: int) -> None:
    lines = ["to be or not to be", "that is the questi", "on: whether 'tis n"]
    assert Tokens(seed)(texts_of(*lines)).tolist() == text_bits_by_the_book(lines, seed)
    assert Tokens(seed)(texts_of("ab", "cd")).tolist() == text_bits_by_the_book(["ab", "cd"], seed)


def test_a_token_is_three_characters_in_their_order() -> None:
    assert len(np.unique(grams(np.array([[1, 2, 3], [3, 2, 1], [2, 1, 3]], np.uint64)))) == 3
    assert len(np.unique(grams(np.array([[1, 2, 3, 1, 2, 3]], np.uint64)))) == 3  # 123, 231, 312
    # The largest characters that stand side by side.
    assert len(np.unique(grams(np.array([[2**21 - 1] * 3, [0, 0, 2**21 - 1]], np.uint64)))) == 2


def test_neither_order_nor_copies_of_texts_matter() -> None:
    one = Tokens(3)(texts_of("abcabcd", "defdefg"))
    assert Tokens(3)(texts_of("defdefg", "abcabcd")).tolist() == one.tolist()
    assert Tokens(3)(texts_of(*["abcabcd", "defdefg"] * 2)).tolist() == one.tolist()


def test_the_same_language_is_closer_than_another() -> None:
    # Two halves of one text share most 3-grams, two texts of different alphabets share none: those
    # differ in Binomial(64, 1/2) bits, 32 with a standard deviation of 4.
    rng = np.random.default_rng(0)

    def text(alphabet: str) -> Samples:
        p = 0.5 ** np.arange(1, len(alphabet) + 1)
        drawn = rng.choice(list(alphabet), (40, 80), p=p / p.sum())
        return texts_of(*("".join(line) for line in drawn))

    one, again, other = (Tokens(0)(text(alphabet)) for alphabet in ("abcdef", "abcdef", "uvwxyz"))
    assert (one != again).sum() <= 5
    assert (one != other).sum() >= 12


# ---- numbers


def test_bits_are_sides_of_planes_by_the_book(job: MakeJob) -> None:
    small = job(label_noise_clients=0.3, holdout_fraction=0.2)
    data = data_of(small)
    everyone = data_of(job(partition="iid"))
    inputs = torch.cat([everyone.training(c).x for c in range(1, 21)]).double()
    planes = stream(3, "fingerprint").standard_normal((64, 8 + 4))
    bits_of = simhash(data)
    for client in range(1, 21):
        own = data.training(client)
        z = [float(own.x[:, i].double().mean() - inputs[:, i].mean()) for i in range(8)]
        z += [sum(int(y) == label for y in own.y) / len(own) for label in range(4)]
        sums = [
            sum(normal * value for normal, value in zip(plane, z, strict=True)) for plane in planes
        ]
        found = bits_of(own)
        assert found.tolist() == [int(total > 0) for total in sums]
        assert found.dtype == np.uint8


def test_inputs_are_centred_by_all_training_inputs_whoever_has_them(job: MakeJob) -> None:
    data = data_of(job(data_set="digits", data_fraction=0.3))
    everything = data_of(job(data_set="digits", num_clients=1, partition="iid")).training(1)
    assert data.mean_input == pytest.approx(everything.x.double().mean(0).flatten().numpy())
    assert data.mean_input is data.mean_input  # not computed twice


def test_bits_depend_on_the_seed_and_differ_by_the_angle(job: MakeJob) -> None:
    # Vectors at an angle a differ in Binomial(64, a / pi) bits. Of one client (labels alone
    # matter: its inputs are the centre) half 0, half 1 against all 0: a = 45 degrees, 16 bits with
    # a standard deviation of 3.46; over 100 seeds the mean has 0.346.
    apart = []
    for seed in range(100):
        data = data_of(job(seed=seed, synthetic_samples=40, num_clients=2))
        bits_of = simhash(data)
        centre = torch.from_numpy(data.mean_input).float().expand(4, -1)
        mixed = bits_of(Samples(centre.double(), torch.tensor([0, 0, 1, 1])))
        pure = bits_of(Samples(centre.double(), torch.tensor([0, 0, 0, 0])))
        apart.append((mixed != pure).sum())
    assert abs(np.mean(apart) - 16) < 5 * 0.346
    assert np.std(apart) > 1


def test_bits_of_opposite_data_are_opposite(job: MakeJob) -> None:
    # With inputs far from the centre the label shares hardly count: opposite sides of nearly every
    # plane.
    data = data_of(job())
    far = 1e9 * torch.randn(1, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    label = torch.tensor([0])
    bits_of = simhash(data)
    assert (bits_of(Samples(far, label)) + bits_of(Samples(-far, label)) == 1).all()


def test_clients_with_the_same_two_digits_are_closer(data_root: Path, job: MakeJob) -> None:
    """MNIST, 8 clients of 100 images for each of 5 pairs of digits.

    The mean of 100 images is near its pair's, so that two clients of a pair are at a small angle.
    Five centred means of pairs, which add up to 0, are at 104 degrees to one another on average
    (cosine -1 / 4), 37 bits; if two happen to be alike, still more than the noise."""
    data = data_of(job(data_set="Mnist", data_dir=None, num_clients=1, partition="iid"))
    everything = data.training(1)
    bits_of = simhash(data)
    rng = np.random.default_rng(0)
    bits = []
    pairs = np.repeat(np.arange(5), 8)
    for pair in pairs.tolist():
        there = np.flatnonzero(everything.y.numpy() // 2 == pair)
        rows = torch.from_numpy(rng.choice(there, 100, replace=False))
        bits.append(bits_of(Samples(everything.x[rows], everything.y[rows])))
    table = np.array(bits)
    apart = (table[:, None, :] != table[None, :, :]).sum(axis=2)
    same = pairs[:, None] == pairs[None, :]
    np.fill_diagonal(apart, 64)
    seven_nearest = apart.argsort(axis=1, kind="stable")[:, :7]
    assert (pairs[seven_nearest] == pairs[:, None]).all()
    np.fill_diagonal(apart, 0)
    assert apart[same].sum() / (40 * 7) < 16
    assert abs(apart[~same].mean() - 37) < 3
