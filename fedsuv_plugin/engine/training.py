"""What clients do in a round: answer probes before it, train in it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fedsuv_plugin.config.keys import JobConfig
from fedsuv_plugin.engine.bill import Prices
from fedsuv_plugin.engine.executor_pool import ExecutorPool
from fedsuv_plugin.engine.feedback import Keep
from fedsuv_plugin.engine.merging import Update, Weights
from fedsuv_plugin.engine.rounds import Bill, Round
from fedsuv_plugin.engine.signals import CLIENTS_AT_ONCE, FOR_MANY
from fedsuv_plugin.engine.task import PROBE, TRAIN


class Questions:
    """Puts the probes of a round to its clients, and adds up what they cost them."""

    def __init__(self, pool: ExecutorPool, prices: Prices, now: Round):
        self.bill = Bill()
        self._pool = pool
        self._prices = prices
        self._now = now

    def ask(self, kind: str, clients: np.ndarray, keep: Keep) -> Mapping[int, np.ndarray]:
        """What each client answers, as far as `keep` keeps it."""
        self.bill += self._prices.of_probe(self._now, kind, clients)
        if kind in FOR_MANY:
            answers = ask_together(self._pool, kind, clients)
            return {client: keep(client, answer) for client, answer in answers.items()}
        return ask_clients(self._pool, self._now, kind, clients, keep)


def ask_clients(
    pool: ExecutorPool, now: Round, kind: str, clients: np.ndarray, keep: Keep
) -> dict[int, np.ndarray]:
    """What each client answers to a probe, as far as `keep` keeps it."""
    answers: dict[int, np.ndarray] = {}

    def consume(value: dict[int, np.ndarray]) -> None:
        for client, answer in value.items():
            answers[client] = keep(client, answer)

    settings = _settings(now)
    tasks = [pool.task(PROBE, [c], probe=kind, **settings) for c in clients.tolist()]
    pool.run(tasks, consume)
    return answers


def ask_together(pool: ExecutorPool, kind: str, clients: np.ndarray) -> dict[int, Any]:
    """What each client answers to a probe that is measured for many at once.

    Executors share the clients, in groups of CLIENTS_AT_ONCE."""
    groups = [
        clients[start : start + CLIENTS_AT_ONCE]
        for start in range(0, len(clients), CLIENTS_AT_ONCE)
    ]
    every = min(pool.shares, len(groups))
    tasks = [
        pool.task(PROBE, np.concatenate(groups[first::every]), probe=kind) for first in range(every)
    ]
    answers: dict[int, Any] = {}
    pool.run(tasks, answers.update)
    return {client: answers[client] for client in clients.tolist() if client in answers}


def train_clients(
    pool: ExecutorPool,
    config: JobConfig,
    now: Round,
    clients: np.ndarray,
    model: Weights,
    take: Callable[[Update], None],
    starts: Callable[[int], Weights | None] = lambda client: None,
) -> dict[int, dict[str, Any]]:
    """Train the clients, and take their updates in the order of `clients`, whoever is faster.

    Each starts from what `starts` has for it; none: from the published model. What comes back is
    the clients' reports. An update is let go once it is taken, unless the gradient policy asks for
    all of them."""
    keep_weights = config.gradient_policy == "q-fedavg"
    reports: dict[int, dict[str, Any]] = {}

    def consume(value: dict[int, dict[str, Any]]) -> None:
        for client, report in value.items():
            weight = say(pool, config, client)
            update = Update(client, list(report["update_weight"].values()), weight)
            if not _sound(report, update.weights, model):
                logging.warning(
                    "client %s sent an update that is not finite or does not fit the model; it "
                    "counts as having missed round %d",
                    client,
                    now.number,
                )
                continue
            take(update)
            if not keep_weights:
                del report["update_weight"]
            reports[client] = report

    settings = _settings(now)
    tasks = []
    for client in clients.tolist():
        start = starts(client)
        states = {} if start is None else {client: {"model": start}}
        tasks.append(pool.task(TRAIN, [client], states, **settings))
    pool.run(tasks, consume)
    return reports


def say(pool: ExecutorPool, config: JobConfig, client: int) -> float:
    """What an update of a client weighs in an average: see `aggregation_weights`."""
    return float(pool.sizes[client - 1]) if config.aggregation_weights == "samples" else 1.0


def _settings(now: Round) -> dict[str, Any]:
    return {"round": now.number, "learning_rate": now.learning_rate}


def _sound(report: Mapping[str, Any], weights: Weights, like: Weights) -> bool:
    """Whether an update can be merged: the model's shapes, and finite throughout."""
    if len(weights) != len(like):
        return False
    if any(w.shape != m.shape for w, m in zip(weights, like, strict=True)):
        return False
    signals = [np.sum(signal) for signal in report["signals"].values()]
    numbers = [report["utility"], report["moving_loss"], *signals]
    if not np.isfinite(numbers).all() or report["moving_loss"] < 0:
        return False
    return all(np.isfinite(np.sum(w, dtype=np.float64)) for w in weights)
