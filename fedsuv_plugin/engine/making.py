"""Making a job's selector: with its parameters and a random stream of its own."""

from __future__ import annotations

from collections.abc import Mapping

from fedsuv_plugin import named
from fedsuv_plugin.params import Params
from fedsuv_plugin.randomness import stream
from fedsuv_plugin.selectors.base import ClientTable, Selector


def make_selector(
    name: str,
    selector_class: type[Selector],
    given: Mapping[str, Params],
    clients: ClientTable,
    seed: int,
) -> tuple[Selector, frozenset[str]]:
    """The selector, and the probes that it or the one inside it may ask.

    A selector that is put around another gets that one, made first. `given` has the parameters
    that the job sets, by selector."""
    params = given[name] if name in given else selector_class.Params()
    rng = stream(seed, "selector")
    wrapped = named.inner_of(selector_class, params)
    if wrapped is None:
        return selector_class(params, clients, rng), selector_class.may_ask(params)
    inner_name, inner_class = wrapped
    inner_params = given[inner_name] if inner_name in given else inner_class.Params()
    inner = inner_class(inner_params, clients, stream(seed, "inner selector"))
    outer = selector_class(params, clients, rng, inner)  # type: ignore[call-arg]
    return outer, selector_class.may_ask(params) | inner_class.may_ask(inner_params)
