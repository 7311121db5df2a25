"""The wire: where it listens, who may speak, what is taken, and that calls wait for events."""

from __future__ import annotations

import inspect
import pickle
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from conftest import MakeJob
from engine_worlds import SIZES, TOKEN, Served, register, served_pool

from fedsuv_plugin import wire
from fedsuv_plugin.config.fingerprint import fingerprint
from fedsuv_plugin.config.resolved import resolve
from fedsuv_plugin.engine import aggregator, executor, executor_pool, grpc_channel, grpc_service
from fedsuv_plugin.engine.executor_pool import ExecutorPool, JobFailed
from fedsuv_plugin.engine.grpc_service import GrpcService
from fedsuv_plugin.engine.launchers.processes import free_port
from fedsuv_plugin.engine.secret import HEADER
from fedsuv_plugin.engine.stock import Aggregator, Executor, commons, job_api_pb2
from fedsuv_plugin.engine.task import TRAIN, Result, Task
from fedsuv_plugin.errors import UserError

HERE = "127.0.0.1"
ASIDE = ((HEADER, TOKEN),)  # the metadata of calls that tests make by themselves
REPORT = {
    "moving_loss": 0.5,
    "utility": np.float64(2),
    "update_weight": {"w": np.ones(2)},
    "signals": {},
}


@pytest.fixture
def served(job: MakeJob) -> Iterator[Served]:
    with served_pool(job()) as made:
        yield made


def complete(
    served: Served, executor: str, task: int, value: object, error: str | None = None
) -> Any:
    """A result as an executor of this name would send it."""
    request = job_api_pb2.CompleteRequest(
        executor_id=executor,
        client_id=str(task),
        event=TRAIN,
        status=error is None,
        msg=error,
        data_result=wire.encode(value),
    )
    return served.channel.stub.CLIENT_EXECUTE_COMPLETION(request, metadata=ASIDE)


# ---- where it listens


def listening_addresses(port: int) -> list[str]:
    """Local addresses of listening sockets on a port, in the kernel's hexadecimal spelling."""
    lines = [
        line.split()
        for table in ("/proc/net/tcp", "/proc/net/tcp6")
        if Path(table).exists()
        for line in Path(table).read_text().splitlines()[1:]
    ]
    return [
        words[1].rpartition(":")[0]
        for words in lines
        if words[3] == "0A" and int(words[1].rpartition(":")[2], 16) == port
    ]


def test_it_listens_on_its_own_address_only(served: Served) -> None:
    addresses = listening_addresses(served.job.config.ps_port)
    assert addresses
    loopback = ("0100007F", "0000000000000000FFFF00000100007F")  # 127.0.0.1, bytes reversed
    assert all(address in loopback for address in addresses)
    # Stock FedScale listens on every interface.
    assert '"[::]:{}"' in inspect.getsource(Aggregator.init_control_communication)


def test_a_port_that_is_taken_is_one_line(job: MakeJob) -> None:
    with socket.socket() as taken:
        taken.bind((HERE, 0))
        taken.listen()
        busy = resolve(job(ps_port=taken.getsockname()[1]))
        service = GrpcService(ExecutorPool(), busy, TOKEN)
        with pytest.raises(UserError, match="cannot listen on 127.0.0.1:"):
            service.__enter__()


def test_the_port_is_free_again_when_the_service_stops(job: MakeJob) -> None:
    port = free_port()
    for _ in range(2):
        with GrpcService(ExecutorPool(), resolve(job(ps_port=port)), TOKEN):
            assert listening_addresses(port)
    assert not listening_addresses(port)


@pytest.mark.parametrize("ip", ["127.0.0.2", "::1", "localhost"])
def test_it_serves_any_address_of_this_machine(job: MakeJob, ip: str) -> None:
    """Without a secret, too."""
    with served_pool(job(ps_ip=ip), token=None) as served:
        register(served)
        assert len(served.pool) == 1


# ---- what may be sent


class Evil:
    """Unpickling one makes a file."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.path,))


class Pointers:
    """Unpickling one makes an array of objects out of 32 bytes, and ends the process."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (np.ndarray, ((4,), np.dtype("O"), b"A" * 32))


@pytest.mark.parametrize("kind", [Evil, Pointers])
def test_pickles_are_refused_and_logged(
    served: Served, tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: type
) -> None:
    stub = served.channel.stub
    served.pool.admit("1", SIZES)
    evil = pickle.dumps({"size": Evil(tmp_path / "ran") if kind is Evil else Pointers()})
    registration = job_api_pb2.RegisterRequest(executor_id="1", executor_info=evil)
    completion = job_api_pb2.CompleteRequest(
        executor_id="1", client_id="1", event=TRAIN, status=True, data_result=evil
    )
    for call, request in (
        (stub.CLIENT_REGISTER, registration),
        (stub.CLIENT_EXECUTE_COMPLETION, completion),
    ):
        with pytest.raises(grpc.RpcError) as error:
            call(request, metadata=ASIDE)
        assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert not (tmp_path / "ran").exists()
    assert caplog.text.count("expected fedsuv's encoding") == 2
    # Stock FedScale runs whatever comes.
    assert "pickle.loads" in inspect.getsource(Aggregator.deserialize_response)


# ---- who may take part


@pytest.mark.parametrize(
    "sizes",
    [None, [5, 5], np.zeros(0, int), np.array([5, -1]), np.array([[5]]), np.array([0.5])],
    ids=["none", "list", "nobody", "negative", "table", "fractions"],
)
def test_a_registration_without_sizes_is_refused(served: Served, sizes: object) -> None:
    with pytest.raises(UserError, match="refuses this executor: expected the number of samples"):
        register(served, size=sizes)
    assert len(served.pool) == 0


def test_an_executor_of_another_job_is_refused_with_what_differs(
    served: Served, job: MakeJob, caplog: pytest.LogCaptureFixture
) -> None:
    """Its results would be averaged, and every number would be another."""
    other = fingerprint(resolve(job(seed=4, batch_size=9)))
    difference = "another job: seed: 3 here, 4 there; batch_size: 8 here, 9 there$"
    with pytest.raises(UserError, match=f"refuses this executor: {difference}"):
        register(served, job=other)
    assert len(served.pool) == 0
    assert "seed: 3 here, 4 there" in caplog.text
    with pytest.raises(JobFailed, match="0 came .executor 1@.* was refused: another job: seed: 3"):
        served.pool.wait_for_executors(1, timeout=0)


def test_an_executor_of_another_version_is_refused(served: Served) -> None:
    other = {**fingerprint(served.job), "fedsuv_plugin": "0.0.9"}
    with pytest.raises(UserError, match="fedsuv_plugin: .* here, 0.0.9 there$"):
        register(served, job=other)


@pytest.mark.parametrize("stranger", [None, "seed", [], {"seed": np.zeros(3)}, {}])
def test_a_registration_that_does_not_say_for_which_job_is_refused(
    served: Served, stranger: object
) -> None:
    with pytest.raises(UserError, match="refuses this executor: another job: "):
        register(served, job=stranger)


def test_an_executor_with_other_data_is_refused_and_changes_nothing(served: Served) -> None:
    register(served)
    with pytest.raises(UserError, match="client 2 has 5 samples here, 6 there"):
        register(served, size=np.array([5, 6]))
    assert served.pool.sizes.tolist() == [5, 5]


@pytest.mark.parametrize("name", ["", "a b", "1\x1b[2J", "x" * 201])
def test_an_executor_without_a_proper_name_is_refused(served: Served, name: str) -> None:
    request = job_api_pb2.PingRequest(executor_id=name)
    with pytest.raises(grpc.RpcError) as error:
        served.channel.stub.CLIENT_PING(request, metadata=ASIDE)
    assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert "\x1b" not in error.value.details()


def test_an_executor_that_was_never_admitted_is_told_so(served: Served) -> None:
    request = job_api_pb2.PingRequest(executor_id="9")
    for call in (
        lambda: served.channel.stub.CLIENT_PING(request, metadata=ASIDE),
        lambda: complete(served, "9", 1, {}),
        lambda: served.channel._hold(iter([request]), metadata=ASIDE),
    ):
        with pytest.raises(grpc.RpcError) as error:
            call()
        assert error.value.code() == grpc.StatusCode.FAILED_PRECONDITION
        assert "executor 9 has not registered" in error.value.details()


# ---- models, tasks and results


def test_models_tasks_states_and_results_arrive_as_they_were(served: Served) -> None:
    pool, channel, _ = served
    register(served)
    assert pool.sizes.tolist() == [5, 5]
    weights = [np.arange(6, dtype=np.float32).reshape(2, 3), np.array(7)]
    pool.publish(4, weights)
    model = channel.ping("1")
    assert (model.name, model.meta) == (commons.UPDATE_MODEL, {"round": 4})
    for got, sent in zip(model.data, weights, strict=True):
        np.testing.assert_array_equal(got, sent)
        assert got.dtype == sent.dtype
    task = pool.task(TRAIN, [3, 1], {1: np.ones(2)}, round=5, learning_rate=0.1)
    taken: list[Any] = []
    runner = threading.Thread(target=pool.run, args=([task], taken.append))
    runner.start()
    same = Task.from_event(channel.ping("1"))
    assert (same.number, same.kind, same.clients.tolist()) == (task.number, TRAIN, [3, 1])
    assert same.settings == {"round": 5, "learning_rate": 0.1}
    assert same.states[1].tolist() == [1.0, 1.0]
    pool.publish(5, weights)  # so that the answer to the result does not keep us waiting
    answer = channel.complete("1", Result(same.number, TRAIN, {3: REPORT, 1: REPORT}))
    assert answer.meta == {"round": 5}
    runner.join(30)
    (reports,) = taken
    assert list(reports) == [3, 1]
    assert reports[3]["update_weight"]["w"].tolist() == [1.0, 1.0]


def at_work(served: Served) -> Task:
    """Executor 1 has a task for client 3; the next call is answered with a model."""
    register(served)
    served.pool.publish(0, [np.zeros(1)])
    served.channel.ping("1")
    served.pool._waiting.append(served.pool.task(TRAIN, [3]))
    task = Task.from_event(served.channel.ping("1"))
    served.pool.publish(1, [np.zeros(1)])
    return task


def test_an_error_is_shown_escaped_and_cut(served: Served) -> None:
    """Whoever sends it may not move the cursor of those who read it."""
    task = at_work(served)
    error = "out of memory\n\x1b[2J\x1b]0;gotcha\x07" + 5000 * "!"
    served.channel.complete("1", Result(task.number, TRAIN, None, error))
    with pytest.raises(JobFailed) as failure:
        served.pool.run([task], lambda value: None)
    text = str(failure.value)
    assert "failed: out of memory\\n\\x1b[2J\\x1b]0;gotcha\\x07!!!" in text
    assert text.isprintable()
    assert len(text) < 450


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"a": 1}, "expected an answer by client or by chunk"),
        ({4: REPORT}, r"expected the clients \[3\], got \[4\]"),
        ({3: {}}, "client 3: expected moving_loss and utility as numbers"),
    ],
)
def test_an_executor_that_sends_rubbish_is_given_up_and_its_task_is_not(
    served: Served, value: object, reason: str
) -> None:
    task = at_work(served)
    with pytest.raises(UserError, match=f"refuses this executor: {reason}"):
        served.channel.complete("1", Result(task.number, TRAIN, value))
    assert len(served.pool) == 0
    assert not served.pool._results
    assert served.pool._waiting[0].number == task.number


def test_results_count_only_from_whom_the_task_was_given_to(served: Served) -> None:
    task = at_work(served)
    served.pool.admit("2", SIZES)
    served.pool.admit("3", SIZES)
    complete(served, "2", task.number, {3: REPORT})  # answered with the model
    complete(served, "3", 10**9, {"a": 1})
    with pytest.raises(grpc.RpcError, match="executor 9 has not registered"):
        complete(served, "9", task.number, {3: REPORT})
    assert not served.pool._results
    served.channel.complete("1", Result(task.number, TRAIN, {3: REPORT}))
    assert list(served.pool._results) == [task.number]


@pytest.mark.parametrize("number", ["", "-1", "x", "9" * 5000])
def test_a_result_with_no_number_of_a_task_is_dropped(served: Served, number: str) -> None:
    at_work(served)
    request = job_api_pb2.CompleteRequest(
        executor_id=grpc_channel._full_name("1"),
        client_id=number,
        status=True,
        data_result=wire.encode({}),
    )
    served.channel.stub.CLIENT_EXECUTE_COMPLETION(request, metadata=ASIDE)
    assert not served.pool._results


def test_an_executor_waits_for_its_event_and_does_not_poll(served: Served) -> None:
    """Twenty events, twenty calls, none of them answered empty, though each asks too early.

    FedScale's executor asks once a second and is mostly told "nothing yet"."""
    register(served)
    for round_number in range(20):
        threading.Timer(0.01, served.pool.publish, [round_number, [np.zeros(1)]]).start()
        assert served.channel.ping("1").meta == {"round": round_number}
    assert "time.sleep(1)" in inspect.getsource(Executor.event_monitor)
    for module in (aggregator, executor, executor_pool, grpc_service, grpc_channel):
        assert "time.sleep" not in inspect.getsource(module)
