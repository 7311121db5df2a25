"""Aggregator and executor in one process: calls instead of gRPC, nothing pickled, nobody waits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedsuv_plugin.config.argv import Place
from fedsuv_plugin.engine.aggregator import PluginAggregator
from fedsuv_plugin.engine.executor import PluginExecutor
from fedsuv_plugin.engine.grpc_service import LoopbackChannel
from fedsuv_plugin.job import fedscale_args, stop_on_interrupt
from fedsuv_plugin.records import RunDirectory

if TYPE_CHECKING:
    from fedsuv_plugin.job import OnRound


def launch(run: RunDirectory, executors: int, on_round: OnRound) -> bool:
    """One executor does all the work, whatever `executors` says: in one process more would only take turns."""
    args = fedscale_args(run.job, Place(this_rank=1, num_executors=1), run.events)
    aggregator = PluginAggregator(run.job, args, run, on_round)
    executor = PluginExecutor(run.job, args, LoopbackChannel(aggregator))
    aggregator.pump = executor.step
    executor.start()
    with stop_on_interrupt(aggregator):
        aggregator.run()
    return aggregator.round == run.job.config.rounds
