"""The house rules: small modules, no cycles, FedScale in one room, imports that cost little."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from conftest import ROOT

PACKAGE = ROOT / "fedsuv_plugin"
LONGEST = 300  # lines of a module outside selectors/
TOP_LEVEL = {
    ".ci",
    ".github",
    ".gitignore",
    "CHANGELOG.md",
    "CITATION.cff",
    "LICENSE",
    "README.md",
    "configs",
    "device_traces",
    "fedsuv_plugin",
    "pyproject.toml",
    "scripts",
    "setup.cfg",
    "tests",
}


@cache
def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        words = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(words[:-1] if words[-1] == "__init__" else words)] = path
    return found


@cache
def tree(name: str) -> ast.Module:
    return ast.parse(modules()[name].read_text())


def is_type_checking(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in (
        "TYPE_CHECKING",
        "typing.TYPE_CHECKING",
    )


def run_at_import(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements that run when a module is imported; not those for type checkers only."""
    for node in body:
        if is_type_checking(node) or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        yield node
        for part in ("body", "orelse", "finalbody"):
            yield from run_at_import(getattr(node, part, []))
        for handler in getattr(node, "handlers", []):
            yield from run_at_import(handler.body)


def imported(node: ast.AST, importer: str) -> Iterator[str]:
    """The modules that an import statement names, absolute."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        assert node.level == 0, f"{importer}: a relative import"
        assert node.module is not None
        for alias in node.names:
            whole = f"{node.module}.{alias.name}"
            yield whole if whole in modules() else node.module


def imports_of(name: str) -> set[str]:
    """The modules of the package that a module imports when it is imported."""
    found = {other for node in run_at_import(tree(name).body) for other in imported(node, name)}
    return (found & modules().keys()) - {name}


def find_cycle(graph: dict[str, set[str]]) -> list[str]:
    """A cycle in a graph, its first node again at its end; empty if there is none."""
    done: set[str] = set()

    def visit(name: str, path: list[str]) -> list[str]:
        if name in path:
            return [*path[path.index(name) :], name]
        if name in done:
            return []
        for other in sorted(graph[name]):
            if cycle := visit(other, [*path, name]):
                return cycle
        done.add(name)
        return []

    for name in graph:
        if cycle := visit(name, []):
            return cycle
    return []


def test_there_is_something_to_look_at() -> None:
    assert {"fedsuv_plugin", "fedsuv_plugin.engine.aggregator"} <= modules().keys()
    assert "fedsuv_plugin.engine.executor_pool" in imports_of("fedsuv_plugin.engine.aggregator")
    assert find_cycle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
    assert find_cycle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


def test_no_module_is_long() -> None:
    lengths = {
        str(path.relative_to(ROOT)): len(path.read_text().splitlines())
        for name, path in modules().items()
        if not name.startswith("fedsuv_plugin.selectors.")
    }
    long = {name: lines for name, lines in lengths.items() if lines > LONGEST}
    assert not long, f"over {LONGEST} lines: {long}"


def test_no_modules_import_each_other() -> None:
    cycle = find_cycle({name: imports_of(name) for name in modules()})
    assert not cycle, " -> ".join(cycle)


def test_only_the_engine_imports_fedscale() -> None:
    offenders = {
        name
        for name in modules()
        if not name.startswith("fedsuv_plugin.engine.")
        for node in ast.walk(tree(name))
        for other in imported(node, name)
        if other.partition(".")[0] == "fedscale"
    }
    assert not offenders


def test_selectors_know_neither_the_engine_nor_files() -> None:
    """They may use the package's own small tools, and one another."""
    allowed = ("selectors", "params", "errors", "randomness", "named")
    offenders = {
        (name, other)
        for name in modules()
        if name.startswith("fedsuv_plugin.selectors.")
        for node in ast.walk(tree(name))
        for other in imported(node, name)
        if other.startswith("fedsuv_plugin.") and other.split(".")[1] not in allowed
    }
    assert not offenders


def test_every_module_says_what_it_is() -> None:
    silent = [
        str(path.relative_to(ROOT))
        for name, path in modules().items()
        if not ast.get_docstring(tree(name))
    ]
    assert not silent


@pytest.mark.parametrize(
    "name",
    [
        "fedsuv_plugin",
        "fedsuv_plugin.cli",
        "fedsuv_plugin.config.argv",
        "fedsuv_plugin.config.job_file",
        "fedsuv_plugin.config.keys",
        "fedsuv_plugin.config.scales",
    ],
)
def test_it_is_imported_without_torch_and_without_selectors(name: str) -> None:
    script = f"import sys, {name}; print(*sys.modules, sep='\\n')"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.split())
    assert not loaded & {"torch", "gpytorch"}
    free = {"fedsuv_plugin.selectors.base", "fedsuv_plugin.selectors.signals"}
    selectors = {other for other in loaded if other.startswith("fedsuv_plugin.selectors.")}
    assert selectors <= free


def test_the_top_level_is_what_tools_and_readers_look_for() -> None:
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    there = {line.partition("/")[0] for line in listed.stdout.splitlines()}
    assert there <= TOP_LEVEL
