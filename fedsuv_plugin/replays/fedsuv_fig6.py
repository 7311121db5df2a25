"""FedSUV, figure 6: who stays a candidate, and who is selected.

Section 6.3: 2,500 clients whose expected validity and utility fill the unit square, the first 100 rounds. The paper
gives neither cohort size, features nor noise. Here: a 50 x 50 grid, K = 20, context = validity, utility and four
columns that tell nothing, Bernoulli validity, utility noise 0.1. Beside it `random` and `oort` on the same world, and
FedSUV's other settings.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedsuv_plugin import named
from fedsuv_plugin.params import Params, param
from fedsuv_plugin.pictures import picture
from fedsuv_plugin.randomness import stream
from fedsuv_plugin.replays import REPLAYS, Replay, Report, Say, Table, parallel
from fedsuv_plugin.replays.bandit_world import Play, World, play

BANDS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
LOW_VALIDITY = 0.4  # of which the paper says "approximately 30 rounds"
PAPER_ROUNDS = 30
UNINFORMATIVE = 4


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
    selector = named.client_manager_class(case.selector).selector_class  # type: ignore[attr-defined]
    return play(
        make_world(case.params, case.seed),
        selector,
        selector.Params.from_mapping(dict(case.setting)),
        case.params.rounds,
        case.params.k,
        case.seed,
    )


def cases(params: Fig6Params) -> list[Case]:
    settings: list[tuple[tuple[str, str], ...]] = [()]
    if params.settings == "all":
        settings += [
            (("invalid_utility", "zero"),),
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
    shows = "FedSUV on 2,500 simulated clients: rounds as candidate and times selected, by validity and utility"
    Params = Fig6Params

    def run(self, folder: Path, say: Say) -> Report:
        plays: dict[str, dict[int, Play]] = {}
        todo = cases(self.params)
        for done, (case, result) in enumerate(
            parallel(play_case, todo, self.params.workers), start=1
        ):
            plays.setdefault(case.label, {})[case.seed] = result
            say(f"{done}/{len(todo)}  {case.label}, seed {case.seed}")
        plays = {label: plays[label] for label in dict.fromkeys(case.label for case in todo)}
        world = make_world(self.params, 0)
        draw(folder / "fig6.png", list(plays["fedsuv"].values()), self.params)
        return report(plays, world, self.params)


def report(plays: dict[str, dict[int, Play]], world: World, params: Fig6Params) -> Report:
    per_seed = {
        label: {seed: summary(p, world, params) for seed, p in sorted(by_seed.items())}
        for label, by_seed in plays.items()
    }
    fedsuv = list(plays["fedsuv"].values())
    methods = Table(
        f"Value per pick (validity x utility, expectations) over {params.rounds} rounds, mean of {params.seeds} worlds",
        [
            "method",
            "value/pick",
            "share of the best fixed cohort",
            *(f"seed {s}" for s in range(params.seeds)),
            f"rounds as candidate, validity < {LOW_VALIDITY}",
        ],
        [
            [
                label,
                f"{_mean(rows, 'value_per_pick'):.3f}",
                f"{_mean(rows, 'share_of_best'):.3f}",
                *(f"{row['value_per_pick']:.3f}" for row in rows.values()),
                f"{_mean(rows, 'low_validity_candidate_rounds'):.1f}"
                if label.startswith("fedsuv")
                else "-",
            ]
            for label, rows in per_seed.items()
        ],
    )
    tables = [
        methods,
        *(
            bands(what, np.mean([getattr(p, key) for p in fedsuv], axis=0), world)
            for what, key in (("Rounds as candidate", "candidate"), ("Times selected", "selected"))
        ),
    ]
    low = _mean(per_seed["fedsuv"], "low_validity_candidate_rounds")
    note = (
        f"The paper reads that clients with validity below {LOW_VALIDITY} take part in about {PAPER_ROUNDS} of 100 "
        f"rounds; here they are candidates in {low:.1f} of {params.rounds}."
    )
    return Report(
        tables,
        [note],
        ["fig6.png"],
        {
            "params": {k: getattr(params, k) for k in Fig6Params.__annotations__},
            "methods": per_seed,
        },
    )


def summary(result: Play, world: World, params: Fig6Params) -> dict[str, Any]:
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
        inside = (
            (world.validity >= low_v)
            & (world.validity < high_v)
            & (world.utility >= low_u)
            & (world.utility < high_u)
        )
        return f"{values[inside].mean():.2f}" if inside.any() else "-"

    return Table(
        f"{what} (fedsuv, mean of clients and worlds)",
        ["utility \\ validity", *(f"{a:.1f}-{b:.1f}" for a, b in edges)],
        [[f"{a:.1f}-{b:.1f}", *(cell(*v, a, b) for v in edges)] for a, b in reversed(edges)],
    )


def draw(path: Path, plays: list[Play], params: Fig6Params) -> None:
    """Both heat maps of the figure, means over the worlds."""
    from matplotlib.colors import PowerNorm

    titles = {"candidate": "(a) rounds as candidate", "selected": "(b) times selected"}
    with picture(path, 2, (12, 5.2)) as (figure, axes):
        figure.suptitle(
            f"FedSUV, {params.side**2:,} clients, {params.rounds} rounds, {params.k} a round, "
            f"mean of {len(plays)} worlds"
        )
        for ax, (key, title) in zip(axes, titles.items(), strict=True):
            grid = np.mean([getattr(p, key) for p in plays], axis=0).reshape(
                params.side, params.side
            )
            # by the square root: a few clients are selected often, and the others should still be seen to differ
            norm = PowerNorm(0.5, vmin=0) if key == "selected" else None
            image = ax.imshow(
                grid.T, origin="lower", extent=(0, 1, 0, 1), cmap="viridis", norm=norm
            )
            ax.set(title=title, xlabel="expected validity", ylabel="expected utility")
            figure.colorbar(image, ax=ax, shrink=0.9)
