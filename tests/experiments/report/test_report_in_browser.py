"""The page in a real browser: what its script does, and that it looks right where it is read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import Browser, find_browser
from report_worlds import by_hand

from fedsuv_plugin.experiments.report import write_report

LABELS = (
    "[...document.querySelectorAll('#results table')[0].tBodies]"
    ".map(b => b.rows[0].cells[0].innerText.trim())"
)
HEADINGS = "document.querySelectorAll('#results table')[0].tHead.querySelectorAll('button')"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    write_report(by_hand(folder / "runs"), folder)
    return folder / "report.html"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program = find_browser()
    if program is None:
        pytest.skip("no Chromium on this machine: install the package chromium")
    found = Browser(program, tmp_path_factory.mktemp("profile"))
    yield found
    found.close()


def heading(text: str) -> str:
    return f"[...{HEADINGS}].find(b => b.textContent.startsWith({text!r}))"


def seen(selector: str, what: str) -> str:
    """Of the elements that are displayed, what an expression says of each, `e`.

    Chromium's checkVisibility() calls a hidden group of an SVG visible, so boxes are counted."""
    displayed = "filter(e => e.getClientRects().length)"
    return f"[...document.querySelectorAll({selector!r})].{displayed}.map(e => {what})"


def quiet(browser: Browser) -> bool:
    """Nothing was logged, thrown or refused since the page was opened."""
    kinds = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
    return not any(browser.happened(kind) for kind in kinds)


def test_nothing_is_fetched_but_the_file(browser: Browser, page: Path) -> None:
    browser.open(page)
    asked = [each["request"]["url"] for each in browser.happened("Network.requestWillBeSent")]
    assert [url for url in asked if not url.startswith("data:")] == [page.resolve().as_uri()]
    assert quiet(browser)


def test_a_heading_sorts_and_sorts_back(browser: Browser, page: Path) -> None:
    browser.open(page)
    grid = ["random", "oort", "pow_d", "never", "one seed", "broken"]
    assert browser.run(LABELS) == grid
    final = heading("final accuracy")
    browser.run(f"{final}.click()")
    # 90, 85, 76.67 twice, 20; what has no number comes last, either way.
    best_first = ["oort", "one seed", "random", "pow_d", "never", "broken"]
    assert browser.run(LABELS) == best_first
    assert browser.run(f"{final}.closest('th').ariaSort") == "descending"
    browser.run(f"{final}.click()")
    assert browser.run(LABELS) == ["never", "random", "pow_d", "one seed", "oort", "broken"]
    assert browser.run(f"{final}.closest('th').ariaSort") == "ascending"
    browser.run(f"{heading('variant')}.focus()")
    browser.press("Enter")
    assert browser.run(LABELS) == sorted(grid)
    assert browser.run(f"{final}.closest('th').ariaSort") is None
    assert quiet(browser)


def test_a_variant_unfolds_its_seeds(browser: Browser, page: Path) -> None:
    browser.open(page)
    seeds = seen("#results tr.seed", "e.innerText") + ".length"
    assert browser.run(seeds) == 0
    browser.run("document.querySelector('button.fold').click()")
    assert browser.run(seeds) == 3
    assert quiet(browser)


def test_tabs_show_one_chart_at_a_time(browser: Browser, page: Path) -> None:
    browser.open(page)
    shown = seen("#curves [role=tabpanel]", "e.id")
    assert browser.run(shown) == ["accuracy_by_round-by-round"]
    browser.run("document.querySelectorAll('#curves [role=tab]')[1].click()")
    assert browser.run(shown) == ["accuracy_by_time-by-virtual-time"]
    browser.run("document.querySelectorAll('#curves [role=tab]')[1].focus()")
    browser.press("ArrowRight")
    assert browser.run(shown) == ["accuracy_by_energy-by-energy"]
    assert browser.run("document.activeElement.ariaSelected") == "true"
    assert quiet(browser)


def test_the_legend_hides_and_shows_a_variant(browser: Browser, page: Path) -> None:
    browser.open(page)
    drawn = seen("#accuracy_by_round-by-round g[data-variant]", "e.dataset.label")
    every = ["random", "oort", "pow_d", "never", "one seed"]
    assert browser.run(drawn) == every
    toggle = "document.querySelectorAll('#curves .legend button')[1].click()"
    browser.run(toggle)
    assert browser.run(drawn) == [label for label in every if label != "oort"]
    browser.run(toggle)
    assert browser.run(drawn) == every
    assert quiet(browser)


def test_the_legend_picks_a_variant_out(browser: Browser, page: Path) -> None:
    browser.open(page)
    faint = "[...document.querySelectorAll('#curves g.faint')].map(g => g.dataset.label)"
    button = "document.querySelectorAll('#curves .legend button')[1]"
    browser.run(f"{button}.scrollIntoView({{block: 'center'}})")
    x, y = browser.run(f"(r => [r.left + 5, r.top + 5])({button}.getBoundingClientRect())")
    browser.move(x, y)
    assert set(browser.run(faint)) == {"random", "pow_d", "never", "one seed"}
    browser.move(0, 0)
    assert browser.run(faint) == []
    assert quiet(browser)


def test_the_pointer_reads_off_the_means(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.run("document.querySelector('svg.chart').scrollIntoView({block: 'center'})")
    box = browser.run(
        "(r => [r.left, r.top, r.width, r.height])"
        "(document.querySelector('svg.chart').getBoundingClientRect())"
    )
    middle = 66 + (640 - 66 - 70) / 2  # of the axis, in the units of the drawing: round 5
    browser.move(box[0] + box[2] * middle / 640, box[1] + box[3] / 2)
    text = browser.run("document.querySelector('#curves output').textContent")
    assert text.startswith("round 5: oort 80.0 %")
    assert "random 50.0 %" in text
    assert quiet(browser)


def test_another_seed_shows_other_maps(browser: Browser, page: Path) -> None:
    browser.open(page)
    shown = seen(".maps figure", "e.querySelector('figcaption').innerText")
    assert len(browser.run(shown)) == 5
    browser.run(
        "(s => { s.value = '2'; s.dispatchEvent(new Event('change')); })"
        "(document.querySelector('select[data-maps]'))"
    )
    assert browser.run(shown)[0] == "random, seed 2" and len(browser.run(shown)) == 4
    assert quiet(browser)


@pytest.mark.parametrize("width", [360, 1200])
def test_nothing_is_wider_than_the_screen(browser: Browser, page: Path, width: int) -> None:
    browser.open(page, width)
    browser.run("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    assert browser.run("document.documentElement.scrollWidth") == width
    edge = seen("body :not(.box *, svg *)", "e.getBoundingClientRect().right")
    assert max(browser.run(edge)) <= width + 1


def test_on_a_phone_the_name_stays_beside_the_numbers(browser: Browser, page: Path) -> None:
    browser.open(page, 360)
    row = "document.querySelector('#results tbody').rows[0]"
    name, first = browser.run(f"[...{row}.cells].map(c => c.getBoundingClientRect().left)")[::2][:2]
    right = browser.run(f"{row}.cells[2].getBoundingClientRect().right")
    assert 0 < name < first < right < 360  # the final accuracy is seen without scrolling
    browser.run("document.querySelector('#results .box').scrollLeft = 200")
    assert browser.run(f"{row}.cells[0].getBoundingClientRect().left") == name
    assert browser.run(f"{row}.cells[2].getBoundingClientRect().left") == first - 200


def luminance(colour: str) -> float:
    red, green, blue = (int(part) for part in colour[4:-1].split(","))
    return red + green + blue


def test_it_is_dark_where_the_reader_wants_it_dark(browser: Browser, page: Path) -> None:
    colours: dict[str, Any] = {}
    for scheme in ("light", "dark"):
        browser.open(page, scheme=scheme)
        style = "getComputedStyle(document.body)"
        line = "getComputedStyle(document.querySelector('g .mean')).stroke"
        colours[scheme] = browser.run(f"[{style}.backgroundColor, {style}.color, {line}]")
    paper, ink, line = colours["dark"]
    assert luminance(paper) < 100 < 500 < luminance(ink)
    paper, ink, _ = colours["light"]
    assert luminance(paper) == 765 and luminance(ink) < 150
    assert line != colours["light"][2]


def test_on_paper_everything_is_shown_and_nothing_can_be_pressed(
    browser: Browser, page: Path
) -> None:
    browser.open(page, 720)
    browser.call("Emulation.setEmulatedMedia", media="print")
    visible = "[...document.querySelectorAll('{}')].map(e => e.offsetHeight > 0)"
    assert all(browser.run(visible.format("[role=tabpanel]")))
    assert not any(browser.run(visible.format("[role=tablist], select, nav")))
    # Nothing is cut off on a sheet of A4 with the usual margins.
    assert (
        max(browser.run("[...document.querySelectorAll('table')].map(t => t.offsetWidth)")) <= 720
    )
    browser.call("Emulation.setEmulatedMedia", media="")
