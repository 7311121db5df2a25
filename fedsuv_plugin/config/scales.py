"""A published job made smaller: `--scale mini` ends in minutes on two cores, `--scale smoke` in seconds.

A rule of few numbers, the same for every job file. It reads the job and nothing else, no data, so the same file gives
the same smaller job everywhere. What it says of a small job is not what the paper says: it shows that a job learns.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from fedsuv_plugin.config.job import Job

# Training samples of the data sets whose samples are shared out, and the mean of a natural client's: from both follows
# the data_fraction that leaves a client so many. A data set that is not here keeps its samples.
TRAINING_SAMPLES = {
    "Mnist": 60_000,
    "fmnist": 60_000,
    "cifar10": 50_000,
    "cifar100": 50_000,
    "femnist": 700_000,
}
NATURAL_SAMPLES = {"Mnist": 110, "femnist": 200, "google_speech": 30, "shakespeare": 3_700}
# 9 to 55 ms of one core for one training sample of 32 x 32 pixels; gpfl_cnn takes 1 ms.
HEAVY = ("resnet18", "resnet34", "mobilenet_v2", "shufflenet_v2_x2_0")
DEFAULT_CLIENTS = 100  # of a job that does not say


@dataclass(frozen=True)
class Rule:
    """Bounds, but for clients and participants, of which one in so many is left."""

    rounds: int  # at most; pczfl.warmup_rounds shrink with them
    evaluations: int  # about so many
    clients: tuple[
        int, int
    ]  # one in the first number, but at least the second; available_clients with them
    participants: tuple[int, int]  # likewise
    samples: int  # of a client in the mean, at most: through data_fraction
    test_samples: int  # at most
    local_epochs: int  # at most
    local_steps: int  # at most
    batch_size: int  # at most
    stand_in_samples: int  # at most
    public_fraction: float = 0  # at least, where the job has one: less would be no sample
    models: Mapping[str, str] = field(
        default_factory=dict
    )  # those that would take too long, and what stands for them


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
        models={**dict.fromkeys(HEAVY, "gpfl_cnn"), "char_lstm": "char_lstm_small"},
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
    ),
}
EXPLAINED = """\
--scale makes the same job smaller; --set wins over it, and what it changed is printed and recorded. full: nothing.
  key                   mini                                       smoke
  rounds                at most 100                                at most 2
  warmup_rounds         as much shorter as the rounds              the same
  pczfl.warmup_rounds   the same                                   the same
  eval_interval         20 evaluations                             every round
  num_clients           a tenth, at least 50                       at most 6
  available_clients     as many fewer as num_clients               the same
  num_participants      half, at least 5                           at most 2
  data_fraction         at most 200 samples a client in the mean   at most 4
  public_fraction       as it is                                   at least 0.1, if set
  test_samples          at most 1,000                              at most 10
  local_epochs          at most 1                                  at most 1
  local_steps           at most 10                                 at most 1
  batch_size            at most 16                                 at most 8
  model                 ResNets, MobileNet-V2 and ShuffleNet-V2    as it is
                        become gpfl_cnn, char_lstm char_lstm_small
  use_cuda              false                                      false
round_deadline, learning rates and everything else stay as they are. Bounds never make a job larger.
"""


def scaled(job: Job, scale: str, kept: Collection[str] = ()) -> tuple[Job, list[str]]:
    """The job at a scale, and what that changed, a line each. Keys in `kept` stay as the job has them."""
    rule = RULES[scale]
    if rule is None:
        return job, []
    config, params = job.config, job.selector_params
    values: dict[str, Any] = {}

    def now(key: str) -> Any:
        return values.get(key, getattr(config, key))

    def change(key: str, value: object) -> None:
        if key not in kept:
            values[key] = value

    def at_most(key: str, bound: int) -> None:
        if now(key) is not None:
            change(key, min(now(key), bound))

    clients = config.num_clients or DEFAULT_CLIENTS
    at_most("rounds", rule.rounds)
    change("warmup_rounds", config.warmup_rounds * now("rounds") // config.rounds)
    change("eval_interval", max(1, now("rounds") // rule.evaluations))
    if config.local_epochs is None:
        at_most("local_steps", rule.local_steps)
    else:
        at_most("local_epochs", rule.local_epochs)
    at_most("batch_size", rule.batch_size)
    change("num_participants", _one_in(rule.participants, config.num_participants))
    change("use_cuda", False)
    change("model", rule.models.get(config.model, config.model))
    change("test_samples", min(config.test_samples or rule.test_samples, rule.test_samples))
    if config.data_map_file is None:  # which says how many clients there are, and of what
        change("num_clients", _one_in(rule.clients, clients))
        if config.stand_in:
            at_most("synthetic_samples", rule.stand_in_samples)
        else:
            change("data_fraction", _fraction(job, now("num_clients"), rule.samples))
    if config.public_fraction:
        change("public_fraction", max(config.public_fraction, rule.public_fraction))
    if config.available_clients is not None:
        share = now("num_clients") / clients if config.data_map_file is None else 1
        change(
            "available_clients",
            max(round(config.available_clients * share), now("num_participants")),
        )
    if "warmup_rounds" in params.get("pczfl", {}) and "pczfl.warmup_rounds" not in kept:
        warmup = params["pczfl"]["warmup_rounds"]
        assert isinstance(warmup, int)
        params = {
            **params,
            "pczfl": {**params["pczfl"], "warmup_rounds": warmup * now("rounds") // config.rounds},
        }
    smaller = replace(job, config=replace(config, **values), selector_params=params)
    before, after = job.flat(), smaller.flat()
    return smaller, [
        f"{key}: {_value(job, before, key)} -> {_value(job, after, key)}"
        for key in {**before, **after}
        if before.get(key) != after.get(key)
    ]


def _one_in(rule: tuple[int, int], count: int) -> int:
    share, least = rule
    return min(count, max(round(count / share), least))


def _fraction(job: Job, clients: int, samples: int) -> float:
    """data_fraction for so many samples a client in the mean, but never more than the job's own."""
    name = job.config.data_set
    if job.config.partition == "natural":
        wanted = samples / NATURAL_SAMPLES.get(name, samples)
    else:
        wanted = samples * clients / TRAINING_SAMPLES.get(name, samples * clients)
    return min(job.config.data_fraction, float(f"{wanted:.3g}"))


def _value(job: Job, flat: Mapping[str, object], key: str) -> object:
    """A key's value, also where it is the default and `flat` leaves it out."""
    return flat[key] if key in flat else getattr(type(job.config), key)
