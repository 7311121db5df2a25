"""The aggregator's end of FedScale's messages over gRPC: who may speak, and what is taken."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from concurrent import futures
from typing import Any

import grpc
import numpy as np

from fedsuv_plugin import wire
from fedsuv_plugin.config.fingerprint import differences, fingerprint
from fedsuv_plugin.config.resolved import ResolvedJob
from fedsuv_plugin.engine import network
from fedsuv_plugin.engine.executor_pool import ExecutorPool, NotRegistered, Refused
from fedsuv_plugin.engine.secret import SecretCheck, refuse_strangers_nearby
from fedsuv_plugin.engine.stock import job_api_pb2, job_api_pb2_grpc
from fedsuv_plugin.engine.task import NOTHING, Event, Result
from fedsuv_plugin.errors import UserError, shown

PING_WAIT = 20.0  # seconds an executor's request is held while there is nothing to do
STOP_GRACE = 1.0  # seconds that calls under way have when the service stops
# Every executor holds two: one waits for work, one shows that it lives. Threads are made as needed.
MOST_CALLS = 2000
NAME = re.compile(r"[\w.@:-]{1,200}", re.ASCII)  # of an executor
NOBODYS = Result(0, "")  # the result of a task that is not out to whoever sends it


class GrpcService(job_api_pb2_grpc.JobServiceServicer):  # type: ignore[misc]  # FedScale has no types
    """Serves the pool of a job on `ps_ip`. FedScale's aggregator listens on all interfaces."""

    def __init__(self, pool: ExecutorPool, job: ResolvedJob, token: str | None):
        """Who does not send the token is refused; without one, nobody else must reach `ps_ip`."""
        config = job.config
        refuse_strangers_nearby(config.ps_ip, token, config.insecure)
        self._pool = pool
        self._fingerprint = fingerprint(job)
        self._address = network.address(config)
        self._credentials = network.server_credentials(config)
        self._server = grpc.server(
            futures.ThreadPoolExecutor(max_workers=MOST_CALLS),
            interceptors=[SecretCheck(token)],
            options=network.options(config),
            maximum_concurrent_rpcs=MOST_CALLS,
        )
        job_api_pb2_grpc.add_JobServiceServicer_to_server(self, self._server)
        hold = grpc.stream_unary_rpc_method_handler(
            self._hold,
            request_deserializer=job_api_pb2.PingRequest.FromString,
            response_serializer=job_api_pb2.ServerResponse.SerializeToString,
        )
        leases = grpc.method_handlers_generic_handler(network.LEASES, {network.HOLD: hold})
        self._server.add_generic_rpc_handlers((leases,))

    def __enter__(self) -> GrpcService:
        try:
            if self._credentials is None:
                bound = self._server.add_insecure_port(self._address)
            else:
                bound = self._server.add_secure_port(self._address, self._credentials)
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
        executor = _name(request, context)
        info = _received(request.executor_info, context)
        sizes = _sizes(info)
        if sizes is None:
            _refuse(context, "expected the number of samples of every client")
        apart = differences(self._fingerprint, info.get("job"))
        if apart:
            reason = f"another job: {apart}"
            self._pool.note_refusal(executor, reason)
            context.abort(grpc.StatusCode.PERMISSION_DENIED, reason)
        try:
            self._pool.admit(executor, sizes)
        except Refused as error:
            context.abort(grpc.StatusCode.PERMISSION_DENIED, str(error))
        return _response(NOTHING)

    def CLIENT_PING(self, request: Any, context: grpc.ServicerContext) -> Any:
        try:
            return _response(self._pool.next_event(_name(request, context), PING_WAIT))
        except NotRegistered as error:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))

    def CLIENT_EXECUTE_COMPLETION(self, request: Any, context: grpc.ServicerContext) -> Any:
        """A result; the answer is the next event. `client_id` carries the number of the task."""
        executor = _name(request, context)
        try:
            self._pool.deliver(executor, self._result(executor, request, context))
        except NotRegistered as error:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        return self.CLIENT_PING(request, context)

    def _result(self, executor: str, request: Any, context: grpc.ServicerContext) -> Result:
        """The result that an executor sends. One that sends rubbish is not asked again."""
        task = self._pool.task_of(executor)
        value = _received(request.data_result, context)
        if task is None or request.client_id != str(task.number):
            return NOBODYS
        if not request.status:
            return Result(task.number, task.kind, None, shown(request.msg or "unknown error"))
        misfit = task.misfit(value)
        if misfit:
            self._pool.give_up(self._pool.renew(executor), f"it sent rubbish: {misfit}")
            _refuse(context, misfit)
        return Result(task.number, task.kind, value)

    # ---- and ours

    def _hold(self, beats: Iterator[Any], context: grpc.ServicerContext) -> Any:
        """A lease lasts as long as an executor sends signs of life, and no longer than this."""
        lease = None
        try:
            for beat in beats:
                lease = self._pool.renew(_name(beat, context))
        except NotRegistered as error:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        finally:
            if lease is not None:
                self._pool.give_up(lease, "its connection ended")
        return _response(NOTHING)


def _name(request: Any, context: grpc.ServicerContext) -> str:
    if not NAME.fullmatch(request.executor_id):
        _refuse(context, f"expected the name of an executor, got {shown(request.executor_id, 60)}")
    return str(request.executor_id)


def _sizes(info: object) -> Any:
    """How many samples each client has, as an executor reports it; None if it does not."""
    sizes = info.get("size") if isinstance(info, dict) else None
    if not isinstance(sizes, np.ndarray) or sizes.ndim != 1 or sizes.dtype.kind not in "iu":
        return None
    return sizes if len(sizes) and sizes.min() >= 0 else None


def _received(data: bytes, context: grpc.ServicerContext) -> Any:
    try:
        return wire.decode(data)
    except wire.WireError as error:
        _refuse(context, str(error))


def _refuse(context: grpc.ServicerContext, reason: str) -> None:
    logging.error("message of %s: %s", context.peer(), shown(reason))
    context.abort(grpc.StatusCode.INVALID_ARGUMENT, reason)


def _response(event: Event) -> Any:
    meta = wire.encode(event.meta)
    return job_api_pb2.ServerResponse(event=event.name, meta=meta, data=wire.encode(event.data))
