"""One FedScale client manager per selector: what the entry points in `setup.cfg` name."""
from __future__ import annotations

from fedsuv_plugin.engine.client_manager import SelectorClientManager
from fedsuv_plugin.selectors.baselines.oort import Oort
from fedsuv_plugin.selectors.baselines.oracle import Oracle
from fedsuv_plugin.selectors.baselines.random import Random
from fedsuv_plugin.selectors.baselines.round_robin import RoundRobin
from fedsuv_plugin.selectors.baselines.ucb import UCB
from fedsuv_plugin.selectors.bp_ucb import BPUCB
from fedsuv_plugin.selectors.pczfl import PCZFL
from fedsuv_plugin.selectors.quick_init_ucb import QuickInitUCB


class RandomClientManager(SelectorClientManager):
    selector_class = Random


class RoundRobinClientManager(SelectorClientManager):
    selector_class = RoundRobin


class OortClientManager(SelectorClientManager):
    selector_class = Oort


class OracleClientManager(SelectorClientManager):
    selector_class = Oracle


class QuickInitUCBClientManager(SelectorClientManager):
    selector_class = QuickInitUCB


class UCBClientManager(SelectorClientManager):
    selector_class = UCB


class BPUCBClientManager(SelectorClientManager):
    selector_class = BPUCB


class PCZFLClientManager(SelectorClientManager):
    selector_class = PCZFL
