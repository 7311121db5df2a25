"""The wire: where it listens, what may be sent, and that calls wait instead of polling."""

from __future__ import annotations

import inspect
import pickle
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import numpy as np
import pytest
from conftest import MakeJob

from fedsuv_plugin.engine import aggregator, executor, executor_pool, grpc_service
from fedsuv_plugin.engine.executor_pool import ExecutorPool, JobFailed
from fedsuv_plugin.engine.grpc_service import GrpcChannel, GrpcService
from fedsuv_plugin.engine.launchers.processes import free_port
from fedsuv_plugin.engine.stock import Aggregator, Executor, commons, job_api_pb2
from fedsuv_plugin.engine.task import TRAIN, Result, Task
from fedsuv_plugin.errors import UserError

HERE = "127.0.0.1"


class Served(NamedTuple):
    """A pool that is served, and an executor's connection to it."""

    pool: ExecutorPool
    channel: GrpcChannel
    port: int


@pytest.fixture
def served() -> Iterator[Served]:
    pool = ExecutorPool()
    port = free_port()
    with GrpcService(pool, HERE, port, executors=2):
        channel = GrpcChannel(HERE, port)
        channel.connect_to_server()
        yield Served(pool, channel, port)
        channel.close_sever_connection()


def register(channel: GrpcChannel, executor_id: str = "1") -> None:
    channel.register(executor_id, {"size": np.array([5, 5])}, timeout=60)


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
    addresses = listening_addresses(served.port)
    assert addresses
    loopback = ("0100007F", "0000000000000000FFFF00000100007F")  # 127.0.0.1, bytes reversed
    assert all(address in loopback for address in addresses)
    # Stock FedScale listens on every interface.
    assert '"[::]:{}"' in inspect.getsource(Aggregator.init_control_communication)


def test_a_port_that_is_taken_is_one_line() -> None:
    with socket.socket() as taken:
        taken.bind((HERE, 0))
        taken.listen()
        service = GrpcService(ExecutorPool(), HERE, taken.getsockname()[1], executors=1)
        with pytest.raises(UserError, match="cannot listen on 127.0.0.1:"):
            service.__enter__()


def test_the_port_is_free_again_when_the_service_stops() -> None:
    port = free_port()
    for _ in range(2):
        with GrpcService(ExecutorPool(), HERE, port, executors=1):
            assert listening_addresses(port)
    assert not listening_addresses(port)


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
            call(request)
        assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert not (tmp_path / "ran").exists()
    assert caplog.text.count("expected fedsuv's encoding") == 2
    # Stock FedScale runs whatever comes.
    assert "pickle.loads" in inspect.getsource(Aggregator.deserialize_response)


@pytest.mark.parametrize("info", [None, [5, 5], {"sizes": [5, 5]}])
def test_a_registration_without_sizes_is_refused(served: Served, info: object) -> None:
    with pytest.raises(UserError, match="INVALID_ARGUMENT"):
        served.channel.register("1", info, timeout=60)
    assert len(served.pool) == 0


def test_an_executor_that_was_never_admitted_is_told_so(served: Served) -> None:
    with pytest.raises(grpc.RpcError) as error:
        served.channel.ping("9")
    assert error.value.code() == grpc.StatusCode.FAILED_PRECONDITION
    assert "executor 9 has not registered" in error.value.details()


# ---- models, tasks and results


def test_models_tasks_states_and_results_arrive_as_they_were(served: Served) -> None:
    pool, channel, _ = served
    register(channel)
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
    answer = channel.complete("1", Result(same.number, TRAIN, {3: np.float64(0.5), 1: None}))
    assert answer.meta == {"round": 5}
    runner.join(30)
    assert taken == [{3: 0.5, 1: None}]


def test_a_completion_carries_an_error(served: Served) -> None:
    pool, channel, _ = served
    register(channel)
    task = pool.task(TRAIN, [1])
    pool.publish(0, [np.zeros(1)])
    channel.complete("1", Result(task.number, TRAIN, None, "out of memory"))
    with pytest.raises(JobFailed, match="executor 1 failed: out of memory"):
        pool.run([task], lambda value: None)


def test_an_executor_waits_for_its_event_and_does_not_poll(served: Served) -> None:
    """Twenty events, twenty calls, none of them answered empty, though each asks too early.

    FedScale's executor asks once a second and is mostly told "nothing yet"."""
    pool, channel, _ = served
    register(channel)
    for round_number in range(20):
        threading.Timer(0.01, pool.publish, [round_number, [np.zeros(1)]]).start()
        assert channel.ping("1").meta == {"round": round_number}
    assert "time.sleep(1)" in inspect.getsource(Executor.event_monitor)
    for module in (aggregator, executor, executor_pool, grpc_service):
        assert "time.sleep" not in inspect.getsource(module)


def test_an_executor_without_an_aggregator_gives_up_in_one_line(job: MakeJob) -> None:
    lonely = job(ps_port=free_port(), connection_timeout=1)
    done = subprocess.run(
        [sys.executable, "-m", "fedsuv_plugin.engine.executor", *lonely.to_argv()],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("executor: no aggregator at 127.0.0.1:")
    assert len(done.stderr.splitlines()) == 1
