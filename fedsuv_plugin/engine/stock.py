"""FedScale's own classes for the engine to subclass, imported once `fedscale_env` is ready.

Only `client_manager.py` imports FedScale by itself: its ClientManager needs no such care, and
must not cost a user who only looks at selectors the seconds that all this takes.
"""

from __future__ import annotations

from fedsuv_plugin.engine import fedscale_env

fedscale_env.load()

from fedscale.cloud import commons  # noqa: E402
from fedscale.cloud.aggregation.aggregator import MAX_MESSAGE_LENGTH, Aggregator  # noqa: E402
from fedscale.cloud.aggregation.optimizers import TorchServerOptimizer  # noqa: E402
from fedscale.cloud.channels import job_api_pb2, job_api_pb2_grpc  # noqa: E402
from fedscale.cloud.channels.channel_context import ClientConnections  # noqa: E402
from fedscale.cloud.execution.executor import Executor  # noqa: E402
from fedscale.cloud.execution.torch_client import TorchClient  # noqa: E402
from fedscale.cloud.internal.torch_model_adapter import TorchModelAdapter  # noqa: E402

__all__ = [
    "Aggregator",
    "ClientConnections",
    "Executor",
    "MAX_MESSAGE_LENGTH",
    "TorchClient",
    "TorchModelAdapter",
    "TorchServerOptimizer",
    "commons",
    "job_api_pb2",
    "job_api_pb2_grpc",
]
