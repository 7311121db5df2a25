"""FedSUV, figure 6: who stays a candidate, and who is selected.

Section 6.3: 2,500 clients whose expected validity and utility fill the unit square, the first 100
rounds. `random`, `oort` and FedSUV's other settings play on the same worlds. README.md says what
the paper leaves open and what came out.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedsuv_plugin import named
from fedsuv_plugin.experiments.comparison import Say, run_grid, summarise
from fedsuv_plugin.params import Params, param
from fedsuv_plugin.pictures import picture
from fedsuv_plugin.randomness import stream
from fedsuv_plugin.replays import REPLAYS, Replay, Report, Table
from fedsuv_plugin.replays.bandit_world import Play, World, play

BANDS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
LOW_VALIDITY = 0.4  # the paper: clients below it take part in "approximately 30 rounds"
PAPER_ROUNDS = 30
UNINFORMATIVE = 4  # columns of the context that tell nothing


@dataclass(frozen=True, kw_only=True)
class Fig6Params(Params):
    seeds: int = param(5, "worlds; each has its own luck and its own uninformative features", low=1)
    rounds: int = param(100, "rounds of selection", low=1)
    side: int = param(50, "clients along each axis of the grid", low=2)
    k: int = param(20, "clients selected a round", low=1)
    noise: float = param(0.1, "standard deviation of an observed utility", low=0)
    settings: str = param(
        "all",
        "all: every invalid_utility and rank; default: the paper's only",
        choices=("all", "default"),
    )
    workers: int | None = param(None, "processes; none: one per core", low=1)


@dataclass(frozen=True)
class Case:
    """One selector with one setting on one world."""

    selector: str
    setting: tuple[tuple[str, str], ...]
    seed: int
    params: Fig6Params

    @property
    def label(self) -> str:
        return " ".join([self.selector, *(f"{key}={value}" for key, value in self.setting)])


def make_world(params: Fig6Params, seed: int) -> World:
    """Cell centres of a side x side grid on the unit square."""
    axis = (np.arange(params.side) + 0.5) / params.side
    validity, utility = (grid.ravel() for grid in np.meshgrid(axis, axis, indexing="ij"))
    rest = stream(seed, "fig6 features").random((len(validity), UNINFORMATIVE))
    return World(validity, utility, np.column_stack([validity, utility, rest]), params.noise)


def play_case(case: Case) -> Play:
    selector = named.selector_class(case.selector)
    assert selector is not None  # all methods here are selectors of this package
    settings = selector.Params.from_mapping(dict(case.setting))
    world = make_world(case.params, case.seed)
    return play(world, selector, settings, case.params.rounds, case.params.k, case.seed)


def cases(params: Fig6Params) -> list[Case]:
    settings: list[tuple[tuple[str, str], ...]] = [()]
    if params.settings == "all":
        settings += [
            (("invalid_utility", "mean"),),
            (("invalid_utility", "unseen"),),
            (("rank", "product"),),
        ]
    methods = [("fedsuv", setting) for setting in settings] + [("oort", ()), ("random", ())]
    return [
        Case(name, setting, seed, params)
        for name, setting in methods
        for seed in range(params.seeds)
    ]


@REPLAYS.add("fedsuv/fig6")
class Fig6(Replay):
    name = "fedsuv/fig6"
    shows = (
        "FedSUV on 2,500 simulated clients: rounds as candidate and times selected, "
        "by validity and utility"
    )
    Params = Fig6Params

    def run(self, folder: Path, say: Say) -> Report:
        plays = run_grid(play_case, cases(self.params), self.params.workers, say)
        plot_maps(folder / "fig6.png", list(plays["fedsuv"].values()), self.params)
        # Validity and utility are the same in all worlds: the grid.
        return report(plays, make_world(self.params, 0), self.params)


def report(plays: dict[str, dict[int, Play]], world: World, params: Fig6Params) -> Report:
    per_seed = summarise(plays, lambda result: summary(result, world, params))
    fedsuv = list(plays["fedsuv"].values())
    candidate = np.mean([p.candidate for p in fedsuv], axis=0)
    selected = np.mean([p.selected for p in fedsuv], axis=0)
    tables = [
        methods_table(per_seed, params),
        bands("Rounds as candidate", candidate, world),
        bands("Times selected", selected, world),
    ]
    low = _mean(per_seed["fedsuv"], "low_validity_candidate_rounds")
    note = (
        f"The paper reads that clients with validity below {LOW_VALIDITY} take part in about "
        f"{PAPER_ROUNDS} of 100 rounds; here they are candidates in {low:.1f} of {params.rounds}."
    )
    given = {key: getattr(params, key) for key in Fig6Params.__annotations__}
    return Report(tables, [note], ["fig6.png"], {"params": given, "methods": per_seed})


def methods_table(per_seed: dict[str, dict[int, dict[str, Any]]], params: Fig6Params) -> Table:
    rows = []
    for label, by_seed in per_seed.items():
        low = _mean(by_seed, "low_validity_candidate_rounds")
        rows.append(
            [
                label,
                f"{_mean(by_seed, 'value_per_pick'):.3f}",
                f"{_mean(by_seed, 'share_of_best'):.3f}",
                *(f"{result['value_per_pick']:.3f}" for result in by_seed.values()),
                # The others keep no pool of candidates.
                f"{low:.1f}" if label.startswith("fedsuv") else "-",
            ]
        )
    head = [
        "method",
        "value/pick",
        "share of the best fixed cohort",
        *(f"seed {seed}" for seed in range(params.seeds)),
        f"rounds as candidate, validity < {LOW_VALIDITY}",
    ]
    title = (
        f"Value per pick (validity x utility, expectations) over {params.rounds} rounds, "
        f"mean of {params.seeds} worlds"
    )
    return Table(title, head, rows)


def summary(result: Play, world: World, params: Fig6Params) -> dict[str, Any]:
    """What a selector earned, and how long it considered clients that seldom make the deadline."""
    best = np.sort(world.validity * world.utility)[-params.k :].sum()
    low = world.validity < LOW_VALIDITY
    return {
        "value_per_pick": float(result.value.sum() / result.selected.sum()),
        "share_of_best": float(result.value.sum() / (best * params.rounds)),
        "low_validity_candidate_rounds": float(result.candidate[low].mean()),
    }


def _mean(rows: dict[int, dict[str, Any]], key: str) -> float:
    return float(np.mean([row[key] for row in rows.values()]))


def bands(what: str, values: np.ndarray, world: World) -> Table:
    """Means over a coarse grid: rows are utility bands, highest first, columns validity bands."""
    edges = list(zip(BANDS[:-1], BANDS[1:], strict=True))

    def cell(low_v: float, high_v: float, low_u: float, high_u: float) -> str:
        in_column = (world.validity >= low_v) & (world.validity < high_v)
        in_row = (world.utility >= low_u) & (world.utility < high_u)
        inside = in_column & in_row
        return f"{values[inside].mean():.2f}" if inside.any() else "-"

    return Table(
        f"{what} (fedsuv, mean of clients and worlds)",
        ["utility \\ validity", *(f"{a:.1f}-{b:.1f}" for a, b in edges)],
        [[f"{a:.1f}-{b:.1f}", *(cell(*v, a, b) for v in edges)] for a, b in reversed(edges)],
    )


def plot_maps(path: Path, plays: list[Play], params: Fig6Params) -> None:
    """Both heat maps of the figure, means over the worlds."""
    from matplotlib.colors import PowerNorm

    titles = {"candidate": "(a) rounds as candidate", "selected": "(b) times selected"}
    with picture(path, 2, (12, 5.2)) as (figure, axes):
        figure.suptitle(
            f"FedSUV, {params.side**2:,} clients, {params.rounds} rounds, {params.k} a round, "
            f"mean of {len(plays)} worlds"
        )
        for ax, (key, title) in zip(axes, titles.items(), strict=True):
            mean = np.mean([getattr(p, key) for p in plays], axis=0)
            grid = mean.reshape(params.side, params.side)  # rows: validity, columns: utility
            # A few clients are selected often. Colours go by the square root, so that the others
            # are still seen to differ.
            norm = PowerNorm(0.5, vmin=0) if key == "selected" else None
            unit_square = (0, 1, 0, 1)
            image = ax.imshow(grid.T, origin="lower", extent=unit_square, cmap="viridis", norm=norm)
            ax.set(title=title, xlabel="expected validity", ylabel="expected utility")
            figure.colorbar(image, ax=ax, shrink=0.9, label=title.partition(") ")[2])
