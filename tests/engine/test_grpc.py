"""The wire: where it listens, what may be sent, how long anyone waits, and FedScale's driver at the other end."""

from __future__ import annotations

import inspect
import pickle
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import torch
from conftest import ROOT, driver_commands, records, run_commands

from fedsuv_plugin import safe_pickle
from fedsuv_plugin.config.argv import Place
from fedsuv_plugin.config.job import Job
from fedsuv_plugin.config.job_file import load_job
from fedsuv_plugin.engine.aggregator import JobFailed, PluginAggregator
from fedsuv_plugin.engine.grpc_service import Completion, GrpcChannel
from fedsuv_plugin.engine.launchers.processes import free_port
from fedsuv_plugin.engine.stock import Aggregator, Executor, commons, job_api_pb2
from fedsuv_plugin.errors import UserError
from fedsuv_plugin.job import fedscale_args, run_job
from fedsuv_plugin.records import RunDirectory

MakeJob = Callable[..., Job]


@pytest.fixture
def server(job: MakeJob) -> Iterator[tuple[PluginAggregator, GrpcChannel]]:
    """An aggregator that serves, and a connection to it; no job is running."""
    served = job(ps_port=free_port())
    directory = RunDirectory.create(served)
    aggregator = PluginAggregator(
        served, fedscale_args(served, Place(this_rank=0), directory.events), directory
    )
    aggregator.init_model()
    aggregator.init_control_communication()
    channel = GrpcChannel("127.0.0.1", served.config.ps_port)
    channel.connect_to_server()
    yield aggregator, channel
    channel.close_sever_connection()
    aggregator.grpc_server.stop(None).wait()


def listening_addresses(port: int) -> list[str]:
    """Local addresses of listening sockets on a port, from the kernel's tables (hex, as they stand there)."""
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


def test_it_listens_on_its_own_address_only(server: tuple[PluginAggregator, GrpcChannel]) -> None:
    aggregator, _ = server
    addresses = listening_addresses(aggregator.config.ps_port)
    assert addresses
    assert all(
        a in ("0100007F", "0000000000000000FFFF00000100007F") for a in addresses
    )  # 127.0.0.1, bytes reversed
    assert '"[::]:{}"' in inspect.getsource(
        Aggregator.init_control_communication
    )  # stock: on every interface


def test_a_port_that_is_taken_is_one_line(job: MakeJob) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        busy = job(ps_port=taken.getsockname()[1])
        directory = RunDirectory.create(busy)
        aggregator = PluginAggregator(
            busy, fedscale_args(busy, Place(this_rank=0), directory.events), directory
        )
        with pytest.raises(UserError, match="cannot listen on 127.0.0.1:"):
            aggregator.init_control_communication()


class Evil:
    """Unpickling one makes a file."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.path,))


def test_messages_that_would_run_code_are_refused_and_logged(
    server: tuple[PluginAggregator, GrpcChannel], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _, channel = server
    evil = pickle.dumps({"size": Evil(tmp_path / "ran")})
    for call in (
        lambda: channel.stub.CLIENT_REGISTER(
            job_api_pb2.RegisterRequest(executor_id="1", executor_info=evil)
        ),
        lambda: channel.stub.CLIENT_EXECUTE_COMPLETION(
            job_api_pb2.CompleteRequest(
                executor_id="1", client_id="1", event=commons.UPLOAD_MODEL, data_result=evil
            )
        ),
    ):
        with pytest.raises(grpc.RpcError) as error:
            call()
        assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert not (tmp_path / "ran").exists()
    assert "refused pathlib" in caplog.text
    assert "pickle.loads" in inspect.getsource(
        Aggregator.deserialize_response
    )  # stock runs whatever comes


def test_what_may_be_sent_arrives_as_it_was() -> None:
    sent = {
        "a": np.arange(6.0).reshape(2, 3)[:, ::-1],
        "b": [np.float64(1.5), np.array(3), b"x", None, True, (1, "y")],
        "t": torch.arange(4),
        "p": torch.nn.Parameter(torch.ones(2)),
        "s": {1, 2},
        "n": float("nan"),
    }
    for protocol in range(2, 6):
        got = safe_pickle.loads(pickle.dumps(sent, protocol))
        np.testing.assert_array_equal(got["a"], sent["a"])  # type: ignore[arg-type]
        assert got["b"] == sent["b"]
        assert torch.equal(got["t"], torch.arange(4))
        assert torch.equal(got["p"], torch.ones(2))
        assert got["s"] == {1, 2}


@pytest.mark.parametrize(
    "value", [print, subprocess.Popen, eval, Path("x"), np.random.default_rng, torch.load, Job]
)
def test_what_may_not_be_sent(value: object) -> None:
    with pytest.raises(safe_pickle.UnsafePickle, match="refused"):
        safe_pickle.loads(pickle.dumps(value))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"garbage",
        pickle.dumps([1, 2])[:-3],
        b"\x80\x05c_codecs\nencode\nX\x01\x00\x00\x00aX\x06\x00\x00\x00rot-13\x86R.",
    ],
)
def test_what_is_no_pickle(data: bytes) -> None:
    with pytest.raises(safe_pickle.UnsafePickle):
        safe_pickle.loads(data)


def test_an_executor_waits_for_its_event_and_does_not_poll(
    server: tuple[PluginAggregator, GrpcChannel],
) -> None:
    """FedScale's executor asks once a second and is mostly told "nothing yet". Ours asks once and the answer is the
    event, also when it comes only after the question: twenty events, twenty calls, none of them answered empty."""
    aggregator, channel = server
    channel.register("1", {"size": np.array([5])}, timeout=60)
    for _ in range(20):
        threading.Timer(0.01, aggregator._tell, [commons.MODEL_TEST]).start()
        assert channel.ping("1").name == commons.MODEL_TEST
    assert "time.sleep(1)" in inspect.getsource(Executor.event_monitor)
    assert "time.sleep" not in inspect.getsource(PluginAggregator)


def test_an_executor_that_was_never_admitted_is_told_so(
    server: tuple[PluginAggregator, GrpcChannel],
) -> None:
    with pytest.raises(grpc.RpcError) as error:
        server[1].ping("9")
    assert error.value.code() == grpc.StatusCode.FAILED_PRECONDITION


def test_an_executor_without_an_aggregator_gives_up_in_one_line(job: MakeJob) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "fedsuv_plugin.engine.executor",
            *job(ps_port=free_port(), connection_timeout=1).to_argv(),
        ],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("executor: no aggregator at 127.0.0.1:")
    assert len(done.stderr.splitlines()) == 1


def test_executors_that_do_not_come(job: MakeJob) -> None:
    lonely = job(ps_port=free_port(), connection_timeout=1)
    directory = RunDirectory.create(lonely)
    aggregator = PluginAggregator(
        lonely,
        fedscale_args(lonely, Place(this_rank=0, num_executors=2), directory.events),
        directory,
    )
    with pytest.raises(JobFailed, match="expected 2 executors within 1 s, 0 came"):
        aggregator.run()


def test_an_executor_that_dies_ends_the_job_and_it_can_be_resumed(
    job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In stock FedScale the round waits for ever."""
    small = job(rounds=60, checkpoint_every=5)
    directory = RunDirectory.create(small)
    started: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen

    def noted(*args: Any, **options: Any) -> Any:
        process = popen(*args, **options)
        if "fedsuv_plugin.engine.executor" in args[0]:
            started.append(process)
        return process

    monkeypatch.setattr(subprocess, "Popen", noted)

    def kill_one(record: dict[str, Any], metrics: object) -> None:
        if record["round"] == 12:
            started[0].kill()

    with pytest.raises(JobFailed, match="executor 1 ended with exit code -9"):
        run_job(directory, "processes", 2, kill_one)
    assert all(process.poll() is not None for process in started)
    assert run_job(RunDirectory.open(directory.path))
    whole = RunDirectory.create(small)
    assert run_job(whole)
    assert records(directory.path) == records(whole.path)


def test_a_call_to_work_that_others_did_is_not_answered_with_the_next_work(
    server: tuple[PluginAggregator, GrpcChannel],
) -> None:
    """Executor 2 is so slow that executor 1 does all of a round's work. When it asks at last it must hear of the new
    model before it gets a task of the new round."""
    aggregator, channel = server
    for executor in ("1", "2"):
        channel.register(executor, {"size": np.array([5, 5])}, timeout=60)
    for _ in range(2):
        aggregator._task_meta = {"task_config": {}}
        aggregator._publish_model()
        for client in (1, 2):
            aggregator._results.put(Completion(client, commons.UPLOAD_MODEL, {"client_id": client}))
        aggregator._run_tasks(commons.CLIENT_TRAIN, [1, 2], lambda result: None)
    aggregator._publish_model()
    aggregator.resource_manager.register_tasks([3])
    aggregator._tell(commons.CLIENT_TRAIN)
    heard = [channel.ping("2").name for _ in range(4)]
    assert heard == [commons.UPDATE_MODEL] * 3 + [commons.CLIENT_TRAIN]


def test_a_completion_carries_an_error(server: tuple[PluginAggregator, GrpcChannel]) -> None:
    aggregator, channel = server
    channel.register("1", {"size": np.array([5])}, timeout=60)
    aggregator._tell(commons.MODEL_TEST)
    channel.complete("1", Completion(1, commons.CLIENT_TRAIN, None, "out of memory"))
    with pytest.raises(JobFailed, match="executor 1 failed: out of memory"):
        aggregator._next_result()


# ---- FedScale's driver


def test_the_command_lines_of_fedscales_driver_run_the_job(tmp_path: Path) -> None:
    config = ROOT / "configs" / "quickstart.yml"
    aggregator, executors = driver_commands(
        config,
        {"rounds": 5, "log_path": tmp_path / "cluster", "ps_port": free_port()},
        "1118_120000",
    )
    assert len(executors) == 2
    run_commands([aggregator, *executors])
    path = tmp_path / "cluster" / "quickstart" / "1118_120000"
    here = RunDirectory.create(load_job(config, {"rounds": 5, "log_path": str(tmp_path / "here")}))
    assert run_job(here)
    assert records(path) == records(here.path)
    assert records(path, "metrics.jsonl") == records(here.path, "metrics.jsonl")


def test_stock_client_metadata_answers_by_who_asked_before() -> None:
    """Why availability is a pure look-up here: FedScale's moves one interval at a time, whenever it is asked."""
    from fedscale.cloud.internal.client_metadata import ClientMetadata

    client = ClientMetadata(
        1,
        1,
        {"computation": 1.0, "communication": 1.0},
        {"active": [0, 10, 20], "inactive": [5, 15, 25], "finish_time": 30},
    )
    assert [client.is_active(22) for _ in range(3)] == [False, True, True]  # the same question
