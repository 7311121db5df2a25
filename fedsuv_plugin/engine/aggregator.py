"""FedScale's aggregator: the rounds of a job, one after the other.

Runnable as a script, as FedScale's driver starts it:
    python aggregator.py --job_name=... --this_rank=0 --num_executors=2 --executor_configs=127.0.0.1:[2]
"""

from __future__ import annotations

import collections
import logging
import math
import queue
import sys
import threading
import time
from argparse import Namespace
from collections.abc import Callable
from concurrent import futures
from typing import Any

import grpc
import numpy as np
import torch
from torch.utils.tensorboard import SummaryWriter

from fedsuv_plugin import named, safe_pickle
from fedsuv_plugin.config.argv import from_argv
from fedsuv_plugin.config.job import Job
from fedsuv_plugin.engine.client_manager import Question, SelectorClientManager
from fedsuv_plugin.engine.grpc_service import CLIENT_PROBE, NOTHING, Completion, Event
from fedsuv_plugin.engine.model import Average, ModelAdapter, flat
from fedsuv_plugin.engine.public_loss import PublicLoss
from fedsuv_plugin.engine.stock import (
    MAX_MESSAGE_LENGTH,
    Aggregator,
    TorchServerOptimizer,
    commons,
    job_api_pb2,
    job_api_pb2_grpc,
)
from fedsuv_plugin.errors import UserError
from fedsuv_plugin.randomness import stream
from fedsuv_plugin.records import RunDirectory
from fedsuv_plugin.selectors.signals import (
    DIRECTION,
    GLOBAL_ACCURACY,
    OPINIONS,
    PUBLIC_LOSS,
    WEIGHTS,
)
from fedsuv_plugin.tasks.federated_data import initial_model, kbit, public_set
from fedsuv_plugin.traces.clock import Settlement, Work, durations, energy, fluctuation, settle
from fedsuv_plugin.traces.population import load_population

TASKS = (commons.CLIENT_TRAIN, CLIENT_PROBE)  # events that call for one client's work
PING_WAIT = 20.0  # seconds an executor's request is held while there is nothing to do


class JobFailed(RuntimeError):
    """An executor failed or went away; the run directory is intact and the job can be resumed."""


class PluginAggregator(Aggregator):  # type: ignore[misc]  # FedScale has no types
    """Drives the job: who is asked, who makes it, what the average is, what is written down.

    The main thread runs the rounds and waits for results on a queue; gRPC threads only pass events and results."""

    def __init__(
        self,
        job: Job,
        args: Namespace,
        run: RunDirectory,
        on_round: Callable[
            [dict[str, Any], dict[str, Any] | None], None
        ] = lambda record, metrics: None,
    ):
        super().__init__(args)
        self.job, self.config, self.run_directory, self._on_round = job, job.config, run, on_round
        self.device = torch.device(
            "cpu"
        )  # aggregation is memory-bound; the GPUs belong to the executors
        self.stop_after_round = (
            threading.Event()
        )  # set from a signal handler: end with the round, checkpointed
        self.pump: Callable[[], None] | None = (
            None  # loopback: what lets the executor work while we wait
        )
        self._results: queue.SimpleQueue[Completion | Exception] = queue.SimpleQueue()
        self._changed = threading.Condition()  # guards what executors are told and who they are
        self._task_meta: dict[str, Any] = {"task_config": {}}
        self._sizes = np.zeros(0, np.int64)  # samples of each client, as the executors report them
        self._metrics: dict[str, Any] | None = None  # the last evaluation
        self._test_samples: int | None = None  # how much of the test set the next evaluation takes
        self._judgement: tuple[float | None, float | None] = (
            None,
            None,
        )  # accuracy and loss as the selector hears them
        self._public_loss: PublicLoss | None = None

    def init_client_manager(self, args: Namespace) -> Any:
        return named.client_manager_class(args.sample_mode)(args.sample_mode, args=args)

    def setup_env(self) -> None:
        torch.set_num_threads(self.config.torch_threads)

    def init_model(self) -> None:
        self.model_wrapper = ModelAdapter(
            initial_model(self.config),
            optimizer=TorchServerOptimizer(self.config.gradient_policy, self.args, self.device),
        )
        self.model_update_size = kbit(self.model_wrapper.get_model())

    # ---- executors: what they are told and what they bring (called by gRPC threads, or by the loopback channel)

    def admit(self, executor_id: str, info: dict[str, Any]) -> None:
        """An executor is there. One that comes a second time is the same one again: nothing is registered twice."""
        with self._changed:
            self.individual_client_events.setdefault(executor_id, collections.deque())
            self._sizes = np.asarray(info["size"], np.int64)
            self._changed.notify_all()

    def next_event(self, executor_id: str, wait: float) -> Event:
        with self._changed:
            if executor_id not in self.individual_client_events:
                raise KeyError(f"executor {executor_id} has not registered")
            events = self.individual_client_events[executor_id]
            if not self._changed.wait_for(lambda: events, timeout=wait):
                return NOTHING
            name = events.popleft()
            self._changed.notify_all()
            if name in TASKS:  # still under the lock: see _forget_tasks
                client = self.resource_manager.get_next_task()
                return (
                    NOTHING
                    if client is None
                    else Event(name, {"client_id": client, **self._task_meta}, None)
                )
        if name == commons.UPDATE_MODEL:
            return Event(name, {"round": self.round}, self.model_weights)
        return Event(
            name, {"samples": self._test_samples} if name == commons.MODEL_TEST else None, None
        )

    def deliver(self, executor_id: str, done: Completion) -> None:
        if done.error is not None:
            self.fail(JobFailed(f"executor {executor_id} failed: {done.error}"))
            return
        if done.event != commons.MODEL_TEST and self.resource_manager.has_next_task():
            self._tell(
                CLIENT_PROBE if done.event == CLIENT_PROBE else commons.CLIENT_TRAIN, [executor_id]
            )
        self._results.put(done)

    def fail(self, error: Exception) -> None:
        """From any thread: the job ends with this error."""
        self._results.put(error)
        with self._changed:
            self._changed.notify_all()

    def _tell(self, event: str, executors: list[str] | None = None) -> None:
        with self._changed:
            self.dispatch_client_events(
                event, list(self.individual_client_events) if executors is None else executors
            )
            self._changed.notify_all()

    def _next_result(self) -> Completion:
        while self.pump is not None and self._results.empty():
            self.pump()
        result = self._results.get()
        if isinstance(result, Exception):
            raise result
        return result

    # ---- gRPC, with FedScale's messages

    def init_control_communication(self) -> None:
        """Serve on the job's address only (FedScale: on all interfaces), with a thread for every waiting executor."""
        if self.pump is not None:
            return
        self.executors = list(range(self.args.num_executors))
        self.grpc_server = grpc.server(
            futures.ThreadPoolExecutor(max_workers=len(self.executors) + 4),
            options=[
                ("grpc.max_send_message_length", MAX_MESSAGE_LENGTH),
                ("grpc.max_receive_message_length", MAX_MESSAGE_LENGTH),
                ("grpc.so_reuseport", 0),
            ],
        )
        job_api_pb2_grpc.add_JobServiceServicer_to_server(self, self.grpc_server)
        address = f"{self.config.ps_ip}:{self.config.ps_port}"
        try:
            bound = self.grpc_server.add_insecure_port(address)
        except RuntimeError:
            bound = 0
        if not bound:
            raise UserError(
                f"ps_ip, ps_port: cannot listen on {address}; is the port taken, or the address not ours?"
            )
        self.grpc_server.start()

    def CLIENT_REGISTER(self, request: Any, context: grpc.ServicerContext) -> Any:
        info = self._receive(request.executor_info, context)
        if not isinstance(info, dict) or "size" not in info:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "expected the clients' sizes")
        self.admit(request.executor_id, info)
        return _response(NOTHING)

    def CLIENT_PING(self, request: Any, context: grpc.ServicerContext) -> Any:
        try:
            return _response(self.next_event(request.executor_id, PING_WAIT))
        except KeyError as error:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))

    def CLIENT_EXECUTE_COMPLETION(self, request: Any, context: grpc.ServicerContext) -> Any:
        result = self._receive(request.data_result, context)
        self.deliver(
            request.executor_id,
            Completion(
                int(request.client_id),
                request.event,
                result,
                None if request.status else request.msg or "unknown error",
            ),
        )
        return self.CLIENT_PING(request, context)

    @staticmethod
    def _receive(data: bytes, context: grpc.ServicerContext) -> Any:
        try:
            return safe_pickle.loads(data)
        except safe_pickle.UnsafePickle as error:
            logging.error("message of %s: %s", context.peer(), error)
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))

    # ---- the job

    def run(self) -> None:
        self.setup_env()
        self.init_model()
        self.init_control_communication()
        try:
            self.event_monitor()
        finally:
            self.stop()

    def event_monitor(self) -> None:
        """All rounds, from the beginning or from the last checkpoint."""
        self._await_executors()
        self._register_clients()
        self._resume()
        if PUBLIC_LOSS in self.args.needs:
            self._public_loss = PublicLoss(self.config, public_set(self.config))
        self._judge(due=self.round == 0)
        while self.round < self.config.rounds and not self.stop_after_round.is_set():
            self._one_round()
        self._save_checkpoint()

    def stop(self) -> None:
        """Executors hear of it before the server goes; nobody sleeps."""
        self._tell(commons.SHUT_DOWN)
        if self.pump is None and self.grpc_server is not None:
            with self._changed:
                self._changed.wait_for(
                    lambda: not any(self.individual_client_events.values()), timeout=5
                )
            self.grpc_server.stop(grace=1).wait()
        self.log_writer.close()
        if self.wandb is not None:
            self.wandb.finish()

    def _await_executors(self) -> None:
        if self.pump is not None:
            return
        expected, timeout = self.args.num_executors, self.config.connection_timeout
        with self._changed:
            came = self._changed.wait_for(
                lambda: len(self.individual_client_events) == expected or not self._results.empty(),
                timeout,
            )
        if not self._results.empty():
            self._next_result()
        if not came:
            raise JobFailed(
                f"expected {expected} executors within {timeout} s, "
                f"{len(self.individual_client_events)} came; see connection_timeout"
            )

    def _register_clients(self) -> None:
        self._population = load_population(
            len(self._sizes), self.config.device_conf_file, self.config.device_avail_file
        )
        epochs = self.config.local_epochs
        self._work = Work(
            self.config.batch_size,
            self.config.local_steps,
            self.model_update_size,
            self.model_update_size,
            None if epochs is None else epochs * self._sizes,
        )
        if isinstance(self.client_manager, SelectorClientManager):
            self.client_manager.register_clients(self._sizes, self._population, self._work)
        else:
            self._register_one_by_one(self._sizes)
        self.num_of_clients = len(self._sizes)
        if not self.client_manager.getDataInfo()["total_feasible_clients"]:
            raise UserError(
                f"no client has at least filter_less={self.config.filter_less} and at most "
                f"filter_more={self.config.filter_more:g} samples"
            )

    def _register_one_by_one(self, sizes: np.ndarray) -> None:
        """A client manager that knows nothing of us gets FedScale's own calls."""
        if self.config.available_clients is not None:
            raise UserError(
                f"available_clients: expected none with sample_mode {self.config.sample_mode}: its client "
                "manager decides itself who is there"
            )
        kbps = self._population.one_way_kbps
        steps = (
            self._work.samples(np.arange(len(sizes))) / self.config.batch_size
        )  # FedScale multiplies them again
        for i, size in enumerate(sizes.tolist()):
            self.client_manager.register_client(
                1,
                i + 1,
                size=size,
                speed={"computation": self._population.ms_per_sample[i], "communication": kbps[i]},
            )
            self.client_manager.registerDuration(
                i + 1,
                batch_size=self.config.batch_size,
                local_steps=steps[i],
                upload_size=self.model_update_size,
                download_size=self.model_update_size,
            )

    # ---- one round

    def _one_round(self) -> None:
        self.round += 1
        self._task_meta = {
            "task_config": {
                "learning_rate": self.config.learning_rate_in(self.round),
                "round": self.round,
            }
        }
        self._publish_model()
        self._probe()
        self._restart_where_wanted()
        asked, select_seconds = self._select()
        times, joules, settlement = self._settle(asked)
        # Tasks in the order of completion; results are folded in this order, whichever executor is first.
        to_run = asked[settlement.valid][np.argsort(times[settlement.valid], kind="stable")]
        results = self._train(to_run[self._uploads(to_run)].tolist())
        self.global_virtual_clock += settlement.seconds
        self.round_duration = settlement.seconds
        self._judge(
            due=self.round % self.config.eval_interval == 0 or self.round == self.config.rounds
        )
        self._give_feedback(asked, times, results)
        self._record(asked, results, joules, select_seconds)
        if self.round % self.config.checkpoint_every == 0:
            self._save_checkpoint()

    def _publish_model(self) -> None:
        """Executors get the global model once, not with every task."""
        self.model_weights = self.model_wrapper.get_weights()
        self._tell(commons.UPDATE_MODEL)

    def _probe(self) -> None:
        """Ask clients what the selector wants to know first."""
        if not isinstance(self.client_manager, SelectorClientManager):
            return
        self._describe_model(self.client_manager)
        more = True
        while more:
            question = self.client_manager.next_probe(self._seats(), self.global_virtual_clock)
            more = question is not None and question.more
            if question is not None:
                self.client_manager.answer_probe(
                    question.kind, self._ask(self.client_manager, question)
                )

    def _describe_model(self, manager: SelectorClientManager) -> None:
        """Tell the selector of the global model what it needs."""
        model = self.model_wrapper.get_model()
        if self._public_loss is not None:
            self._public_loss.follow(model)
        needed = self.args.needs & {DIRECTION, WEIGHTS, PUBLIC_LOSS}
        manager.describe_model(
            *self._judgement, flat(model.parameters()) if needed else None, self._public_loss
        )

    def _ask(self, manager: SelectorClientManager, question: Question) -> dict[int, np.ndarray]:
        if question.kind == OPINIONS:
            return self._opinions(question.clients)
        answers: dict[int, np.ndarray] = {}

        def keep(result: dict[str, Any]) -> None:
            client, answer = result["client_id"], result["answer"]
            answers[client] = (
                manager.stream_answer(client, answer) if question.one_by_one else answer
            )

        self._run_tasks(CLIENT_PROBE, question.clients, keep, kind=question.kind)
        return answers

    def _seats(self) -> int:
        """How many clients are asked in a round."""
        if self._warming_up():
            return self.num_of_clients
        wanted = self.config.num_participants
        return (
            wanted
            if self.config.round_deadline is not None
            else int(wanted * self.config.overcommitment)
        )

    def _warming_up(self) -> bool:
        return self.round <= self.config.warmup_rounds

    def _opinions(self, clients: list[int]) -> dict[int, np.ndarray]:
        """A task for each executor, which evaluates the model once over the data of all its share of the clients."""
        answers: dict[int, np.ndarray] = {}
        tasks = list(range(1, len(self.individual_client_events) + 1))
        self._run_tasks(
            CLIENT_PROBE,
            tasks,
            lambda result: answers.update(result["answers"]),
            kind=OPINIONS,
            of=np.array(clients, np.int64),
            tasks=len(tasks),
        )
        return {client: answers[client] for client in clients if client in answers}

    def _restart_where_wanted(self) -> None:
        """Begin the round at the initial model, fresh server optimizer included, if the selector says so."""
        if isinstance(
            self.client_manager, SelectorClientManager
        ) and self.client_manager.wants_restart(self._seats(), self.global_virtual_clock):
            self.init_model()
            self._publish_model()

    def _select(self) -> tuple[np.ndarray, float]:
        """Ids asked, ascending, and the seconds it took to choose them."""
        started = time.perf_counter()
        chosen = self.client_manager.select_participants(
            self._seats(), cur_time=self.global_virtual_clock
        )
        seconds = time.perf_counter() - started
        return np.array(sorted(chosen), np.int64), seconds

    def _settle(self, asked: np.ndarray) -> tuple[np.ndarray, float, Settlement]:
        """Each client's time in this round, the joules all of them spend, and who makes it.

        Whoever is asked spends its energy, also if it turns out to be too late."""
        rows = asked - 1
        factor = fluctuation(self.config.seed, self.config.duration_jitter, asked, self.round)
        computing, communicating = (
            seconds * factor for seconds in durations(self._population, self._work, rows)
        )
        times = computing + communicating
        joules = float(energy(self._population, rows, computing, communicating).sum())
        online = self._population.online(self.global_virtual_clock + times, rows)
        free = (
            isinstance(self.client_manager, SelectorClientManager)
            and self.client_manager.selector.free_cohort
        )
        everyone = free or self._warming_up()
        return (
            times,
            joules,
            settle(
                times,
                online,
                len(asked) if everyone else self.config.num_participants,
                self.config.round_deadline,
            ),
        )

    def _uploads(self, clients: np.ndarray) -> np.ndarray:
        """Whose update reaches the server, (m,) bool: luck that depends on the seed, the client and the round alone."""
        success = self.config.upload_success
        return np.array(
            [
                success >= 1
                or stream(self.config.seed, "upload", client, self.round).random() < success
                for client in clients.tolist()
            ],
            bool,
        )

    def _train(self, clients: list[int]) -> dict[int, dict[str, Any]]:
        """Train the clients, average what they send, and step the global model; results without the weights."""
        average, results = Average(), dict[int, dict[str, Any]]()
        by_samples = self.config.aggregation_weights == "samples"
        keep_updates = self.config.gradient_policy == "q-fedavg"

        def fold_in(result: dict[str, Any]) -> None:
            weights = list(result["update_weight"].values())
            if not _sound(result, weights, self.model_weights):
                logging.warning(
                    "client %s sent an update that is not finite or does not fit the model; it counts as "
                    "having missed round %d",
                    result["client_id"],
                    self.round,
                )
                return
            average.add(weights, float(self._sizes[result["client_id"] - 1]) if by_samples else 1.0)
            if not keep_updates:
                del result["update_weight"]
            results[result["client_id"]] = result

        self._run_tasks(commons.CLIENT_TRAIN, clients, fold_in)
        if results:
            self.args.learning_rate = self._task_meta["task_config"][
                "learning_rate"
            ]  # q-fedavg reads it there
            self.model_wrapper.set_weights(
                average.result(), client_training_results=list(results.values())
            )
        return results

    def _run_tasks(
        self, event: str, clients: list[int], consume: Callable[[dict[str, Any]], None], **meta: Any
    ) -> None:
        """Have every client do its task, and consume the results in the order of `clients`.

        Executors finish in any order; the few results that are early wait, so that sums come out the same."""
        self._task_meta = {"task_config": self._task_meta["task_config"], **meta}
        self.resource_manager.register_tasks(clients)
        self._tell(event)
        early: dict[int, dict[str, Any]] = {}
        for client in clients:
            while client not in early:
                done = self._next_result()
                early[done.client_id] = done.result
            consume(early.pop(client))
        self._forget_tasks()

    def _forget_tasks(self) -> None:
        """Take back the calls to work that others have answered meanwhile. An executor that heard one late would take a
        task of the next round for it, and do it with the old model: the new one comes after the call."""
        with self._changed:
            for events in self.individual_client_events.values():
                rest = [event for event in events if event not in TASKS]
                events.clear()
                events.extend(rest)

    def _test(self, samples: int | None) -> list[dict[str, float]]:
        """The published model on the first samples of the test set (none: all), whose chunks the executors share."""
        self._test_samples = samples
        self._tell(commons.MODEL_TEST)
        chunks: dict[int, dict[str, float]] = {}
        for _ in range(len(self.individual_client_events)):
            chunks |= self._next_result().result
        return [chunks[chunk] for chunk in sorted(chunks)]

    def _judge(self, due: bool) -> None:
        """How good the global model is, recorded if due. The selector hears of it then; one that needs to know hears
        every round, and always of the same samples."""
        needed, samples = GLOBAL_ACCURACY in self.args.needs, self.config.selector_test_samples
        if due or needed:
            self._publish_model()
        self._metrics = None
        tested = self._evaluate() if due else []
        if needed and not (due and samples is None):
            tested = self._test(samples)
        n = sum(chunk["test_len"] for chunk in tested)
        self._judgement = (
            (
                sum(chunk["top_1"] for chunk in tested) / n,
                _number(sum(chunk["test_loss"] for chunk in tested) / n),
            )
            if n
            else (None, None)
        )

    def _evaluate(self) -> list[dict[str, float]]:
        """The published model on the whole test set and, if clients hold out samples, on theirs; recorded."""
        tested = self._test(None)
        self.test_result_accumulator = [
            dict(chunk) for chunk in tested
        ]  # FedScale adds them up in place
        self.aggregate_test_result()
        self.log_test_result()
        performance = self.testing_history["perf"].pop(self.round)
        self._metrics = {
            "round": self.round,
            "clock": self.global_virtual_clock,
            "accuracy": performance["top_1"],
            "accuracy_top5": performance["top_5"],
            "loss": _number(performance["loss"]),
            **self._clients_accuracy(),
        }
        self.run_directory.append("metrics.jsonl", self._metrics)
        return tested

    def _clients_accuracy(self) -> dict[str, float]:
        """How the clients find the model: the mean of their accuracies, and that of the worst tenth of them."""
        if not self.args.holdout_fraction:
            return {}
        each = np.sort(list(self._opinions(list(range(1, len(self._sizes) + 1))).values()))
        return (
            {
                "clients_mean": float(each.mean()),
                "clients_worst_tenth": float(each[: -(-len(each) // 10)].mean()),
            }
            if len(each)
            else {}
        )

    def _give_feedback(
        self, asked: np.ndarray, times: np.ndarray, results: dict[int, dict[str, Any]]
    ) -> None:
        """FedScale's call for everyone who was asked; those who missed the round are booked at the mean utility."""
        mean_utility = float(np.mean([r["utility"] for r in results.values()])) if results else 0.0
        ours = isinstance(self.client_manager, SelectorClientManager)
        for client, seconds in zip(asked.tolist(), times.tolist(), strict=True):
            result = results.get(client)
            self.client_manager.register_feedback(
                client,
                result["utility"] if result else mean_utility,
                auxi=math.sqrt(result["moving_loss"]) if result else 1.0,
                time_stamp=self.round,
                duration=seconds,
                success=result is not None,
            )
            if ours and result:
                self.client_manager.register_signals(client, result["signals"])
        if ours:
            self.client_manager.finish_round(*self._judgement)

    def _record(
        self,
        asked: np.ndarray,
        results: dict[int, dict[str, Any]],
        joules: float,
        select_seconds: float,
    ) -> None:
        losses = [r["moving_loss"] for r in results.values()]
        if losses:
            self.flatten_client_duration = np.array([self.round_duration])
            self.log_train_result(float(np.mean(losses)))
        diagnostics = (
            self.client_manager.diagnostics() if hasattr(self.client_manager, "diagnostics") else {}
        )
        record = {
            "round": self.round,
            "clock": self.global_virtual_clock,
            "duration": self.round_duration,
            "asked": asked.tolist(),
            "valid": sorted(results),
            "train_loss": float(np.mean(losses)) if losses else None,
            "energy_joules": joules,
            "select_seconds": select_seconds,
            "selector": diagnostics,
        }
        self.run_directory.append("rounds.jsonl", record)
        self._on_round(record, self._metrics)

    # ---- checkpoints

    def _save_checkpoint(self) -> None:
        if hasattr(self.client_manager, "state_dict"):
            self.run_directory.save_checkpoint(
                {
                    "round": self.round,
                    "clock": self.global_virtual_clock,
                    "model": self.model_wrapper.state_dict(),
                    "client_manager": self.client_manager.state_dict(),
                }
            )

    def _resume(self) -> None:
        """Go on from the last checkpoint; what was recorded after it is done again and comes out the same."""
        state = self.run_directory.load_checkpoint()
        if state is not None:
            self.round, self.global_virtual_clock = state["round"], state["clock"]
            self.model_wrapper.load_state_dict(state["model"])
            self.client_manager.load_state_dict(state["client_manager"])
        self.run_directory.rewind(self.round if state is not None else -1)
        if state is not None:
            self.log_writer.close()  # type: ignore[has-type]
            self.log_writer = SummaryWriter(
                log_dir=str(self.run_directory.events), purge_step=self.round + 1
            )


def _sound(result: dict[str, Any], weights: list[np.ndarray], like: list[np.ndarray]) -> bool:
    """Whether an update can be averaged: the model's shapes, and finite throughout."""
    numbers = [
        result["utility"],
        result["moving_loss"],
        *(np.sum(s) for s in result["signals"].values()),
    ]
    return (
        len(weights) == len(like)
        and all(w.shape == m.shape for w, m in zip(weights, like, strict=True))
        and bool(np.isfinite(numbers).all())
        and result["moving_loss"] >= 0
        and all(np.isfinite(np.sum(w, dtype=np.float64)) for w in weights)
    )


def _number(value: float) -> float | None:
    """JSON has no NaN: a loss that overflowed is written as null."""
    return value if math.isfinite(value) else None


def _response(event: Event) -> Any:
    return job_api_pb2.ServerResponse(
        event=event.name, meta=safe_pickle.dumps(event.meta), data=safe_pickle.dumps(event.data)
    )


def main(argv: list[str]) -> int:
    """An aggregator process, as FedScale's driver starts it."""
    from fedsuv_plugin.job import run_aggregator

    try:
        job, place = from_argv(argv)
        run_aggregator(job, place)
    except (UserError, JobFailed) as error:
        print(f"aggregator: {error}", file=sys.stderr)
        return 2 if isinstance(error, UserError) else 1
    return 0


if __name__ == "__main__":
    from fedsuv_plugin.engine.aggregator import (
        main as run,
    )  # this module under its own name, not as __main__

    sys.exit(run(sys.argv[1:]))
