"""One FedScale client manager per selector: what the entry points in `setup.cfg` name."""

from __future__ import annotations

from fedsuv_plugin.engine.client_manager import SelectorClientManager
from fedsuv_plugin.selectors.baselines.divfl import Divfl
from fedsuv_plugin.selectors.baselines.oort import Oort
from fedsuv_plugin.selectors.baselines.oracle import Oracle
from fedsuv_plugin.selectors.baselines.pow_d import PowD
from fedsuv_plugin.selectors.baselines.random import Random
from fedsuv_plugin.selectors.baselines.round_robin import RoundRobin
from fedsuv_plugin.selectors.baselines.ucb import UCB
from fedsuv_plugin.selectors.bp_ucb import BPUCB
from fedsuv_plugin.selectors.fedsuv import FedSUV
from fedsuv_plugin.selectors.filfl import Filfl
from fedsuv_plugin.selectors.gpfl import Gpfl
from fedsuv_plugin.selectors.pczfl import PCZFL
from fedsuv_plugin.selectors.quick_init_ucb import QuickInitUCB


class BPUCBClientManager(SelectorClientManager):
    selector_class = BPUCB


class DivflClientManager(SelectorClientManager):
    selector_class = Divfl


class FedSUVClientManager(SelectorClientManager):
    selector_class = FedSUV


class FilflClientManager(SelectorClientManager):
    selector_class = Filfl


class GpflClientManager(SelectorClientManager):
    selector_class = Gpfl


class OortClientManager(SelectorClientManager):
    selector_class = Oort


class OracleClientManager(SelectorClientManager):
    selector_class = Oracle


class PCZFLClientManager(SelectorClientManager):
    selector_class = PCZFL


class PowDClientManager(SelectorClientManager):
    selector_class = PowD


class QuickInitUCBClientManager(SelectorClientManager):
    selector_class = QuickInitUCB


class RandomClientManager(SelectorClientManager):
    selector_class = Random


class RoundRobinClientManager(SelectorClientManager):
    selector_class = RoundRobin


class UCBClientManager(SelectorClientManager):
    selector_class = UCB
