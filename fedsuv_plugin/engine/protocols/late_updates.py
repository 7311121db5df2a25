"""Late updates: who misses the round but stays online trains on, and is merged on arrival.

A client that is late trains from the model it received. Its update, what training changed, arrives
when its own time is up, and is merged in the round that is under way then: added to the current
model, with the weight that the selector gives it (`Selector.late_weights`) times the job's own
(`aggregation_weights`), in one average with that round's fresh updates. A client that is offline
when it would be done is lost.
"""

from __future__ import annotations

from itertools import compress
from typing import Any

import numpy as np

from fedsuv_plugin.engine.merging import Update, WeightedAverage, Weights, end_to_end, like
from fedsuv_plugin.engine.pending import Pending, PendingUpdate
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
from fedsuv_plugin.errors import UserError
from fedsuv_plugin.selectors.base import LateUpdates


class LateMerging(Synchronous):
    """Keeps the updates that are on the way, and has the selector weigh those that arrive."""

    def __init__(self, setting: Setting):
        super().__init__(setting)
        refuse_q_fedavg(setting)
        self._pending = Pending(self.config.late_budget_mb)

    def begin(self, now: Round) -> OnTheWay:
        return self._pending.on_the_way(now.clock)

    def settle(self, now: Round, cohort: Cohort, effort: Effort) -> Settled:
        in_time = super().settle(now, cohort, effort)
        missed = ~np.isin(cohort.clients, in_time.due)
        late = missed & effort.stays & effort.uploads
        return Settled(
            times=in_time.times,
            energy=in_time.energy,
            due=in_time.due,
            seconds=in_time.seconds,
            megabytes=in_time.megabytes,
            late=cohort.clients[late],
            arrived=self._pending.arrived_by(now.clock + in_time.seconds),
        )

    def train(self, now: Round, cohort: Cohort, settled: Settled, model: Weights) -> Trained:
        merge = WeightedAverage(model)
        received = end_to_end(model)
        late = set(settled.late.tolist())

        def take(update: Update) -> None:
            if update.client not in late:
                merge.add(update)
                return
            place = np.searchsorted(cohort.clients, update.client)
            seconds = settled.times[place]
            self._pending.add(
                PendingUpdate(
                    client=update.client,
                    asked_in=now.number,
                    arrival=now.clock + float(seconds),
                    spent=Spent(float(seconds), float(settled.energy[place])),
                ),
                end_to_end(update.weights) - received,
            )

        # Those who arrive leave before new ones come.
        arrived = [self._pending.pop(client) for client in settled.arrived.tolist()]
        everyone = np.concatenate([settled.due, settled.late])
        reports = train_clients(self.pool, self.config, now, everyone, model, take)
        fresh = {client: report for client, report in reports.items() if client not in late}
        merged = self._add_late(now, arrived, merge, model, len(fresh))
        account = Late(
            merged=merged,
            waiting=frozenset(self._pending.clients),
            on_the_way=tuple(self._pending.clients),
            under_way=self._pending.spent,
        )
        return Trained(fresh, merge.result() if fresh or merged else None, account)

    def _add_late(
        self,
        now: Round,
        arrived: list[tuple[PendingUpdate, np.ndarray]],
        merge: WeightedAverage,
        model: Weights,
        fresh: int,
    ) -> tuple[LateUpdate, ...]:
        """Add the updates that have arrived to the average of the fresh ones."""
        if not arrived:
            return ()
        staleness = np.array([now.number - update.asked_in for update, _ in arrived])
        deviation = np.zeros(len(arrived))
        if fresh:
            deviation = self._deviation([vector for _, vector in arrived], merge, model)
        weights = self._weights(now, [u.client for u, _ in arrived], staleness, deviation, fresh)
        merged = []
        for (update, vector), weight in zip(arrived, weights.tolist(), strict=True):
            moved = [m + part for m, part in zip(model, like(vector, model), strict=True)]
            stale = now.number - update.asked_in
            beside = weight * say(self.pool, self.config, update.client)
            merge.add(Update(update.client, moved, beside, stale))
            merged.append(LateUpdate(update.client, update.asked_in, stale, weight))
        return tuple(merged)

    def _weights(
        self,
        now: Round,
        clients: list[int],
        staleness: np.ndarray,
        deviation: np.ndarray,
        fresh: int,
    ) -> np.ndarray:
        """What the selector has late updates weigh beside fresh ones, (m,)."""
        manager = self.setting.client_manager
        late = LateUpdates(now.number, manager.rows(clients), staleness, deviation, fresh)
        weights = np.asarray(manager.selector.late_weights(late), np.float64)
        if weights.shape != staleness.shape or not (np.isfinite(weights) & (weights >= 0)).all():
            raise RuntimeError(
                f"selector {manager.mode!r} weighed late updates with {weights} in round "
                f"{now.number}; expected {len(clients)} numbers >= 0"
            )
        return weights

    def _deviation(
        self, updates: list[np.ndarray], merge: WeightedAverage, model: Weights
    ) -> np.ndarray:
        """|u_fresh - u|^2 / |u_fresh|^2 of every update u, over the parameters alone.

        u_fresh is the average of the fresh ones; if it has no length, the deviation is 0."""
        learnt = self.setting.learnt
        fresh = [a - m for a, m in zip(merge.average(), model, strict=True)]
        average = np.concatenate([part.reshape(-1) for part in compress(fresh, learnt)])
        length = float(average @ average)
        if not length:
            return np.zeros(len(updates))
        found = []
        for update in updates:
            own = [part.reshape(-1) for part in compress(like(update, model), learnt)]
            apart = average - np.concatenate(own)
            found.append(float(apart @ apart) / length)
        return np.array(found)

    def state_dict(self) -> dict[str, Any]:
        return {"pending": self._pending.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._pending.load_state_dict(state["pending"])


def refuse_q_fedavg(setting: Setting) -> None:
    """q-fedavg steps by each client's loss and update of this round; late ones have no place."""
    if setting.config.gradient_policy == "q-fedavg":
        raise UserError(
            "gradient_policy: expected fed-avg, fed-prox or fed-yogi with sample_mode "
            f"{setting.config.sample_mode}, whose updates may come late, got 'q-fedavg'"
        )


PROTOCOL = LateMerging
