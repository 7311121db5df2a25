"""An executor's end of FedScale's messages over gRPC, and the signs of life that it sends."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from time import monotonic
from typing import Any

import grpc

from fedsuv_plugin import wire
from fedsuv_plugin.config.keys import JobConfig
from fedsuv_plugin.engine import network
from fedsuv_plugin.engine.secret import HEADER
from fedsuv_plugin.engine.stock import ClientConnections, job_api_pb2, job_api_pb2_grpc
from fedsuv_plugin.engine.task import Event, Result
from fedsuv_plugin.errors import UserError, shown

PROBE_SECONDS = 2.0  # that a connection may take which only shows whether anybody listens
# What a call ends with if the network is cut, or if the aggregator has given the executor up.
PASSING = {
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.FAILED_PRECONDITION,
}


class OutOfTouch(ConnectionError):
    """The aggregator does not count on this executor any more; it may register again."""


class AggregatorGone(ConnectionError):
    """Nobody listens at the aggregator's address any more."""


class GrpcChannel(ClientConnections):  # type: ignore[misc]  # FedScale has no types
    """An executor's connection. The aggregator may keep each call waiting for the next event.

    Once it has registered, a thread sends signs of life, whatever the executor is doing; when the
    aggregator is gone it calls `on_gone`."""

    def __init__(
        self, config: JobConfig, token: str | None, on_gone: Callable[[], None] = lambda: None
    ):
        super().__init__(config.ps_ip, config.ps_port)
        self._config = config
        self._address = network.address(config)
        self._credentials = network.channel_credentials(config)
        self._metadata: tuple[tuple[str, str | bytes], ...] = ()
        if token is not None:
            self._metadata = ((HEADER, token),)
        self._on_gone = on_gone
        self._released = threading.Event()  # the lease that is held is not to be held any longer
        self._has_registered = False

    def connect_to_server(self) -> None:
        options = network.options(self._config)
        if self._credentials is None:
            self.channel = grpc.insecure_channel(self._address, options)
        else:
            self.channel = grpc.secure_channel(self._address, self._credentials, options)
        self.stub = job_api_pb2_grpc.JobServiceStub(self.channel)
        self._hold = self.channel.stream_unary(
            f"/{network.LEASES}/{network.HOLD}",
            request_serializer=job_api_pb2.PingRequest.SerializeToString,
            response_deserializer=job_api_pb2.ServerResponse.FromString,
        )

    def close_sever_connection(self) -> None:
        self._released.set()
        super().close_sever_connection()

    def register(self, executor: str, info: object, timeout: float) -> None:
        """Take part, or take part again. The first time the aggregator need not be there yet."""
        self._released.set()
        name = _full_name(executor)
        request = job_api_pb2.RegisterRequest(
            client_id=name, executor_id=name, executor_info=wire.encode(info)
        )
        end = monotonic() + timeout
        while True:
            if self._has_registered:
                self._raise_if_gone()
            left = max(0.0, end - monotonic())
            try:
                self._call(self.stub.CLIENT_REGISTER, request, wait_for_ready=True, timeout=left)
                break
            except OutOfTouch as error:
                if not left:
                    raise UserError(
                        f"no aggregator at {self._address} within {timeout:g} s ({error})"
                    ) from None
        self._has_registered = True
        self._released = threading.Event()
        threading.Thread(target=self._keep, args=(name, self._released), daemon=True).start()

    def ping(self, executor: str) -> Event:
        name = _full_name(executor)
        request = job_api_pb2.PingRequest(client_id=name, executor_id=name)
        return _event(self._call(self.stub.CLIENT_PING, request))

    def complete(self, executor: str, result: Result) -> Event:
        request = job_api_pb2.CompleteRequest(
            client_id=str(result.task),
            executor_id=_full_name(executor),
            event=result.kind,
            status=result.error is None,
            msg=result.error,
            data_result=wire.encode(result.value),
        )
        return _event(self._call(self.stub.CLIENT_EXECUTE_COMPLETION, request))

    def _call(self, method: Callable[..., Any], request: Any, **options: Any) -> Any:
        try:
            return method(request, metadata=self._metadata, **options)
        except grpc.RpcError as error:
            if error.code() in PASSING:
                raise OutOfTouch(error.code().name) from None
            raise UserError(
                f"the aggregator at {self._address} refuses this executor: "
                f"{shown(error.details(), 600)}"
            ) from None

    # ---- signs of life

    def _keep(self, name: str, released: threading.Event) -> None:
        """Hold a lease until it is released, or until the aggregator ends it."""
        pause = self._config.executor_timeout / network.BEATS
        beat = job_api_pb2.PingRequest(client_id=name, executor_id=name)

        def beats() -> Iterator[Any]:
            yield beat
            while not released.wait(pause):
                yield beat

        try:
            self._hold(beats(), metadata=self._metadata)
        except (grpc.RpcError, ValueError):  # a ValueError: the channel was closed first
            if not released.is_set():
                self._tell_if_gone()

    def _tell_if_gone(self) -> None:
        try:
            self._raise_if_gone()
        except AggregatorGone:
            self._on_gone()

    def _raise_if_gone(self) -> None:
        """An aggregator that has ended is gone; one that is out of reach may come back."""
        where = (self._config.ps_ip, self._config.ps_port)
        try:
            socket.create_connection(where, PROBE_SECONDS).close()
        except ConnectionRefusedError:
            raise AggregatorGone(f"the aggregator at {self._address} is gone") from None
        except OSError:
            pass  # the network is cut, perhaps for a moment only


def _full_name(executor: str) -> str:
    """The name of this process: an executor that is started again is another one."""
    return f"{executor}@{socket.gethostname()}:{os.getpid()}"


def _event(response: Any) -> Event:
    # torch wraps only arrays that can be written to: hence a bytearray.
    data = wire.decode(bytearray(response.data))
    return Event(response.event, wire.decode(response.meta), data)
