"""The page as text: well-formed, escaped, complete, and no larger than it may be."""

from __future__ import annotations

import base64
import hashlib
import random
import re
import time
from html.parser import HTMLParser
from pathlib import Path

import pytest
from report_worlds import SHOWN_REASON, by_hand, write_run

from fedsuv_plugin.experiments.report import write_report
from fedsuv_plugin.experiments.results import results_of, run_result

VOID = {"meta", "br", "img", "input", "link", "hr"}


class Balance(HTMLParser):
    """Every element is closed by its own end tag, and every id is the only one."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.controlled: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        self._note(attrs)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._note(attrs)

    def _note(self, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            if name in ("aria-controls", "aria-labelledby"):
                self.controlled.add(value or "")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> at {self.getpos()}"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("page")
    write_report(by_hand(folder / "runs"), folder)
    return (folder / "report.html").read_text()


def test_it_is_well_formed(page: str) -> None:
    parser = Balance()
    parser.feed(page)
    parser.close()
    assert not parser.open
    assert len(parser.ids) == len(set(parser.ids))
    assert parser.controlled <= set(parser.ids)


def test_what_users_wrote_is_escaped(page: str) -> None:
    assert "…/study/data has &lt;b&gt;no&lt;/b&gt; data &amp; more" in page
    assert SHOWN_REASON not in page


def test_it_refers_to_nothing_outside(page: str) -> None:
    assert not re.search(r"https?://", page)
    links = re.findall(r'(?:href|src)="([^"]*)"', page)
    assert all(link.startswith(("#", "data:", "runs/")) for link in links)
    assert "runs/random/seed0/" in links
    assert not any("broken" in link for link in links)  # it left no directory


def test_only_its_own_script_may_run(page: str) -> None:
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy
    assert "default-src &#39;none&#39;" in policy[1]
    assert f"sha256-{digest}" in policy[1].replace("&#43;", "+")
    assert len(script.splitlines()) < 150


def test_it_says_what_was_compared(page: str) -> None:
    for said in (
        "6 variants of the job by_hand",
        "3 seeds (0, 1, 2)",
        "13 of 15 runs finished",
        "test accuracy of 80 %",
        "The reference is random",
        "median 10.0; not reached in 1 of 3",
        "A round had 60 s",
        "abc123",
        "share of those asked whose update was merged in the same round; higher is better",
    ):
        assert said in page, said


def test_a_large_comparison_makes_a_page_that_opens(tmp_path: Path) -> None:
    """A tenth of the rounds of the largest that is expected, as lines have at most 200 points."""
    luck = random.Random(0)
    runs = []
    for v in range(20):
        for seed in range(10):
            path = tmp_path / "runs" / f"{v}-{seed}"
            accuracies = [luck.random() for _ in range(100)]
            write_run(path, {"sample_mode": f"v{v}"}, seed, accuracies, last=100)
            runs.append(run_result(f"v{v}", {"sample_mode": f"v{v}"}, seed, path, 0.9, None))
    results = results_of("large", runs, ["sample_mode"], ("sample_mode", "v0"), 0.9)
    begin = time.perf_counter()
    write_report(results, tmp_path)
    assert time.perf_counter() - begin < 60  # a safeguard, not a benchmark
    assert (tmp_path / "report.html").stat().st_size < 5_000_000
