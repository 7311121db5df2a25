"""Who the clients of a job are: their table, their devices, and who is online when."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from fedsuv_plugin.config.keys import JobConfig
from fedsuv_plugin.errors import UserError, require
from fedsuv_plugin.params import range_of
from fedsuv_plugin.randomness import stream
from fedsuv_plugin.selectors.base import ClientTable
from fedsuv_plugin.traces.clock import Work, durations, energy, transfers
from fedsuv_plugin.traces.population import Population

SQUARE_METRES = 1000.0  # side of the square in which clients without a position are placed


def wanted_clients(only: str | None, sizes: np.ndarray) -> np.ndarray:
    """The ids of `only_clients`, ascending; all of 1, 2, ... len(sizes) where it is none."""
    if only is None:
        return np.arange(1, len(sizes) + 1)
    found: set[int] = set()
    for part in _listed(only).replace(",", " ").strip("[] \n").split():
        ids = range_of(part)
        expected = f"ids from 1 to {len(sizes)} such as 3,7,10-19, or a file of them"
        there = len(ids) > 0 and ids[0] >= 1 and ids[-1] <= len(sizes)
        require(there, "only_clients", expected, part)
        found.update(ids)
    require(bool(found), "only_clients", "at least one id", only)
    return np.array(sorted(found), np.int64)


def _listed(only: str) -> str:
    """The list itself, or what is in the file of that name."""
    file = Path(only).expanduser()
    try:
        return file.read_text() if file.is_file() else only
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"only_clients: {only}: cannot be read ({error})") from None


def refuse_nobody(info: Mapping[str, int], config: JobConfig) -> None:
    """Without any client that can be asked there is no job; `info` is FedScale's getDataInfo."""
    if not info["total_feasible_clients"]:
        raise UserError(
            f"no client has at least filter_less={config.filter_less} and at most "
            f"filter_more={config.filter_more:g} samples"
        )


class Roster:
    """The clients that may be asked. Client c has device c - 1 of the population."""

    def __init__(
        self, ids: np.ndarray, sizes: np.ndarray, population: Population, work: Work, seed: int
    ):
        """`ids` ascend; `sizes` are the training samples of each."""
        self._population = population
        self._seed = seed
        self._devices = ids - 1  # rows of the population
        names, features = population.features
        computing, communicating = durations(population, work, self._devices)
        downloading, uploading = transfers(population, work, self._devices)
        self.clients = ClientTable(
            ids=ids,
            samples=sizes,
            features=features[self._devices],
            feature_names=names,
            round_samples=np.minimum(sizes, work.samples(self._devices)),
            expected_duration=computing + communicating,
            energy=energy(population, self._devices, computing, communicating),
            position=self._positions()[self._devices],
            download=downloading,
            upload=uploading,
        )

    def _positions(self) -> np.ndarray:
        """Where clients are: as the trace says, else drawn from the seed."""
        if self._population.position is not None:
            return self._population.position
        square = stream(self._seed, "position").random((len(self._population), 2))
        return np.asarray(square * SQUARE_METRES)

    def online(self, time: float) -> np.ndarray:
        """Who is online at a time, (n,) bool."""
        return self._population.online(time)[self._devices]

    def available(self, wanted: int, period: int) -> np.ndarray:
        """Who is there at all in a period, (n,) bool: so many of the clients.

        It is a function of the seed and the period alone."""
        there = np.zeros(len(self.clients), bool)
        there[stream(self._seed, "available", period).permutation(len(there))[:wanted]] = True
        return there

    def is_online(self, client_id: int, time: float) -> bool:
        return bool(self._population.online(time, np.array([client_id - 1]))[0])

    def seconds(self, client_id: int, work: Work) -> tuple[float, float]:
        """(computing, communicating) seconds of one client."""
        computing, communicating = durations(self._population, work, np.array([client_id - 1]))
        return float(computing[0]), float(communicating[0])

    @property
    def online_share(self) -> Callable[[float, float], np.ndarray] | None:
        """(start, end) -> the share of that time in which each client is online, (n,).

        None where no trace says who is online when."""
        availability = self._population.availability
        if availability is None:
            return None
        return lambda start, end: availability.share(start, end)[self._devices]

    def rows(self, ids: list[int] | np.ndarray) -> np.ndarray:
        """The rows of the client table, (m,); a client that is not in it is an error."""
        wanted = np.array(ids, np.int64)
        known = self.clients.ids
        rows = np.searchsorted(known, wanted)
        found = (rows < len(known)) & (known[np.minimum(rows, len(known) - 1)] == wanted)
        if not found.all():
            raise KeyError(f"client {wanted[~found][0]} is not registered")
        return rows
