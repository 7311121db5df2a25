"""How an executor talks to the aggregator: over gRPC, with FedScale's messages, or by plain calls in one process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import grpc

from fedsuv_plugin import safe_pickle
from fedsuv_plugin.engine.stock import ClientConnections, commons, job_api_pb2
from fedsuv_plugin.errors import UserError

if TYPE_CHECKING:
    from fedsuv_plugin.engine.aggregator import PluginAggregator

CLIENT_PROBE = "client_probe"  # our one addition to FedScale's events


class Event(NamedTuple):
    """What the aggregator tells an executor to do."""

    name: str  # one of FedScale's event names, or CLIENT_PROBE
    meta: Any
    data: Any


class Completion(NamedTuple):
    """What an executor has done."""

    client_id: int
    event: str
    result: Any
    error: str | None = None


NOTHING = Event(commons.DUMMY_EVENT, None, None)


class GrpcChannel(ClientConnections):  # type: ignore[misc]  # FedScale has no types
    """FedScale's connection; every call returns the next event, for which the aggregator may keep it waiting."""

    def register(self, executor_id: str, info: object, timeout: float) -> Event:
        try:
            return self._event(
                self.stub.CLIENT_REGISTER(
                    job_api_pb2.RegisterRequest(
                        client_id=executor_id,
                        executor_id=executor_id,
                        executor_info=safe_pickle.dumps(info),
                    ),
                    wait_for_ready=True,
                    timeout=timeout,
                )
            )
        except grpc.RpcError as error:
            raise UserError(
                f"no aggregator at {self.aggregator_address}:{self.base_port} within {timeout:g} s "
                f"({error.code().name})"
            ) from None

    def ping(self, executor_id: str) -> Event:
        return self._event(
            self.stub.CLIENT_PING(
                job_api_pb2.PingRequest(client_id=executor_id, executor_id=executor_id)
            )
        )

    def complete(self, executor_id: str, done: Completion) -> Event:
        return self._event(
            self.stub.CLIENT_EXECUTE_COMPLETION(
                job_api_pb2.CompleteRequest(
                    client_id=str(done.client_id),
                    executor_id=executor_id,
                    event=done.event,
                    status=done.error is None,
                    msg=done.error,
                    data_result=safe_pickle.dumps(done.result),
                )
            )
        )

    @staticmethod
    def _event(response: Any) -> Event:
        return Event(
            response.event, safe_pickle.loads(response.meta), safe_pickle.loads(response.data)
        )


class LoopbackChannel:
    """The same calls on an aggregator in this process; nothing is serialised."""

    def __init__(self, aggregator: PluginAggregator):
        self._aggregator = aggregator

    def connect_to_server(self) -> None:
        pass

    def close_sever_connection(self) -> None:
        pass

    def register(self, executor_id: str, info: dict[str, Any], timeout: float) -> Event:
        self._aggregator.admit(executor_id, info)
        return NOTHING

    def ping(self, executor_id: str) -> Event:
        return self._aggregator.next_event(executor_id, wait=0)

    def complete(self, executor_id: str, done: Completion) -> Event:
        self._aggregator.deliver(executor_id, done)
        return NOTHING
