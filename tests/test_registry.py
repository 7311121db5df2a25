"""Selectors by entry point, ours and other people's."""
from __future__ import annotations

import subprocess
import sys
import textwrap
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from fedsuv_plugin import registry
from fedsuv_plugin.engine.client_manager import SelectorClientManager
from fedsuv_plugin.errors import UserError


def point(name: str, value: str) -> EntryPoint:
    return EntryPoint(name, value, registry.GROUP)


def test_ours_are_installed() -> None:
    for name in ("oort", "random", "round_robin"):
        manager = registry.client_manager_class(name)
        assert issubclass(manager, SelectorClientManager)
        assert manager.selector_class.name == name
        assert manager.selector_class.paper


def test_an_unknown_name_lists_the_installed_ones() -> None:
    with pytest.raises(UserError, match=r"unknown client manager 'x'; installed: a, b$"):
        registry.client_manager_class("x", [point("b", "m:B"), point("a", "m:A")])


def test_two_packages_with_one_name() -> None:
    with pytest.raises(UserError, match=r"'a' is claimed by two packages: .*\(m:A\) and .*\(n:A\)"):
        registry.installed([point("a", "m:A"), point("a", "n:A")])


def test_the_same_entry_point_seen_twice_is_one() -> None:
    assert list(registry.installed([point("a", "m:A"), point("a", "m:A")])) == ["a"]


@pytest.mark.parametrize(("value", "reason"), [
    ("no_such_module:A", "cannot be loaded: ModuleNotFoundError"), ("json:no_such_name", "cannot be loaded: Attribute"),
    ("json:dumps", "is not a class")])
def test_a_broken_plugin_stops_the_job_and_says_why(value: str, reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        registry.client_manager_class("a", [point("a", value)])


PLUGIN = {
    "setup.cfg": """
        [metadata]
        name = tiny_selector
        version = 1.0
        [options]
        py_modules = tiny_selector
        [options.entry_points]
        fedscale.client_manager =
            every_other = tiny_selector:EveryOtherManager
            foreign_first = tiny_selector:FirstManager
        """,
    "pyproject.toml": """
        [build-system]
        requires = ["setuptools"]
        build-backend = "setuptools.build_meta"
        """,
    "tiny_selector.py": '''
        """Two selectors from outside: one on the contract of fedsuv_plugin, one that knows only FedScale."""
        from dataclasses import dataclass
        from fedscale.cloud.client_manager import ClientManager
        from fedsuv_plugin.engine.client_manager import SelectorClientManager
        from fedsuv_plugin.params import Params, param
        from fedsuv_plugin.selectors.base import Selector

        @dataclass(frozen=True, kw_only=True)
        class EveryOtherParams(Params):
            start: int = param(0, "first row", low=0, high=1)

        class EveryOther(Selector):
            name, paper, Params = "every_other", "nobody, 2026", EveryOtherParams

            def select(self, view, k):
                return view.online[self.params.start::2][:k]

        class EveryOtherManager(SelectorClientManager):
            selector_class = EveryOther

        class FirstManager(ClientManager):
            def select_participants(self, num_of_clients, cur_time=0):
                return sorted(self.getFeasibleClients(cur_time))[:num_of_clients]
        ''',
}


def test_a_package_of_its_own_adds_selectors(tmp_path: Path) -> None:
    """Built, installed beside us, and used by name; this repository is not touched."""
    source, site = tmp_path / "source", tmp_path / "site"
    source.mkdir()
    for name, text in PLUGIN.items():
        (source / name).write_text(textwrap.dedent(text))
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps",
                    "--target", str(site), str(source)], check=True)
    script = textwrap.dedent("""
        import sys
        from fedsuv_plugin.cli import main
        job = ["--quiet", "--set", "rounds=2", "--set", "log_path=runs", "--set", "overcommitment=1"]
        quickstart = sys.argv[1]
        assert main(["selectors", "every_other"]) == 0
        assert main(["run", quickstart, *job, "--set", "sample_mode=every_other", "--set", "every_other.start=1"]) == 0
        assert main(["run", quickstart, *job, "--set", "sample_mode=foreign_first"]) == 0
        """)
    quickstart = Path(__file__).parent.parent / "configs" / "quickstart.yml"
    done = subprocess.run([sys.executable, "-c", script, str(quickstart)], cwd=tmp_path, capture_output=True, text=True,
                          env={**__import__("os").environ, "PYTHONPATH": f"{site}:{':'.join(sys.path)}"})
    assert done.returncode == 0, done.stderr
    assert "every_other.start: 0" in done.stdout
    first, second = sorted((tmp_path / "runs" / "quickstart").iterdir())
    assert '"asked": [2, 4, 6, 8, 10, 12, 14, 16, 18, 20]' in (first / "rounds.jsonl").read_text()
    assert '"asked": [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]' in (second / "rounds.jsonl").read_text()
