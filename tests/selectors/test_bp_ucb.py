"""`bp_ucb`: beliefs against brute force, the graph, the index, resuming and learning."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csgraph
from scipy.sparse.csgraph import shortest_path
from selector_worlds import look, table

from fedsuv_plugin import wire
from fedsuv_plugin.errors import UserError
from fedsuv_plugin.selectors import bp_ucb as module
from fedsuv_plugin.selectors.base import ClientTable, ProbeAnswer
from fedsuv_plugin.selectors.bp_ucb import (
    BPUCB,
    Graph,
    connecting_radius,
    local_field,
    neighbour_graph,
    propagate,
)
from fedsuv_plugin.selectors.signals import OPINIONS


def clients(n: int, seed: int = 0) -> ClientTable:
    return replace(table(n), position=np.random.default_rng(seed).random((n, 2)) * 1000)


def make(n: int, seed: int = 0, **params: Any) -> BPUCB:
    checked = BPUCB.Params.from_mapping({"slot_rounds": 1, **params})
    return BPUCB(checked, clients(n), np.random.default_rng(seed))


def one_round(
    s: BPUCB, t: int, k: int, opinions: np.ndarray, online: np.ndarray | None = None
) -> np.ndarray:
    view = look(s.clients, t, online)
    asked = s.probe(view)
    if asked is not None:
        view = replace(view, probe=ProbeAnswer(OPINIONS, asked.rows, opinions[asked.rows]))
    return s.select(view, k)


# ---- belief propagation


def marginals(n: int, pairs: np.ndarray, coupling: np.ndarray, opinion: np.ndarray) -> np.ndarray:
    """P(s_n = +1) under prod phi_n(s_n) prod exp(J s_i s_j), summed over all states."""
    weight = np.zeros((n, 2))
    for states in product((-1, 1), repeat=n):
        p = np.prod([r * r if s > 0 else 1 - r * r for s, r in zip(states, opinion, strict=True)])
        links = zip(pairs, coupling, strict=True)
        p *= np.exp(sum(j * states[a] * states[b] for (a, b), j in links))
        for i, s in enumerate(states):
            weight[i, int(s > 0)] += p
    return weight[:, 1] / weight.sum(axis=1)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(n=st.integers(2, 9), seed=st.integers(0, 10**6), db=st.sampled_from([-30.0, -6.0, 0.0, 6.0]))
def test_on_trees_beliefs_are_the_marginals(n: int, seed: int, db: float) -> None:
    rng = np.random.default_rng(seed)
    pairs = np.array([(int(rng.integers(i)), i) for i in range(1, n)])  # a random tree
    km = rng.random(n - 1) * 1.4
    opinion = rng.uniform(0.01, 0.99, n)
    coupling = -(10 ** (db / 10)) * km**3.7
    graph = Graph.of_pairs(pairs, km, n)
    found = propagate(graph, local_field(opinion), np.tile(coupling, 2), 1e-12, 1000)
    assert found.converged
    np.testing.assert_allclose(found.probability, marginals(n, pairs, coupling, opinion), atol=1e-9)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(n=st.integers(3, 30), seed=st.integers(0, 10**6), share=st.floats(0.1, 0.99))
def test_eq_34_means_convergence_from_any_start(n: int, seed: int, share: float) -> None:
    rng = np.random.default_rng(seed)
    graph = neighbour_graph(rng.random((n, 2)), None)
    raw = -(graph.km**2) - 0.01

    def left_side(coupling: np.ndarray) -> float:
        """Of eq. (34): the largest sum over i in N(l) without k, over all l and k."""
        strength = np.tanh(np.abs(coupling))
        total = np.bincount(graph.target, strength, n)
        return float((total[graph.target] - strength).max())

    # Scale the couplings, by bisection, until the left side of eq. (34) is `share`.
    low = 0.0
    high = 1e6
    for _ in range(100):
        middle = (low + high) / 2
        if left_side(middle * raw) < share:
            low = middle
        else:
            high = middle
    coupling = low * raw
    field = local_field(rng.random(n))
    near = rng.normal(size=len(coupling)) * 5
    far = rng.normal(size=len(coupling)) * 50
    ends = [propagate(graph, field, coupling, 1e-12, 20_000, start) for start in (None, near, far)]
    assert all(end.converged for end in ends)
    for end in ends[1:]:
        np.testing.assert_allclose(end.probability, ends[0].probability, atol=1e-8)


def test_what_does_not_converge_says_so() -> None:
    # Three clients that all want to differ from each other, strongly coupled, updated at once: the
    # messages flip for ever.
    pairs = np.array([[0, 1], [1, 2], [0, 2]])
    graph = Graph.of_pairs(pairs, np.ones(3), 3)
    found = propagate(graph, np.full(3, 0.5), np.full(6, -5.0), 1e-9, 200)
    assert (found.converged, found.sweeps) == (False, 200)
    assert np.isfinite(found.probability).all()
    s = make(6, fading_c_db=25.0, bp_iterations=3, radius_km=2.0)
    one_round(s, 1, 2, np.linspace(0.1, 0.9, 6))
    assert s.diagnostics()["bp_converged"] is False
    assert s.diagnostics()["bp_sweeps"] == 3


@pytest.mark.parametrize("opinion", [0.0, 1.0])
def test_extreme_opinions_and_couplings_stay_finite(opinion: float) -> None:
    graph = neighbour_graph(np.random.default_rng(0).random((10, 2)), None)
    strong = np.full(len(graph.source), -1e6)
    found = propagate(graph, local_field(np.full(10, opinion)), strong, 1e-9, 50)
    assert np.isfinite(found.probability).all()


# ---- the graph


def longest_by_the_book(points: np.ndarray) -> float:
    """The longest edge of the minimum spanning tree, by Prim's algorithm over all pairs."""
    away = np.full(len(points), np.inf)  # from the tree
    outside = np.ones(len(points), bool)
    new = 0
    longest = 0.0
    while True:
        outside[new] = False
        if not outside.any():
            return longest
        away = np.minimum(away, np.hypot(*(points - points[new]).T))
        new = int(np.argmin(np.where(outside, away, np.inf)))
        longest = max(longest, float(away[new]))


SCALES = [1e-16, 1e-15, 3e-15, 1e-14, 1e-13, 1e-9, 1e-3]
World = Callable[[np.random.Generator, int, float], np.ndarray]
WORLDS: dict[str, World] = {
    "random": lambda rng, n, scale: rng.random((n, 2)),
    "almost vertical": lambda rng, n, scale: np.column_stack(
        [0.5 + scale * rng.normal(size=n), rng.random(n)]
    ),
    "almost horizontal": lambda rng, n, scale: np.column_stack(
        [rng.random(n), 0.5 + scale * rng.normal(size=n)]
    ),
    "almost on a line": lambda rng, n, scale: (
        np.outer(rng.random(n), rng.normal(size=2)) + scale * rng.normal(size=(n, 2))
    ),
    "exactly vertical": lambda rng, n, scale: np.column_stack([np.full(n, 0.5), rng.random(n)]),
    "clusters": lambda rng, n, scale: (
        rng.random((7, 2))[rng.integers(7, size=n)] + scale * rng.normal(size=(n, 2))
    ),
    "clusters on a line": lambda rng, n, scale: (
        np.outer(rng.random(9)[rng.integers(9, size=n)], [0.0, 1.0])
        + scale * rng.normal(size=(n, 2))
    ),
    "duplicates": lambda rng, n, scale: rng.random((n // 3 + 1, 2))[
        rng.integers(n // 3 + 1, size=n)
    ],
    "a grid": lambda rng, n, scale: rng.integers(0, 12, (n, 2)) / 12 + scale * rng.random((n, 2)),
    "far outliers": lambda rng, n, scale: rng.random((n, 2)) * 10.0 ** rng.integers(-9, 3, (n, 1)),
}


@pytest.mark.parametrize("world", WORLDS)
@settings(max_examples=40, deadline=None, derandomize=True)
@given(n=st.integers(10, 500), seed=st.integers(0, 10**6), scale=st.sampled_from(SCALES))
def test_the_radius_is_the_longest_edge_of_the_spanning_tree(
    world: str, n: int, seed: int, scale: float
) -> None:
    points = WORLDS[world](np.random.default_rng(seed), n, scale)
    assert connecting_radius(points) == pytest.approx(longest_by_the_book(points), rel=1e-12)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(n=st.integers(1, 40), seed=st.integers(0, 10**6))
def test_the_default_radius_just_connects_everyone(n: int, seed: int) -> None:
    points = np.random.default_rng(seed).random((n, 2))
    assert connecting_radius(points) == pytest.approx(longest_by_the_book(points))
    graph = neighbour_graph(points, None)
    hops = shortest_path(graph.matrix(), unweighted=True) if n > 1 else np.zeros((1, 1))
    assert np.isfinite(hops).all()
    assert graph.diameter(0) == hops.max()


@pytest.mark.parametrize(
    ("points", "radius"),
    [
        ([[0, 0]], 0.0),
        ([[0, 0], [0, 0]], 0.0),
        ([[0, 0], [1, 1], [3, 3]], 2 * 2**0.5),
        ([[0, 0], [0, 0], [0, 2]], 2.0),
    ],
)
def test_degenerate_positions(points: list[list[float]], radius: float) -> None:
    assert connecting_radius(np.array(points, float)) == pytest.approx(radius)
    neighbour_graph(np.array(points, float), None)


def test_a_disconnected_graph_is_refused() -> None:
    message = r"bp_ucb.radius_km: 0.01 leaves the clients in \d+ groups .*expected at"
    with pytest.raises(UserError, match=message):
        make(20, radius_km=0.01)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(n=st.integers(1, 40), seed=st.integers(0, 10**6), radius=st.floats(0.5, 1.5))
def test_the_diameter_of_a_crowded_graph(n: int, seed: int, radius: float) -> None:
    points = np.random.default_rng(seed).random((n, 2))
    graph = neighbour_graph(points, max(radius, connecting_radius(points)))
    hops = shortest_path(graph.matrix(), unweighted=True) if n > 1 else np.zeros((1, 1))
    assert graph.diameter(0) == hops.max()


def test_a_client_linked_to_everyone_settles_the_diameter(monkeypatch: pytest.MonkeyPatch) -> None:
    # 200 clients within reach of one in the middle: without it every client would be searched from.
    angle = np.linspace(0, 2 * np.pi, 200, endpoint=False)
    points = np.vstack([np.column_stack([np.cos(angle), np.sin(angle)]), [[0.0, 0.0]]])
    graph = neighbour_graph(points, 1.0 + 1e-9)
    searches: list[int] = []
    original = csgraph.dijkstra

    def counted(matrix: Any, indices: int, unweighted: bool) -> np.ndarray:
        searches.append(indices)
        return original(matrix, indices=indices, unweighted=unweighted)

    monkeypatch.setattr(module, "dijkstra", counted)
    assert graph.diameter(0) == 2
    assert searches == [200]
    assert neighbour_graph(points, 3.0).diameter(0) == 1
    assert len(searches) == 1


def test_an_almost_vertical_line_of_clients() -> None:
    rng = np.random.default_rng(3)
    points = np.column_stack([0.5 + 1e-15 * rng.normal(size=60), rng.random(60)])
    steps = np.diff(np.sort(points[:, 1]))
    assert connecting_radius(points) == pytest.approx(steps.max())


def test_a_crowded_graph_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    # Two clusters of 150 that are 0.9 km apart: the radius that links them links everyone.
    rng = np.random.default_rng(0)
    metres = rng.random((300, 2)) * 20 + np.repeat([[0.0, 0.0], [900.0, 0.0]], 150, axis=0)
    with caplog.at_level(logging.WARNING):
        s = BPUCB(BPUCB.Params(), replace(table(300), position=metres), np.random.default_rng(0))
        for t in (1, 2):
            one_round(s, t, 5, np.full(300, 0.5))
    assert len(caplog.records) == 1
    assert "bp_ucb: the 300 clients have 299 neighbours each on average" in caplog.text
    noted = s.diagnostics()
    assert noted["crowded"] is True
    assert noted["neighbours"] == pytest.approx(299)


def test_a_graph_that_is_not_crowded_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        s = make(500)
    assert not caplog.records
    assert s.diagnostics()["crowded"] is False
    assert s.diagnostics()["neighbours"] == len(s._graph.source) / 500


def test_past_the_limit_the_diameter_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = neighbour_graph(np.random.default_rng(1).random((300, 2)), None)
    exact = graph.diameter(0)
    monkeypatch.setattr(module, "EXACT_DIAMETER", 100)
    assert exact <= graph.diameter(0) <= 2 * exact


# ---- the selector


def test_index_by_hand() -> None:
    # Opinions of the untrained model 0.1 .. 0.6 count once. At t = 2 everyone has count 1, and the
    # couplings at -300 dB are practically 0, so b = r^2: score = r + r^2 / 6 + 0.01 sqrt(ln 2).
    s = make(6, fading_c_db=-300.0)
    first = np.linspace(0.1, 0.6, 6)
    rows = one_round(s, 1, 2, first)
    assert s.explain()["score"] == pytest.approx(first + first**2 / 6 + 0.01 * np.sqrt(np.log(2)))
    assert sorted(rows.tolist()) == [4, 5]
    # The slot ends with 0.2 for everyone: rows 4 and 5 took part, so their means are (0.5 + 0.2)/2
    # and (0.6 + 0.2)/2.
    one_round(s, 2, 2, np.full(6, 0.2))
    expected = np.array([0.1, 0.2, 0.3, 0.4, 0.35, 0.4])
    count = np.array([1, 1, 1, 1, 2, 2])
    assert s.explain()["opinion_mean"] == pytest.approx(expected)
    assert s.explain()["count"].tolist() == count.tolist()
    score = expected + 0.04 / 6 + 0.01 * np.sqrt(np.log(3) / count)
    assert s.explain()["score"] == pytest.approx(score)


def test_messages_are_counted() -> None:
    s = make(20)
    one_round(s, 1, 5, np.full(20, 0.5))
    noted = s.diagnostics()
    hops = shortest_path(s._graph.matrix(), unweighted=True)
    assert noted["exchanges"] == hops.max()
    assert noted["messages"] == 2 * (len(s._graph.source) // 2) * hops.max()
    assert noted["bp_converged"] is True


def test_who_was_offline_at_first_has_the_mean_opinion() -> None:
    s = make(6)
    one_round(s, 1, 2, np.array([0.2, 0.4, 0.6, 9, 9, 9]), np.array([0, 1, 2]))
    assert s.explain()["opinion_mean"] == pytest.approx([0.2, 0.4, 0.6, 0.4, 0.4, 0.4])


def test_a_resumed_selector_continues_exactly() -> None:
    opinions = np.random.default_rng(5).random((40, 12))

    def play(s: BPUCB, rounds: range) -> list[list[int]]:
        return [one_round(s, t, 3, opinions[t]).tolist() for t in rounds]

    first = make(12, 1, slot_rounds=2, mu=0.2)
    second = make(12, 2, slot_rounds=2, mu=0.2)
    play(first, range(1, 16))
    second.load_state_dict(wire.decode(wire.encode(first.state_dict())))
    assert play(first, range(16, 40)) == play(second, range(16, 40))


def test_it_finds_clients_of_high_opinion() -> None:
    # Rows 0-4 think 0.8 of the model, the others 0.4, noise 0.1 (opinions are their own, so this is
    # a plain bandit). The gap is 4 standard deviations of one opinion: nearly every pick of the
    # last half must be right.
    rng = np.random.default_rng(0)
    s = make(20)
    right = []
    level = np.where(np.arange(20) < 5, 0.8, 0.4)
    for t in range(1, 101):
        rows = one_round(s, t, 5, np.clip(level + 0.1 * rng.normal(size=20), 0, 1))
        right.append((rows < 5).mean())
    assert np.mean(right[50:]) > 0.95


def test_20000_clients() -> None:
    s = BPUCB(BPUCB.Params(), clients(20_000), np.random.default_rng(0))
    assert len(one_round(s, 1, 20, np.random.default_rng(0).random(20_000))) == 20
    assert s.diagnostics()["bp_converged"]
