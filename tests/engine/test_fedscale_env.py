"""FedScale made importable, and told what the job is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import MakeJob

from fedsuv_plugin.config.argv import Place
from fedsuv_plugin.config.resolved import resolve
from fedsuv_plugin.engine import fedscale_env
from fedsuv_plugin.selectors.baselines.oort import OortParams


@pytest.mark.parametrize("package", ["tensorflow", "wandb"])
def test_optional_packages_say_which_extra_to_install(package: str) -> None:
    """Absent: FedScale imports, and using them says what to do. Present: the real ones are used."""
    script = f"""
import importlib.util, sys
from fedsuv_plugin.engine.stock import Aggregator
import fedscale.cloud.aggregation.aggregator as module
import fedscale.cloud.internal.tensorflow_model_adapter as adapter
used = module.wandb if {package!r} == "wandb" else adapter.tf
if importlib.util.find_spec({package!r}) is None:
    assert {package!r} not in sys.modules
    try:
        used.init() if {package!r} == "wandb" else used.keras.Model()
    except ImportError as error:
        assert "pip install 'fedsuv_plugin[{package}]'" in str(error), error
    else:
        raise SystemExit("no error")
else:
    assert used is sys.modules[{package!r}]
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_a_real_optional_package_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "wandb.py").write_text("real = True\nrun = None\n")
    script = (
        "import fedsuv_plugin.engine.stock, fedscale.cloud.aggregation.aggregator as module\n"
        "assert module.wandb.real"
    )
    subprocess.run(
        [sys.executable, "-c", script],
        check=True,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"},
    )


def test_the_command_line_of_another_program_does_not_matter() -> None:
    """FedScale parses sys.argv when it is imported; a word it does not know would end us."""
    script = (
        "import sys; words = list(sys.argv)\n"
        "import fedsuv_plugin.engine.stock\n"
        "assert sys.argv == words"
    )
    subprocess.run([sys.executable, "-c", script, "--rounds=no", "--unheard-of"], check=True)


def test_all_of_fedscale_reads_the_resolved_job(job: MakeJob, tmp_path: Path) -> None:
    made = resolve(job(sample_mode="oort", learning_rate=0.5, oort__exploration_min=0.25))
    place = Place(this_rank=2, num_executors=3, cuda_device="cuda:1")
    args = fedscale_env.namespace(made, place, tmp_path)
    assert fedscale_env.parser_module().args is args
    assert (args.sample_mode, args.learning_rate) == ("oort", 0.5)
    assert (args.this_rank, args.num_executors, args.cuda_device) == (2, 3, "cuda:1")
    assert args.selector_params == {"oort": OortParams(exploration_min=0.25)}
    assert args.needs == made.needs
    assert args.event_dir == str(tmp_path)
    assert isinstance(args.ps_port, str)  # FedScale puts it into addresses
    assert args.proxy_mu == made.config.proxy_mu
    assert fedscale_env.namespace(made, place).event_dir == ""


def test_only_the_default_trace_may_be_missing(tmp_path: Path) -> None:
    assert fedscale_env.trace_file(None) is None
    assert fedscale_env.trace_file("/nowhere/else") == "/nowhere/else"
    if not Path("/tmp/client.cfg").exists():
        assert fedscale_env.trace_file("/tmp/client.cfg") is None
