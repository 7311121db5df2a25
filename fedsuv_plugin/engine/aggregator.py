"""FedScale's aggregator: the rounds of a job, one after the other.

Runnable as a script, as FedScale's driver starts it:
    python aggregator.py --job_name=... --this_rank=0 --num_executors=2 \
        --executor_configs=127.0.0.1:[2]
"""

from __future__ import annotations

import sys
import threading
import time
from argparse import Namespace
from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np
import torch
from torch.utils.tensorboard import SummaryWriter

from fedsuv_plugin import named
from fedsuv_plugin.config.argv import Place
from fedsuv_plugin.config.resolved import ResolvedJob
from fedsuv_plugin.engine import fedscale_env
from fedsuv_plugin.engine.costs import log_costs
from fedsuv_plugin.engine.devices import Devices
from fedsuv_plugin.engine.executor_pool import ExecutorPool
from fedsuv_plugin.engine.feedback import Ask, ModelFacts, feedback_of
from fedsuv_plugin.engine.foreign_manager import adopt
from fedsuv_plugin.engine.judge import Chunk, Judge, accuracy_and_loss
from fedsuv_plugin.engine.model import ModelAdapter, flat
from fedsuv_plugin.engine.protocols import make_protocol
from fedsuv_plugin.engine.public_loss import PublicLoss
from fedsuv_plugin.engine.roster import refuse_nobody, wanted_clients
from fedsuv_plugin.engine.rounds import Cohort, Judgement, Played, Round, Settled, Trained
from fedsuv_plugin.engine.stock import Aggregator, TorchServerOptimizer
from fedsuv_plugin.engine.training import Questions
from fedsuv_plugin.records import metrics_record, round_record
from fedsuv_plugin.run_directory import RunDirectory
from fedsuv_plugin.selectors.base import RoundView
from fedsuv_plugin.selectors.signals import (
    DIRECTION,
    GLOBAL_ACCURACY,
    PUBLIC_LOSS,
    WEIGHTS,
)
from fedsuv_plugin.tasks.federated_data import initial_model, kbit, public_set

OnRound = Callable[[dict[str, Any], "Mapping[str, Any] | None"], None]


class PluginAggregator(Aggregator):  # type: ignore[misc]  # FedScale has no types
    """Drives the job: who is asked, who makes it, what becomes of the model, what is written down.

    State that outlives a round is what `_checkpoint` lists."""

    log_writer: SummaryWriter

    def __init__(
        self,
        job: ResolvedJob,
        place: Place,
        pool: ExecutorPool,
        run: RunDirectory,
        on_round: OnRound = lambda record, metrics: None,
    ):
        self.job = job
        self.config = job.config
        fedscale_env.refuse_missing_packages(job.config)
        super().__init__(fedscale_env.namespace(job, place, run.events))
        self.pool = pool
        self.run_directory = run
        self.stop_after_round = threading.Event()  # set by a signal: end with the round
        self._on_round = on_round
        self._judge = Judge(pool)
        self._public_loss: PublicLoss | None = None
        self._reached = False  # the accuracy at which the job is to end
        self._published = False  # the executors have the current model, or will before any task

    def init_client_manager(self, args: Namespace) -> Any:
        manager = named.client_manager_class(args.sample_mode)(args.sample_mode, args=args)
        return adopt(manager, self.config)

    def setup_env(self) -> None:
        # Aggregation is memory-bound: the GPUs belong to the executors.
        self.device = torch.device("cpu")
        torch.set_num_threads(self.config.torch_threads)

    def init_model(self) -> None:
        optimizer = TorchServerOptimizer(self.config.gradient_policy, self.args, self.device)
        self.model_wrapper = ModelAdapter(initial_model(self.config), optimizer=optimizer)
        self.model_update_size = kbit(self.model_wrapper.get_model())
        self._published = False

    # ---- the job

    def run(self) -> None:
        try:
            self.setup_env()
            self.init_model()
            self.event_monitor()
        finally:
            self.stop()

    def event_monitor(self) -> None:
        """All rounds, from the beginning or from the last checkpoint."""
        self.pool.wait_for_executors(self.args.num_executors, self.config.connection_timeout)
        self._register_clients()
        self._resume()
        if PUBLIC_LOSS in self.job.needs:
            self._public_loss = PublicLoss(self.config, public_set(self.config))
        judgement = self._evaluate(due=self.round == 0)
        while not (self.finished or self.stop_after_round.is_set()):
            judgement = self._play(self._begin(judgement))
        self._save_checkpoint()

    @property
    def finished(self) -> bool:
        return self._reached or self.round >= self.config.rounds

    def stop(self) -> None:
        """Executors hear that the job is over; nobody sleeps."""
        self.pool.shut_down()
        self.log_writer.close()
        if self.wandb is not None:
            self.wandb.finish()

    def _register_clients(self) -> None:
        sizes = self.pool.sizes
        self._devices = Devices(self.config, sizes, self.model_update_size)
        self.client_manager.register_clients(sizes, self._devices.population, self._devices.work)
        self._clients = wanted_clients(self.config.only_clients, sizes)
        self.num_of_clients = len(self._clients)
        samples = int(sizes[self._clients - 1].sum())
        self.run_directory.note(clients=self.num_of_clients, training_samples=samples)
        refuse_nobody(self.client_manager.getDataInfo(), self.config)
        learnt = self.model_wrapper.learnt
        self._protocol = make_protocol(self.client_manager, self.config, self.pool, learnt)

    # ---- one round, stage by stage

    def _begin(self, judgement: Judgement) -> Round:
        self.round += 1
        everyone = self.round <= self.config.warmup_rounds
        cohort_size = self.config.num_participants
        if self.config.round_deadline is None:
            cohort_size = int(cohort_size * self.config.overcommitment)
        all_are_wanted = everyone or self.client_manager.free_cohort
        return Round(
            number=self.round,
            clock=self.global_virtual_clock,
            seats=self.num_of_clients if everyone else cohort_size,
            cohort_size=cohort_size,
            wanted=None if all_are_wanted else self.config.num_participants,
            learning_rate=self.config.learning_rate_in(self.round),
            judgement=judgement,
        )

    def _play(self, now: Round) -> Judgement:
        self._publish()
        questions = Questions(self.pool, self._devices.prices, now)
        view = self._look(now, questions.ask)
        if self.client_manager.wants_restart(view):
            self.init_model()  # with a fresh server optimizer
            self._publish()
        cohort = self._select(now, view)
        settled = self._protocol.settle(now, cohort, self._devices.effort(now, cohort))
        trained = self._train(now, cohort, settled)
        self.round_duration = settled.seconds
        self.global_virtual_clock += settled.seconds
        judgement = self._evaluate(self.finished or now.number % self.config.eval_interval == 0)
        measured = self._devices.prices.of_signals(now, self.job.needs, settled.working)
        played = Played(now, cohort, settled, trained, judgement, questions.bill + measured)
        self.client_manager.finish_round(
            feedback_of(played), now.number, judgement.accuracy, judgement.loss
        )
        self._record(played)
        if now.number % self.config.checkpoint_every == 0:
            self._save_checkpoint()
        return judgement

    def _publish(self) -> None:
        """Executors get the global model when it has changed, before any task."""
        if not self._published:
            self.model_weights = self.model_wrapper.get_weights()
            self.pool.publish(self.round, self.model_weights)
            self._published = True

    def _look(self, now: Round, ask: Ask) -> RoundView:
        """The view of the round, with the clients' answers to what the selector asks first."""
        model = self.model_wrapper.get_model()
        if self._public_loss is not None:
            self._public_loss.follow(model)
        needed = self.job.needs & {DIRECTION, WEIGHTS, PUBLIC_LOSS}
        weights = flat(model.parameters()) if needed else None
        facts = ModelFacts(now.judgement.accuracy, now.judgement.loss, weights, self._public_loss)
        pending = self._protocol.begin(now)
        view = self.client_manager.begin_round(
            now.seats, now.clock, facts, now.cohort_size, pending
        )
        return cast(RoundView, self.client_manager.probed(view, ask))

    def _select(self, now: Round, view: RoundView) -> Cohort:
        started = time.perf_counter()
        chosen = self.client_manager.choose(view, now.seats)
        seconds = time.perf_counter() - started
        return Cohort(np.array(sorted(chosen), np.int64), seconds)

    def _train(self, now: Round, cohort: Cohort, settled: Settled) -> Trained:
        """Have those train who are to, and make what came of it the global model."""
        trained = self._protocol.train(now, cohort, settled, self.model_weights)
        if trained.model is not None:
            self.args.learning_rate = now.learning_rate  # q-fedavg reads it there
            self.model_wrapper.set_weights(
                trained.model, client_training_results=list(trained.reports.values())
            )
            self._published = False
        return trained

    def _evaluate(self, due: bool) -> Judgement:
        """How good the global model is, recorded if due.

        The selector hears of it then; one that needs to know hears every round, and always of the
        same samples."""
        needed = GLOBAL_ACCURACY in self.job.needs
        samples = self.config.selector_test_samples
        if due or needed:
            self._publish()
        tested: list[Chunk] = []
        metrics = None
        if due:
            tested = self._judge.test(None)
            metrics = self._metrics(tested)
            self.run_directory.append("metrics.jsonl", metrics)
            end = self.config.stop_at_accuracy
            self._reached = end is not None and metrics["accuracy"] >= end
        if needed and not (due and samples is None):
            tested = self._judge.test(samples)
        return Judgement(*accuracy_and_loss(tested), metrics)

    def _metrics(self, tested: list[Chunk]) -> dict[str, Any]:
        """A line of metrics.jsonl, by way of FedScale's sums and its TensorBoard."""
        self.test_result_accumulator = [dict(chunk) for chunk in tested]  # summed in place
        self.aggregate_test_result()
        self.log_test_result()
        performance = self.testing_history["perf"].pop(self.round)
        opinions = {}
        if self.config.holdout_fraction:
            opinions = self._judge.clients_accuracy(self._clients)
        return metrics_record(self.round, self.global_virtual_clock, performance, opinions)

    def _record(self, played: Played) -> None:
        if played.trained.mean_loss is not None:
            self.flatten_client_duration = played.settled.times / 60  # FedScale says minutes
            self.log_train_result(played.trained.mean_loss)
        log_costs(played, self.log_writer, self.wandb)
        record = round_record(played, self.client_manager.diagnostics())
        self.run_directory.append("rounds.jsonl", record)
        self._on_round(record, played.judgement.metrics)

    # ---- checkpoints

    def _checkpoint(self) -> dict[str, Any]:
        """Everything that outlives a round."""
        return {
            "round": self.round,
            "clock": self.global_virtual_clock,
            "reached": self._reached,
            "model": self.model_wrapper.state_dict(),
            "client_manager": self.client_manager.state_dict(),
            "protocol": self._protocol.state_dict(),
        }

    def _save_checkpoint(self) -> None:
        state = self._checkpoint()
        if state["client_manager"] is not None:
            self.run_directory.save_checkpoint(state)

    def _resume(self) -> None:
        """Go on from the last checkpoint; what was recorded after it is done again."""
        state = self.run_directory.load_checkpoint()
        if state is None:
            self.run_directory.rewind(-1)
            return
        self.round = state["round"]
        self.global_virtual_clock = state["clock"]
        self._reached = state["reached"]
        self.model_wrapper.load_state_dict(state["model"])
        self._published = False
        self.client_manager.load_state_dict(state["client_manager"])
        self._protocol.load_state_dict(state["protocol"])
        self.run_directory.rewind(self.round or -1)  # the untrained model is tested again
        self.log_writer.close()
        self.log_writer = SummaryWriter(str(self.run_directory.events), purge_step=self.round + 1)


if __name__ == "__main__":
    from fedsuv_plugin.engine.launchers import aggregator_main

    sys.exit(aggregator_main(sys.argv[1:]))
