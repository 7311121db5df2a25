#!/usr/bin/env python3
"""Seconds per round of one job: a bare PyTorch loop, our loopback and processes, stock FedScale.

    python scripts/bench_rounds.py [--rounds 50] [--stock-rounds 6] [--threads 1]

The job: MLP 784-64-30-10, 100 clients of 600 samples each, 10 a round, 20 local steps of batch 64.
All sides use the same number of torch threads and the same synthetic data, held in memory; start-up
and evaluation are left out. Stock FedScale runs its own aggregator and executors (two, as our
processes do) over gRPC. What is given to it: the model, which its model zoo does not have, and data
in memory without its image transforms, which makes it faster. Ratios compare numbers of this one
run; machines are noisy, so look at ratios, not at seconds.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

CLIENTS = 100
PARTICIPANTS = 10
STEPS = 20
BATCH = 64
SAMPLES = 60_000
DIM = 784
CLASSES = 10
EXECUTORS = 2


def bench_job(folder: str, rounds: int, threads: int) -> Any:
    from fedsuv_plugin.config.job import make_job

    return make_job(
        {
            "job_name": "bench",
            "log_path": folder,
            "data_set": "synthetic",
            "synthetic_samples": SAMPLES,
            "synthetic_dim": DIM,
            "synthetic_classes": CLASSES,
            "num_clients": CLIENTS,
            "model": "mlp",
            "mlp_hidden": "64,30",
            "num_participants": PARTICIPANTS,
            "overcommitment": 1.0,
            "local_steps": STEPS,
            "batch_size": BATCH,
            "learning_rate": 0.05,
            "rounds": rounds,
            "eval_interval": 10**6,
            "checkpoint_every": 10**6,
            "torch_threads": threads,
        }
    )


def bare_loop(job: Any) -> list[float]:
    """FedAvg with nothing around it: the seconds of every round."""
    import torch

    from fedsuv_plugin.tasks.federated_data import FederatedData, initial_model

    torch.set_num_threads(job.config.torch_threads)
    config = job.config
    data = FederatedData(config, torch.device("cpu"))
    model = initial_model(config)
    clients = {c: data.training(c) for c in range(1, CLIENTS + 1)}
    weights = {name: t.clone() for name, t in model.state_dict().items()}
    seconds = []
    for _ in range(config.rounds):
        started = time.perf_counter()
        total = {name: torch.zeros_like(t) for name, t in weights.items()}
        for client in (torch.randperm(CLIENTS)[:PARTICIPANTS] + 1).tolist():
            own = clients[client]
            model.load_state_dict(weights)
            model.train()
            sgd = torch.optim.SGD(
                model.parameters(), lr=config.learning_rate, momentum=0.9, weight_decay=5e-4
            )
            order = torch.cat(
                [torch.randperm(len(own)) for _ in range(1 + STEPS * BATCH // len(own))]
            )
            for step in range(STEPS):
                rows = order[step * BATCH : (step + 1) * BATCH]
                loss = torch.nn.functional.cross_entropy(model(own.x[rows]), own.y[rows])
                sgd.zero_grad()
                loss.backward()
                sgd.step()
            for name, t in model.state_dict().items():
                total[name] += t
        weights = {name: t / PARTICIPANTS for name, t in total.items()}
        seconds.append(time.perf_counter() - started)
    return seconds


def ours(job: Any, launcher: str) -> list[float]:
    """Gaps between the ends of rounds; the last one, which evaluates, is left out."""
    from fedsuv_plugin.engine.launchers import run_job
    from fedsuv_plugin.run_directory import RunDirectory

    ends: list[float] = []
    run_job(
        RunDirectory.create(job),
        launcher,
        EXECUTORS,
        lambda record, metrics: ends.append(time.perf_counter()),
    )
    return [b - a for a, b in zip(ends[:-2], ends[1:-1], strict=True)]


# ---- stock FedScale


def stock(folder: Path, rounds: int, threads: int) -> list[float]:
    from fedsuv_plugin.engine.launchers.processes import free_port

    map_file = folder / "map.csv"
    with map_file.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["client_id", "sample_path", "label_name", "label_id"])
        writer.writerows([i % CLIENTS, i, 0, 0] for i in range(SAMPLES))
    options = {
        "ps_port": free_port(),
        "log_path": folder,
        "job_name": "stock",
        "model": "bench_mlp",
        "data_set": "Mnist",
        "data_map_file": map_file,
        "num_participants": PARTICIPANTS,
        "overcommitment": 1.0,
        "local_steps": STEPS,
        "batch_size": BATCH,
        "rounds": rounds + 1,
        "eval_interval": 10**6,
        "use_cuda": "False",
        "num_executors": EXECUTORS,
        "executor_configs": f"127.0.0.1:[{EXECUTORS}]",
    }
    command = [sys.executable, __file__, "--threads", str(threads)]
    words = [f"--{key}={value}" for key, value in options.items()]
    with (folder / "stock.log").open("wb") as log:
        executors = [
            subprocess.Popen(
                [*command, "--stock-role", "executor", *words, f"--this_rank={rank}"],
                stdout=log,
                stderr=log,
            )
            for rank in range(1, EXECUTORS + 1)
        ]
        try:
            done = subprocess.run(
                [*command, "--stock-role", "aggregator", *words, "--this_rank=0"],
                check=True,
                stdout=subprocess.PIPE,
                stderr=log,
                timeout=120 + 30 * rounds,
            )
        finally:
            for executor in executors:
                executor.kill()
                executor.wait()
    ends = json.loads(done.stdout.splitlines()[-1])
    gaps = [b - a for a, b in zip(ends[:-1], ends[1:], strict=True)]
    return gaps[1:]  # the first includes an evaluation


def stock_role(role: str, threads: int, words: list[str]) -> None:
    """One stock process: FedScale's own classes, given the model and the data of this benchmark."""
    import numpy as np
    import torch

    from fedsuv_plugin.engine import fedscale_env

    torch.set_num_threads(threads)
    fedscale_env.parser_module()
    sys.argv = [sys.argv[0], *words]
    parser = fedscale_env.parser_module()
    parser.args, _ = parser.parser.parse_known_args(words)  # type: ignore[attr-defined]
    parser.args.use_cuda = False
    parser.args.num_class = CLASSES
    parser.args.event_dir = str(Path(parser.args.log_path) / f"{role}{parser.args.this_rank}")
    fedscale_env.load()
    from fedscale.cloud.aggregation import aggregator
    from fedscale.cloud.execution import executor
    from torch import nn

    def model() -> nn.Module:
        return nn.Sequential(
            nn.Flatten(),
            nn.Linear(DIM, 64),
            nn.ReLU(),
            nn.Linear(64, 30),
            nn.ReLU(),
            nn.Linear(30, CLASSES),
        )

    class Data(torch.utils.data.TensorDataset):
        def __init__(self, n: int):
            rng = np.random.default_rng(0)
            self.targets = torch.from_numpy(rng.integers(CLASSES, size=n))
            super().__init__(
                torch.from_numpy(rng.normal(size=(n, DIM)).astype(np.float32)), self.targets
            )

    aggregator.init_model = executor.init_model = model
    executor.init_dataset = lambda: (Data(SAMPLES), Data(100))
    if role == "executor":
        executor.Executor(parser.args).run()
        return

    class Timed(aggregator.Aggregator):  # type: ignore[misc]
        ends: list[float] = []

        def round_completion_handler(self) -> None:
            self.ends.append(time.perf_counter())
            super().round_completion_handler()

    timed = Timed(parser.args)
    timed.run()
    print(json.dumps(timed.ends))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument(
        "--stock-rounds", type=int, default=6, help="stock is slow; its rounds are alike"
    )
    parser.add_argument("--threads", type=int, default=1, help="torch threads of every process")
    parser.add_argument("--stock-role", choices=("aggregator", "executor"), help=argparse.SUPPRESS)
    args, words = parser.parse_known_args()
    if args.stock_role:
        stock_role(args.stock_role, args.threads, words)
        return
    if words:
        parser.error(f"unknown arguments: {' '.join(words)}")
    with tempfile.TemporaryDirectory() as folder:
        job = bench_job(folder, args.rounds, args.threads)
        # Bare loop and loopback take turns, so that a busy moment of the machine hits both.
        half = bench_job(folder, max(3, args.rounds // 2), args.threads)
        bare: list[float] = []
        loopback: list[float] = []
        for _ in range(2):
            bare += bare_loop(half)
            loopback += ours(half, "loopback")
        seconds = {
            "bare loop": median(bare),
            "loopback": median(loopback),
            "processes": median(ours(job, "processes")),
            "stock FedScale": median(stock(Path(folder), args.stock_rounds, args.threads)),
        }
    print(
        f"{CLIENTS} clients, {PARTICIPANTS} a round, {STEPS} steps of batch {BATCH}, "
        f"MLP {DIM}-64-30-{CLASSES}, {args.threads} torch thread(s); median seconds per round"
    )
    for name, value in seconds.items():
        print(
            f"{name:16} {value:8.4f} s   {value / seconds['bare loop']:7.2f} x the bare loop   "
            f"{seconds['stock FedScale'] / value:7.1f} x faster than stock"
        )


if __name__ == "__main__":
    main()
