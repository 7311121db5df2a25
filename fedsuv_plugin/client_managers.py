"""One FedScale client manager per selector: the classes that the entry points in `setup.cfg` name.

`engine/client_manager.py` holds the adapter that turns FedScale's calls into calls of a selector.
This module only says which selectors there are: each of its classes is that adapter with one
selector filled in.

>>> from fedsuv_plugin.client_managers import OortClientManager
>>> OortClientManager.selector_class.name
'oort'

A class is made, and its selector imported, when somebody first asks for it. Loading one entry
point therefore imports one selector, and a job does not wait for the libraries of the others.
"""

from __future__ import annotations

import importlib

from fedsuv_plugin.engine.client_manager import SelectorClientManager

# Client manager -> module and class of its selector, under fedsuv_plugin.selectors.
SELECTORS = {
    "AflClientManager": "baselines.afl:Afl",
    "BPUCBClientManager": "bp_ucb:BPUCB",
    "BSFLClientManager": "baselines.bsfl:BSFL",
    "DivflClientManager": "baselines.divfl:Divfl",
    "FedCSClientManager": "baselines.fedcs:FedCS",
    "FedCorClientManager": "baselines.fedcor:FedCor",
    "FedSUVClientManager": "fedsuv:FedSUV",
    "FilflClientManager": "filfl:Filfl",
    "GpflClientManager": "gpfl:Gpfl",
    "LshClientManager": "baselines.lsh:Lsh",
    "NccbClientManager": "baselines.nccb:Nccb",
    "OortClientManager": "baselines.oort:Oort",
    "OracleClientManager": "baselines.oracle:Oracle",
    "PCZFLClientManager": "pczfl:PCZFL",
    "PowDClientManager": "baselines.pow_d:PowD",
    "QuickInitUCBClientManager": "quick_init_ucb:QuickInitUCB",
    "RandomClientManager": "baselines.random:Random",
    "ReflClientManager": "baselines.refl:Refl",
    "RoundRobinClientManager": "baselines.round_robin:RoundRobin",
    "SafaClientManager": "baselines.safa:Safa",
    "TiFLClientManager": "baselines.tifl:TiFL",
    "UCBClientManager": "baselines.ucb:UCB",
}


def __getattr__(name: str) -> type[SelectorClientManager]:
    """The client manager of that name; Python asks here for what the module does not hold yet."""
    if name not in SELECTORS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, selector = SELECTORS[name].split(":")
    found = getattr(importlib.import_module(f"fedsuv_plugin.selectors.{module}"), selector)
    # A class statement would give the same: Python then takes the class for one of this module.
    body = {"__module__": __name__, "__qualname__": name, "selector_class": found}
    manager = type(name, (SelectorClientManager,), body)
    globals()[name] = manager  # asked for again, it is found here
    return manager


def __dir__() -> list[str]:
    return sorted({*globals(), *SELECTORS})
