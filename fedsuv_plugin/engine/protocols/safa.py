"""SAFA's protocol: everyone online trains, and selection comes after training.

Paper: W. Wu, L. He, W. Lin, R. Mao, C. Maple, S. Jarvis. "SAFA: A Semi-Asynchronous Protocol for
    Fast Federated Learning With Low Overhead." IEEE Trans. Computers 70(5), 2021.

A round, with rounds counted from 0 as there:
1. Lag-tolerant distribution. A client's lag is (round - 1) - version; its version is the round in
   which it last delivered, at first -1. Up to date (lag <= 0): it gets the global model. Deprecated
   (lag > tau): its own progress is lost, it gets the global model, and so does its cache entry. In
   between it gets nothing and goes on from its own model.
2. Everybody trains. Who is done after the limit delivers in a later round, when it is done; who is
   offline when done keeps its model, and goes on from it when it is asked again.
3. CFCFM. Of those done by the limit the quota is picked: first those not picked last round, in the
   order of arrival, then the others. Who is done by the limit and not picked is undrafted.
4. Aggregation. (a) The picked replace their cache entries; (b) the new model is the average of all
   entries, by `aggregation_weights` (the paper's n_k / n is `samples`); (c) the undrafted replace
   theirs: they count from the next round on.

The round closes when the quota is filled with those not picked last round, or when all have
arrived who could, or at the limit: `round_deadline` or, without one, the slowest expected duration
of those asked. A client without any model of its own, as it never was online before or was
deprecated while it was away, gets the global one when it is asked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fedsuv_plugin.engine.client_models import ClientModels
from fedsuv_plugin.engine.merging import Update, Weights, as_type, end_to_end, like
from fedsuv_plugin.engine.pending import Pending, PendingUpdate
from fedsuv_plugin.engine.protocols.late_updates import refuse_q_fedavg
from fedsuv_plugin.engine.protocols.synchronous import Setting, Synchronous
from fedsuv_plugin.engine.rounds import (
    Cohort,
    Effort,
    Late,
    LateUpdate,
    OnTheWay,
    Round,
    Settled,
    Spent,
    Trained,
)
from fedsuv_plugin.engine.training import say, train_clients
from fedsuv_plugin.selectors.maths.vector_store import VectorStore
from fedsuv_plugin.traces.clock import IDLE_SECONDS


class Safa(Synchronous):
    """Keeps a model of every client, and those that are on the way. Row i is client i + 1."""

    def __init__(self, setting: Setting):
        super().__init__(setting)
        refuse_q_fedavg(setting)
        clients = len(self.pool.sizes)
        self._tolerance = setting.client_manager.selector.params.lag_tolerance
        self._version = np.full(clients, -1)  # round, from 0, of the latest delivery
        self._without_model = np.ones(clients, bool)  # who gets the global model when asked
        self._picked = np.zeros(0, np.int64)  # ids, of the last round
        # (n, 2) seconds and joules of training that is not delivered and not on the way.
        self._spent = np.zeros((clients, 2))
        self._own = VectorStore(self.config.late_budget_mb)  # models trained and not delivered
        self._pending = Pending(self.config.late_budget_mb)
        self._cache: ClientModels | None = None  # made when the first model is known

    def begin(self, now: Round) -> OnTheWay:
        """A deprecated client gives up what it works on, so that it can be asked."""
        waiting = self._pending.on_the_way(now.clock)
        kept = ~self._deprecated(now)[waiting.clients - 1]
        return OnTheWay(waiting.clients[kept], waiting.seconds[kept])

    def _lag(self, now: Round) -> np.ndarray:
        return now.number - 2 - self._version  # the round before, counted from 0, is number - 2

    def _deprecated(self, now: Round) -> np.ndarray:
        return self._lag(now) > self._tolerance

    # ---- who delivers, and who is picked

    def settle(self, now: Round, cohort: Cohort, effort: Effort) -> Settled:
        limit = self.config.round_deadline
        if limit is None:
            limit = float(effort.expected.max(initial=0.0)) or IDLE_SECONDS
        reaches = effort.stays & effort.uploads
        done = reaches & (effort.times <= limit)
        waiting = self.begin(now)
        comes = waiting.seconds <= limit
        clients = np.concatenate([cohort.clients[done], waiting.clients[comes]])
        arrival = np.concatenate([effort.times[done], waiting.seconds[comes]])
        order = np.lexsort((clients, arrival))
        clients, arrival = clients[order], arrival[order]
        picked, closing = first_come(clients, arrival, self._picked, self.config.num_participants)
        if closing is None:  # nobody is left to wait for, or the limit has come
            nobody_left = done.all() and comes.all() and len(clients)
            closing = float(arrival.max()) if nobody_left else limit
        fresh = np.isin(clients, cohort.clients)
        return Settled(
            times=effort.times,
            energy=effort.energy,
            due=clients[picked & fresh],
            seconds=closing,
            megabytes=effort.megabytes,
            undrafted=clients[~picked & fresh],
            late=cohort.clients[reaches & ~done],
            lost=cohort.clients[~reaches],
            arrived=clients[picked & ~fresh],
            arrived_undrafted=clients[~picked & ~fresh],
        )

    # ---- training and aggregation

    def train(self, now: Round, cohort: Cohort, settled: Settled, model: Weights) -> Trained:
        received = end_to_end(model)
        cache = self._cache = self._cache or self._new_cache(received)
        dropped = self._deprecate(now, received, cache)
        starts = self._starts(now, cohort, model, cache)
        self._without_model[cohort.clients - 1] = False
        merged = [self._receive(now, client, cache) for client in settled.arrived.tolist()]

        def train(clients: np.ndarray, take: Callable[[Update], None]) -> dict[int, dict[str, Any]]:
            return train_clients(self.pool, self.config, now, clients, model, take, starts.get)

        def deliver(update: Update) -> None:
            self._deliver(now, update.client, end_to_end(update.weights), cache)

        def keep(update: Update) -> None:
            self._keep(now, update, cohort, settled)

        reports = train(settled.due, deliver)
        total = cache.sum.copy()  # what comes from here on counts from the next round on
        for client in settled.arrived_undrafted.tolist():
            self._receive(now, client, cache)
        undrafted = train(settled.undrafted, deliver)
        train(np.concatenate([settled.late, settled.lost]), keep)
        self._picked = np.sort(np.concatenate([list(reports), settled.arrived]).astype(np.int64))
        waiting = {*undrafted, *self._pending.clients, *(row + 1 for row in self._own)}
        account = Late(
            merged=tuple(merged),
            waiting=frozenset(waiting),
            on_the_way=tuple(self._pending.clients),
            under_way=self._pending.spent,
            dropped=dropped,
        )
        average = [as_type(part, w) for part, w in zip(like(total, model), model, strict=True)]
        return Trained(reports, average, account)

    def _new_cache(self, initial: np.ndarray) -> ClientModels:
        shares = np.zeros(len(self._version))
        for client in self.setting.client_manager.clients.ids.tolist():
            shares[client - 1] = say(self.pool, self.config, client)
        return ClientModels(shares / shares.sum(), initial, self.config.late_budget_mb)

    def _deprecate(self, now: Round, received: np.ndarray, cache: ClientModels) -> Spent:
        """Give up what those who lag too far behind have done; what that had cost."""
        rows = np.flatnonzero(self._deprecated(now))
        cache.reset(rows, now.number, received)
        self._version[rows] = now.number - 2
        self._without_model[rows] = True
        dropped = Spent(*self._spent[rows].sum(axis=0).tolist())
        self._spent[rows] = 0.0
        on_the_way = set(self._pending.clients)
        for row in rows.tolist():
            if row + 1 in on_the_way:
                dropped += self._pending.drop(row + 1)
            self._own.pop(row, None)
        return dropped

    def _starts(
        self, now: Round, cohort: Cohort, model: Weights, cache: ClientModels
    ) -> dict[int, Weights]:
        """The models of those who go on from their own: the last they trained, wherever it is."""
        rows = cohort.clients - 1
        behind = rows[(self._lag(now)[rows] > 0) & ~self._without_model[rows]]
        return {
            row + 1: like(self._own[row] if row in self._own else cache[row], model)
            for row in behind.tolist()
        }

    def _receive(self, now: Round, client: int, cache: ClientModels) -> LateUpdate:
        """An update that was on the way is here."""
        update, vector = self._pending.pop(client)
        self._deliver(now, client, vector, cache)
        return LateUpdate(client, update.asked_in, now.number - update.asked_in, weight=1.0)

    def _deliver(self, now: Round, client: int, vector: np.ndarray, cache: ClientModels) -> None:
        row = client - 1
        cache.put(row, vector)
        self._version[row] = now.number - 1
        self._own.pop(row, None)
        self._spent[row] = 0.0

    def _keep(self, now: Round, update: Update, cohort: Cohort, settled: Settled) -> None:
        """A model that was trained and does not reach the server by the limit."""
        place = np.searchsorted(cohort.clients, update.client)
        spent = Spent(float(settled.times[place]), float(settled.energy[place]))
        vector = end_to_end(update.weights)
        if update.client in settled.late:
            arrival = now.clock + spent.client_time
            self._pending.add(PendingUpdate(update.client, now.number, arrival, spent), vector)
        else:
            self._own[update.client - 1] = vector
            self._spent[update.client - 1] += (spent.client_time, spent.energy_joules)

    # ---- what outlives a round

    def state_dict(self) -> dict[str, Any]:
        return {
            "version": self._version,
            "without_model": self._without_model,
            "picked": self._picked,
            "spent": self._spent,
            "own": dict(self._own),
            "pending": self._pending.state_dict(),
            "cache": None if self._cache is None else self._cache.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._version = np.array(state["version"])
        self._without_model = np.array(state["without_model"])
        self._picked = np.array(state["picked"])
        self._spent = np.array(state["spent"])
        self._own.clear()
        self._own.update(state["own"])
        self._pending.load_state_dict(state["pending"])
        if state["cache"] is not None:
            self._cache = self._new_cache(np.zeros(0, np.float32))
            self._cache.load_state_dict(state["cache"])


def first_come(
    clients: np.ndarray, arrival: np.ndarray, last: np.ndarray, quota: int
) -> tuple[np.ndarray, float | None]:
    """CFCFM: of `clients` in the order of arrival, who is picked, and when the quota was filled.

    Those not in `last`, the ones picked in the round before, come first. None: they did not fill
    the quota, so that the others had to."""
    prior = ~np.isin(clients, last)
    order = np.concatenate([np.flatnonzero(prior), np.flatnonzero(~prior)])[:quota]
    picked = np.zeros(len(clients), bool)
    picked[order] = True
    filled = np.count_nonzero(prior) >= quota
    return picked, float(arrival[order].max()) if filled else None


PROTOCOL = Safa
