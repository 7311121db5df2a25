"""A population in numbers: quantiles and hours online, by themselves or beside real samples."""

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
HOUR = 3600.0
DAY = 86_400.0
Distribution = tuple[str, np.ndarray]  # what was measured, and the values


def measures(population: Population) -> list[Distribution]:
    """The values of each column that the population has."""
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
    """Share of clients online in each hour of the trace's day, (24,).

    It is exact: the overlap of every interval with every hour is added up. It is NaN for an hour
    that no client's trace lasts long enough to reach."""
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
    """A table with a line of quantiles for each distribution."""
    rows = [
        [what, *(short_number(q) for q in np.percentile(values, QUANTILES))]
        for what, values in named
        if len(values)
    ]
    return columns(["", *(f"{q} %" for q in QUANTILES)], rows)


# ---- beside real samples


def comparison(population: Population, folder: str | Path) -> str:
    """Markdown tables of the population beside the real samples in `folder`.

    device_traces/README.md lists the files that belong there."""
    real = Path(folder).expanduser()
    trace = read(real / "client_behave_trace").users
    if trace is None or population.availability is None:
        raise UserError(
            f"{real}: expected a population with availability and real users to compare it with"
        )
    phones = real_latencies(real)
    tests = real_tests(real)
    rows = [
        _line("ms per sample", f"{len(phones)} phones", phones),
        _line("", "generated", population.ms_per_sample),
        _line("kbit/s down", "19 FLASH devices", real_speeds(real, "down_u")),
        _line("", f"{len(tests)} MobiPerf tests", tests),
        _line("", "generated", population.kbps_down),
        _line("kbit/s up", "19 FLASH devices", real_speeds(real, "up_u")),
        _line("", "generated", population.kbps_up),
    ]
    both = zip(habits(trace.availability), habits(population.availability), strict=True)
    for (what, theirs), (_, ours) in both:
        rows.append(_line(what, f"{len(trace)} users", theirs))
        rows.append(_line("", "generated", ours))
    quantiles = markdown(["what", "sample", *(f"{q} %" for q in QUANTILES)], rows)
    hours = markdown(
        ["% online in hour", *map(str, range(24))],
        [
            _hours("real", trace.availability),
            _hours("generated", population.availability),
        ],
    )
    return f"{quantiles}\n\n{hours}"


def _line(what: str, sample: str, values: np.ndarray) -> list[str]:
    return [what, sample, *(short_number(q) for q in np.percentile(values, QUANTILES))]


def _hours(sample: str, availability: Availability) -> list[str]:
    return [sample, *(f"{100 * share:.1f}" for share in online_by_hour(availability))]


def real_latencies(folder: Path) -> np.ndarray:
    """Milliseconds of one ResNet inference on real phones; a 0 is a missing measurement."""
    rows = _json(folder / "flhetbench_training_latency.json")
    values = np.array([row["ResNet Latency"] for row in rows], float)
    return values[values > 0]


def real_speeds(folder: Path, field: str) -> np.ndarray:
    """Mean speed of each FLASH device, taken as kbit/s."""
    devices = _json(folder / "flash_speed_distri.json").values()
    return np.array([device[field] for device in devices], float)


def real_tests(folder: Path) -> np.ndarray:
    """Mean of each MobiPerf TCP test, taken as kbit/s."""
    tests = _json(folder / "mobiperf_tcp_sample.json")
    return np.array([np.mean(test["tcp_speed_results"]) for test in tests])


def _json(path: Path) -> Any:
    if not path.is_file():
        raise UserError(
            f"no such file: {path}; "
            f"expected the folder of real samples that device_traces/README.md lists"
        )
    return json.loads(path.read_text(encoding="utf-8"))
