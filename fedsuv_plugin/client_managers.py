"""One FedScale client manager per selector: what the entry points in `setup.cfg` name."""
from __future__ import annotations

from fedsuv_plugin.engine.client_manager import SelectorClientManager
from fedsuv_plugin.selectors.baselines.divfl import Divfl
from fedsuv_plugin.selectors.baselines.oort import Oort
from fedsuv_plugin.selectors.baselines.pow_d import PowD
from fedsuv_plugin.selectors.baselines.random import Random
from fedsuv_plugin.selectors.baselines.round_robin import RoundRobin
from fedsuv_plugin.selectors.fedsuv import FedSUV
from fedsuv_plugin.selectors.filfl import Filfl
from fedsuv_plugin.selectors.gpfl import Gpfl


class FedSUVClientManager(SelectorClientManager):
    selector_class = FedSUV


class RandomClientManager(SelectorClientManager):
    selector_class = Random


class RoundRobinClientManager(SelectorClientManager):
    selector_class = RoundRobin


class OortClientManager(SelectorClientManager):
    selector_class = Oort


class PowDClientManager(SelectorClientManager):
    selector_class = PowD


class GpflClientManager(SelectorClientManager):
    selector_class = Gpfl


class FilflClientManager(SelectorClientManager):
    selector_class = Filfl


class DivflClientManager(SelectorClientManager):
    selector_class = Divfl
