"""Selectors by entry point, ours and other people's."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from conftest import ROOT, records

from fedsuv_plugin import named
from fedsuv_plugin.engine.client_manager import SelectorClientManager
from fedsuv_plugin.errors import UserError


def point(name: str, value: str) -> EntryPoint:
    return EntryPoint(name, value, named.GROUP)


def test_ours_are_installed() -> None:
    for name in ("fedsuv", "oort", "random", "round_robin"):
        manager = named.client_manager_class(name)
        assert issubclass(manager, SelectorClientManager)
        assert manager.selector_class.name == name
        assert manager.selector_class.paper


def test_an_unknown_name_lists_the_installed_ones() -> None:
    with pytest.raises(UserError, match=r"unknown client manager 'x'; installed: a, b$"):
        named.client_manager_class("x", [point("b", "m:B"), point("a", "m:A")])


def test_two_packages_with_one_name() -> None:
    with pytest.raises(UserError, match=r"'a' is claimed by two packages: .*\(m:A\) and .*\(n:A\)"):
        named.installed([point("a", "m:A"), point("a", "n:A")])


def test_the_same_entry_point_seen_twice_is_one() -> None:
    assert list(named.installed([point("a", "m:A"), point("a", "m:A")])) == ["a"]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("no_such_module:A", "cannot be loaded: ModuleNotFoundError"),
        ("json:no_such_name", "cannot be loaded: Attribute"),
        ("json:dumps", "is not a class"),
    ],
)
def test_a_broken_plugin_stops_the_job_and_says_why(value: str, reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        named.client_manager_class("a", [point("a", value)])


PLUGIN = {
    "setup.cfg": """
        [metadata]
        name = tiny_selector
        version = 1.0
        [options]
        py_modules = tiny_selector
        [options.entry_points]
        fedscale.client_manager =
            worst_loss = tiny_selector:WorstLossManager
            foreign_first = tiny_selector:FirstManager
        """,
    "pyproject.toml": """
        [build-system]
        requires = ["setuptools"]
        build-backend = "setuptools.build_meta"
        """,
    "tiny_selector.py": '''
        """One selector on the contract of fedsuv_plugin, and one that knows only FedScale."""
        from dataclasses import dataclass
        from fedscale.cloud.client_manager import ClientManager
        from fedsuv_plugin.engine.client_manager import SelectorClientManager
        from fedsuv_plugin.params import Params, param
        from fedsuv_plugin.selectors.base import Probe, Selector
        from fedsuv_plugin.selectors.signals import LOSS

        @dataclass(frozen=True, kw_only=True)
        class WorstLossParams(Params):
            candidates: int = param(20, "how many clients are asked for their loss", low=1)

        class WorstLoss(Selector):
            name = "worst_loss"
            paper = "nobody, 2026"
            probes = frozenset({LOSS})
            Params = WorstLossParams

            def probe(self, view):
                asked = self.rng.choice(view.online, self.params.candidates, replace=False)
                return Probe(LOSS, asked)

            def select(self, view, k):
                return view.probe.rows[(-view.probe.values).argsort()[:k]]

        class WorstLossManager(SelectorClientManager):
            selector_class = WorstLoss

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
    pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    subprocess.run([*pip, "--no-deps", "--target", str(site), str(source)], check=True)
    script = textwrap.dedent("""
        import sys
        from fedsuv_plugin.cli import main


        def run(*keys, options=()):
            keys = ("rounds=2", "log_path=runs", "overcommitment=1", *keys)
            words = [word for key in keys for word in ("--set", key)]
            return main(["run", sys.argv[1], "--quiet", *words, *options])


        assert main(["selectors", "worst_loss"]) == 0
        worst = ("sample_mode=worst_loss", "worst_loss.candidates=30")
        assert run(*worst, "job_name=here") == 0
        assert run(*worst, "job_name=there", options=["--launcher", "processes"]) == 0
        assert run("sample_mode=foreign_first") == 0
        """)
    quickstart = ROOT / "configs" / "quickstart.yml"
    done = subprocess.run(
        [sys.executable, "-c", script, str(quickstart)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{site}:{':'.join(sys.path)}"},
    )
    assert done.returncode == 0, done.stderr
    assert "worst_loss.candidates: 20" in done.stdout
    here, there, foreign = (
        records(next((tmp_path / "runs" / name).iterdir()))
        for name in ("here", "there", "quickstart")
    )
    assert here == there  # probes go over gRPC too
    assert here[0]["asked"] != here[1]["asked"]
    assert [r["asked"] for r in foreign] == [list(range(1, 11))] * 2
