"""FedScale's messages over gRPC: the aggregator's service and an executor's end of it."""

from __future__ import annotations

import logging
from concurrent import futures
from typing import Any

import grpc

from fedsuv_plugin import wire
from fedsuv_plugin.engine.executor_pool import ExecutorPool
from fedsuv_plugin.engine.stock import (
    MAX_MESSAGE_LENGTH,
    ClientConnections,
    job_api_pb2,
    job_api_pb2_grpc,
)
from fedsuv_plugin.engine.task import NOTHING, Event, Result
from fedsuv_plugin.errors import UserError

PING_WAIT = 20.0  # seconds an executor's request is held while there is nothing to do
STOP_GRACE = 1.0  # seconds that calls under way have when the service stops


class GrpcService(job_api_pb2_grpc.JobServiceServicer):  # type: ignore[misc]  # FedScale has no types
    """Serves a pool on one address. FedScale's aggregator listens on all interfaces."""

    def __init__(self, pool: ExecutorPool, ip: str, port: int, executors: int):
        """Every executor that waits for work holds a thread, so there are some more than that."""
        self._pool = pool
        self._address = f"{ip}:{port}"
        self._server = grpc.server(
            futures.ThreadPoolExecutor(max_workers=executors + 4),
            options=[
                ("grpc.max_send_message_length", MAX_MESSAGE_LENGTH),
                ("grpc.max_receive_message_length", MAX_MESSAGE_LENGTH),
                ("grpc.so_reuseport", 0),
            ],
        )
        job_api_pb2_grpc.add_JobServiceServicer_to_server(self, self._server)

    def __enter__(self) -> GrpcService:
        try:
            bound = self._server.add_insecure_port(self._address)
        except RuntimeError:
            bound = 0
        if not bound:
            raise UserError(
                f"ps_ip, ps_port: cannot listen on {self._address}; is the port taken, or the "
                "address not ours?"
            )
        self._server.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.stop(STOP_GRACE).wait()

    # ---- FedScale's three calls

    def CLIENT_REGISTER(self, request: Any, context: grpc.ServicerContext) -> Any:
        info = _received(request.executor_info, context)
        if not isinstance(info, dict) or "size" not in info:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "expected the clients' sizes")
        self._pool.admit(request.executor_id, info["size"])
        return _response(NOTHING)

    def CLIENT_PING(self, request: Any, context: grpc.ServicerContext) -> Any:
        try:
            return _response(self._pool.next_event(request.executor_id, PING_WAIT))
        except KeyError as error:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))

    def CLIENT_EXECUTE_COMPLETION(self, request: Any, context: grpc.ServicerContext) -> Any:
        """A result; the answer is the next event. `client_id` carries the number of the task."""
        value = _received(request.data_result, context)
        error = None if request.status else request.msg or "unknown error"
        result = Result(int(request.client_id), request.event, value, error)
        self._pool.deliver(request.executor_id, result)
        return self.CLIENT_PING(request, context)


def _received(data: bytes, context: grpc.ServicerContext) -> Any:
    try:
        return wire.decode(data)
    except wire.WireError as error:
        logging.error("message of %s: %s", context.peer(), error)
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))


def _response(event: Event) -> Any:
    meta = wire.encode(event.meta)
    return job_api_pb2.ServerResponse(event=event.name, meta=meta, data=wire.encode(event.data))


class GrpcChannel(ClientConnections):  # type: ignore[misc]  # FedScale has no types
    """An executor's connection. The aggregator may keep each call waiting for the next event."""

    def register(self, executor: str, info: object, timeout: float) -> None:
        request = job_api_pb2.RegisterRequest(
            client_id=executor, executor_id=executor, executor_info=wire.encode(info)
        )
        try:
            self.stub.CLIENT_REGISTER(request, wait_for_ready=True, timeout=timeout)
        except grpc.RpcError as error:
            raise UserError(
                f"no aggregator at {self.aggregator_address}:{self.base_port} within "
                f"{timeout:g} s ({error.code().name})"
            ) from None

    def ping(self, executor: str) -> Event:
        request = job_api_pb2.PingRequest(client_id=executor, executor_id=executor)
        return self._event(self.stub.CLIENT_PING(request))

    def complete(self, executor: str, result: Result) -> Event:
        request = job_api_pb2.CompleteRequest(
            client_id=str(result.task),
            executor_id=executor,
            event=result.kind,
            status=result.error is None,
            msg=result.error,
            data_result=wire.encode(result.value),
        )
        return self._event(self.stub.CLIENT_EXECUTE_COMPLETION(request))

    @staticmethod
    def _event(response: Any) -> Event:
        # torch wraps only arrays that can be written to: hence a bytearray.
        data = wire.decode(bytearray(response.data))
        return Event(response.event, wire.decode(response.meta), data)
