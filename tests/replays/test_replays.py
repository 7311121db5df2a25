"""Replays: the mechanism, the worlds they play in, and each of them at a small size."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT

from fedsuv_plugin.cli import main
from fedsuv_plugin.replays import REPLAYS, Report, Table
from fedsuv_plugin.replays.bandit_world import World, play
from fedsuv_plugin.replays.fedsuv_fig6 import Fig6Params, bands, make_world
from fedsuv_plugin.selectors.base import RoundOutcome, RoundView, Selector
from fedsuv_plugin.selectors.baselines.random import Random


def png_size(path: Path) -> tuple[int, int]:
    head = path.read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    return int.from_bytes(head[16:20], "big"), int.from_bytes(head[20:24], "big")


def replay(name: str, folder: Path, *assignments: str) -> int:
    """The command, with parameters of the replay as key=value."""
    sets = [word for assignment in assignments for word in ("--set", assignment)]
    return main(["replay", name, "-o", str(folder), *sets])


# ---- the mechanism


def test_a_report_is_written_whole(tmp_path: Path) -> None:
    report = Report([Table("T", ["a", "b"], [["x", "1"]])], ["note"], ["p.png"], {"n": 1})
    report.save(tmp_path, "title")
    assert (tmp_path / "report.md").read_text() == (
        "# title\n\n## T\n\n| a | b |\n| --- | --- |\n| x | 1 |\n\nnote\n\n![p.png](p.png)\n"
    )
    assert json.loads((tmp_path / "results.json").read_text()) == {"n": 1}
    assert report.text() == "T\na  b\nx  1\n\nnote"


def test_the_command_lists_refuses_and_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay"]) == 0
    listed = capsys.readouterr().out
    for name in REPLAYS.names():
        assert f"{name}: {REPLAYS[name].shows}" in listed
        assert REPLAYS[name].name == name
    assert main(["replay", "fedsuv/fig7"]) == 2
    assert capsys.readouterr().err.startswith(
        "fedsuv: replay: expected one of fedsuv/deadline, fedsuv/fig6"
    )
    assert main(["replay", "fedsuv/fig6", "--set", "seed=1"]) == 2
    assert "unknown key 'seed'; did you mean 'seeds'?" in capsys.readouterr().err


def test_listing_imports_nothing_heavy() -> None:
    """The list is printed at once; torch, FedScale and matplotlib take seconds to import."""
    program = (
        "import sys; from fedsuv_plugin.cli import main; main(['replay']); "
        "print([m for m in ('torch', 'matplotlib', 'fedscale') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


# ---- the world


class Fixed(Selector):
    """Always the same rows; keeps what it is told."""

    name, paper = "fixed", "this test"
    rows = np.array([3, 1])

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self.told: list[RoundOutcome] = []

    def select(self, view: RoundView, k: int) -> np.ndarray:
        return self.rows

    def update(self, outcome: RoundOutcome) -> None:
        self.told.append(outcome)


def test_the_world_pays_what_it_says() -> None:
    world = World(
        np.array([0.0, 1.0, 0.5, 0.25]), np.array([0.1, 0.2, 0.3, 0.8]), np.zeros((4, 1)), noise=0.0
    )
    told: list[RoundOutcome] = []

    class Told(Fixed):
        def update(self, outcome: RoundOutcome) -> None:
            told.append(outcome)

    result = play(world, Told, Told.Params(), rounds=400, k=2, seed=0)
    assert result.selected.tolist() == [0, 400, 0, 400]
    assert result.candidate.tolist() == [400] * 4
    expected_value = 0.25 * 0.8 + 0.2  # validity x utility of the two, whatever befell them
    assert result.value.tolist() == pytest.approx([expected_value] * 400)
    valid = np.array([o.valid for o in told])
    assert valid[:, 1].all()
    # Binomial(400, 0.25): mean 100, five standard deviations are 43
    assert abs(int(valid[:, 0].sum()) - 100) < 43
    assert all(o.utility[1] == pytest.approx(0.2) for o in told)
    assert all(o.utility[0] == (pytest.approx(0.8) if o.valid[0] else 0.0) for o in told)


def test_selectors_meet_the_same_luck() -> None:
    """What befalls a client in a round does not depend on who else was asked."""
    world = make_world(Fig6Params(side=10), 1)
    seen: dict[str, dict[tuple[int, int], float]] = {"a": {}, "b": {}}

    def noted(name: str, picked: np.ndarray) -> type[Selector]:
        class Noted(Fixed):
            rows = picked

            def update(self, outcome: RoundOutcome) -> None:
                for row, value in zip(outcome.rows.tolist(), outcome.utility.tolist(), strict=True):
                    seen[name][outcome.round, row] = value

        return Noted

    for name, rows in (("a", np.array([95, 97, 99])), ("b", np.array([99, 3]))):
        selector = noted(name, rows)
        play(world, selector, selector.Params(), rounds=30, k=3, seed=5)
    common = seen["a"].keys() & seen["b"].keys()
    assert len(common) == 30
    assert all(seen["a"][key] == seen["b"][key] for key in common)


def test_random_earns_the_average() -> None:
    # The grid's mean of validity x utility is 1/4. Its standard deviation is 0.22, so the mean of
    # 2,000 picks has a standard error of 0.005.
    world = make_world(Fig6Params(side=20), 0)
    result = play(world, Random, Random.Params(), rounds=100, k=20, seed=0)
    assert result.value.sum() / 2000 == pytest.approx(0.25, abs=0.025)


def test_bands_are_means_over_cells() -> None:
    world = make_world(Fig6Params(side=10), 0)
    table = bands("x", world.validity, world)
    assert table.rows[0] == ["0.8-1.0", "0.10", "0.30", "0.50", "0.70", "0.90"]
    assert bands("x", world.utility, world).rows[0][1:] == ["0.90"] * 5


# ---- FedSUV


def test_figure_6_at_a_small_size(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """400 clients, 60 rounds of 10: the orderings of the figure, not its numbers."""
    given = ["side=20", "rounds=60", "k=10", "seeds=2", "settings=default", "workers=1"]
    assert replay("fedsuv/fig6", tmp_path, *given) == 0
    assert "report: " in capsys.readouterr().out
    found = json.loads((tmp_path / "results.json").read_text())["methods"]
    mean = {
        name: np.mean([row["value_per_pick"] for row in rows.values()])
        for name, rows in found.items()
    }
    assert mean["fedsuv"] > mean["random"] + 0.1
    assert mean["fedsuv"] > mean["oort"]
    # At most 40 % are eliminated, which is about as many as have a validity below 0.4: they are out
    # for most of the 60 rounds.
    assert np.mean([row["low_validity_candidate_rounds"] for row in found["fedsuv"].values()]) < 36
    width, height = png_size(tmp_path / "fig6.png")
    assert width > 1000
    assert height > 400


def test_the_deadline_comparison_runs_real_jobs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The mechanism, on a job without downloads; the comparison itself is a matter of minutes."""
    quickstart = ROOT / "configs" / "quickstart.yml"
    given = [f"config={quickstart}", "seeds=1", "rounds=6", "target=0.3", "workers=1"]
    assert replay("fedsuv/deadline", tmp_path, *given) == 0
    out = capsys.readouterr().out
    found = json.loads((tmp_path / "results.json").read_text())
    assert set(found) == {"fedsuv", "oort", "random"}
    assert [point[0] for point in found["random"]["0"]["curve"]] == [0, 5, 6]
    assert f"{found['fedsuv']['0']['accuracy']:.4f}" in out
    assert png_size(tmp_path / "deadline.png")[0] > 600
    kept = tmp_path / "runs"
    assert len((kept / "random" / "seed0" / "rounds.jsonl").read_text().splitlines()) == 6
    assert replay("fedsuv/deadline", tmp_path, *given) == 0
    assert f"3 of 3 runs are already in {kept}" in capsys.readouterr().err
    assert json.loads((tmp_path / "results.json").read_text()) == found
