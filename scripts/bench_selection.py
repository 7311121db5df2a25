#!/usr/bin/env python3
"""Seconds per selection and peak memory, beside FedScale's bundled Oort in the same run.

    python scripts/bench_selection.py [--clients 1000 3500 10000 100000 1000000]
                                      [--rounds 200] [--timed 11] [--play] [--threads 1]

All selectors get the same clients and `--rounds` rounds of feedback from 20 random clients each.
Then `--timed` rounds of selection and feedback are played, of which the first warms up (it has a
column of its own) and the others are timed. The time of `update` counts as part of the selection.
fedsuv fits its hyper-parameters every 10 rounds, so the default has exactly one fit among the ten
timed rounds, and that is the slowest. With `--play` the rounds before are selected as well, so that
the slowest is the slowest of the whole job. For fedsuv that is a round with new hyper-parameters
and an exact Gaussian process of nearly 1,024 points.

divfl knows a direction of 10,000 numbers of every client. Its first selection computes the
distances of all of them, so it takes part with up to 10,000 clients only.

afl and fedcor ask clients for their losses, which everyone answers; the answers are not timed. They
play only the rounds of fedcor's warm-up, all with losses, instead of `--rounds`. The first round
after it is in the column `first`: fedcor trains 1000 steps there. Its timed rounds have 100 more
steps among them, which is the slowest.

lsh and nccb are told the bits of all clients before anything else. That selection, in which nccb
makes its clusters, is in the column `first`.

refl is told who will be online, at no cost here: `bench_traces.py` times the trace's answer. As
`refl by history` it learns it from the rounds, which take the same time however many there were.

tifl asks for opinions in one of its timed rounds, which everyone gives; they are not timed either.
For bsfl everyone has been asked once, or it would only explore. `fedcs in turn` is fedcs with
`schedule: sequential`.

Each case runs in a process of its own, whose peak memory (interpreter and libraries included) is
reported. The bundled Oort fails on NumPy 2, because `from numpy import *` shadows builtins; here
they are put back.
"""

from __future__ import annotations

import argparse
import builtins
import json
import os
import resource
import subprocess
import sys
import time
from dataclasses import asdict, replace
from statistics import mean, median
from types import SimpleNamespace
from typing import Any

import numpy as np

from fedsuv_plugin.params import NoParams, Params
from fedsuv_plugin.selectors.base import (
    ClientTable,
    ProbeAnswer,
    RoundOutcome,
    RoundView,
    Selector,
)
from fedsuv_plugin.selectors.baselines.afl import Afl, AflParams
from fedsuv_plugin.selectors.baselines.bsfl import BSFL, BSFLParams
from fedsuv_plugin.selectors.baselines.divfl import Divfl, DivflParams
from fedsuv_plugin.selectors.baselines.fedcor import FedCor, FedCorParams
from fedsuv_plugin.selectors.baselines.fedcs import FedCS, FedCSParams
from fedsuv_plugin.selectors.baselines.lsh import Lsh, LshParams
from fedsuv_plugin.selectors.baselines.nccb import Nccb, NccbParams
from fedsuv_plugin.selectors.baselines.oort import Oort, OortParams
from fedsuv_plugin.selectors.baselines.random import Random
from fedsuv_plugin.selectors.baselines.refl import HISTORY, TRACE, Refl, ReflParams
from fedsuv_plugin.selectors.baselines.safa import Safa, SafaParams
from fedsuv_plugin.selectors.baselines.tifl import TiFL, TiFLParams
from fedsuv_plugin.selectors.signals import (
    ACCURACY_GAIN,
    DIRECTION,
    FINGERPRINT,
    FINGERPRINT_BITS,
    LOSS,
    OPINIONS,
)

COHORT = 20
SECONDS = 100.0  # of a round
SIZES = (1_000, 3_500, 10_000, 100_000, 1_000_000)
BUNDLED = "bundled oort"
BY_HISTORY = "refl by history"
# Selectors that are made of their parameters alone.
PLAIN: dict[str, tuple[type[Selector], Params]] = {
    "lsh": (Lsh, LshParams()),
    "nccb": (Nccb, NccbParams()),
    "safa": (Safa, SafaParams()),
    "fedcs": (FedCS, FedCSParams()),
    "fedcs in turn": (FedCS, FedCSParams(schedule="sequential")),
    "tifl": (TiFL, TiFLParams()),
    "bsfl": (BSFL, BSFLParams()),
}
NAMES = (
    *("fedsuv", "oort", "random", "divfl", "afl", "fedcor", "refl", BY_HISTORY),
    *PLAIN,
    BUNDLED,
)
ASKING = ("afl", "fedcor")  # they ask for losses and play their own warm-up
HASHING = ("lsh", "nccb")  # they ask for fingerprints, once
PARAMETERS = 10_000  # of the model whose directions divfl gets
DIVFL_CLIENTS = 10_000  # at most
KINDS = 20  # of clients; the bits of a client differ from its kind's in 10 of 64


class World:
    """Clients with random features, on which their speed and their utility depend."""

    def __init__(self, n: int, directions: bool = False):
        rng = np.random.default_rng(1)
        self._directions = directions  # whether updates come with them
        samples = rng.integers(20, 500, n)
        columns = {
            "cpu_gflops": rng.lognormal(3, 1, n),
            "cores": rng.integers(2, 17, n),
            "memory_gb": rng.choice([2.0, 4, 8, 16], n),
            "gpu_gflops": rng.lognormal(4, 2, n),
            "gpus": rng.integers(0, 3, n),
        }
        features = np.column_stack(list(columns.values()))
        self.clients = ClientTable(
            ids=np.arange(1, n + 1),
            samples=samples,
            round_samples=np.minimum(samples, 200),
            features=features,
            feature_names=tuple(columns),
            expected_duration=200 / features[:, 0],
            energy=np.zeros(n),
            position=np.zeros((n, 2)),
            download=60 / features[:, 0],
            upload=80 / features[:, 0],
        )
        self.online = np.arange(n)
        self._shares = rng.random(n)  # of a window, in which each client is online
        self._utility = np.log1p(samples) * (2 + np.sin(features[:, 1]))

    def view(self, t: int) -> RoundView:
        return RoundView(
            round=t,
            total_rounds=1000,
            clock=SECONDS * t,
            online=self.online,
            clients=self.clients,
            deadline=SECONDS,
            online_share=lambda start, end: self._shares,
        )

    def answered(self, selector: Selector, view: RoundView) -> RoundView:
        """The view with everyone's loss, which falls with the rounds, or opinion, or bits.

        It has what the selector asks for."""
        question = selector.probe(view)
        if question is not None and question.kind == OPINIONS:
            opinions = 1 / self._utility[question.rows]
            return replace(view, probe=ProbeAnswer(OPINIONS, question.rows, opinions))
        if question is None or question.kind not in (LOSS, FINGERPRINT):
            return view
        rng = np.random.default_rng([4, view.round])
        if question.kind == FINGERPRINT:
            kinds = rng.integers(0, 2, (KINDS, FINGERPRINT_BITS), np.uint8)
            bits = kinds[np.arange(len(self.clients)) % KINDS]
            bits ^= rng.random(bits.shape, np.float32) < 10 / FINGERPRINT_BITS
            return replace(view, probe=ProbeAnswer(FINGERPRINT, question.rows, bits))
        common = rng.normal(size=(4, 1)) * np.stack([self._utility**i for i in range(4)]) / 4**3
        loss = 2 * 0.99**view.round + 0.01 * common.sum(axis=0)
        loss += 0.01 * rng.normal(size=len(self.clients))
        return replace(view, probe=ProbeAnswer(LOSS, question.rows, loss[question.rows]))

    def outcome(self, t: int, rows: np.ndarray | None = None) -> RoundOutcome:
        """What becomes of `rows`, or of 20 random clients; the same in every process."""
        rng = np.random.default_rng([2, t])
        rows = rng.choice(len(self.clients), COHORT, replace=False) if rows is None else rows
        seconds = self.clients.expected_duration[rows] * rng.lognormal(0, 0.1, len(rows))
        valid = seconds < 15
        loss = np.where(valid, self._utility[rows] * rng.lognormal(0, 0.2, len(rows)), 0)
        signals = {ACCURACY_GAIN: np.where(valid, 0.1, 0.0), LOSS: loss}
        if self._directions:
            signals[DIRECTION] = rng.normal(size=(len(rows), PARAMETERS)) * valid[:, None]
        return RoundOutcome(
            round=t,
            rows=rows,
            valid=valid,
            duration=seconds,
            loss=loss,
            utility=10 * loss,
            samples=self.clients.round_samples[rows],
            signals=signals,
        )


class BundledOort:
    """FedScale's Oort with the methods of our selectors, fed as FedScale's aggregator does."""

    def __init__(self, clients: ClientTable):
        from thirdparty.oort import oort

        for name in vars(builtins):
            if not name.startswith("__") and hasattr(oort, name):
                setattr(oort, name, getattr(builtins, name))
        params = SimpleNamespace(**asdict(OortParams()), exploration_alpha=0.3)
        self._oort = oort._training_selector(params)
        ids = clients.ids.tolist()
        sizes = clients.round_samples.tolist()
        durations = clients.expected_duration.tolist()
        for client, size, seconds in zip(ids, sizes, durations, strict=True):
            self._oort.register_client(client, {"reward": size, "duration": 1.0})
            self._oort.update_duration(client, seconds)
        # FedScale has the online clients as a set at hand, so that making it is not timed.
        self._online = set(ids)

    def select(self, view: RoundView, k: int) -> np.ndarray:
        chosen = self._oort.select_participant(k, feasible_clients=self._online)
        return np.array(chosen, np.int64) - 1

    def update(self, outcome: RoundOutcome) -> None:
        clients = (outcome.rows + 1).tolist()
        rewards = outcome.utility.tolist()
        durations = outcome.duration.tolist()
        for client, reward, seconds in zip(clients, rewards, durations, strict=True):
            feedback = {"reward": reward, "duration": seconds, "status": True}
            self._oort.update_client_util(client, {**feedback, "time_stamp": outcome.round})


def make(name: str, clients: ClientTable) -> Any:
    rng = np.random.default_rng(0)
    if name == BUNDLED:
        return BundledOort(clients)
    if name == "random":
        return Random(NoParams(), clients, rng)
    if name == "oort":
        return Oort(OortParams(), clients, rng)
    if name == "afl":
        return Afl(AflParams(), clients, rng)
    if name == "fedcor":
        return FedCor(FedCorParams(), clients, rng)
    if name in PLAIN:
        selector_class, params = PLAIN[name]
        return selector_class(params, clients, rng)
    if name in ("refl", BY_HISTORY):
        forecast = HISTORY if name == BY_HISTORY else TRACE
        return Refl(ReflParams(forecast=forecast), clients, rng)
    if name == "divfl":
        divfl = Divfl(DivflParams(), clients, rng)
        for row in range(len(clients)):
            divfl.receive(row, np.random.default_rng([3, row]).normal(size=PARAMETERS))
        return divfl
    # Imported here, because the memory its libraries take is not to count for the others.
    from fedsuv_plugin.selectors.fedsuv import FedSUV, FedSUVParams

    return FedSUV(FedSUVParams(), clients, rng)


def case(name: str, n: int, rounds: int, timed: int, play: bool, threads: int) -> dict[str, Any]:
    """One selector at one size, in this process."""
    if name == "fedsuv":
        import torch

        torch.set_num_threads(threads)
    world = World(n, directions=name == "divfl")
    selector: Selector | BundledOort = make(name, world.clients)
    if name == "bsfl":
        selector.update(world.outcome(0, world.online))
    asks = name in ASKING
    first = None
    if name in HASHING:
        view = world.answered(selector, world.view(1))
        begin = time.perf_counter()
        selector.select(view, COHORT)
        first = time.perf_counter() - begin
    if asks:
        rounds = FedCorParams().warmup + 1
        for t in range(1, rounds + 1):
            rows = selector.select(world.answered(selector, world.view(t)), COHORT)
            selector.update(world.outcome(t, rows))
    elif not play:
        for t in range(1, rounds + 1):
            selector.update(world.outcome(t))
    seconds = []
    for t in range(1 if play and not asks else rounds + 1, rounds + timed + 1):
        view = world.view(t)
        if isinstance(selector, Selector):
            view = world.answered(selector, view)
        begin = time.perf_counter()
        rows = selector.select(view, COHORT)
        selecting = time.perf_counter() - begin
        outcome = world.outcome(t, rows)
        begin = time.perf_counter()
        selector.update(outcome)
        seconds.append(selecting + time.perf_counter() - begin)
    return {
        "seconds": seconds[-(timed - 1) :],
        "first": seconds[0] if first is None else first,
        "slowest": max(seconds[0 if play and not asks else 1 :]),
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def in_a_process(name: str, n: int, args: argparse.Namespace) -> dict[str, Any] | None:
    """The case in a process of its own; None if FedScale's Oort is not installed or fails."""
    words = [
        f"--rounds={args.rounds}",
        f"--timed={4 if name == BUNDLED else args.timed}",
        f"--threads={args.threads}",
        f"--case={name}",
        f"--clients={n}",
        *(["--play"] if args.play and name != BUNDLED else []),
    ]
    threads = str(args.threads)
    done = subprocess.run(
        [sys.executable, __file__, *words],
        stdout=subprocess.PIPE,
        check=False,
        stderr=subprocess.PIPE if name == BUNDLED else None,
        env={**os.environ, "OMP_NUM_THREADS": threads, "OPENBLAS_NUM_THREADS": threads},
    )
    if done.returncode:
        if name != BUNDLED:
            sys.exit(f"{name} at {n} clients failed")
        print(f"{n:>10,}  {name:15} failed: {done.stderr.decode().strip().splitlines()[-1]}")
        return None
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, nargs="+", default=SIZES)
    parser.add_argument("--selectors", nargs="+", default=list(NAMES), choices=NAMES)
    parser.add_argument(
        "--rounds", type=int, default=200, help="of feedback before the clock starts"
    )
    parser.add_argument(
        "--timed", type=int, default=11, help="rounds played after them; the first is not timed"
    )
    parser.add_argument(
        "--play",
        action="store_true",
        help="select in the rounds before, too (minutes at 1,000,000)",
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--case", choices=NAMES, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.case:
        n = args.clients[0]
        result = case(args.case, n, args.rounds, args.timed, args.play, args.threads)
        print(json.dumps(result))
        return
    print(
        f"{args.rounds} rounds of feedback, {COHORT} clients each; "
        f"seconds per selection; {args.threads} thread(s)"
    )
    print(
        f"{'clients':>10}  {'selector':15} {'first':>9} {'median':>9} {'mean':>9} "
        f"{'slowest':>9} {'peak MB':>8}   bundled / mean"
    )
    for n in args.clients:
        names = [name for name in args.selectors if name != "divfl" or n <= DIVFL_CLIENTS]
        results = {name: in_a_process(name, n, args) for name in names}
        bundled = results.get(BUNDLED)
        for name, found in results.items():
            if found is not None:
                print(f"{n:>10,}  {name:15} {line(found, bundled)}", flush=True)


def line(result: dict[str, Any], bundled: dict[str, Any] | None) -> str:
    """The numbers of one case, and how many times as long the bundled Oort takes."""
    average = mean(result["seconds"])
    ratio = f"{mean(bundled['seconds']) / average:8.1f} x" if bundled else ""
    return (
        f"{result['first']:9.4f} {median(result['seconds']):9.4f} {average:9.4f} "
        f"{result['slowest']:9.4f} {result['peak_mb']:8.0f}   {ratio}"
    )


if __name__ == "__main__":
    main()
