"""A slow neural bandit, as the papers write it: contexts written twice, gradients by autograd.

And what `lsh` and `nccb` know, participation by participation."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch

from fedsuv_plugin.selectors.base import RoundView
from fedsuv_plugin.selectors.baselines.lsh import Lsh


def twice(bits: Sequence[int]) -> list[float]:
    """The bits written twice, scaled to length 1."""
    whole = [float(bit) for bit in bits] * 2
    length = math.sqrt(sum(x * x for x in whole))
    return [x / length for x in whole] if length else whole


class BanditByTheBook:
    """f = sqrt(w) W_2 relu(W_1 x), and a diagonal Z with one entry for each weight."""

    def __init__(self, once: np.ndarray, last: np.ndarray, lam: float):
        """`once` (w, d): what the first half of the units makes of the first copy of a context,
        and the second half of the second; the rest of W_1 is 0, `last` (w,) is W_2."""
        w, d = once.shape
        self.first = torch.zeros(w, 2 * d, dtype=torch.float64)
        self.first[: w // 2, :d] = torch.from_numpy(once[: w // 2].copy())
        self.first[w // 2 :, d:] = torch.from_numpy(once[w // 2 :].copy())
        self.last = torch.from_numpy(last.copy())
        self.first.requires_grad_()
        self.last.requires_grad_()
        self.theta = [self.first, self.last]
        self.start = [t.detach().clone() for t in self.theta]
        self.lam = lam
        self.w = w
        self.z = [torch.full_like(t, lam) for t in self.start]

    def f(self, x: Sequence[float]) -> torch.Tensor:
        hidden = self.first @ torch.tensor(x, dtype=torch.float64)
        return math.sqrt(self.w) * (self.last @ torch.relu(hidden))

    def gradient(self, x: Sequence[float]) -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(self.f(x), self.theta)

    def bounds(self, x: Sequence[float], gamma: float) -> tuple[float, float]:
        """f and U."""
        with torch.no_grad():
            predicted = float(self.f(x))
        terms = zip(self.gradient(x), self.z, strict=True)
        total = sum(float((g**2 / (self.w * z)).sum()) for g, z in terms)
        return predicted, predicted + gamma * math.sqrt(self.lam * total)

    def observe(self, xs: Sequence[Sequence[float]]) -> None:
        grown = [self.gradient(x) for x in xs]
        for gradient in grown:
            for z, g in zip(self.z, gradient, strict=True):
                z += g**2 / self.w

    def fit(
        self, pairs: Sequence[tuple[Sequence[float], float]], total: int, steps: int, rate: float
    ) -> float:
        """Steps on (f - r)^2 / 2 + w lam |theta - theta_0|^2 / (2 total), pair after pair."""
        left = steps
        met = math.inf
        while left and met > 1e-3:
            errors = []
            for x, reward in pairs[:left]:
                error = self.f(x) - reward
                apart = sum(
                    ((t - s) ** 2).sum() for t, s in zip(self.theta, self.start, strict=True)
                )
                loss = error**2 / 2 + self.w * self.lam / total * apart / 2
                steepness = sum(float((g**2).sum()) for g in self.gradient(x))
                step = min(rate, 1 / (steepness + self.w * self.lam / total))
                slopes = torch.autograd.grad(loss, self.theta)
                with torch.no_grad():
                    for t, slope in zip(self.theta, slopes, strict=True):
                        t -= step * slope
                errors.append(float(error.detach()))
            left -= len(errors)
            met = float(np.mean(np.square(errors)))
        return met


class ByTheBook:
    """What is known of whom: bits, and every participation with its reward."""

    def __init__(self, s: Lsh):
        self.params: Any = s.params
        self.bandit = BanditByTheBook(s.bandit.start_first, s.bandit.start_last, s.params.lam)
        self.contexts: dict[int, list[float]] = {}
        self.rewards: dict[int, list[float]] = {}
        self.largest = 0.0

    def hear(self, view: RoundView) -> None:
        if view.probe is not None:
            for row, bits in zip(view.probe.rows.tolist(), view.probe.values, strict=True):
                self.contexts[row] = twice(bits.tolist())

    def bounds(self, rows: Iterable[int]) -> dict[int, tuple[float, float]]:
        known = [row for row in rows if row in self.contexts]
        return {i: self.bandit.bounds(self.contexts[i], self.params.gamma) for i in known}

    def learn(
        self, rows: list[int], rewards: list[float], valid: list[bool], rng: np.random.Generator
    ) -> None:
        """`rng` draws the order of training."""
        new = [
            (row, reward)
            for row, reward, ok in zip(rows, rewards, valid, strict=True)
            if ok and row in self.contexts
        ]
        if not new:
            return
        for row, reward in new:
            self.rewards.setdefault(row, []).append(reward)
            self.largest = max(self.largest, reward)
        self.bandit.observe([self.contexts[row] for row, _ in new])
        pairs = []
        for row in sorted(self.rewards):
            mean = sum(self.rewards[row]) / len(self.rewards[row]) / (self.largest or 1)
            pairs += [(self.contexts[row], mean)] * len(self.rewards[row])
        order = rng.permutation(len(pairs))
        shuffled = [pairs[i] for i in order]
        p = self.params
        self.bandit.fit(shuffled, len(pairs), p.steps, p.learning_rate)


def world(seed: int) -> tuple[np.random.Generator, dict[str, Any]]:
    rng = np.random.default_rng(seed)
    params = {
        "gamma": float(rng.choice([0.0, 0.5, 2.0])),
        "lam": float(rng.choice([1e-3, 0.1, 1.0])),
        "width": int(rng.choice([2, 6, 10])),
        "steps": int(rng.integers(0, 12)),
        "learning_rate": float(rng.choice([1e-3, 0.01, 1.0])),
    }
    return rng, params


def random_bits(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2, (n, 64)).astype(np.uint8)
