"""FedScale job files: YAML -> a frozen JobConfig, checked to the last key.

A job file is FedScale's own: `ps_ip`, `worker_ips`, `exp_path`, `executor_entry`, `aggregator_entry`, `auth`,
`setup_commands` and `job_conf`, a list of one-key maps. Every key in `job_conf` is flat, so FedScale's driver can turn
it into command lines; `from_argv` reads those back, and `to_argv` writes them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import yaml

from fedsuv_plugin import registry
from fedsuv_plugin.engine import fedscale_env
from fedsuv_plugin.errors import UserError
from fedsuv_plugin.params import Params, param, refuse_unknown

FILES = (
    "device_conf_file",
    "device_avail_file",
    "data_map_file",
    "data_dir",
)  # job keys that name files
TOP_LEVEL = (
    "ps_ip",
    "worker_ips",
    "exp_path",
    "executor_entry",
    "aggregator_entry",
    "auth",
    "setup_commands",
    "job_conf",
)


@dataclass(frozen=True, kw_only=True)
class JobConfig(Params):
    """The keys of `job_conf` that have an effect. FedScale's keep FedScale's names and, but for those marked, its
    defaults."""

    # the job
    job_name: str = param("demo_job", "name of the job, and of its folder of run directories")
    log_path: str = param("runs", "folder that holds the run directories [FedScale: ./]")
    seed: int = param(0, "the one seed; the same config gives the same numbers", low=0)
    rounds: int = param(50, "rounds to train (FedScale stops one short of it)", low=1)
    eval_interval: int = param(5, "rounds between evaluations on the test set", low=1)
    checkpoint_every: int = param(10, "rounds between checkpoints", low=1)
    torch_threads: int = param(
        1, "threads of one torch operation; the last bits of the results depend on it", low=1
    )
    use_cuda: bool = param(False, "train on a GPU [FedScale: true]")
    wandb_token: str = param("", "Weights & Biases key; needs the extra 'wandb'")
    ps_ip: str = param("127.0.0.1", "address the aggregator binds to and executors connect to")
    ps_port: int = param(29500, "port of the aggregator", low=1, high=65535)
    connection_timeout: int = param(
        60, "seconds an executor tries to reach the aggregator, and to be waited for", low=1
    )

    # selection
    sample_mode: str = param("random", "the selector: a name that `fedsuv selectors` lists")
    num_participants: int = param(4, "clients to aggregate per round", low=1)
    overcommitment: float = param(
        1.3, "clients asked per client aggregated, when no round_deadline is set", low=1
    )
    warmup_rounds: int = param(
        0,
        "rounds at the start in which everyone online is asked, whichever the selector; pczfl and oracle set their "
        "cohorts themselves (pczfl.warmup_rounds)",
        low=0,
    )
    filter_less: int = param(1, "clients with fewer samples are left out [FedScale: 32]", low=0)
    filter_more: float = param(1e15, "clients with more samples are left out", low=1)
    holdout_fraction: float | None = param(
        None,
        "share of each client's samples kept from training for its opinions; none: 0.2 if the selector needs it, "
        "else 0. Set it when comparing selectors",
        low=0,
        high=0.9,
    )
    interview_fraction: float | None = param(
        None,
        "share of the test set kept from the reported accuracy for interviews; none: 0.2 if the selector needs "
        "it, else 0. Set it when comparing selectors",
        low=0,
        high=0.9,
    )
    public_fraction: float | None = param(
        None,
        "share of the training samples taken from the clients for the server's public set; none: 0.05 if the "
        "selector needs it and public_data_set is not set, else 0. Set it when comparing selectors",
        low=0,
        high=0.9,
    )
    public_data_set: str | None = param(
        None,
        "data set of the same shape and classes whose training samples are the public set; none: public_fraction",
    )
    public_samples: int | None = param(
        None, "at most so many samples of public_data_set; none: all", low=1
    )
    selector_test_samples: int | None = param(
        None,
        "test samples on which a selector that needs the global model's accuracy every round gets it; none: all",
        low=1,
    )

    # devices and time
    device_conf_file: str | None = param(
        None, "device speeds; none: equal devices [FedScale: /tmp/client.cfg]"
    )
    device_avail_file: str | None = param(None, "who is online when; none: always online")
    round_deadline: float | None = param(
        None, "seconds a round may last; none: FedScale's overcommitment", above=0
    )
    available_clients: int | None = param(
        None,
        "clients that are there at all, drawn from the seed every available_every rounds for any selector; "
        "who of them is online device_avail_file says. none: everyone",
        low=1,
    )
    available_every: int = param(5, "rounds until available_clients are drawn again", low=1)
    upload_success: float = param(
        1.0,
        "chance that a participant's update reaches the server; a lost one counts as "
        "having missed the round",
        low=0,
        high=1,
    )
    duration_jitter: float = param(
        0.1, "sigma of the log-normal fluctuation of a client's time; 0: none", low=0
    )

    # data
    data_set: str = param("digits", "data set [FedScale: cifar10]")
    data_dir: str | None = param(None, "folder of the data set; none: $FEDSUV_DATA/<data set>")
    data_map_file: str | None = param(
        None, "CSV that says who owns which sample; none: `partition` decides"
    )
    num_clients: int | None = param(
        None, "clients; none: 100, or all of the map file or of partition: natural", low=1
    )
    partition: str = param(
        "iid",
        "how samples are shared out: iid, dirichlet, dirichlet_qp, shards, or natural, to "
        "the writers, speakers or roles they come from (num_clients keeps so many at random); "
        "`fedsuv data partition` shows and exports it",
    )
    partition_alpha: float = param(
        0.5,
        "concentration of partition: dirichlet (of each class over the clients) and dirichlet_qp (of a client's "
        "labels around those of all: GPFL's zeta); small is non-iid",
        above=0,
    )
    shards_per_client: int = param(
        2, "pieces of one label each that a client gets with partition: shards", low=1
    )
    data_fraction: float = param(
        1.0,
        "share of the training samples that is used at all, the same of every label, drawn from the seed",
        above=0,
        high=1,
    )
    test_samples: int | None = param(
        None,
        "at most so many test samples, drawn from the seed; none: all. interview_fraction is a share of these",
        low=1,
    )
    label_noise_clients: float = param(
        0.0,
        "share of the clients whose training labels are all wrong: every class is taken for the next one",
        low=0,
        high=1,
    )
    raw_pixels: bool = param(
        False, "pixels as they come, 0 to 255, instead of normalised (data sets of images)"
    )
    stand_in: bool = param(
        False,
        "made-up samples of the data set's shape, classes and kind of clients, for a job "
        "whose data is not here: it runs, and its results mean nothing",
    )
    synthetic_samples: int = param(
        2000, "training samples of data_set: synthetic and of stand_in", low=1
    )
    synthetic_dim: int = param(20, "dimension of data_set: synthetic", low=1)
    synthetic_classes: int = param(10, "classes of data_set: synthetic", low=2)

    # model and training
    model: str = param(
        "mlp",
        "model: lr, svm, mlp, cnn, gpfl_cnn, filfl_cnn, pczfl_cnn, char_lstm, char_lstm_small or "
        "a torchvision classifier, of which ResNets, MobileNet-V2 and ShuffleNet-V2 are fitted to "
        "images of up to 64 pixels [FedScale: shufflenet_v2_x2_0]",
    )
    mlp_hidden: str = param("64,30", "widths of the hidden layers of model: mlp")
    local_steps: int = param(
        20,
        "gradient steps per participation, each of a whole batch; what an epoch leaves over "
        "is dropped, as FedScale does. Without effect if local_epochs is set",
        low=1,
    )
    local_epochs: int | None = param(
        None,
        "epochs per participation: every sample of the client once in each, the last batch as small as it comes; "
        "a client's computing time is then that of its own samples. none: local_steps",
        low=1,
    )
    batch_size: int = param(
        30,
        "samples per step; a client that has fewer uses what it has. A batch of one sample is "
        "normalised by BatchNorm's running statistics and leaves them as they are",
        low=1,
    )
    test_bsz: int = param(128, "samples per step of evaluation", low=1)
    learning_rate: float = param(5e-2, "of the clients' SGD", above=0)
    min_learning_rate: float = param(5e-5, "where its decay stops", low=0)
    decay_factor: float = param(0.98, "its decay every `decay_round` rounds", above=0)
    decay_round: int = param(10, "rounds between decays", low=1)
    momentum: float = param(0.9, "of the clients' SGD (FedScale fixes it at this)", low=0, high=1)
    weight_decay: float = param(
        5e-4, "of the clients' SGD (FedScale's key says 0, its SGD uses this)", low=0
    )
    loss_decay: float = param(
        0.2, "weight of the newest batch in the moving training loss", low=0, high=1
    )
    gradient_policy: str | None = param(
        None,
        "none: FedAvg; fed-prox, fed-yogi, q-fedavg",
        choices=("fed-avg", "fed-prox", "fed-yogi", "q-fedavg"),
    )
    aggregation_weights: str = param(
        "equal",
        "a client's weight in the average, of its parameters and of its BatchNorm statistics",
        choices=("equal", "samples"),
    )
    proxy_mu: float = param(0.1, "strength of fed-prox; 0 is FedAvg", low=0)
    yogi_eta: float = param(3e-3, "server learning rate of fed-yogi", above=0)
    yogi_tau: float = param(1e-8, "adaptivity of fed-yogi", above=0)
    yogi_beta: float = param(0.9, "first moment of fed-yogi", low=0, high=1)
    yogi_beta2: float = param(0.99, "second moment of fed-yogi", low=0, high=1)
    qfed_q: float = param(1.0, "fairness of q-fedavg; 0 is FedAvg", low=0)

    def learning_rate_in(self, round_number: int) -> float:
        """FedScale's decay, as a function of the round alone."""
        decayed = self.learning_rate * self.decay_factor ** (round_number // self.decay_round)
        return max(decayed, self.min_learning_rate)


# FedScale's keys that are settled otherwise: who runs where is the launcher's business ...
PLACE = ("this_rank", "num_executors", "executor_configs", "cuda_device", "time_stamp")
# ... and these say what the plugin does anyway, or must not contradict it.
FIXED = {
    "engine": ("pytorch",),
    "experiment_mode": ("simulation",),
    "task": ("cv", "speech", "text_clf"),
    "model_zoo": ("torchcv",),
}


@dataclass(frozen=True)
class Job:
    """A job file, read and checked."""

    config: JobConfig
    selector_params: dict[str, dict[str, object]] = field(
        default_factory=dict
    )  # selector -> parameter -> value
    extra: dict[str, object] = field(
        default_factory=dict
    )  # FedScale's keys without effect here, passed on
    cluster: dict[str, Any] = field(default_factory=dict)  # the top-level keys but job_conf
    source: str = "job"

    def flat(self) -> dict[str, object]:
        """Every key of job_conf that differs from its default, as a flat mapping: what `to_argv` and records write."""
        values = {
            f.name: getattr(self.config, f.name)
            for f in fields(self.config)
            if getattr(self.config, f.name) != f.default
        }
        values |= {
            f"{name}.{key}": value
            for name, params in self.selector_params.items()
            for key, value in params.items()
        }
        return values | self.extra

    def params_of(self, selector: str) -> Params:
        return registry.params_class(registry.client_manager_class(selector)).from_mapping(
            self.selector_params.get(selector, {})
        )

    def to_argv(self) -> list[str]:
        """The job as the arguments FedScale's driver would pass."""
        return [f"--{key}={value}" for key, value in self.flat().items()]

    def with_values(self, **values: Any) -> Job:
        return replace(self, config=replace(self.config, **values))


def load_job(path: str | Path, overrides: Mapping[str, object] | None = None) -> Job:
    """Read and check a job file; `overrides` are flat keys that win over it."""
    path = Path(path)
    if not path.is_file():
        raise UserError(f"no such job file: {path}")
    try:
        content = yaml.safe_load(path.read_text())
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not a YAML file: {' '.join(str(error).split())}") from None
    return _in_file(path, content, overrides or {})


def _in_file(path: Path, content: object, overrides: Mapping[str, object]) -> Job:
    try:
        if not isinstance(content, dict):
            raise UserError(
                "expected a FedScale job file with `job_conf`, got " + type(content).__name__
            )
        refuse_unknown(content, TOP_LEVEL)
        values = _job_conf(content.get("job_conf"))
        if "ps_ip" in content:
            values.setdefault("ps_ip", content["ps_ip"])
        values = {
            key: _located(value, path) if key in FILES else value for key, value in values.items()
        }
        cluster = {key: value for key, value in content.items() if key != "job_conf"}
        return make_job({**values, **overrides}, cluster=cluster, source=str(path))
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def _located(name: object, job_file: Path) -> object:
    """A file that a job file names: relative to the working directory or, if it is not there, to the job file's folder
    or one above it, so that a job of this repository runs from anywhere."""
    if isinstance(name, str) and not Path(name).expanduser().exists():
        for folder in job_file.resolve().parents:
            if (folder / name).exists():
                return str(folder / name)
    return name


def _job_conf(entries: object) -> dict[str, object]:
    """FedScale's list of one-key maps as one mapping; a key given twice is an error, not a silent override."""
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise UserError(
            "job_conf: expected a list of `- key: value`, got " + type(entries).__name__
        )
    values: dict[str, object] = {}
    for entry in entries:
        for key, value in entry.items():
            if key in values:
                raise UserError(f"job_conf: key {key!r} is given twice")
            values[str(key)] = value
    return values


def make_job(
    values: Mapping[str, object], *, cluster: dict[str, Any] | None = None, source: str = "job"
) -> Job:
    """A job from flat keys: ours, FedScale's, and `<selector>.<parameter>`."""
    ours = [f.name for f in fields(JobConfig)]
    oort = {f.name for f in fields(registry.params_class(registry.client_manager_class("oort")))}
    fedscale = fedscale_env.options()
    dotted = {key: value for key, value in values.items() if "." in key}
    # FedScale writes Oort's parameters without a prefix; they mean the same.
    dotted |= {f"oort.{key}": value for key, value in values.items() if key in oort}
    plain = {key: value for key, value in values.items() if "." not in key and key not in oort}
    refuse_unknown(plain, [*ours, *fedscale, *oort])
    for key, allowed in FIXED.items():
        if key in plain and str(plain[key]) not in allowed:
            raise UserError(
                f"{key}: expected {' or '.join(allowed)}, got {plain[key]!r}; the plugin trains PyTorch "
                "classifiers in FedScale's simulation mode"
            )
    config = JobConfig(**{key: plain.pop(key) for key in ours if key in plain})  # type: ignore[arg-type]
    for key in plain.keys() - FIXED.keys():
        print(f"{source}: {key} has no effect here", file=sys.stderr)
    job = Job(config, _selector_params(dotted), dict(plain), cluster or {}, source)
    registry.required(config.sample_mode, job.params_of)
    return job


def _selector_params(dotted: Mapping[str, object]) -> dict[str, dict[str, object]]:
    """`<selector>.<parameter>` keys, grouped and checked, whichever selector is chosen."""
    grouped: dict[str, dict[str, object]] = {}
    for key, value in dotted.items():
        selector, _, parameter = key.partition(".")
        grouped.setdefault(selector, {})[parameter] = value
    names = registry.installed()
    for selector, given in grouped.items():
        refuse_unknown([selector], names, "selector")
        declared = registry.params_class(registry.client_manager_class(selector))
        try:
            checked = declared.from_mapping(given)
        except UserError as error:
            raise UserError(
                f"{selector}.{error}" if ":" in str(error) else f"{selector}: {error}"
            ) from None
        grouped[selector] = {key: getattr(checked, key) for key in given}
    return grouped


@dataclass(frozen=True, kw_only=True)
class Place(Params):
    """Which process of the job this is; FedScale's driver says so on the command line."""

    this_rank: int = param(1, "0: the aggregator; 1, 2, ...: the executors", low=0)
    num_executors: int = param(1, "executors of the job", low=1)
    executor_configs: str = param("127.0.0.1:[1]", "ip:[processes per GPU], joined by =")
    cuda_device: str | None = param(None, "GPU of this executor")
    time_stamp: str = param("logs", "name of the run directory below log_path/job_name")


def from_argv(argv: Sequence[str]) -> tuple[Job, Place]:
    """The job and the place in it from `--key=value` or `--key value` arguments, as FedScale's driver passes them."""
    values = dict(_pairs(argv))
    place = Place.from_mapping({key: values.pop(key) for key in PLACE if key in values})
    return make_job(values, source="command line"), place


def _pairs(argv: Sequence[str]) -> Iterable[tuple[str, str]]:
    rest = list(argv)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--"):
            raise UserError(f"expected --key=value, got {word!r}")
        key, equals, value = word[2:].partition("=")
        if not equals:
            if not rest:
                raise UserError(f"--{key}: expected a value")
            value = rest.pop(0)
        yield key, value
