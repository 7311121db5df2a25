"""A FedScale client manager that knows nothing of us, wrapped so that the engine need not ask.

It gets FedScale's own calls. It has no view of a round, asks no probes, and its cohort is what
FedScale's rules make of it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fedsuv_plugin.config.keys import JobConfig
from fedsuv_plugin.engine.client_manager import SelectorClientManager
from fedsuv_plugin.engine.feedback import Ask, Feedback, ModelFacts, give_feedback
from fedsuv_plugin.engine.roster import wanted_clients
from fedsuv_plugin.engine.rounds import NOBODY, OnTheWay
from fedsuv_plugin.errors import UserError
from fedsuv_plugin.selectors.base import SYNCHRONOUS, ClientTable, RoundView
from fedsuv_plugin.traces.clock import Work
from fedsuv_plugin.traces.population import Population


def adopt(manager: Any, config: JobConfig) -> SelectorClientManager | ForeignManager:
    """A client manager of whatever kind, with the calls that our aggregator makes."""
    if isinstance(manager, SelectorClientManager):
        return manager
    return ForeignManager(manager, config)


class ForeignManager:
    """The calls of `SelectorClientManager` that an aggregator makes, on any FedScale manager."""

    free_cohort = False
    protocol = SYNCHRONOUS

    def __init__(self, manager: Any, config: JobConfig):
        if config.available_clients is not None:
            raise UserError(
                f"available_clients: expected none with sample_mode {config.sample_mode}: its "
                "client manager decides itself who is there"
            )
        self._manager = manager
        self._batch_size = config.batch_size
        self._only = config.only_clients

    def register_clients(self, sizes: np.ndarray, population: Population, work: Work) -> None:
        kbps = population.one_way_kbps
        # FedScale multiplies the steps by the batch size again.
        steps = work.timed_samples(np.arange(len(sizes))) / self._batch_size
        for client in wanted_clients(self._only, sizes).tolist():
            i = client - 1
            speed = {"computation": population.ms_per_sample[i], "communication": kbps[i]}
            self._manager.register_client(1, client, size=int(sizes[i]), speed=speed)
            self._manager.registerDuration(
                client,
                batch_size=self._batch_size,
                local_steps=steps[i],
                upload_size=work.upload_kbit,
                download_size=work.download_kbit,
            )

    def getDataInfo(self) -> dict[str, int]:
        info: dict[str, int] = self._manager.getDataInfo()
        return info

    def begin_round(
        self,
        seats: int,
        clock: float,
        model: ModelFacts,
        cohort_size: int | None = None,
        on_the_way: OnTheWay = NOBODY,
    ) -> RoundView:
        """A view that shows the clock and nobody: the manager looks for itself."""
        nobody = np.zeros(0, np.int64)
        none = np.zeros(0)
        table = ClientTable(
            ids=nobody,
            samples=nobody,
            round_samples=nobody,
            features=np.zeros((0, 0)),
            feature_names=(),
            expected_duration=none,
            energy=none,
            position=np.zeros((0, 2)),
        )
        return RoundView(round=0, total_rounds=0, clock=clock, online=nobody, clients=table)

    def probed(self, view: RoundView, ask: Ask) -> RoundView:
        return view

    def wants_restart(self, view: RoundView) -> bool:
        return False

    def choose(self, view: RoundView, seats: int) -> list[int]:
        chosen: list[int] = self._manager.select_participants(seats, cur_time=view.clock)
        return chosen

    def finish_round(
        self,
        feedback: list[Feedback],
        round_number: int,
        accuracy: float | None,
        loss: float | None,
    ) -> None:
        give_feedback(self._manager, feedback, round_number)

    def diagnostics(self) -> dict[str, Any]:
        told = getattr(self._manager, "diagnostics", None)
        return {} if told is None else told()

    def state_dict(self) -> dict[str, Any] | None:
        """None: this manager cannot be gone on with, so its job writes no checkpoints."""
        state = getattr(self._manager, "state_dict", None)
        return None if state is None else state()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._manager.load_state_dict(state)
