"""A made-up population that looks like the real samples: phones, networks, and when their owners charge them.

Every client is drawn from the catalogues; the draws are vectorised, a block of clients at a time, each block from its
own stream. What is drawn for a block of clients does not depend on how many follow. Numbers are rounded to what
a measurement would give, so that a rebuild on another processor gives the same file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedsuv_plugin.randomness import stream
from fedsuv_plugin.traces.availability import Availability
from fedsuv_plugin.traces.catalogues import Catalogues, Sessions
from fedsuv_plugin.traces.population import Population

BLOCK = 50_000  # clients drawn at once: bounds the memory that temporaries take
DAY = 86_400.0
SHORTEST_PAUSE = 2.0  # seconds between two sessions, as in the real trace


def build_population(n: int, seed: int, catalogues: Catalogues) -> Population:
    """n clients; the same n, seed and catalogues give the same population."""
    blocks = [
        _block(min(BLOCK, n - first), seed, number, catalogues)
        for number, first in enumerate(range(0, n, BLOCK))
    ]
    columns = {
        name: np.concatenate([block.columns[name] for block in blocks])
        for name in blocks[0].columns
    }
    return Population(
        **columns,
        availability=_joined(
            [block.availability for block in blocks if block.availability is not None]
        ),
        position=np.concatenate([block.position for block in blocks if block.position is not None]),
        model=np.concatenate([block.model for block in blocks if block.model is not None]),
        model_names=catalogues.phones.names,
    )


def _block(n: int, seed: int, number: int, catalogues: Catalogues) -> Population:
    rng = {
        name: stream(seed, f"population {name}", number)
        for name in ("phones", "networks", "sessions", "places")
    }
    side = catalogues.parameters["square_metres"]
    return Population(
        **_phones(n, rng["phones"], catalogues),
        **_networks(n, rng["networks"], catalogues),
        availability=_availability(n, rng["sessions"], catalogues),
        position=np.round(rng["places"].random((n, 2)) * side, 1),
    )


def _phones(n: int, rng: np.random.Generator, catalogues: Catalogues) -> dict[str, Any]:
    """Specifications are the SoC's; what a phone makes of them differs from one to the next."""
    phones, spread = catalogues.phones, catalogues.parameters
    soc = rng.choice(len(phones.names), n, p=phones.probability)
    sizes = phones.memory_gb[soc]  # (n, longest), NaN past the last choice
    choice = np.floor(rng.random(n) * np.isfinite(sizes).sum(axis=1)).astype(np.int64)
    return {
        "model": soc,
        "cpu_gflops": np.round(phones.cpu_gflops[soc], 1),
        "cores": phones.cores[soc],
        "memory_gb": sizes[np.arange(n), choice],
        "gpu_gflops": phones.gpu_gflops[soc],
        "gpus": phones.gpus[soc],
        "ms_per_sample": np.round(
            phones.ms_per_sample[soc] * _factor(rng, spread["latency_spread"], n), 2
        ),
        "compute_w": np.round(phones.compute_w[soc] * _factor(rng, spread["power_spread"], n), 3),
    }


def _networks(n: int, rng: np.random.Generator, catalogues: Catalogues) -> dict[str, Any]:
    networks, spread = catalogues.networks, catalogues.parameters
    kind = rng.choice(len(networks.probability), n, p=networks.probability)
    down = networks.kbps_down[kind] * _factor(rng, networks.spread[kind], n)
    up = down * networks.up_share[kind] * _factor(rng, networks.up_spread[kind], n)
    return {
        "kbps_down": np.round(np.maximum(down, 1.0), 1),
        "kbps_up": np.round(np.maximum(up, 1.0), 1),
        "radio_w": np.round(networks.radio_w[kind] * _factor(rng, spread["power_spread"], n), 3),
    }


def _factor(rng: np.random.Generator, sigma: float | np.ndarray, n: int) -> np.ndarray:
    """A log-normal factor with median 1, (n,)."""
    return np.exp(sigma * rng.standard_normal(n))


@dataclass(frozen=True)
class _Spans:
    """Sessions of many clients, (m,) each; not yet sorted or free of overlap."""

    rows: np.ndarray
    starts: np.ndarray
    ends: np.ndarray


def _availability(n: int, rng: np.random.Generator, catalogues: Catalogues) -> Availability:
    """Users plug in at hours of their own day; each plug is a run of sessions with pauses (the user looks at the
    phone). A user's rate is exponential, which is what the real counts look like."""
    given, period = catalogues.parameters, catalogues.parameters["days"] * DAY
    plugs_a_trace = given["days"] * given["sessions_per_day"] / given["sessions_per_plug"]
    plugs = np.maximum(1, rng.poisson(rng.exponential(plugs_a_trace, n)))  # (n,)
    owner = np.repeat(np.arange(n), plugs)  # (plugs,)
    begins = _plug_times(owner, n, rng, catalogues.sessions, given["days"])
    sizes = rng.geometric(1.0 / given["sessions_per_plug"], len(owner))  # sessions in each plug
    rows = np.repeat(owner, sizes)  # (m,)
    seconds = _session_seconds(rows, n, rng, catalogues.sessions, given["longest_session"])
    pauses = np.rint(given["gap_seconds"] * _factor(rng, given["gap_spread"], len(rows)))
    steps = seconds + np.maximum(SHORTEST_PAUSE, pauses)
    before = np.cumsum(steps) - steps  # of all sessions, in a row
    first = np.cumsum(sizes) - sizes
    starts = np.repeat(begins - before[first], sizes) + before  # each plug's run from its own begin
    starts = np.mod(starts, period)
    return _disjoint(_wrapped(_Spans(rows, starts, starts + seconds), period), n, period)


def _plug_times(
    owner: np.ndarray, n: int, rng: np.random.Generator, sessions: Sessions, days: float
) -> np.ndarray:
    """Whole seconds on the trace's clock: any day, an hour of the owner's own time zone."""
    zone = sessions.zone_hours[rng.choice(len(sessions.zone_hours), n, p=sessions.zone_probability)]
    local = rng.choice(24, len(owner), p=sessions.hour_probability) + rng.random(len(owner))
    day = np.floor(rng.random(len(owner)) * days)
    return np.rint((day * 24 + local - zone[owner]) * 3600.0)


def _session_seconds(
    rows: np.ndarray, n: int, rng: np.random.Generator, sessions: Sessions, longest: float
) -> np.ndarray:
    """Whole seconds. Some users charge for long, some briefly; that is the spread between users."""
    kind = rng.choice(len(sessions.probability), len(rows), p=sessions.probability)
    habit = rng.standard_normal(n)
    factor = np.exp(sessions.own_spread[kind] * habit[rows]) * _factor(
        rng, sessions.spread[kind], len(rows)
    )
    return np.clip(np.rint(sessions.seconds[kind] * factor), 1.0, longest)


def _wrapped(spans: _Spans, period: float) -> _Spans:
    """What runs past the end of the trace goes on at its beginning, so that the trace repeats without a seam."""
    over = spans.ends > period
    return _Spans(
        np.concatenate([spans.rows, spans.rows[over]]),
        np.concatenate([spans.starts, np.zeros(int(over.sum()))]),
        np.concatenate([np.minimum(spans.ends, period), spans.ends[over] - period]),
    )


def _disjoint(spans: _Spans, n: int, period: float) -> Availability:
    """Sorted, without the sessions that would begin while an earlier one of the same client is still on."""
    order = np.lexsort((spans.starts, spans.rows))
    rows, starts, ends = spans.rows[order], spans.starts[order], spans.ends[order]
    shift = rows * (
        4 * period
    )  # puts clients one after the other, so that one running maximum serves them all
    latest = np.concatenate([[-np.inf], np.maximum.accumulate(ends + shift)[:-1]])
    keep = starts + shift >= latest + SHORTEST_PAUSE
    offsets = np.concatenate([[0], np.cumsum(np.bincount(rows[keep], minlength=n))])
    return Availability(starts[keep], ends[keep], offsets, np.full(n, period))


def _joined(parts: list[Availability]) -> Availability:
    """Availabilities one after the other."""
    shifts = np.cumsum([0] + [len(part.starts) for part in parts])
    offsets = [part.offsets[1:] + shift for part, shift in zip(parts, shifts, strict=False)]
    return Availability(
        np.concatenate([part.starts for part in parts]),
        np.concatenate([part.ends for part in parts]),
        np.concatenate([[0], *offsets]),
        np.concatenate([part.periods for part in parts]),
    )
