"""Aggregator and executor in one process: calls instead of gRPC, nothing pickled, nobody waits."""

from __future__ import annotations

from typing import Any

from fedsuv_plugin.config.argv import Place
from fedsuv_plugin.engine.aggregator import OnRound, PluginAggregator
from fedsuv_plugin.engine.executor import PluginExecutor
from fedsuv_plugin.engine.executor_pool import ExecutorPool
from fedsuv_plugin.engine.interrupts import stop_on_interrupt
from fedsuv_plugin.engine.task import NOTHING, Event, Result
from fedsuv_plugin.run_directory import RunDirectory


def launch(run: RunDirectory, executors: int, on_round: OnRound) -> bool:
    """Run the job with one executor: in one process more would only take turns.

    True: the job is finished; False: it was stopped on request."""
    pool = LoopbackPool()
    place = Place(this_rank=1, num_executors=1)
    aggregator = PluginAggregator(run.job, place, pool, run, on_round)
    pool.executor = PluginExecutor(run.job, place, LoopbackChannel(pool))
    pool.executor.start()
    with stop_on_interrupt(aggregator):
        aggregator.run()
    return aggregator.finished


class LoopbackPool(ExecutorPool):
    """A pool of one executor, which works whenever a result is awaited, and is always there."""

    executor: PluginExecutor

    def _wait(self, seconds: float) -> None:
        self.executor.step()

    def _say_goodbye(self) -> None:
        self.executor.step()


class LoopbackChannel:
    """An executor's calls on a pool in this process."""

    def __init__(self, pool: ExecutorPool):
        self._pool = pool

    def connect_to_server(self) -> None:
        pass

    def close_sever_connection(self) -> None:
        pass

    def register(self, executor: str, info: dict[str, Any], timeout: float) -> None:
        self._pool.admit(executor, info["size"])

    def ping(self, executor: str) -> Event:
        return self._pool.next_event(executor, wait=0)

    def complete(self, executor: str, result: Result) -> Event:
        self._pool.deliver(executor, result)
        return NOTHING
