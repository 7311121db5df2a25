"""The classes that the entry points name, made when they are asked for."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest

from fedsuv_plugin import client_managers, named
from fedsuv_plugin.engine.client_manager import SelectorClientManager


def in_a_fresh_interpreter(code: str) -> None:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", client_managers.SELECTORS)
def test_a_manager_is_an_ordinary_class_of_the_module(name: str) -> None:
    manager = getattr(client_managers, name)
    assert issubclass(manager, SelectorClientManager)
    assert (manager.__module__, manager.__qualname__) == ("fedsuv_plugin.client_managers", name)
    assert manager is getattr(client_managers, name)  # made once
    assert pickle.loads(pickle.dumps(manager)) is manager
    assert name in dir(client_managers)


def test_every_manager_has_an_entry_point_of_its_selectors_name() -> None:
    ours = {
        point.attr: name
        for name, point in named.installed().items()
        if point.module == "fedsuv_plugin.client_managers"
    }
    assert ours == {
        name: getattr(client_managers, name).selector_class.name
        for name in client_managers.SELECTORS
    }


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="client_managers' has no attribute 'OrtClientManager"):
        _ = client_managers.OrtClientManager


def test_loading_one_manager_imports_one_selector() -> None:
    in_a_fresh_interpreter("""
import sys
from fedsuv_plugin.client_managers import RandomClientManager
selectors = {name for name in sys.modules if name.startswith("fedsuv_plugin.selectors.")}
base = {"base", "signals", "baselines"}
assert selectors == {f"fedsuv_plugin.selectors.{m}" for m in (*base, "baselines.random")}, selectors
""")


def test_importing_all_selectors_loads_neither_torch_nor_gpytorch() -> None:
    in_a_fresh_interpreter("""
import sys
from fedsuv_plugin import client_managers
for name in client_managers.SELECTORS:
    getattr(client_managers, name)
assert not {"torch", "gpytorch"} & set(sys.modules)
""")
