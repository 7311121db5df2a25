"""The CSV catalogues in device_traces/ from which populations are built."""

from __future__ import annotations

import csv
import math
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedsuv_plugin.errors import UserError

# Beside the package, in the repository.
DEFAULT_FOLDER = Path(__file__).resolve().parents[2] / "device_traces"
_CLUSTER = re.compile(r"(\d+)x(\w+)@(\d+(?:\.\d+)?)")  # 4xA76@2.84: four A76 cores at 2.84 GHz


@dataclass(frozen=True)
class Phones:
    """One entry per SoC, (s,) each."""

    names: tuple[str, ...]
    probability: np.ndarray
    ms_per_sample: np.ndarray
    cpu_gflops: np.ndarray
    cores: np.ndarray
    memory_gb: np.ndarray  # (s, longest) choices, filled up with NaN
    gpu_gflops: np.ndarray
    gpus: np.ndarray
    compute_w: np.ndarray


@dataclass(frozen=True)
class Networks:
    """One entry per kind of network, (w,) each."""

    probability: np.ndarray
    kbps_down: np.ndarray  # median
    spread: np.ndarray  # log-normal sigma
    up_share: np.ndarray  # median of up / down
    up_spread: np.ndarray
    radio_w: np.ndarray


@dataclass(frozen=True)
class Sessions:
    """How users charge: k kinds of session, the hour at which charging starts, z time zones."""

    probability: np.ndarray  # (k,) of each kind
    seconds: np.ndarray  # (k,) median
    spread: np.ndarray  # (k,) log-normal sigma within a user
    own_spread: np.ndarray  # (k,) log-normal sigma between users
    hour_probability: np.ndarray  # (24,) of local time
    zone_hours: np.ndarray  # (z,) local time minus the trace's clock
    zone_probability: np.ndarray  # (z,)


@dataclass(frozen=True)
class Catalogues:
    """All that a population is sampled from; `parameters` are single numbers by name."""

    phones: Phones
    networks: Networks
    sessions: Sessions
    parameters: dict[str, float]


def load_catalogues(folder: str | Path | None = None) -> Catalogues:
    """The catalogues in `folder`, or those of the repository this package runs from."""
    place = DEFAULT_FOLDER if folder is None else Path(folder).expanduser()
    if not (place / "phones.csv").is_file():
        raise UserError(
            f"{place}: no catalogues (phones.csv, ...) here; name the folder device_traces of the "
            f"repository with --catalogues"
        )
    return Catalogues(_phones(place), _networks(place), _sessions(place), _parameters(place))


class _Table:
    """A CSV file with the expected columns; errors name file, line and column."""

    def __init__(self, path: Path, columns: tuple[str, ...]):
        self.path = path
        try:
            with path.open(newline="", encoding="utf-8") as f:
                self.rows = list(csv.DictReader(f))
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise UserError(f"{path}: cannot be read as CSV ({error})") from None
        found = tuple(self.rows[0]) if self.rows else ()
        if found != columns:
            raise UserError(
                f"{path}: expected rows under {','.join(columns)}, "
                f"got {','.join(map(str, found)) or 'none'}"
            )

    def text(self, column: str) -> list[str]:
        return [row[column] or "" for row in self.rows]

    def numbers(self, column: str, low: float = -math.inf) -> np.ndarray:
        """A column of finite numbers that are at least `low`."""
        texts = self.text(column)
        return np.array([self.number(line, column, text, low) for line, text in enumerate(texts)])

    def number(self, line: int, column: str, text: str, low: float = -math.inf) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value) or value < low:
            bound = "" if low == -math.inf else f" >= {low:g}"
            raise self.error(line, column, f"a number{bound}", text)
        return value

    def probability(self, column: str = "weight") -> np.ndarray:
        """A column of weights, divided by their sum."""
        weights = self.numbers(column, low=0.0)
        if not weights.sum() > 0:
            raise UserError(f"{self.path}: {column}: expected a weight > 0 in some row")
        return weights / weights.sum()

    def error(self, line: int, column: str, expected: str, got: str) -> UserError:
        return UserError(
            f"{self.path}: line {line + 2}: {column}: expected {expected}, got {got!r}"
        )


def _phones(folder: Path) -> Phones:
    columns = "soc phone year cpu memory_gb gpu gpu_gflops gpus ms_per_sample compute_w weight"
    table = _Table(folder / "phones.csv", tuple(columns.split()))
    clusters = _clusters(table, folder)
    names = zip(table.text("phone"), table.text("soc"), strict=True)
    gflops = [sum(count * flops * ghz for count, flops, ghz in phone) for phone in clusters]
    cores = [sum(count for count, _, _ in phone) for phone in clusters]
    return Phones(
        names=tuple(f"{phone} ({soc})" for phone, soc in names),
        probability=table.probability(),
        ms_per_sample=table.numbers("ms_per_sample", 1e-9),
        cpu_gflops=np.array(gflops),
        cores=np.array(cores, float),
        memory_gb=_memory(table),
        gpu_gflops=table.numbers("gpu_gflops", 0.0),
        gpus=table.numbers("gpus", 0.0),
        compute_w=table.numbers("compute_w", 0.0),
    )


def _clusters(phones: _Table, folder: Path) -> list[list[tuple[int, float, float]]]:
    """(cores, FLOPs per cycle of each, GHz) of every cluster of every phone."""
    cores = _Table(folder / "cores.csv", ("core", "flops_per_cycle"))
    per_cycle = cores.numbers("flops_per_cycle", 1.0).tolist()
    flops = dict(zip(cores.text("core"), per_cycle, strict=True))
    found = []
    for line, text in enumerate(phones.text("cpu")):
        matches = [_CLUSTER.fullmatch(part) for part in text.split("+")]
        if not all(match and match[2] in flops for match in matches):
            raise phones.error(
                line, "cpu", "clusters like 4xA76@2.84+4xA55@1.8 of cores in cores.csv", text
            )
        found.append([(int(m[1]), flops[m[2]], float(m[3])) for m in matches if m])
    return found


def _memory(phones: _Table) -> np.ndarray:
    """The sizes of memory that each phone is sold with, (s, longest), filled up with NaN."""
    choices = [
        [phones.number(line, "memory_gb", size, 0.1) for size in text.split("/")]
        for line, text in enumerate(phones.text("memory_gb"))
    ]
    longest = max(map(len, choices))
    return np.array([sizes + [math.nan] * (longest - len(sizes)) for sizes in choices])


def _networks(folder: Path) -> Networks:
    table = _Table(
        folder / "networks.csv",
        ("network", "weight", "kbps_down", "spread", "up_share", "up_spread", "radio_w"),
    )
    return Networks(
        probability=table.probability(),
        kbps_down=table.numbers("kbps_down", 1e-9),
        spread=table.numbers("spread", 0.0),
        up_share=table.numbers("up_share", 1e-9),
        up_spread=table.numbers("up_spread", 0.0),
        radio_w=table.numbers("radio_w", 0.0),
    )


def _sessions(folder: Path) -> Sessions:
    kinds = _Table(folder / "sessions.csv", ("kind", "weight", "seconds", "spread", "own_spread"))
    hours = _Table(folder / "hours.csv", ("hour", "weight"))
    zones = _Table(folder / "zones.csv", ("zone", "hours", "weight"))
    if len(hours.rows) != 24:
        raise UserError(f"{hours.path}: expected 24 rows, one an hour, got {len(hours.rows)}")
    return Sessions(
        probability=kinds.probability(),
        seconds=kinds.numbers("seconds", 1.0),
        spread=kinds.numbers("spread", 0.0),
        own_spread=kinds.numbers("own_spread", 0.0),
        hour_probability=hours.probability(),
        zone_hours=zones.numbers("hours"),
        zone_probability=zones.probability(),
    )


def _parameters(folder: Path) -> dict[str, float]:
    table = _Table(folder / "parameters.csv", ("name", "value", "meaning"))
    found = dict(zip(table.text("name"), table.numbers("value", 0.0).tolist(), strict=True))
    needed = {
        "days",
        "sessions_per_day",
        "sessions_per_plug",
        "gap_seconds",
        "gap_spread",
        "longest_session",
        "latency_spread",
        "power_spread",
        "square_metres",
    }
    if found.keys() != needed:
        raise UserError(
            f"{table.path}: expected the names {', '.join(sorted(needed))}, "
            f"got {', '.join(sorted(found))}"
        )
    if found["sessions_per_plug"] < 1 or found["days"] < 1:
        raise UserError(f"{table.path}: expected days >= 1 and sessions_per_plug >= 1")
    return found
