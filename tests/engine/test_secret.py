"""The secret of a job: where it comes from, who is refused without it, where one may do without."""

from __future__ import annotations

import logging
from pathlib import Path

import grpc
import pytest
from conftest import MakeJob
from engine_worlds import SIZES, TOKEN, register, served_pool

from fedsuv_plugin.config.fingerprint import fingerprint
from fedsuv_plugin.config.resolved import resolve
from fedsuv_plugin.engine import network
from fedsuv_plugin.engine.executor_pool import ExecutorPool
from fedsuv_plugin.engine.grpc_channel import GrpcChannel
from fedsuv_plugin.engine.grpc_service import GrpcService
from fedsuv_plugin.engine.secret import VARIABLE, make_token, token_of_environment
from fedsuv_plugin.engine.stock import job_api_pb2, job_api_pb2_grpc
from fedsuv_plugin.errors import UserError

# ---- where it comes from


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that the environment names."""
    path = tmp_path / "token"
    path.touch(mode=0o600)
    monkeypatch.setenv(VARIABLE, str(path))
    return path


def test_it_is_what_the_file_holds(file: Path) -> None:
    token = make_token()
    file.write_text(f"{token}\n")
    assert token_of_environment() == token
    assert len(token) == 64
    assert token != make_token()


def test_without_the_variable_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert token_of_environment() is None


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o622])
def test_a_file_that_others_may_touch_is_refused(file: Path, mode: int) -> None:
    file.write_text(make_token())
    file.chmod(mode)
    with pytest.raises(UserError, match=rf"only its owner can read, .* mode {mode:o}; run: chmod"):
        token_of_environment()


@pytest.mark.parametrize("content", ["", "\n", "short", "two words, each long enough", "é" * 40])
def test_a_file_without_a_proper_secret_is_refused(file: Path, content: str) -> None:
    file.write_text(content)
    with pytest.raises(UserError, match="expected one word of at least 16 characters") as error:
        token_of_environment()
    assert not content.strip() or content not in str(error.value)


def test_a_file_that_is_not_there_is_one_line(file: Path) -> None:
    file.unlink()
    with pytest.raises(UserError, match=f"{VARIABLE}: cannot read {file} .No such file"):
        token_of_environment()


# ---- who is refused


@pytest.mark.parametrize("token", [None, "another-secret-than-that", TOKEN[:-1], f"{TOKEN}x", "é"])
def test_whoever_does_not_have_it_is_refused_in_one_line(
    job: MakeJob, token: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    with served_pool(job()) as served:
        stranger = GrpcChannel(served.job.config, token)
        if token == "é":  # gRPC sends text as it is only if it is ASCII
            stranger._metadata = (("fedsuv-token-bin", token.encode()),)
        stranger.connect_to_server()
        info = {"size": SIZES, "job": fingerprint(served.job)}
        for _ in range(3):
            with pytest.raises(UserError) as error:
                stranger.register("1", info, timeout=60)
            assert "refuses this executor: it does not have the secret of this job; see FED" in str(
                error.value
            )
        stranger.close_sever_connection()
        assert len(served.pool) == 0
        register(served)  # who has it is welcome
        assert len(served.pool) == 1
    refusals = [r for r in caplog.records if "does not have the secret" in r.getMessage()]
    assert [r.levelno for r in refusals] == [logging.WARNING]  # once, not once a call
    assert "ipv4:127.0.0.1" in refusals[0].getMessage()
    assert TOKEN not in caplog.text


def test_every_call_is_refused_and_its_message_is_not_read(job: MakeJob) -> None:
    """A message of a stranger may be large; nothing of it is kept."""
    with served_pool(job()) as served:
        with grpc.insecure_channel(network.address(served.job.config)) as channel:
            stub = job_api_pb2_grpc.JobServiceStub(channel)
            hold = channel.stream_unary(
                f"/{network.LEASES}/{network.HOLD}",
                request_serializer=job_api_pb2.PingRequest.SerializeToString,
            )
            ping = job_api_pb2.PingRequest(executor_id="1")
            large = job_api_pb2.CompleteRequest(data_result=bytes(10**7))
            for call, request in (
                (stub.CLIENT_REGISTER, job_api_pb2.RegisterRequest(executor_id="1")),
                (stub.CLIENT_PING, ping),
                (stub.CLIENT_EXECUTE_COMPLETION, large),
                (hold, iter([ping])),
                (channel.unary_unary("/fedscale.JobService/NO_SUCH_CALL"), b""),
            ):
                with pytest.raises(grpc.RpcError) as error:
                    call(request)
                assert error.value.code() == grpc.StatusCode.UNAUTHENTICATED


# ---- without one


@pytest.mark.parametrize("ip", ["127.0.0.1", "127.8.9.10", "::1", "localhost"])
def test_without_a_secret_a_job_may_listen_on_this_machine(job: MakeJob, ip: str) -> None:
    GrpcService(ExecutorPool(), resolve(job(ps_ip=ip)), None)


@pytest.mark.parametrize("ip", ["0.0.0.0", "10.0.0.1", "::", "no-such-host.invalid"])
def test_elsewhere_it_is_refused_unless_the_job_says_so(
    job: MakeJob, ip: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UserError, match=f"ps_ip: without a secret expected .*, got '{ip}'; put"):
        GrpcService(ExecutorPool(), resolve(job(ps_ip=ip)), None)
    assert capsys.readouterr().err == ""
    GrpcService(ExecutorPool(), resolve(job(ps_ip=ip, insecure=True)), None)
    assert capsys.readouterr().err == f"insecure: whoever reaches {ip} can take part in this job\n"
    GrpcService(ExecutorPool(), resolve(job(ps_ip=ip)), TOKEN)
    assert capsys.readouterr().err == ""
