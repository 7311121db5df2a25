"""A synthetic population that looks like the real samples: phones, networks, charging habits.

Every client is sampled from the catalogues, a block of clients at a time, each block from its own
random stream, so that a block does not depend on how many follow. Numbers are rounded to what a
measurement would give, so that a rebuild on another processor gives the same file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedsuv_plugin.randomness import stream
from fedsuv_plugin.traces.availability import Availability
from fedsuv_plugin.traces.catalogues import Catalogues, Sessions
from fedsuv_plugin.traces.population import Population

BLOCK = 50_000  # clients sampled at once, which bounds the memory of temporary arrays
DAY = 86_400.0
SHORTEST_PAUSE = 2.0  # seconds between two sessions, as in the real trace


def build_population(n: int, seed: int, catalogues: Catalogues) -> Population:
    """A population of n clients; the same n, seed and catalogues give the same population."""
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
    """The columns of n phones.

    Specifications are those of the SoC; latency and power also differ from phone to phone."""
    phones = catalogues.phones
    spread = catalogues.parameters
    soc = rng.choice(len(phones.names), n, p=phones.probability)
    sizes = phones.memory_gb[soc]  # (n, longest), NaN past the last choice
    choice = np.floor(rng.random(n) * np.isfinite(sizes).sum(axis=1)).astype(np.int64)
    ms_per_sample = phones.ms_per_sample[soc] * _factor(rng, spread["latency_spread"], n)
    compute_w = phones.compute_w[soc] * _factor(rng, spread["power_spread"], n)
    return {
        "model": soc,
        "cpu_gflops": np.round(phones.cpu_gflops[soc], 1),
        "cores": phones.cores[soc],
        "memory_gb": sizes[np.arange(n), choice],
        "gpu_gflops": phones.gpu_gflops[soc],
        "gpus": phones.gpus[soc],
        "ms_per_sample": np.round(ms_per_sample, 2),
        "compute_w": np.round(compute_w, 3),
    }


def _networks(n: int, rng: np.random.Generator, catalogues: Catalogues) -> dict[str, Any]:
    """The columns of n network connections."""
    networks = catalogues.networks
    kind = rng.choice(len(networks.probability), n, p=networks.probability)
    down = networks.kbps_down[kind] * _factor(rng, networks.spread[kind], n)
    up = down * networks.up_share[kind] * _factor(rng, networks.up_spread[kind], n)
    radio_w = networks.radio_w[kind] * _factor(rng, catalogues.parameters["power_spread"], n)
    return {
        "kbps_down": np.round(np.maximum(down, 1.0), 1),
        "kbps_up": np.round(np.maximum(up, 1.0), 1),
        "radio_w": np.round(radio_w, 3),
    }


def _factor(rng: np.random.Generator, sigma: float | np.ndarray, n: int) -> np.ndarray:
    """Log-normal factors with median 1, (n,)."""
    return np.exp(sigma * rng.standard_normal(n))


@dataclass(frozen=True)
class _Spans:
    """Sessions of many clients, (m,) each; they may overlap and are not sorted."""

    rows: np.ndarray
    starts: np.ndarray
    ends: np.ndarray


def _availability(n: int, rng: np.random.Generator, catalogues: Catalogues) -> Availability:
    """When n clients are online: while their phones charge and nobody uses them.

    A user plugs the phone in at some hour of the day. Each time it charges in a run of sessions,
    with pauses in which the user looks at the phone. How often a user plugs in is exponentially
    distributed over users, as the real counts are."""
    given = catalogues.parameters
    period = given["days"] * DAY
    plugs_a_trace = given["days"] * given["sessions_per_day"] / given["sessions_per_plug"]
    plugs = np.maximum(1, rng.poisson(rng.exponential(plugs_a_trace, n)))  # (n,)
    owner = np.repeat(np.arange(n), plugs)  # (plugs,)
    begins = _plug_times(owner, n, rng, catalogues.sessions, given["days"])
    sizes = rng.geometric(1.0 / given["sessions_per_plug"], len(owner))  # sessions in each plug
    rows = np.repeat(owner, sizes)  # (m,)
    seconds = _session_seconds(rows, n, rng, catalogues.sessions, given["longest_session"])
    pauses = np.rint(given["gap_seconds"] * _factor(rng, given["gap_spread"], len(rows)))
    steps = seconds + np.maximum(SHORTEST_PAUSE, pauses)
    # Lay all sessions end to end, then move each run to the time at which its plug begins.
    before = np.cumsum(steps) - steps  # (m,)
    first = np.cumsum(sizes) - sizes  # (plugs,) place of each run's first session
    starts = np.repeat(begins - before[first], sizes) + before
    starts = np.mod(starts, period)
    return _disjoint(_wrapped(_Spans(rows, starts, starts + seconds), period), n, period)


def _plug_times(
    owner: np.ndarray, n: int, rng: np.random.Generator, sessions: Sessions, days: float
) -> np.ndarray:
    """Whole seconds on the trace's clock: any day, at an hour of the owner's own time zone."""
    zone = sessions.zone_hours[rng.choice(len(sessions.zone_hours), n, p=sessions.zone_probability)]
    local = rng.choice(24, len(owner), p=sessions.hour_probability) + rng.random(len(owner))
    day = np.floor(rng.random(len(owner)) * days)
    return np.rint((day * 24 + local - zone[owner]) * 3600.0)


def _session_seconds(
    rows: np.ndarray, n: int, rng: np.random.Generator, sessions: Sessions, longest: float
) -> np.ndarray:
    """The length of each session in whole seconds.

    Some users charge for long, some briefly (their habit), and a user's sessions differ, too."""
    kind = rng.choice(len(sessions.probability), len(rows), p=sessions.probability)
    habit = rng.standard_normal(n)
    of_user = np.exp(sessions.own_spread[kind] * habit[rows])
    of_session = _factor(rng, sessions.spread[kind], len(rows))
    return np.clip(np.rint(sessions.seconds[kind] * (of_user * of_session)), 1.0, longest)


def _wrapped(spans: _Spans, period: float) -> _Spans:
    """The spans, with what runs past the end of the trace moved to its beginning.

    A trace that repeats then has no seam."""
    over = spans.ends > period
    return _Spans(
        np.concatenate([spans.rows, spans.rows[over]]),
        np.concatenate([spans.starts, np.zeros(int(over.sum()))]),
        np.concatenate([np.minimum(spans.ends, period), spans.ends[over] - period]),
    )


def _disjoint(spans: _Spans, n: int, period: float) -> Availability:
    """The spans sorted, without those that begin before an earlier one of that client ends."""
    order = np.lexsort((spans.starts, spans.rows))
    rows = spans.rows[order]
    starts = spans.starts[order]
    ends = spans.ends[order]
    # Shifted in time, clients come one after the other, and one running maximum serves them all.
    shift = rows * (4 * period)
    latest = np.concatenate([[-np.inf], np.maximum.accumulate(ends + shift)[:-1]])
    keep = starts + shift >= latest + SHORTEST_PAUSE
    offsets = np.concatenate([[0], np.cumsum(np.bincount(rows[keep], minlength=n))])
    return Availability(starts[keep], ends[keep], offsets, np.full(n, period))


def _joined(parts: list[Availability]) -> Availability:
    """The availability of all clients of the parts, one part after the other."""
    shifts = np.cumsum([0] + [len(part.starts) for part in parts])
    offsets = [part.offsets[1:] + shift for part, shift in zip(parts, shifts, strict=False)]
    return Availability(
        np.concatenate([part.starts for part in parts]),
        np.concatenate([part.ends for part in parts]),
        np.concatenate([[0], *offsets]),
        np.concatenate([part.periods for part in parts]),
    )
