"""Protocols: what becomes of the work of those who are asked in a round.

A selector names its protocol (`Selector.protocol`). `synchronous`: who misses the round is not
merged. `late_updates`: an update that misses its round is merged in the one in which it arrives.
`safa`: everyone trains, and the server keeps a model of every client.
"""

from __future__ import annotations

import importlib
from typing import Any

from fedsuv_plugin.config.keys import JobConfig
from fedsuv_plugin.engine.executor_pool import ExecutorPool
from fedsuv_plugin.engine.protocols.synchronous import Setting, Synchronous
from fedsuv_plugin.selectors.base import PROTOCOLS


def make_protocol(
    client_manager: Any, config: JobConfig, pool: ExecutorPool, learnt: list[bool]
) -> Synchronous:
    """The protocol that the selector names, from the module of that name.

    `learnt` says of every entry of the model's weights whether it is a parameter."""
    name = client_manager.protocol
    if name not in PROTOCOLS:
        raise ValueError(f"protocol: expected one of {', '.join(PROTOCOLS)}, got {name!r}")
    module = importlib.import_module(f"{__name__}.{name}")
    made: Synchronous = module.PROTOCOL(Setting(config, pool, client_manager, learnt))
    return made
