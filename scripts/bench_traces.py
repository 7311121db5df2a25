"""How long it takes to load, look up and time a large population, beside FedScale's own code.

    python scripts/bench_traces.py        1,000,000 clients: two minutes and 5 GB, mostly FedScale
    python scripts/bench_traces.py --clients 100000

FedScale's `ClientMetadata.is_active` moves at most one interval per call. On a fresh manager its
answer at time t is therefore right only for the clients whose second interval is not over at t.
The answers are compared for those. Of the others it is checked that we, too, call online whomever
FedScale calls online.
"""

from __future__ import annotations

import argparse
import logging
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import numpy as np
from fedscale.cloud.client_manager import ClientManager

from fedsuv_plugin.traces import files
from fedsuv_plugin.traces.availability import Availability
from fedsuv_plugin.traces.build import build_population
from fedsuv_plugin.traces.catalogues import load_catalogues
from fedsuv_plugin.traces.clock import Work, durations
from fedsuv_plugin.traces.fedscale_files import behaviour_of, capacity_of
from fedsuv_plugin.traces.population import Population, load_population
from fedsuv_plugin.traces.tables import Trace

T = TypeVar("T")
TIMES = (20_000.0, 150_000.0, 400_000.0, 1_000_000.0)  # within the week of the trace, and past it
RESNET18 = 349_200.0  # kbit, FedScale's unit


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, default=1_000_000)
    n = parser.parse_args().clients
    logging.disable(logging.INFO)  # FedScale logs a line at every look-up
    print(f"{n:,} clients")
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "population.npz")
        build(n, path)
        print(f"{'size of the file':44}{Path(path).stat().st_size / 1e6:10.1f} MB")
        population = report("load, both tables", lambda: load_population(n, path, path))
    availability = population.availability
    assert availability is not None
    megabytes = size(population) / 1e6
    print(f"{'size of the arrays':44}{megabytes:10.1f} MB; process at most {memory():.0f} MB")
    bench(population, availability)


def build(n: int, path: str) -> None:
    population = report("build", lambda: build_population(n, 7, load_catalogues()))
    report("write", lambda: files.write(Trace.of(population), path))


def bench(population: Population, availability: Availability) -> None:
    n = len(population)
    report("first look-up (sorts the intervals once)", lambda: availability.online(0.0))
    report("look-up, mean of 40", lambda: [availability.online(t) for t in TIMES * 10], 40)
    report(
        "share of 100 s, mean of 40",
        lambda: [availability.share(t, t + 100) for t in TIMES * 10],
        40,
    )
    subset = np.random.default_rng(0).permutation(n)[: n // 10]
    report(
        "look-up of a tenth, each at its own time",
        lambda: availability.online(np.linspace(0.0, 1e6, len(subset)), subset),
    )
    work = Work(32, 20, RESNET18, RESNET18)
    rows = np.arange(n)
    ours = report("durations", lambda: sum(durations(population, work, rows), np.zeros(n)))

    manager = report("FedScale: register clients", lambda: fedscale_manager(population))
    print(f"{'':44}{'':10}    process at most {memory():.0f} MB")
    theirs = report("FedScale: getFeasibleClients", lambda: manager.getFeasibleClients(TIMES[0]))
    compare(availability, TIMES[0], np.array(theirs) - 1)
    slow = report("FedScale: get_completion_time of all", lambda: fedscale_durations(manager, n))
    # FedScale's one bandwidth gives the same times, because as much goes up as down.
    np.testing.assert_allclose(slow, ours, rtol=1e-9)
    look_up = SECONDS["FedScale: getFeasibleClients"] / SECONDS["look-up, mean of 40"]
    timing = SECONDS["FedScale: get_completion_time of all"] / SECONDS["durations"]
    print(f"\nlook-up   {look_up:8.0f} times as fast")
    print(f"durations {timing:8.0f} times as fast")


SECONDS: dict[str, float] = {}  # what was reported -> how long it took


def report(what: str, do: Callable[[], T], runs: int = 1) -> T:
    """What `do` returns; prints how long it took, divided by the runs it does."""
    start = time.perf_counter()
    result = do()
    SECONDS[what] = (time.perf_counter() - start) / runs
    print(f"{what:44}{SECONDS[what]:10.4f} s", flush=True)
    return result


def memory() -> float:
    """Largest resident size of this process so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def size(population: Population) -> int:
    """Bytes of all arrays of the population."""
    arrays = [*population.columns.values(), population.position, population.model]
    times = population.availability
    if times is not None:
        arrays += [times.starts, times.ends, times.offsets, times.periods]
    return sum(array.nbytes for array in arrays if array is not None)


def fedscale_manager(population: Population) -> Any:
    """FedScale's own manager, with the same devices and users registered one by one."""
    args = SimpleNamespace(filter_less=0, filter_more=1e15, device_avail_file=None)
    manager = ClientManager("random", args)
    trace = Trace.of(population)
    assert trace.devices is not None and trace.device_ids is not None and trace.users is not None
    manager.user_trace = behaviour_of(trace.users)
    manager.user_trace_keys = list(manager.user_trace)
    profiles = capacity_of(trace.devices, trace.device_ids)
    for client in range(1, len(population) + 1):
        manager.register_client(0, client, size=10, speed=profiles[client % len(profiles)])
    return manager


def fedscale_durations(manager: Any, n: int) -> list[float]:
    times = (
        manager.get_completion_time(client, 32, 20, RESNET18, RESNET18)
        for client in range(1, n + 1)
    )
    return [time["computation"] + time["communication"] for time in times]


def compare(availability: Availability, now: float, theirs: np.ndarray) -> None:
    """Stop if an answer differs where FedScale's is right."""
    n = len(availability)
    mine = availability.online(now)
    fedscale = np.zeros(n, bool)
    fedscale[theirs] = True
    # The place of each client's second interval, or of its only one.
    second = np.minimum(availability.offsets[:-1] + 1, availability.offsets[1:] - 1)
    time_now = np.mod(now, availability.periods)
    right = (time_now <= availability.ends[second]) | (availability.lengths < 2)
    right &= availability.lengths > 0
    assert np.array_equal(mine[right], fedscale[right]), "answers differ where FedScale's is right"
    assert mine[fedscale].all(), "FedScale found someone online whom we did not"
    print(
        f"  same answer for the {right.sum():,} clients where FedScale's is right; "
        f"of the other {n - right.sum():,} it misses {np.sum(mine & ~fedscale):,} who are online"
    )


if __name__ == "__main__":
    main()
