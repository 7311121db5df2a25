"""Every key that `job_conf` may have, and FedScale's keys that mean nothing here."""

from __future__ import annotations

from dataclasses import dataclass

from fedsuv_plugin.config.run_keys import RunKeys
from fedsuv_plugin.config.task_keys import TaskKeys
from fedsuv_plugin.errors import require

# FedScale's keys that say what the plugin does anyway; a job file must not contradict it.
FIXED = {
    "engine": ("pytorch",),
    "experiment_mode": ("simulation",),
    "task": ("cv", "speech", "text_clf"),
    "model_zoo": ("torchcv",),
}

TLS_KEYS = ("tls_cert", "tls_key", "tls_ca")  # all of them are set, or none


@dataclass(frozen=True, kw_only=True)
class JobConfig(TaskKeys, RunKeys):
    """The keys of `job_conf` that have an effect, checked. FedScale's keys keep its names.

    >>> JobConfig(rounds=100, learning_rate="1e-3").learning_rate
    0.001
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        name = self.job_name
        plain = name.strip() not in ("", ".", "..") and not set(name) & {"/", "\\"}
        require(plain, "job_name", "the name of a folder", name)
        given = {key for key in TLS_KEYS if getattr(self, key) is not None}
        if missing := [key for key in TLS_KEYS if given and key not in given]:
            require(False, missing[0], f"a file, because {min(given)} is set", None)

    def learning_rate_in(self, round_number: int) -> float:
        """FedScale's decay, as a function of the round alone."""
        decayed = self.learning_rate * self.decay_factor ** (round_number // self.decay_round)
        return max(decayed, self.min_learning_rate)
