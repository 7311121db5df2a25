"""The adapter between FedScale's calls, client by client, and one array call a round.

FedScale's aggregator, stock or ours, registers clients, asks for participants and reports
feedback client by client. The adapter keeps a client table instead of an object per client, and
hands the selector whole rounds. The classes that the entry points name are in
`fedsuv_plugin/client_managers.py`.
"""

from __future__ import annotations

import logging
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from fedscale.cloud.client_manager import ClientManager

from fedsuv_plugin.engine.fedscale_env import trace_file
from fedsuv_plugin.engine.feedback import (
    Ask,
    Feedback,
    ModelFacts,
    Report,
    finite_answers,
    give_feedback,
    keep_all,
    outcome,
)
from fedsuv_plugin.engine.making import make_selector
from fedsuv_plugin.engine.roster import Roster, wanted_clients
from fedsuv_plugin.engine.rounds import NOBODY, OnTheWay
from fedsuv_plugin.params import Params
from fedsuv_plugin.selectors.base import ProbeAnswer, RoundView, Selector, bad_pick
from fedsuv_plugin.traces.clock import Work
from fedsuv_plugin.traces.population import Population, load_population


class SelectorClientManager(ClientManager):  # type: ignore[misc]  # FedScale has no types
    """A FedScale client manager around a selector. Subclasses say which: `selector_class`."""

    selector_class: ClassVar[type[Selector]]

    def __init__(self, mode: str, args: Namespace, sample_seed: int = 233):
        # The base would load the availability trace with plain pickle; `load_population` does it
        # safely.
        super().__init__("random", args=Namespace(**{**vars(args), "device_avail_file": None}))
        self.mode = mode
        self.args = args
        self._seed = getattr(args, "seed", sample_seed)
        self._registered: dict[int, int] = {}  # client id -> samples, while they register singly
        self._roster: Roster | None = None
        self._work = Work(args.batch_size, args.local_steps, 0.0, 0.0)
        self._selector: Selector | None = None
        self._reports: dict[int, Report] = {}  # of the last round, by client id

    # ---- registration

    def register_client(
        self,
        host_id: int,
        client_id: int,
        size: int,
        speed: dict[str, float],
        duration: float = 1,
    ) -> None:
        """FedScale's call. Clients that an executor registers again change nothing."""
        if self._selector is None:
            self._registered[int(client_id)] = int(size)

    def registerDuration(
        self,
        client_id: int,
        batch_size: int,
        local_steps: int,
        upload_size: float,
        download_size: float,
    ) -> None:
        self._work = Work(batch_size, local_steps, upload_size, download_size)

    def register_clients(self, sizes: np.ndarray, population: Population, work: Work) -> None:
        """Every client at once: client i + 1 has sizes[i] samples and device i."""
        self._work = work
        ids = wanted_clients(getattr(self.args, "only_clients", None), sizes)
        self._start(ids, sizes[ids - 1], population)

    def _ready(self) -> tuple[Selector, Roster]:
        """The selector and the clients.

        They are made when the clients are known, which is after FedScale makes the manager."""
        if self._selector is None or self._roster is None:
            ids = np.array(sorted(self._registered), np.int64)
            sizes = np.array([self._registered[i] for i in ids.tolist()], np.int64)
            population = load_population(
                int(ids.max(initial=0)),
                trace_file(self.args.device_conf_file),
                trace_file(self.args.device_avail_file),
            )
            self._start(ids, sizes, population)
        assert self._selector is not None
        assert self._roster is not None
        return self._selector, self._roster

    def _start(self, ids: np.ndarray, sizes: np.ndarray, population: Population) -> None:
        kept = (sizes >= self.filter_less) & (sizes <= self.filter_more)
        self._roster = Roster(ids[kept], sizes[kept], population, self._work, self._seed)
        self.clients = self._roster.clients
        self.feasibleClients = self.clients.ids.tolist()
        self.feasible_samples = int(self.clients.samples.sum())
        given: Mapping[str, Params] = getattr(self.args, "selector_params", {})  # stock has none
        made = make_selector(self.mode, self.selector_class, given, self.clients, self._seed)
        self._selector, self._probes = made

    @property
    def selector(self) -> Selector:
        return self._ready()[0]

    @property
    def free_cohort(self) -> bool:
        return self.selector.free_cohort

    @property
    def protocol(self) -> str:
        return self.selector.protocol

    # ---- who is there

    def getFeasibleClients(self, cur_time: float) -> list[int]:
        rows = self._online(cur_time)
        return self.clients.ids[rows].tolist()

    def isClientActive(self, client_id: int, cur_time: float) -> bool:
        return self._ready()[1].is_online(int(client_id), cur_time)

    def get_completion_time(
        self,
        client_id: int,
        batch_size: int,
        local_steps: int,
        upload_size: float,
        download_size: float,
    ) -> dict[str, float]:
        work = Work(batch_size, local_steps, upload_size, download_size)
        computing, communicating = self._ready()[1].seconds(int(client_id), work)
        return {"computation": computing, "communication": communicating}

    def _online(self, time: float) -> np.ndarray:
        """Rows that can be chosen for the round that comes next, ascending."""
        _, roster = self._ready()
        online = roster.online(time)
        wanted = getattr(self.args, "available_clients", None)  # stock FedScale has no such key
        if wanted is not None:
            # Rounds 1 to available_every are period 0.
            online &= roster.available(wanted, self.count // self.args.available_every)
        return np.flatnonzero(online)

    # ---- one round

    def begin_round(
        self,
        seats: int,
        clock: float,
        model: ModelFacts,
        cohort_size: int | None = None,
        on_the_way: OnTheWay = NOBODY,
    ) -> RoundView:
        """The one view of the round that comes next; without a `cohort_size` it is the seats."""
        self._learn()
        pending = self.rows(on_the_way.clients)
        online = np.setdiff1d(self._online(clock), pending, assume_unique=True)
        return RoundView(
            round=self.count + 1,
            total_rounds=self.args.rounds,
            clock=clock,
            online=online,
            clients=self.clients,
            seats=min(seats, len(online)),
            cohort_size=seats if cohort_size is None else cohort_size,
            accuracy=model.accuracy,
            test_loss=model.loss,
            weights=model.weights,
            public_loss=model.public_loss,
            deadline=getattr(self.args, "round_deadline", None),  # stock FedScale has no such key
            pending=pending,
            pending_seconds=on_the_way.seconds,
            online_share=self._ready()[1].online_share,
        )

    def probed(self, view: RoundView, ask: Ask) -> RoundView:
        """The view with what the clients said to the selector's questions, if it has any."""
        more = True
        while more:
            probe = self.selector.probe(view)
            if probe is None:
                return view
            if probe.kind not in self._probes:
                raise RuntimeError(f"selector {self.mode!r} asks for {probe.kind}: not in `probes`")
            keep = self._hand_on if probe.one_by_one else keep_all
            answers = ask(probe.kind, self.clients.ids[probe.rows], keep)
            answers = finite_answers(probe.kind, answers)
            rows = self.rows(list(answers))
            values = np.array(list(answers.values()))
            view = replace(view, probe=ProbeAnswer(probe.kind, rows, values))
            more = probe.more
        return view

    def _hand_on(self, client_id: int, answer: np.ndarray) -> np.ndarray:
        """Give one answer to the selector, if it is finite; what is left of it to keep."""
        if not np.isfinite(np.sum(answer, dtype=np.float64)):
            return np.array([np.nan])
        self.selector.receive(int(self.rows([client_id])[0]), answer)
        return np.empty(0)

    def wants_restart(self, view: RoundView) -> bool:
        """Whether the selector wants the round to begin at the initial model."""
        return self.selector.restart_model(view)

    def choose(self, view: RoundView, seats: int) -> list[int]:
        """The cohort of the round, as FedScale's ids."""
        rows = np.asarray(self.selector.select(view, min(seats, len(view.online))))
        problem = bad_pick(rows, view)
        if problem:
            raise RuntimeError(
                f"selector {self.mode!r} returned {problem} in round {view.round}; "
                f"expected at most {seats} distinct rows of view.online"
            )
        self.count += 1
        return self.clients.ids[rows].tolist()

    def select_participants(self, num_of_clients: int, cur_time: float = 0) -> list[int]:
        """FedScale's call: a round without probes."""
        view = self.begin_round(num_of_clients, cur_time, ModelFacts())
        return self.choose(view, num_of_clients)

    def register_feedback(
        self,
        client_id: int,
        reward: float,
        auxi: float = 1.0,
        time_stamp: float = 0,
        duration: float = 1.0,
        success: bool = True,
    ) -> None:
        """FedScale's call for each client that was asked.

        `auxi` is the square root of its training loss."""
        if not np.isfinite(np.array([reward, auxi, duration], float)).all():
            logging.warning(
                "client %s reported a value that is not finite; it counts as having missed "
                "round %d",
                client_id,
                self.count,
            )
            success = False
        loss = float(auxi) ** 2 if success else 0.0
        utility = float(reward) if success else 0.0
        self._reports[int(client_id)] = Report(success, float(duration), loss, utility)

    def finish_round(
        self,
        feedback: list[Feedback],
        round_number: int,
        accuracy: float | None,
        loss: float | None,
    ) -> None:
        """The round is over, and the global model has been evaluated or not."""
        give_feedback(self, feedback, round_number)
        for each in feedback:
            self._reports[each.client].signals = each.signals
        self._learn(accuracy, loss)

    def _learn(self, accuracy: float | None = None, test_loss: float | None = None) -> None:
        """Hand the feedback of the last round, if there is any, to the selector as one outcome."""
        if self._reports:
            rows = self.rows(list(self._reports))
            reports = list(self._reports.values())
            self.selector.update(
                outcome(self.count, self.clients, rows, reports, accuracy, test_loss)
            )
            self._reports.clear()

    def rows(self, ids: list[int] | np.ndarray) -> np.ndarray:
        return self._ready()[1].rows(ids)

    # ---- what the job keeps

    def getDataInfo(self) -> dict[str, int]:
        self._ready()
        return super().getDataInfo()

    def diagnostics(self) -> dict[str, Any]:
        return self.selector.diagnostics()

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count, "selector": self.selector.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count = state["count"]
        self.selector.load_state_dict(state["selector"])
