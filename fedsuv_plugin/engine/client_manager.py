"""The adapter: FedScale's one-client-at-a-time calls on one side, one array call per round on the other.

FedScale's aggregator, stock or ours, registers clients, asks for participants and reports feedback client by client.
The adapter keeps a client table instead of an object per client, and hands the selector whole rounds.
"""

from __future__ import annotations

import logging
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from fedscale.cloud.client_manager import ClientManager

from fedsuv_plugin import named
from fedsuv_plugin.params import Params
from fedsuv_plugin.randomness import stream
from fedsuv_plugin.selectors.base import ClientTable, ProbeAnswer, RoundOutcome, RoundView, Selector
from fedsuv_plugin.traces.clock import Work, durations, energy
from fedsuv_plugin.traces.population import Population, load_population

SQUARE_METRES = 1000.0  # side of the square in which clients without a position are placed


class Question(NamedTuple):
    """A selector's probe, with FedScale's ids."""

    kind: str
    clients: list[int]
    one_by_one: bool
    more: bool


class SelectorClientManager(ClientManager):  # type: ignore[misc]  # FedScale has no types
    """A FedScale client manager around a selector. Subclasses say which: `selector_class`."""

    selector_class: ClassVar[type[Selector]]

    def __init__(self, mode: str, args: Namespace, sample_seed: int = 233):
        # The base would load the availability trace with plain pickle; here `load_population` does, safely.
        super().__init__("random", args=Namespace(**{**vars(args), "device_avail_file": None}))
        self.mode, self.args = mode, args
        self.params: Params = self._params(self.selector_class, mode)
        self._seed = getattr(args, "seed", sample_seed)
        self._registered: dict[
            int, int
        ] = {}  # client id -> samples, while clients register one by one
        self._population: Population | None = None
        self._work = Work(args.batch_size, args.local_steps, 0.0, 0.0)
        self._selector: Selector | None = None
        self._feedback: dict[int, _Feedback] = {}
        self._answer: ProbeAnswer | None = None
        self._global: dict[str, Any] = {}  # what the next view tells of the global model

    # ---- registration

    def register_client(
        self, host_id: int, client_id: int, size: int, speed: dict[str, float], duration: float = 1
    ) -> None:
        """FedScale's call. An executor that connects again registers its clients again: that changes nothing."""
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
        """Every client at once: client i + 1 has sizes[i] samples and device i of the population."""
        self._work = work
        self._start(np.arange(1, len(sizes) + 1), sizes, population)

    def _ready(self) -> tuple[Selector, Population]:
        """The selector and the devices, made when the clients are known, which is after FedScale makes the manager."""
        if self._selector is None or self._population is None:
            ids = np.array(sorted(self._registered), np.int64)
            self._start(
                ids,
                np.array([self._registered[i] for i in ids.tolist()], np.int64),
                load_population(
                    int(ids.max(initial=0)),
                    _file(self.args.device_conf_file),
                    _file(self.args.device_avail_file),
                ),
            )
        assert self._selector is not None
        assert self._population is not None
        return self._selector, self._population

    def _start(self, ids: np.ndarray, sizes: np.ndarray, population: Population) -> None:
        kept = (sizes >= self.filter_less) & (sizes <= self.filter_more)
        ids, sizes = ids[kept], sizes[kept]
        names, features = population.features
        computing, communicating = durations(population, self._work, ids - 1)
        self.clients = ClientTable(
            ids=ids,
            samples=sizes,
            features=features[ids - 1],
            feature_names=names,
            round_samples=np.minimum(sizes, self._work.samples(ids - 1)),
            expected_duration=computing + communicating,
            energy=energy(population, ids - 1, computing, communicating),
            position=self._positions(population)[ids - 1],
        )
        self.feasibleClients, self.feasible_samples = ids.tolist(), int(sizes.sum())
        self._population = population
        self._selector = self._make(stream(self._seed, "selector"))

    def _params(self, selector: type[Selector], name: str) -> Params:
        """The job's `<name>.<parameter>` keys, checked."""
        params: Params = getattr(self.args, "selector_params", {}).get(name) or selector.Params()
        return params

    def _make(self, rng: np.random.Generator) -> Selector:
        """The selector; one that is put around another gets that one, which has its own parameters and randomness."""
        wrapped = named.inner_of(self.selector_class, self.params)
        if wrapped is None:
            return self.selector_class(self.params, self.clients, rng)
        name, inner = wrapped
        return self.selector_class(
            self.params,
            self.clients,
            rng,
            inner(  # type: ignore[call-arg]
                self._params(inner, name), self.clients, stream(self._seed, "inner selector")
            ),
        )

    def _positions(self, population: Population) -> np.ndarray:
        """Where clients are: as the trace says, else drawn from the seed."""
        if population.position is not None:
            return population.position
        return stream(self._seed, "position").random((len(population), 2)) * SQUARE_METRES

    @property
    def selector(self) -> Selector:
        return self._ready()[0]

    # ---- time

    def getFeasibleClients(self, cur_time: float) -> list[int]:
        online = self._online(cur_time)
        return self.clients.ids[online].tolist()

    def isClientActive(self, client_id: int, cur_time: float) -> bool:
        return bool(self._ready()[1].online(cur_time, np.array([int(client_id) - 1]))[0])

    def get_completion_time(
        self,
        client_id: int,
        batch_size: int,
        local_steps: int,
        upload_size: float,
        download_size: float,
    ) -> dict[str, float]:
        work = Work(batch_size, local_steps, upload_size, download_size)
        computing, communicating = durations(self._ready()[1], work, np.array([int(client_id) - 1]))
        return {"computation": float(computing[0]), "communication": float(communicating[0])}

    def _online(self, time: float) -> np.ndarray:
        """Rows that are online for the round that comes next, ascending."""
        _, population = self._ready()
        return np.flatnonzero(population.online(time)[self.clients.ids - 1] & self._available())

    def _available(self) -> np.ndarray:
        """Who is there at all, (n,) bool: `available_clients` of them, a function of the seed and the period alone."""
        wanted = getattr(self.args, "available_clients", None)  # stock FedScale has no such key
        if wanted is None:
            return np.ones(len(self.clients), bool)
        there = np.zeros(len(self.clients), bool)
        period = self.count // self.args.available_every  # rounds 1 to available_every are period 0
        there[stream(self._seed, "available", period).permutation(len(there))[:wanted]] = True
        return there

    def _view(self, time: float, seats: int) -> RoundView:
        online = self._online(time)
        return RoundView(
            round=self.count + 1,
            total_rounds=self.args.rounds,
            clock=time,
            online=online,
            clients=self.clients,
            probe=self._answer,
            seats=min(seats, len(online)),
            **self._global,
        )

    # ---- one round

    def describe_model(
        self,
        accuracy: float | None,
        test_loss: float | None,
        weights: np.ndarray | None,
        public_loss: Callable[[np.ndarray], float] | None,
    ) -> None:
        """Ours: the global model as the next selection finds it, as far as the selector needs to know it."""
        self._global = {
            "accuracy": accuracy,
            "test_loss": test_loss,
            "weights": weights,
            "public_loss": public_loss,
        }

    def next_probe(self, num_of_clients: int, cur_time: float) -> Question | None:
        """What the selector wants to know before it selects."""
        self._learn()
        probe = self.selector.probe(self._view(cur_time, num_of_clients))
        return (
            None
            if probe is None
            else Question(
                probe.kind, self.clients.ids[probe.rows].tolist(), probe.one_by_one, probe.more
            )
        )

    def stream_answer(self, client_id: int, answer: np.ndarray) -> np.ndarray:
        """Hand one answer on, if it is finite; what is left of it to keep."""
        if not np.isfinite(np.sum(answer, dtype=np.float64)):
            return np.array([np.nan])
        self.selector.receive(int(self._rows([client_id])[0]), answer)
        return np.empty(0)

    def answer_probe(self, kind: str, answers: dict[int, np.ndarray]) -> None:
        """What the clients said; one that answered with rubbish is left out."""
        finite = {c: a for c, a in answers.items() if np.all(np.isfinite(a))}
        if len(finite) < len(answers):
            logging.warning(
                "%d of %d answers to probe %s are not finite and are left out",
                len(answers) - len(finite),
                len(answers),
                kind,
            )
        self._answer = ProbeAnswer(kind, self._rows(list(finite)), np.array(list(finite.values())))

    def wants_restart(self, num_of_clients: int, cur_time: float) -> bool:
        """Ours: whether the selector wants the round to begin at the initial model."""
        return self.selector.restart_model(self._view(cur_time, num_of_clients))

    def select_participants(self, num_of_clients: int, cur_time: float = 0) -> list[int]:
        self._learn()
        view = self._view(cur_time, num_of_clients)
        rows = np.asarray(self.selector.select(view, min(num_of_clients, len(view.online))))
        self._refuse_bad_pick(rows, view, num_of_clients)
        self.count += 1
        self._answer = None
        return self.clients.ids[rows].tolist()

    def _refuse_bad_pick(self, rows: np.ndarray, view: RoundView, k: int) -> None:
        problem = None
        if rows.ndim != 1 or not (np.issubdtype(rows.dtype, np.integer) or rows.size == 0):
            problem = f"an array of {rows.dtype} of shape {rows.shape}"
        elif len(np.unique(rows)) != len(rows):
            problem = "a row twice"
        elif not np.isin(rows, view.online).all():
            problem = "rows that are not online"
        elif len(rows) > len(view.online):
            problem = f"{len(rows)} rows of {len(view.online)}"
        if problem:
            raise RuntimeError(
                f"selector {self.mode!r} returned {problem} in round {view.round}; "
                f"expected at most {k} distinct rows of view.online"
            )

    def register_feedback(
        self,
        client_id: int,
        reward: float,
        auxi: float = 1.0,
        time_stamp: float = 0,
        duration: float = 1.0,
        success: bool = True,
    ) -> None:
        """FedScale's call for each client that was asked; auxi is the square root of its training loss."""
        values = np.array([reward, auxi, duration], float)
        if not np.isfinite(values).all():
            logging.warning(
                "client %s reported a value that is not finite; it counts as having missed round %d",
                client_id,
                self.count,
            )
            success = False
        self._feedback[int(client_id)] = _Feedback(
            success,
            float(duration),
            *((float(auxi) ** 2, float(reward)) if success else (0.0, 0.0)),
        )

    def register_signals(self, client_id: int, signals: dict[str, np.ndarray]) -> None:
        """Ours: what the selector asked of a client beyond FedScale's feedback."""
        self._feedback[int(client_id)].signals = signals

    def finish_round(self, accuracy: float | None = None, test_loss: float | None = None) -> None:
        """Ours: the round is over, and the global model has been evaluated or not."""
        self._learn(accuracy, test_loss)

    def _learn(self, accuracy: float | None = None, test_loss: float | None = None) -> None:
        """Hand the feedback of the last round, if there is any, to the selector as one outcome."""
        if not self._feedback:
            return
        given = list(self._feedback.values())
        rows, valid = self._rows(list(self._feedback)), np.array([f.success for f in given])
        duration = np.array([f.duration for f in given])
        duration = np.where(np.isfinite(duration), duration, self.clients.expected_duration[rows])
        self.selector.update(
            RoundOutcome(
                round=self.count,
                rows=rows,
                valid=valid,
                duration=duration,
                loss=np.array([f.loss for f in given]),
                utility=np.array([f.utility for f in given]),
                samples=np.where(valid, self.clients.round_samples[rows], 0),
                signals=_stack([f.signals for f in given], valid),
                accuracy=accuracy,
                test_loss=test_loss,
            )
        )
        self._feedback.clear()

    def _rows(self, ids: list[int]) -> np.ndarray:
        wanted = np.array(ids, np.int64)
        rows = np.searchsorted(self.clients.ids, wanted)
        known = (rows < len(self.clients)) & (
            self.clients.ids[np.minimum(rows, len(self.clients) - 1)] == wanted
        )
        if not known.all():
            raise KeyError(f"client {wanted[~known][0]} is not registered")
        return rows

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


class _Feedback:
    """What one client reported."""

    __slots__ = ("success", "duration", "loss", "utility", "signals")

    def __init__(self, success: bool, duration: float, loss: float, utility: float):
        self.success, self.duration, self.loss, self.utility = success, duration, loss, utility
        self.signals: dict[str, np.ndarray] = {}


def _stack(signals: list[dict[str, np.ndarray]], valid: np.ndarray) -> dict[str, np.ndarray]:
    """Each signal as one array over the cohort, zero where the client missed the round."""
    stacked = {}
    for name in {name for each in signals for name in each}:
        shape = np.shape(next(each[name] for each in signals if name in each))
        values = np.zeros((len(signals), *shape))
        for i in np.flatnonzero(valid):
            values[i] = signals[i][name]
        stacked[name] = values
    return stacked


def _file(name: str | None) -> str | None:
    """FedScale's default for device_conf_file is a file that usually is not there: that one may be missing."""
    return None if name == "/tmp/client.cfg" and not Path(name).exists() else name
