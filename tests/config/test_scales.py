"""A job at a smaller scale: worked numbers, what is never changed, and the help that says so."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from conftest import ROOT
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsuv_plugin import named
from fedsuv_plugin.config.job import Job, make_job
from fedsuv_plugin.config.job_file import load_job
from fedsuv_plugin.config.scales import EXPLAINED, RULES, scaled
from fedsuv_plugin.selectors.baselines.tifl import TiFLParams
from fedsuv_plugin.selectors.pczfl import PCZFLParams
from fedsuv_plugin.tasks.datasets import DATASETS
from fedsuv_plugin.tasks.federated_data import model_kbit
from fedsuv_plugin.tasks.models import MODELS, lighter
from fedsuv_plugin.tasks.models.torchvision_zoo import torchvision_names

KEYS = {
    "rounds": st.integers(1, 5000),
    "eval_interval": st.integers(1, 100),
    "num_clients": st.integers(1, 5000),
    "num_participants": st.integers(1, 100),
    "local_steps": st.integers(1, 100),
    "local_epochs": st.none() | st.integers(1, 10),
    "batch_size": st.integers(1, 500),
    "test_samples": st.none() | st.integers(1, 10_000),
    "data_fraction": st.floats(0.01, 1),
    "available_clients": st.none() | st.integers(1, 5000),
    "pczfl.warmup_rounds": st.integers(0, 50),
    "warmup_rounds": st.integers(0, 50),
    "partition": st.sampled_from(["iid", "natural"]),
    "stand_in": st.booleans(),
    "model": st.sampled_from(["resnet18", "mlp"]),
    "data_set": st.sampled_from(["femnist", "cifar10", "digits"]),
    "round_deadline": st.none() | st.floats(1, 100),
    "clock_kbit": st.none() | st.floats(1, 1e6),
    "clock_samples": st.none() | st.integers(1, 1000),
}


BOUNDED = (
    "rounds",
    "num_clients",
    "num_participants",
    "batch_size",
    "data_fraction",
    "synthetic_samples",
)
UNTOUCHED = ("seed", "learning_rate", "round_deadline", "sample_mode")


@settings(deadline=None, derandomize=True)
@given(
    st.fixed_dictionaries(KEYS),
    st.sampled_from(["mini", "smoke"]),
    st.sets(st.sampled_from(sorted(KEYS))),
)
def test_a_scale_never_makes_a_job_larger_and_leaves_what_was_set(
    values: dict[str, object], scale: str, kept: set[str]
) -> None:
    job = make_job(values)
    smaller, changes = scaled(job, scale, kept)
    before, after = job.config, smaller.config
    for key in BOUNDED:
        assert 0 < getattr(after, key) <= getattr(before, key)
    if after.model == before.model:
        assert 0 < after.local_steps <= before.local_steps
    assert (after.local_epochs is None) == (before.local_epochs is None)
    if before.available_clients is not None and "available_clients" not in kept:
        assert after.available_clients is not None
        assert after.num_participants <= after.available_clients
    for key in kept:
        assert smaller.flat().get(key) == job.flat().get(key)
    changed = {line.partition(":")[0] for line in changes}
    old, new = job.flat(), smaller.flat()
    assert changed == {key for key in {**old, **new} if old.get(key) != new.get(key)}
    assert not changed & kept
    assert all(getattr(after, key) == getattr(before, key) for key in UNTOUCHED)


def test_a_scale_worked_by_hand() -> None:
    """FilFL's CIFAR-10 job at mini.

    Of 200 clients a tenth would be 20, so 50; of 100 available a quarter, as of the clients;
    50 x 200 samples of 50,000; half of 10 participants; 100 of 500 rounds, evaluated every fifth.
    """
    job = load_job(ROOT / "configs" / "filfl" / "cifar10.yml")
    config = scaled(job, "mini")[0].config
    assert (config.num_clients, config.available_clients, config.data_fraction) == (50, 25, 0.2)
    assert (config.num_participants, config.rounds, config.eval_interval) == (5, 100, 5)
    assert config.model == "gpfl_cnn"
    assert scaled(job, "full") == (job, [])


# ---- what data sets, models and selectors declare


def test_a_selectors_rounds_shrink_with_the_jobs() -> None:
    """PCZFL's job sets 20 of 200 rounds, which is also the default: 10 of 100 are left."""
    job = load_job(ROOT / "configs" / "pczfl" / "cifar10.yml")
    smaller, changes = scaled(job, "mini")
    params = job.params_of("pczfl")
    assert isinstance(params, PCZFLParams)
    assert smaller.params_of("pczfl") == replace(params, warmup_rounds=10)
    assert smaller.config.warmup_rounds == 10
    assert "pczfl.warmup_rounds: 20 -> 10" in changes
    kept, changes = scaled(job, "mini", ["pczfl.warmup_rounds"])
    assert kept.params_of("pczfl") == params
    assert not [line for line in changes if line.startswith("pczfl")]


def test_a_parameter_that_shrinks_to_its_default_is_said_too() -> None:
    job = make_job({"rounds": 200, "pczfl.warmup_rounds": 40})
    assert "pczfl.warmup_rounds: 40 -> 20" in scaled(job, "mini")[1]


def test_the_chosen_selectors_defaults_shrink_too() -> None:
    job = make_job({"rounds": 200, "sample_mode": "pczfl"})
    smaller, changes = scaled(job, "mini")
    assert smaller.params_of("pczfl") == PCZFLParams(warmup_rounds=10)
    assert "pczfl.warmup_rounds: 20 -> 10" in changes


def test_a_parameter_shrinks_no_further_than_it_may() -> None:
    # Of 2000 rounds 100 are left: an interval of 10 would become half a round, and 5 credits 0.25.
    job = make_job({"rounds": 2000, "sample_mode": "tifl", "tifl.credits": 5})
    smaller, _ = scaled(job, "mini")
    assert smaller.config.rounds == 100
    assert smaller.params_of("tifl") == TiFLParams(interval=1, credits=1)


def test_a_selector_that_is_neither_chosen_nor_set_keeps_its_defaults() -> None:
    smaller, changes = scaled(make_job({"rounds": 200}), "mini")
    assert smaller.params_of("pczfl") == named.params_class("pczfl")()
    assert smaller.selector_params == {}
    assert not [line for line in changes if line.startswith("pczfl")]


# ---- the clock of the full job


def fedsuvs(name: str, **values: object) -> Job:
    return load_job(ROOT / "configs" / "fedsuv" / f"{name}.yml", values)


def clock(job: Job) -> tuple[float | None, int | None]:
    return job.config.clock_kbit, job.config.clock_samples


def test_a_smaller_job_keeps_the_full_jobs_clock_and_trains_enough() -> None:
    """FEMNIST: 5 steps of 20 samples and a ResNet-18 are timed, 13 steps of 16 are trained.

    At mini 13 x 16 is the first product that reaches 200 samples; at smoke nothing is lighter."""
    job = fedsuvs("femnist_resnet18")
    mini, changes = scaled(job, "mini")
    assert clock(mini) == (model_kbit(job.config), 100)
    assert (mini.config.model, mini.config.local_steps, mini.config.batch_size) == (
        "gpfl_cnn",
        13,
        16,
    )
    assert f"clock_kbit: None -> {model_kbit(job.config)}" in changes
    assert "clock_samples: None -> 100" in changes
    assert mini.config.device_avail_file == job.config.device_avail_file
    smoke = scaled(job, "smoke")[0]
    assert clock(smoke) == (None, 100)
    assert smoke.config.device_avail_file is None  # of six phones hardly any is ever online
    assert (smoke.config.local_steps, smoke.config.batch_size) == (1, 8)


def test_the_two_cifar10_files_are_not_one_job_at_mini() -> None:
    resnet, mobilenet = (
        scaled(fedsuvs(name), "mini")[0] for name in ("cifar10_resnet18", "cifar10_mobilenet")
    )
    assert resnet.config.model == mobilenet.config.model
    assert (resnet.config.clock_kbit or 0) > 4 * (mobilenet.config.clock_kbit or 0) > 0


def test_what_was_set_wins_over_the_clock_of_the_full_job() -> None:
    job = fedsuvs("femnist_resnet18", clock_kbit=7.0, clock_samples=None)
    assert clock(scaled(job, "mini", ["clock_kbit", "clock_samples"])[0]) == (7.0, None)
    own = fedsuvs("femnist_resnet18", clock_kbit=7.0, clock_samples=9)  # as if the file said so
    assert clock(scaled(own, "mini")[0]) == (7.0, 9)
    same_work = {"model": "mlp", "local_steps": 2, "batch_size": 4}
    same = fedsuvs("femnist_resnet18", **same_work)
    assert clock(scaled(same, "mini", list(same_work))[0]) == (None, None)


def test_without_a_deadline_the_clock_is_the_smaller_jobs_own() -> None:
    job = fedsuvs("femnist_resnet18", round_deadline=None)
    assert clock(scaled(job, "mini", ["round_deadline"])[0]) == (None, None)


@pytest.mark.parametrize(
    ("keys", "samples"),
    [
        # of 50,000 samples a client in 3,500 has 14.3; 2 epochs of them
        ({"data_set": "cifar10", "num_clients": 3500}, 29),
        ({"data_set": "cifar10", "num_clients": 3500, "data_fraction": 0.5}, 14),
        ({"data_set": "femnist", "partition": "natural"}, 400),  # writers have 200 in the mean
        ({"data_set": "digits"}, None),  # does not say how large it is
        ({"data_set": "cifar10", "data_map_file": "map.csv"}, None),
    ],
)
def test_epochs_are_timed_as_a_mean_clients_in_the_full_job(
    keys: dict[str, object], samples: int | None
) -> None:
    job = make_job({"local_epochs": 2, "round_deadline": 60, **keys})
    assert scaled(job, "mini")[0].config.clock_samples == samples


@pytest.mark.parametrize(
    ("keys", "fraction"),
    [
        # 50 clients of 200 samples: 10,000 of 60,000, 50,000 and 700,000
        ({"data_set": "Mnist"}, 0.167),
        ({"data_set": "fmnist"}, 0.167),
        ({"data_set": "cifar100"}, 0.2),
        ({"data_set": "femnist"}, 0.0143),
        # natural clients have 3,700, 200, 110 and 30 samples in the mean
        ({"data_set": "shakespeare", "partition": "natural"}, 0.0541),
        ({"data_set": "femnist", "partition": "natural"}, 1.0),
        ({"data_set": "Mnist", "partition": "natural"}, 1.0),
        ({"data_set": "google_speech", "partition": "natural"}, 1.0),
        # data sets that do not say how large they are
        ({"data_set": "digits"}, 1.0),
        ({"data_set": "google_speech"}, 1.0),
        ({"data_set": "fmnist", "partition": "natural"}, 1.0),
    ],
)
def test_the_share_of_the_data_follows_from_its_size(
    keys: dict[str, object], fraction: float
) -> None:
    job = make_job({"num_clients": 500, **keys})
    assert scaled(job, "mini")[0].config.data_fraction == fraction


def test_sizes_that_data_sets_declare_are_those_of_the_real_ones(data_root: Path) -> None:
    for name in ("Mnist", "fmnist", "cifar10"):
        splits = DATASETS[name](make_job({"data_set": name}).config).load()
        assert len(splits.train_y) == DATASETS[name].training_samples


def test_heavy_models_name_a_lighter_one() -> None:
    light = {name: lighter(name) for name in [*MODELS.names(), *torchvision_names()]}
    heavy = {name: other for name, other in light.items() if name != other}
    assert heavy == {
        "char_lstm": "char_lstm_small",
        "mobilenet_v2": "gpfl_cnn",
        "resnet18": "gpfl_cnn",
        "resnet34": "gpfl_cnn",
        "shufflenet_v2_x2_0": "gpfl_cnn",
    }
    help_text = " ".join(EXPLAINED.split())
    assert all(name in help_text for pair in heavy.items() for name in pair)
    assert lighter("no such model") == "no such model"  # whoever builds it will refuse it


# ---- the help


def test_the_help_says_the_numbers_of_the_rules() -> None:
    mini, smoke = RULES["mini"], RULES["smoke"]
    assert mini is not None and smoke is not None
    assert f"at least {mini.clients[1]}" in EXPLAINED
    assert f"at most {smoke.clients[1]}" in EXPLAINED
    for rule in (mini, smoke):
        bounds = [rule.rounds, rule.samples, rule.test_samples, rule.local_epochs]
        bounds += [rule.local_steps, rule.batch_size, rule.stand_in_samples]
        for bound in bounds:
            assert f"at most {bound:,}" in EXPLAINED
