"""A job: every key of a job file, checked, and the top-level keys beside them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

from fedsuv_plugin import named
from fedsuv_plugin.config.keys import FIXED, JobConfig
from fedsuv_plugin.engine import fedscale_env
from fedsuv_plugin.errors import UserError
from fedsuv_plugin.params import Params, refuse_unknown

J = TypeVar("J", bound="Job")


@dataclass(frozen=True)
class Job:
    """A job file, read and checked. Keys that say `none` may still be open: see `resolved.py`."""

    config: JobConfig
    selector_params: Mapping[str, Params] = field(default_factory=dict)  # by selector, if set
    extra: Mapping[str, object] = field(default_factory=dict)  # FedScale's keys without effect here
    cluster: Mapping[str, Any] = field(default_factory=dict)  # the top-level keys but job_conf
    source: str = "job"

    def flat(self) -> dict[str, object]:
        """Every key of job_conf that differs from its default, as one flat mapping."""
        values = _changed(self.config)
        for selector, params in self.selector_params.items():
            values |= {f"{selector}.{key}": value for key, value in _changed(params).items()}
        return values | dict(self.extra)

    def every_key(self) -> dict[str, object]:
        """Every key of job_conf, and every parameter of the selectors that it sets."""
        values = _all(self.config)
        for selector, params in self.selector_params.items():
            values |= {f"{selector}.{key}": value for key, value in _all(params).items()}
        return values | dict(self.extra)

    def params_of(self, selector: str) -> Params:
        """The parameters of a selector, chosen or not; its defaults if the job sets none."""
        if selector in self.selector_params:
            return self.selector_params[selector]
        return named.params_class(selector)()

    def to_argv(self) -> list[str]:
        """The job as the arguments FedScale's driver would pass."""
        return [f"--{key}={value}" for key, value in self.flat().items()]

    def with_values(self: J, **values: Any) -> J:
        """The same job with other values of some keys of JobConfig."""
        return replace(self, config=replace(self.config, **values))


def _all(params: Params) -> dict[str, object]:
    return {f.name: getattr(params, f.name) for f in fields(params)}


def _changed(params: Params) -> dict[str, object]:
    values = _all(params)
    return {f.name: values[f.name] for f in fields(params) if values[f.name] != f.default}


def make_job(
    values: Mapping[str, object], *, cluster: dict[str, Any] | None = None, source: str = "job"
) -> Job:
    """A job from flat keys: ours, FedScale's, and `<selector>.<parameter>`."""
    ours = [f.name for f in fields(JobConfig)]
    fedscale = fedscale_env.options()
    oort = {f.name for f in fields(named.params_class("oort"))}
    dotted = {key: value for key, value in values.items() if "." in key}
    # FedScale writes Oort's parameters without a prefix; they mean the same.
    dotted |= {f"oort.{key}": value for key, value in values.items() if key in oort}
    plain = {key: value for key, value in values.items() if "." not in key and key not in oort}
    refuse_unknown(plain, [*ours, *fedscale, *oort])
    _refuse_contradictions(plain)
    config = JobConfig(**{key: plain.pop(key) for key in ours if key in plain})  # type: ignore[arg-type]
    for key in plain.keys() - FIXED.keys():
        print(f"{source}: {key} has no effect here", file=sys.stderr)
    job = Job(config, _selector_params(dotted), dict(plain), cluster or {}, source)
    named.required(config.sample_mode, job.params_of)  # refuses a selector that cannot be made
    return job


def _refuse_contradictions(plain: Mapping[str, object]) -> None:
    for key, allowed in FIXED.items():
        if key in plain and str(plain[key]) not in allowed:
            raise UserError(
                f"{key}: expected {' or '.join(allowed)}, got {plain[key]!r}; the plugin trains "
                "PyTorch classifiers in FedScale's simulation mode"
            )


def _selector_params(dotted: Mapping[str, object]) -> dict[str, Params]:
    """`<selector>.<parameter>` keys, grouped and checked, whichever selector is chosen."""
    grouped: dict[str, dict[str, object]] = {}
    for key, value in dotted.items():
        selector, _, parameter = key.partition(".")
        grouped.setdefault(selector, {})[parameter] = value
    refuse_unknown(grouped, named.installed(), "selector")
    return {selector: _checked(selector, given) for selector, given in grouped.items()}


def _checked(selector: str, given: Mapping[str, object]) -> Params:
    try:
        return named.params_class(selector).from_mapping(given)
    except UserError as error:
        message = str(error)
        raise UserError(
            f"{selector}.{message}" if ":" in message else f"{selector}: {message}"
        ) from None
