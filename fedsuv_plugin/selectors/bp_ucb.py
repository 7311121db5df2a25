"""BP-UCB: clients agree among neighbours, by belief propagation and gossip, who goes next.

Paper: J. Tong, Z. Chen, L. Fu, J. Zhang, Z. Han. "From Learning to Analytics: Improving Model
    Efficacy with Goal-Directed Client Selection." Algorithm 2, eq. (4)-(7), (17), (18), appendix B.

Paper symbol -> name here
    t -> slot + 1    r_{t,n} -> opinion    r-bar_{t,n}, Pi_{t,n} -> opinion_mean, count
    b_{t,n} -> belief    nu^{j->i} -> messages    theta_j -> field    J_{ij} -> coupling
    Psi (eq. 17) -> score    C, beta -> fading_*
Departures
    - Eq. (6) as printed does not depend on the state it sums over, so its normalised message is
      constant; here it is the binary pairwise model that appendix B analyses: states -1 (not
      selected) and +1 (selected), local function (1 - r^2, r^2), compatibility exp(J s_i s_n) with
      J = -C d^beta, d in km.
    - The local function takes opinions no nearer than 1e-6 to 0 and 1, where it would rule out a
      state whatever the neighbours say.
    - Messages are halved log-odds (eq. 28), which stay finite however strong the coupling.
    - Neighbours are all within `radius_km`, by default 1.1 times the longest edge of the minimum
      spanning tree, so that the graph is connected; the paper does not say who links to whom.
      Where groups are far apart that links nearly everyone, which is logged and recorded.
    - Gossip, which takes as many exchanges as the graph's diameter and ends with the exact ranking,
      is replaced by a sort; its messages are counted.
    - Past 10,000 clients twice the eccentricity of a central client stands in for the diameter.
    - The first opinion is that of the untrained model and stays in the mean.
    - A client that was offline has the mean opinion of the others until it tells its own.
    - Offline clients still pass messages on.
    - Opinions are on a client's own held-out samples, where one with few classes likes a model it
      has helped to train; the paper's "test data set" may mean shares of one IID set.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components, dijkstra, minimum_spanning_tree
from scipy.spatial import Delaunay, QhullError, cKDTree

from fedsuv_plugin.errors import UserError
from fedsuv_plugin.params import param
from fedsuv_plugin.selectors.base import ClientTable, ProbeAnswer, RoundView, best
from fedsuv_plugin.selectors.time_slots import SlotParams, TimeSlotSelector

MARGIN = 1e-6  # a local function takes opinions no nearer than this to 0 and 1
SLACK = 1.1  # the default radius, in units of the smallest that connects everyone
EXACT_DIAMETER = 10_000  # clients up to which the diameter is exact
NEAR = 8  # nearest neighbours of a client that may be linked to it in the spanning tree
# Neighbours per client, on average, past which the graph is called crowded. Clients anywhere in the
# square have 10 to 20.
CROWDED = 100
NO_OPINION = 0.5  # the opinion of all clients before anyone has told one


@dataclass(frozen=True, kw_only=True)
class BPUCBParams(SlotParams):
    mu: float = param(0.01, "width of the confidence bound; 0: none", low=0)
    fading_c_db: float = param(
        -30.0, "C of the coupling -C d^beta, in dB; very low: neighbours do not matter"
    )
    fading_beta: float = param(
        3.7, "beta of the coupling; large: only the farthest neighbours matter", low=0
    )
    radius_km: float | None = param(
        None,
        "who is within it is a neighbour; none: 1.1 times the longest edge of the minimum "
        "spanning tree",
        above=0,
    )
    bp_tolerance: float = param(
        1e-9, "change of a message at which belief propagation stops", low=0
    )
    bp_iterations: int = param(1000, "sweeps after which it stops anyway, and says so", low=1)


@dataclass(frozen=True)
class Graph:
    """n clients and m links between them, each link as two directed edges, one either way."""

    n: int
    source: np.ndarray  # (2m,)
    target: np.ndarray  # (2m,)
    km: np.ndarray  # (2m,) length
    reverse: np.ndarray  # (2m,) number of the same link's other edge

    @property
    def neighbours(self) -> float:
        """Per client, on average."""
        return len(self.source) / max(1, self.n)

    @classmethod
    def of_pairs(cls, pairs: np.ndarray, km: np.ndarray, n: int) -> Graph:
        m = len(pairs)
        first, second = pairs.reshape(m, 2).T
        return cls(
            n,
            source=np.concatenate([first, second]),
            target=np.concatenate([second, first]),
            km=np.concatenate([km, km]),
            reverse=np.concatenate([np.arange(m, 2 * m), np.arange(m)]),
        )

    def matrix(self) -> coo_array:
        """(n, n), 1 where there is an edge."""
        ones = np.ones(len(self.source))
        return coo_array((ones, (self.source, self.target)), (self.n, self.n)).tocsr()

    def diameter(self, central: int) -> int:
        """Most hops between two clients; past EXACT_DIAMETER clients an upper bound.

        A search from one client, the `central` one first, bounds the eccentricities of all others
        (the hops to the farthest client), and few searches settle the largest (F. W. Takes,
        W. A. Kosters, CIKM 2011)."""
        matrix = self.matrix()
        if self.n > EXACT_DIAMETER:
            return int(2 * dijkstra(matrix, indices=central, unweighted=True).max())
        # Bounds of the eccentricities. That of a client linked to everyone is 1, all others' are
        # more; where there is such a client, a search from it settles the rest of a crowded graph.
        linked_to_all = np.bincount(self.source, minlength=self.n) == self.n - 1
        low = np.where(linked_to_all, min(1.0, self.n - 1), 2.0)
        high = np.where(linked_to_all, low, np.inf)
        client = int(np.argmax(linked_to_all)) if linked_to_all.any() else central
        take_highest = True
        while low.max() < high.max():
            hops = dijkstra(matrix, indices=client, unweighted=True)
            farthest = hops.max()
            low = np.maximum(low, np.maximum(hops, farthest - hops))
            high = np.minimum(high, farthest + hops)
            low[client] = high[client] = farthest
            unsettled = np.flatnonzero(low < high)
            if not len(unsettled):
                break
            if take_highest:
                client = int(unsettled[np.argmax(high[unsettled])])
            else:
                client = int(unsettled[np.argmin(low[unsettled])])
            take_highest = not take_highest
        return int(low.max())


@dataclass(frozen=True)
class Beliefs:
    """What belief propagation ended with."""

    probability: np.ndarray  # (n,) of being selected, s = +1
    sweeps: int
    converged: bool


def propagate(
    graph: Graph,
    field: np.ndarray,
    coupling: np.ndarray,
    tolerance: float,
    sweeps: int,
    start: np.ndarray | None = None,
) -> Beliefs:
    """Sum-product with local fields (n,) and couplings (2m,), eq. (28), O(edges) a sweep.

    A sweep computes all messages at once; there are at most `sweeps` of them."""
    messages = np.zeros(len(coupling)) if start is None else start
    done = 0
    change = np.inf if len(coupling) else 0.0
    while done < sweeps and change > tolerance:
        # All that a source knows but what the target itself has told it.
        cavity = _total(graph, field, messages)[graph.source] - messages[graph.reverse]
        # This is atanh(tanh J tanh h) in a form that cannot overflow.
        new = (_log_cosh(cavity + coupling) - _log_cosh(cavity - coupling)) / 2
        change = float(np.abs(new - messages).max())
        messages = new
        done += 1
    logit = 2 * _total(graph, field, messages)
    return Beliefs(np.exp(-np.logaddexp(0, -logit)), done, change <= tolerance)


def _total(graph: Graph, field: np.ndarray, messages: np.ndarray) -> np.ndarray:
    """Each client's own field plus all messages to it, (n,)."""
    return field + np.bincount(graph.target, messages, graph.n)


def _log_cosh(x: np.ndarray) -> np.ndarray:
    """log cosh x, up to a constant."""
    return np.logaddexp(x, -x)


def local_field(opinion: np.ndarray) -> np.ndarray:
    """Halved log-odds of the local function (1 - r^2, r^2)."""
    r = np.clip(opinion, MARGIN, 1 - MARGIN)
    return np.log(r) - np.log1p(-r * r) / 2


def connecting_radius(points: np.ndarray) -> float:
    """The smallest radius that connects all points: the longest edge of their spanning tree.

    The longest edge of some spanning tree is that radius if no shorter edge joins the two parts
    that the tree would fall into without it. Otherwise the shorter edge takes its place."""
    points = np.unique(points, axis=0)
    if len(points) < 2:
        return 0.0
    pairs, lengths = _short_tree(points)
    while True:
        longest = int(np.argmax(lengths))
        kept = np.delete(pairs, longest, axis=0)
        _, part = connected_components(
            _matrix(kept, np.ones(len(kept)), len(points)), directed=False
        )
        shortest = _closest(points, part == 0)
        length = float(_distances(points, shortest[None])[0])
        if length >= lengths[longest]:
            return float(lengths[longest])
        pairs[longest] = shortest
        lengths[longest] = length


def _short_tree(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A spanning tree of the points, nearly or exactly the minimum one: pairs (m, 2), lengths (m,).

    The minimum spanning tree is part of the Delaunay triangulation. Qhull drops points that are
    almost on a line or almost equal, so each point's nearest neighbours are candidates as well, and
    the chain of all points along their main direction, which connects everyone in any case."""
    n = len(points)
    centred = points - points.mean(axis=0)
    _, directions = np.linalg.eigh(centred.T @ centred)
    chain = np.argsort(centred @ directions[:, -1], kind="stable")
    near = min(NEAR, n - 1)
    _, nearest = cKDTree(points).query(points, near + 1)
    edges = [
        np.column_stack([chain[:-1], chain[1:]]),
        np.column_stack([np.repeat(np.arange(n), near + 1), nearest.reshape(-1)]),
    ]
    with suppress(QhullError):  # all points are on a line
        corners = Delaunay(points).simplices
        edges += [corners[:, [0, 1]], corners[:, [1, 2]], corners[:, [0, 2]]]
    pairs = np.unique(np.sort(np.concatenate(edges), axis=1), axis=0)
    pairs = pairs[pairs[:, 0] < pairs[:, 1]]  # a point is its own nearest neighbour
    tree = minimum_spanning_tree(_matrix(pairs, _distances(points, pairs), n)).tocoo()
    return np.column_stack([tree.row, tree.col]), tree.data


def _closest(points: np.ndarray, part: np.ndarray) -> np.ndarray:
    """The two nearest points, one in a part (n,) and one outside it, as their numbers (2,)."""
    inside = np.flatnonzero(part)
    outside = np.flatnonzero(~part)
    few, many = sorted([inside, outside], key=len)
    away, nearest = cKDTree(points[many]).query(points[few])
    first = int(np.argmin(away))
    return np.array([few[first], many[nearest[first]]])


def _matrix(pairs: np.ndarray, values: np.ndarray, n: int) -> Any:
    """Sparse, (n, n): the value of each pair (m, 2) in its place."""
    return coo_array((values, (pairs[:, 0], pairs[:, 1])), (n, n)).tocsr()


def _distances(points: np.ndarray, pairs: np.ndarray) -> np.ndarray:
    return np.hypot(*(points[pairs[:, 0]] - points[pairs[:, 1]]).T)


def neighbour_graph(km: np.ndarray, radius: float | None) -> Graph:
    """Everyone within the radius is a neighbour. A radius that leaves someone out is an error."""
    needed = connecting_radius(km)
    reach = SLACK * needed if radius is None else radius
    tree = cKDTree(km)
    # Counted first, because listing the links of a crowded graph takes long and much memory.
    links = (int(tree.count_neighbors(tree, reach)) - len(km)) // 2
    _warn_if_crowded(links, len(km), reach)
    pairs = tree.query_pairs(reach, output_type="ndarray").astype(np.int64)
    graph = Graph.of_pairs(pairs, _distances(km, pairs), len(km))
    parts = int(connected_components(graph.matrix(), directed=False)[0])
    if parts > 1:
        raise UserError(
            f"bp_ucb.radius_km: {reach:g} leaves the clients in {parts} groups that cannot reach "
            f"each other; expected at least {needed:.4g}, or none"
        )
    return graph


def _warn_if_crowded(links: int, n: int, reach: float) -> None:
    if 2 * links > CROWDED * n:
        logging.warning(
            "bp_ucb: the %d clients have %.0f neighbours each on average, %d links in all, because "
            "everyone within %.3g km is one, as it must be where groups of clients are far apart; "
            "time and memory grow with the links",
            n,
            2 * links / n,
            links,
            reach,
        )


class BPUCB(TimeSlotSelector):
    """Used as `sample_mode: bp_ucb`; who is whose neighbour follows from the clients' positions."""

    name = "bp_ucb"
    paper = "Tong et al., From Learning to Analytics: Goal-Directed Client Selection (BP-UCB)"
    Params = BPUCBParams
    state = (
        *TimeSlotSelector.state,
        "opinion",
        "opinion_mean",
        "count",
        "told",
        "belief",
        "score",
        "sweeps",
        "converged",
    )

    def __init__(self, params: BPUCBParams, clients: ClientTable, rng: np.random.Generator):
        super().__init__(params, clients, rng)
        n = len(clients)
        km = clients.position / 1000
        self._graph = neighbour_graph(km, params.radius_km)
        self._coupling = -(10 ** (params.fading_c_db / 10)) * self._graph.km**params.fading_beta
        central = int(np.argmin(np.hypot(*(km - km.mean(axis=0)).T)))
        self._exchanges = self._graph.diameter(central)
        self.opinion = np.full(n, NO_OPINION)  # (n,) the latest
        self.told = np.zeros(n, bool)  # (n,) whether that is the client's own
        # (n,) mean of the first opinion and of those after slots in which the client took part
        self.opinion_mean = np.full(n, NO_OPINION)
        self.count = np.ones(n, np.int64)  # (n,) how many opinions that is the mean of
        self.belief = np.full(n, 0.5)  # (n,) probability that the client should be selected
        self.score = np.zeros(n)  # (n,) eq. (17)
        self.sweeps = 0
        self.converged = True

    def choose(self, online: np.ndarray, k: int) -> np.ndarray:
        """Algorithm 2, lines 3-5 and 16-19; t = 1 is the initialisation."""
        found = propagate(
            self._graph,
            local_field(self.opinion),
            self._coupling,
            self.params.bp_tolerance,
            self.params.bp_iterations,
        )
        self.belief = found.probability
        self.sweeps = found.sweeps
        self.converged = found.converged
        bonus = self.params.mu * np.sqrt(np.log(self.slot + 1) / self.count)
        self.score = self.opinion_mean + self.belief / len(self.clients) + bonus
        return online[best(self.score[online], k, self.rng)]

    def opinions_before(self, view: RoundView) -> bool:
        """Once, of the untrained model."""
        return self.slot == 0 and not self.heard

    def hear_before(self, opinions: ProbeAnswer) -> None:
        self._hear(opinions)
        self.opinion_mean = self.opinion.copy()

    def learn(self, opinions: ProbeAnswer) -> None:
        """Lines 6-8, for those who took part and answered: eq. (18)."""
        self._hear(opinions)
        took_part = self.took_part[opinions.rows]
        rows = opinions.rows[took_part]
        values = opinions.values[took_part]
        self.count[rows] += 1
        self.opinion_mean[rows] += (values - self.opinion_mean[rows]) / self.count[rows]

    def _hear(self, opinions: ProbeAnswer) -> None:
        self.told[opinions.rows] = True
        self.opinion[opinions.rows] = opinions.values
        self.opinion[~self.told] = self.opinion[self.told].mean()

    def explain(self) -> dict[str, np.ndarray]:
        return {
            "opinion_mean": self.opinion_mean,
            "belief": self.belief,
            "count": self.count,
            "score": self.score,
        }

    def diagnostics(self) -> dict[str, Any]:
        return {
            **super().diagnostics(),
            "bp_sweeps": self.sweeps,
            "bp_converged": self.converged,
            "exchanges": self._exchanges,
            "messages": len(self._graph.source) * self._exchanges,
            "neighbours": self._graph.neighbours,
            "crowded": self._graph.neighbours > CROWDED,
        }
