"""A published job made smaller: `--scale mini` or `--scale smoke`.

On two cores mini ends in minutes, smoke in seconds.

A scale is a rule of few numbers, the same for every job file. What the rule must know of a data
set, a model or a selector is declared there: `DataSet.training_samples` and `samples_per_client`,
`tasks.models.lighter`, and `scales_with` of a selector's parameters. No data is read, so the same
file gives the same smaller job everywhere.

A job with a deadline keeps the full job's clock (`clock_kbit`, `clock_samples`), so that its
deadline leaves as many as at full scale, while it trains a smaller model.

A small job shows that the job runs and learns; its numbers are not comparable to the paper's.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from fedsuv_plugin.config.job import Job
from fedsuv_plugin.params import Params

if TYPE_CHECKING:
    from fedsuv_plugin.config.keys import JobConfig


@dataclass(frozen=True)
class Rule:
    """How a scale shrinks a job. A bound never makes a job larger than it is.

    Only local_steps may grow, where the model became lighter: one step of a small network learns
    less than one of the large network it stands for."""

    rounds: int  # at most; what is counted in rounds shrinks with them
    evaluations: int  # about so many
    clients: tuple[int, int]  # one in the first number, but at least the second
    participants: tuple[int, int]  # likewise
    # of a client in the mean, at most: through data_fraction; and what the local_steps of a lighter
    # model go through at least
    samples: int
    test_samples: int  # at most
    local_epochs: int  # at most
    local_steps: int  # at most
    batch_size: int  # at most
    stand_in_samples: int  # at most
    public_fraction: float = 0  # at least, where the job has one: a smaller share is no sample
    lighter_models: bool = False  # a heavy model is replaced by the one it names
    always_online: bool = False  # without the availability trace, by which few of few are online


RULES = {
    "full": None,
    "mini": Rule(
        rounds=100,
        evaluations=20,
        clients=(10, 50),
        participants=(2, 5),
        samples=200,
        test_samples=1_000,
        local_epochs=1,
        local_steps=10,
        batch_size=16,
        stand_in_samples=2_000,
        lighter_models=True,
    ),
    "smoke": Rule(
        rounds=2,
        evaluations=2,
        clients=(1000, 6),
        participants=(10, 2),
        samples=4,
        test_samples=10,
        local_epochs=1,
        local_steps=1,
        batch_size=8,
        stand_in_samples=60,
        public_fraction=0.1,
        always_online=True,
    ),
}
EXPLAINED = """\
--scale makes the same job smaller. --set wins over it; what it changed is printed and recorded.
full changes nothing.
  key                   mini                                       smoke
  rounds                at most 100                                at most 2
  warmup_rounds         as much shorter as the rounds              the same
  <selector>.<rounds>   the same                                   the same
  eval_interval         20 evaluations                             every round
  num_clients           a tenth, at least 50                       at most 6
  available_clients     as many fewer as num_clients               the same
  num_participants      half, at least 5                           at most 2
  data_fraction         at most 200 samples a client in the mean   at most 4
  public_fraction       as it is                                   at least 0.1, if set
  test_samples          at most 1,000                              at most 10
  local_epochs          at most 1                                  at most 1
  local_steps           at most 10; of a lighter model so many     at most 1
                        that they go through 200 samples
  batch_size            at most 16                                 at most 8
  synthetic_samples     at most 2,000, with --stand-in             at most 60
  model                 heavy ones become lighter: resnet18,       as it is
                        resnet34, mobilenet_v2 and
                        shufflenet_v2_x2_0 become gpfl_cnn,
                        char_lstm becomes char_lstm_small
  use_cuda              false                                      false
  device_avail_file     as it is                                   none: everyone is online
  clock_kbit            the full job's model, if the model changed and the job has a round_deadline
  clock_samples         the full job's batch_size x local_steps, if either changed; or its
                        local_epochs x the mean samples of its clients; likewise with round_deadline
<selector>.<rounds> is a parameter counted in rounds, such as pczfl.warmup_rounds, of the chosen
selector and of those whose parameters the job sets. round_deadline, learning rates and everything
else stay as they are: with the two clock keys a deadline leaves as many as at full scale. With
local_epochs every client then takes the time of a mean one, and a data set that does not say how
large it is, or a data_map_file, leaves the clock with the smaller job's own samples.
Only local_steps of a lighter model may grow; nothing else makes a job larger.
"""


def scaled(job: Job, scale: str, kept: Collection[str] = ()) -> tuple[Job, list[str]]:
    """The job at a scale, and a line for each key that this changed.

    Keys in `kept` stay as the job has them; a selector's are spelt `<selector>.<parameter>`."""
    rule = RULES[scale]
    if rule is None:
        return job, []
    config = replace(job.config, **_smaller_values(job.config, rule, kept))
    config = replace(config, **_full_clock(job.config, config, kept))
    chosen = job.config.sample_mode
    selector_params = {chosen: job.params_of(chosen), **job.selector_params}
    smaller_params = {
        selector: replace(params, **_smaller_params(selector, params, job.config, config, kept))
        for selector, params in selector_params.items()
    }
    before = _every_value(job.config, selector_params)
    after = _every_value(config, smaller_params)
    changes = [
        f"{key}: {before[key]} -> {after[key]}" for key in before if before[key] != after[key]
    ]
    # The chosen selector stays unmentioned where neither the job nor the scale sets any of its own.
    told = {
        selector: params
        for selector, params in smaller_params.items()
        if selector in job.selector_params or params != selector_params[selector]
    }
    return replace(job, config=config, selector_params=told), changes


def _smaller_values(config: JobConfig, rule: Rule, kept: Collection[str]) -> dict[str, Any]:
    """The keys of JobConfig that the rule changes."""
    # Data sets and models bring torch along, and nobody needs them for a job at full scale.
    from fedsuv_plugin.tasks.federated_data import DEFAULT_CLIENTS
    from fedsuv_plugin.tasks.models import lighter

    values: dict[str, Any] = {}

    def now(key: str) -> Any:
        return values.get(key, getattr(config, key))

    def change(key: str, value: object) -> None:
        if key not in kept:
            values[key] = value

    def at_most(key: str, bound: int) -> None:
        if now(key) is not None:
            change(key, min(now(key), bound))

    at_most("rounds", rule.rounds)
    change("warmup_rounds", config.warmup_rounds * now("rounds") // config.rounds)
    change("eval_interval", max(1, now("rounds") // rule.evaluations))
    at_most("batch_size", rule.batch_size)
    if rule.lighter_models:
        change("model", lighter(config.model))
    if config.local_epochs is not None:
        at_most("local_epochs", rule.local_epochs)
    elif now("model") == config.model:
        at_most("local_steps", rule.local_steps)
    else:
        enough = math.ceil(rule.samples / now("batch_size"))
        change("local_steps", max(enough, min(config.local_steps, rule.local_steps)))
    change("num_participants", _one_in(rule.participants, config.num_participants))
    change("use_cuda", False)
    if rule.always_online:
        change("device_avail_file", None)
    change("test_samples", min(config.test_samples or rule.test_samples, rule.test_samples))
    clients = config.num_clients or DEFAULT_CLIENTS
    clients_left = 1.0
    # A map file says itself how many clients there are and what each of them has.
    if config.data_map_file is None:
        change("num_clients", _one_in(rule.clients, clients))
        clients_left = now("num_clients") / clients
        if config.stand_in:
            at_most("synthetic_samples", rule.stand_in_samples)
        else:
            change("data_fraction", _data_fraction(config, now("num_clients"), rule.samples))
    if config.public_fraction:
        change("public_fraction", max(config.public_fraction, rule.public_fraction))
    if config.available_clients is not None:
        available = round(config.available_clients * clients_left)
        change("available_clients", max(available, now("num_participants")))
    return values


def _full_clock(before: JobConfig, after: JobConfig, kept: Collection[str]) -> dict[str, Any]:
    """The clock keys that let the smaller job's deadline mean what it does in the full job."""
    values: dict[str, Any] = {}
    if before.round_deadline is None:
        return values
    if before.clock_kbit is None and "clock_kbit" not in kept and after.model != before.model:
        from fedsuv_plugin.tasks.federated_data import model_kbit

        values["clock_kbit"] = model_kbit(before)
    if before.clock_samples is None and "clock_samples" not in kept:
        full = _participation_samples(before)
        if before.local_epochs is not None or full != _participation_samples(after):
            values["clock_samples"] = full
    return values


def _participation_samples(config: JobConfig) -> int | None:
    """Samples that one participation goes through, of a mean client; None: that is not declared."""
    if config.local_epochs is None:
        return config.batch_size * config.local_steps
    mean = _mean_samples(config)
    return None if mean is None else max(1, round(config.local_epochs * mean))


def _mean_samples(config: JobConfig) -> float | None:
    """Samples of a client in the mean, as the data set declares them; None: it does not."""
    from fedsuv_plugin.tasks.datasets import DATASETS
    from fedsuv_plugin.tasks.federated_data import DEFAULT_CLIENTS

    data_set = DATASETS[config.data_set]
    if config.data_map_file is not None:
        return None
    if config.partition == "natural":
        each: float | None = data_set.samples_per_client
    elif data_set.training_samples is None:
        each = None
    else:
        each = data_set.training_samples / (config.num_clients or DEFAULT_CLIENTS)
    return None if each is None else config.data_fraction * each


def _one_in(rule: tuple[int, int], count: int) -> int:
    share, least = rule
    return min(count, max(round(count / share), least))


def _data_fraction(config: JobConfig, clients: int, samples: int) -> float:
    """The data_fraction that leaves a client so many samples in the mean, or the job's own if less.

    A data set that does not say how large it is keeps its samples."""
    from fedsuv_plugin.tasks.datasets import DATASETS

    data_set = DATASETS[config.data_set]
    if config.partition == "natural":
        wanted = samples / (data_set.samples_per_client or samples)
    else:
        wanted = samples * clients / (data_set.training_samples or samples * clients)
    return min(config.data_fraction, float(f"{wanted:.3g}"))


def _smaller_params(
    selector: str, params: Params, before: JobConfig, after: JobConfig, kept: Collection[str]
) -> dict[str, Any]:
    """A selector's parameters that shrink as much as some key of the job has shrunk.

    None gets smaller than it may be."""
    values = {}
    for f in fields(params):
        key = f.metadata.get("scales_with")
        value = getattr(params, f.name)
        if key is not None and value is not None and f"{selector}.{f.name}" not in kept:
            shrunk = value * getattr(after, key) // getattr(before, key)
            values[f.name] = max(shrunk, f.metadata["low"] or 0)
    return values


def _every_value(config: JobConfig, selector_params: Mapping[str, Params]) -> dict[str, object]:
    """Every key and its value, defaults included."""
    values = {f.name: getattr(config, f.name) for f in fields(config)}
    for selector, params in selector_params.items():
        values |= {f"{selector}.{f.name}": getattr(params, f.name) for f in fields(params)}
    return values
