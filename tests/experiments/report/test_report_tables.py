"""Tables of a comparison by hand: the numbers are worked out here, beside what is expected."""

from __future__ import annotations

import csv
import math
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from report_worlds import SHOWN_REASON, by_hand, under_conditions

from fedsuv_plugin.experiments.measures import MEASURES
from fedsuv_plugin.experiments.report import text_table, write_report
from fedsuv_plugin.experiments.report.documents import table_tex
from fedsuv_plugin.experiments.results import Results, results_of


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("comparison")


@pytest.fixture(scope="module")
def results(folder: Path) -> Results:
    return by_hand(folder / "runs")


@pytest.fixture(scope="module")
def written(results: Results, folder: Path) -> list[Path]:
    return write_report(results, folder)


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_everything_is_written_and_said_to_be(written: list[Path], folder: Path) -> None:
    names = {path.relative_to(folder).as_posix() for path in written}
    pictures = ("accuracy_by_round", "accuracy_by_time", "accuracy_by_energy", "validity")
    assert names == {
        "report.html",
        "report.md",
        "runs.csv",
        "summary.csv",
        "table.tex",
        *(f"figures/{name}.{kind}" for name in pictures for kind in ("pdf", "png")),
    }
    assert all(path.stat().st_size > 100 for path in written)


def test_the_same_results_give_the_same_bytes(written: list[Path], results: Results) -> None:
    before = {path: path.read_bytes() for path in written}
    folder = written[0].parent
    assert {path: path.read_bytes() for path in write_report(results, folder)} == before


def test_runs_csv_has_every_run_whatever_became_of_it(written: list[Path], folder: Path) -> None:
    table = rows(folder / "runs.csv")
    assert len(table) == 4 * 3 + 1 + 2
    first = table[0]
    measures = [measure.name for measure in MEASURES]
    assert list(first) == [
        "sample_mode",
        "label",
        "seed",
        "status",
        "reason",
        "path",
        *measures,
    ]
    assert first["path"] == "runs/random/seed0"
    assert first["final_accuracy"] == "0.8"
    # 10 rounds of 8 s in which clients trained and 2 s in which they were probed.
    assert first["client_seconds"] == "100.0"
    assert first["probing_share"] == "0.2"
    assert first["rounds_to_target"] == "10.0"
    assert table[2]["rounds_to_target"] == ""  # random, seed 2: not reached
    failed, missing = table[-2:]
    assert (failed["status"], failed["reason"]) == ("failed", SHOWN_REASON)
    assert missing["status"] == "missing"
    assert {failed[name] for name in measures} == {""}


def test_summary_csv_is_what_one_works_out_on_paper(written: list[Path], folder: Path) -> None:
    table = {row["label"]: row for row in rows(folder / "summary.csv")}
    assert list(table) == ["random", "oort", "pow_d", "never", "one seed", "broken"]

    def number(label: str, column: str) -> float:
        return float(table[label][column] or "nan")

    # Final accuracies .8, .8, .7: mean .7667; squared deviations (1 + 1 + 4) / 900, over 2, so the
    # deviation is sqrt(1 / 300); t of 95 % with 2 degrees of freedom is 4.302653.
    deviation = math.sqrt(1 / 300)
    half = 4.302653 * deviation / math.sqrt(3)
    assert number("random", "final_accuracy_mean") == pytest.approx(2.3 / 3)
    assert number("random", "final_accuracy_sd") == pytest.approx(deviation)
    assert number("random", "final_accuracy_low") == pytest.approx(2.3 / 3 - half)
    assert number("random", "final_accuracy_high") == pytest.approx(2.3 / 3 + half)
    # Rounds 10, 10 and never: no mean; the median of 10, 10, infinity is 10.
    assert table["random"]["rounds_to_target_mean"] == ""
    assert number("random", "rounds_to_target_median") == 10
    assert table["random"]["rounds_to_target_not_reached"] == "1"
    assert table["never"]["rounds_to_target_median"] == ""
    assert table["never"]["rounds_to_target_not_reached"] == "3"
    # Oort is ahead by .1, .1 and .2: mean .1333, and the same deviation as above, so t is 4;
    # with 2 degrees of freedom p = 1 - t / sqrt(t^2 + 2).
    p = 1 - 4 / math.sqrt(18)
    assert number("oort", "final_accuracy_difference") == pytest.approx(0.4 / 3)
    assert number("oort", "final_accuracy_difference_low") == pytest.approx(0.4 / 3 - half)
    assert number("oort", "final_accuracy_p") == pytest.approx(p)
    # Where random did not arrive, oort has won, though there is no difference to average.
    assert table["oort"]["rounds_to_target_wins"] == "3"
    assert table["oort"]["rounds_to_target_difference"] == ""
    assert [table["pow_d"][f"final_accuracy_{what}"] for what in ("wins", "losses", "ties")] == [
        "0",
        "0",
        "3",
    ]
    # One seed has a value and no spread; the reference is compared with nothing.
    assert number("one seed", "final_accuracy_mean") == 0.85
    assert table["one seed"]["final_accuracy_sd"] == ""
    assert table["random"]["final_accuracy_wins"] == ""
    broken = table["broken"]
    assert (broken["seeds"], broken["finished"], broken["failed"]) == ("2", "0", "1")
    assert broken["final_accuracy_mean"] == ""


def test_numbers_of_the_machine_are_told_by_their_names(written: list[Path], folder: Path) -> None:
    """So that two reports of the same comparison can be held against each other without them."""
    head = rows(folder / "summary.csv")[0]
    wall = [name for name in head if "select" in name or "wall" in name]
    assert wall and all(name.startswith("wall_") for name in wall)


def test_the_text_table_says_who_did_not_get_there(results: Results) -> None:
    lines = {line.split("  ")[0]: line for line in text_table(results).splitlines()}
    assert "76.67 ± 14.34" in lines["random"]
    assert "median 10.0; not reached in 1 of 3" in lines["random"]
    assert "not reached in 3 of 3" in lines["never"] and "median" not in lines["never"]
    assert "5.0 ± 0.0" in lines["oort"]
    assert " 85.00 " in lines["one seed"]  # a single seed has no ±
    assert len({len(line) for line in lines.values()}) == 1


def test_a_target_that_nobody_reached_is_not_left_out(results: Results) -> None:
    runs = results.variant("never").runs
    text = text_table(results_of("never", runs, ["sample_mode"], None, 0.8))
    assert "rounds to target" in text and "not reached in 3 of 3" in text


def test_what_is_not_known_is_not_called_not_reached(tmp_path: Path, results: Results) -> None:
    runs = []
    for run in results.variant("oort").runs:
        assert run.done is not None
        unknown = {**run.values, "seconds_to_target": math.nan}
        runs.append(replace(run, done=replace(run.done, values=unknown)))
    one = results.variant("random").runs
    text = text_table(results_of("x", [*runs, *one], ["sample_mode"], None, 0.8))
    oort = next(line for line in text.splitlines() if line.startswith("oort"))
    assert "not reached" not in oort and "–" in oort


def test_latex_is_balanced_and_escaped(written: list[Path], folder: Path) -> None:
    text = (folder / "table.tex").read_text()
    assert text.count("{") - text.count("\\{") == text.count("}") - text.count("\\}")
    text = re.sub(  # cells of two lines
        r"\\begin\{tabular\}\[.\]\{@\{\}r@\{\}\}(.*?) \\\\ (.*?)\\end\{tabular\}", r"\1; \2", text
    )
    assert re.findall(r"\\begin\{(\w+)\}", text) == ["table", "tabular"]
    assert re.findall(r"\\end\{(\w+)\}", text) == ["tabular", "table"]
    body = "\n".join(line for line in text.splitlines() if not line.startswith("%"))
    assert not re.search(r"(?<!\\)[_%#]", body)
    assert "pow\\_d" in body
    assert text.isascii()
    table_rows = [line for line in body.splitlines() if line.endswith("\\\\")]
    assert len({row.replace("\\&", "").count("&") for row in table_rows}) == 1
    assert "\\textbf{90.00 $\\pm$ 0.00}" in body  # oort has the best final accuracy
    assert body.count("\\textbf{90.00") == 1
    assert "median 10.0; not reached in 1 of 3" in body
    caption = next(line for line in body.splitlines() if "caption" in line)
    for said in ("seeds 0, 1, 2", "target accuracy 80 \\%", "half of the 95 \\% interval"):
        assert said in caption


@pytest.mark.parametrize("world", [by_hand, under_conditions])
def test_latex_compiles_and_fits_the_page(tmp_path: Path, world: Callable[[Path], Results]) -> None:
    program = shutil.which("pdflatex")
    if program is None:
        pytest.skip("no LaTeX on this machine: install texlive-latex-recommended")
    (tmp_path / "table.tex").write_text(table_tex(world(tmp_path / "runs")))
    (tmp_path / "paper.tex").write_text(
        "\\documentclass{article}\\usepackage{booktabs}"
        "\\begin{document}\\input{table.tex}\\end{document}"
    )
    command = [program, "-interaction=nonstopmode", "-halt-on-error", "paper.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=60, check=False)
    log = done.stdout.decode(errors="replace")
    assert done.returncode == 0, log
    assert (tmp_path / "paper.pdf").stat().st_size > 1000
    assert "Overfull" not in log and "Missing character" not in log


def test_only_what_is_under_the_same_condition_is_compared(tmp_path: Path) -> None:
    results = under_conditions(tmp_path / "runs")
    lines = text_table(results).splitlines()
    assert [line.split("  ")[1 if line.startswith("  ") else 0] for line in lines] == [
        "variant",
        "partition_alpha=0.1",
        "random",
        "oort",
        "partition_alpha=1.0",
        "random",
        "oort",
    ]
    write_report(results, tmp_path)
    markdown = (tmp_path / "report.md").read_text()
    assert "The reference is random with the same partition_alpha." in markdown
    # The best of each condition is bold, not the best of all.
    assert "| random, partition_alpha=0.1 | 2 | **75.00" in markdown
    assert "| oort, partition_alpha=1.0 | 2 | **92.50" in markdown
    assert "| random, partition_alpha=1.0 | 2 | 82.50" in markdown
    # Seed by seed 70 - 80 and 70 - 70, then 90 - 80 and 95 - 85.
    assert "| oort, partition_alpha=0.1 | −5.00 |" in markdown
    assert "| oort, partition_alpha=1.0 | +10.00 |" in markdown


def test_where_width_is_scarce_one_column_says_who_did_not_get_there(tmp_path: Path) -> None:
    (line,) = [
        line for line in text_table(by_hand(tmp_path)).splitlines() if line.startswith("random")
    ]
    assert re.search(r"median 10\.0; not reached in 1 of 3 +median 100 ", line)


def test_nobodys_folders_are_in_a_report(written: list[Path], folder: Path) -> None:
    for path in written:
        if path.suffix in (".html", ".md", ".csv", ".tex"):
            assert "/home/ann" not in path.read_text(), path.name
    assert (
        "| `device_conf_file` | …/device_traces/small.npz |" in (folder / "report.md").read_text()
    )
    assert "data_dir=…/data/mnist" in (folder / "report.html").read_text()


def test_markdown_has_notes_words_seeds_figures_and_settings(
    written: list[Path], folder: Path
) -> None:
    text = (folder / "report.md").read_text()
    assert "broken: failed with seed 0" in text and "broken: missing with seed 1" in text
    assert "| random | 80.00 | 80.00 | 70.00 |" in text
    assert "| random | 10.0 | 10.0 | not reached |" in text
    assert "| broken | failed | missing |  |" in text
    assert "3 seeds are too few to tell" in text and "the same in every seed" in text
    assert "one seed says nothing about another" in text
    assert "![accuracy by round](figures/accuracy_by_round.png)" in text
    assert "| `data_set` | by_hand |" in text


def test_without_a_finished_run_there_is_still_a_report(tmp_path: Path, results: Results) -> None:
    runs = results.variant("broken").runs
    nothing = results_of("nothing", runs, ["sample_mode"], None, None)
    written = write_report(nothing, tmp_path)
    assert {path.name for path in written} >= {"report.html", "runs.csv"}
    assert "0 of 2 runs finished" in (tmp_path / "report.html").read_text()
