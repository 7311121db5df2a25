"""A population in numbers: quantiles, who is online at which hour, and the same beside real samples."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedsuv_plugin.errors import UserError
from fedsuv_plugin.tables import columns, markdown, short_number
from fedsuv_plugin.traces.availability import Availability
from fedsuv_plugin.traces.files import read
from fedsuv_plugin.traces.population import COLUMNS, Population

QUANTILES = (5, 25, 50, 75, 95)
HOUR, DAY = 3600.0, 86_400.0
Distribution = tuple[str, np.ndarray]  # what it is, and the values


def measures(population: Population) -> list[Distribution]:
    """The columns that a population has."""
    known = population.columns
    return [(column.meaning, known[column.name]) for column in COLUMNS if column.name in known]


def habits(availability: Availability) -> list[Distribution]:
    """How often and how long clients are online."""
    seconds = availability.ends - availability.starts
    owners = np.repeat(np.arange(len(availability)), availability.lengths)
    online = np.bincount(owners, seconds, len(availability))
    return [
        ("sessions per client and day", availability.lengths / (availability.periods / DAY)),
        ("session length (s)", seconds),
        ("share of its time a client is online", online / availability.periods),
    ]


def online_by_hour(availability: Availability) -> np.ndarray:
    """Share of clients online in each hour of the trace's day, (24,); exact, by overlap of intervals with hours.

    NaN for an hour that no client's trace lasts long enough to have."""
    owners = np.repeat(np.arange(len(availability)), availability.lengths)
    shares = []
    for hour in range(24):
        online = _within(hour, availability.ends) - _within(hour, availability.starts)
        possible = _within(hour, availability.periods)
        seconds = np.bincount(owners, online, len(availability))
        has = possible > 0
        shares.append(float(np.mean(seconds[has] / possible[has])) if has.any() else np.nan)
    return np.array(shares)


def _within(hour: int, time: np.ndarray) -> np.ndarray:
    """Seconds of [0, time] that lie in this hour of the day."""
    return np.floor(time / DAY) * HOUR + np.clip(np.mod(time, DAY) - hour * HOUR, 0.0, HOUR)


def quantile_table(named: Sequence[Distribution]) -> str:
    rows = [
        [what, *(short_number(q) for q in np.percentile(values, QUANTILES))]
        for what, values in named
        if len(values)
    ]
    return columns(["", *(f"{q} %" for q in QUANTILES)], rows)


# ---- beside real samples


def comparison(population: Population, folder: str | Path) -> str:
    """Markdown tables of the population beside the real samples in `folder` (README.md says which files)."""
    real = Path(folder).expanduser()
    trace = read(real / "client_behave_trace").users
    if trace is None or population.availability is None:
        raise UserError(
            f"{real}: expected a population with availability and real users to compare it with"
        )
    phones, tests = real_latencies(real), real_tests(real)
    rows = [
        _line("ms per sample", f"{len(phones)} phones", phones),
        _line("", "generated", population.ms_per_sample),
        _line("kbit/s down", "19 FLASH devices", real_speeds(real, "down_u")),
        _line("", f"{len(tests)} MobiPerf tests", tests),
        _line("", "generated", population.kbps_down),
        _line("kbit/s up", "19 FLASH devices", real_speeds(real, "up_u")),
        _line("", "generated", population.kbps_up),
    ]
    for (what, values), (_, ours) in zip(
        habits(trace.availability), habits(population.availability), strict=True
    ):
        rows += [_line(what, f"{len(trace)} users", values), _line("", "generated", ours)]
    hours = [
        ("real", online_by_hour(trace.availability)),
        ("generated", online_by_hour(population.availability)),
    ]
    return (
        markdown(["what", "sample", *(f"{q} %" for q in QUANTILES)], rows)
        + "\n\n"
        + markdown(
            ["% online in hour", *map(str, range(24))],
            [[name, *(f"{100 * share:.1f}" for share in shares)] for name, shares in hours],
        )
    )


def _line(what: str, sample: str, values: np.ndarray) -> list[str]:
    return [what, sample, *(short_number(q) for q in np.percentile(values, QUANTILES))]


def real_latencies(folder: Path) -> np.ndarray:
    """ms of one ResNet inference on real phones; rows of 0 are missing measurements."""
    values = np.array(
        [row["ResNet Latency"] for row in _json(folder / "flhetbench_training_latency.json")], float
    )
    return values[values > 0]


def real_speeds(folder: Path, field: str) -> np.ndarray:
    """Mean speed of each FLASH device, taken as kbit/s."""
    return np.array(
        [device[field] for device in _json(folder / "flash_speed_distri.json").values()], float
    )


def real_tests(folder: Path) -> np.ndarray:
    """Mean of each MobiPerf TCP test, taken as kbit/s."""
    return np.array(
        [np.mean(test["tcp_speed_results"]) for test in _json(folder / "mobiperf_tcp_sample.json")]
    )


def _json(path: Path) -> Any:
    if not path.is_file():
        raise UserError(
            f"no such file: {path}; expected the folder of real samples that device_traces/README.md lists"
        )
    return json.loads(path.read_text(encoding="utf-8"))
