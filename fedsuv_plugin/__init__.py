"""Client selection for FedScale jobs.

From Python:

    import fedsuv_plugin as fp

    job = fp.load_job("configs/quickstart.yml", {"sample_mode": "oort", "rounds": 20})
    run = fp.run(job)
    print(run.metrics[-1]["accuracy"], run.path)

    if __name__ == "__main__":  # its worker processes import the script once more
        study = fp.compare("configs/quickstart.yml", {"sample_mode": ["random", "oort"]}, range(3))
        print(study.table())
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from fedsuv_plugin.config.job import Job
    from fedsuv_plugin.experiments.frames import Frames
    from fedsuv_plugin.experiments.study import Study
    from fedsuv_plugin.records import Run

    __version__: str

__all__ = ["__version__", "compare", "load_job", "read_run", "read_runs", "run"]

# Everything is imported when it is called, so that `import fedsuv_plugin` costs nothing.


def __getattr__(name: str) -> str:
    if name == "__version__":
        from importlib.metadata import version

        return version("fedsuv_plugin")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def load_job(path: str | Path, overrides: Mapping[str, object] | None = None) -> Job:
    """Read and check a job file; `overrides` are flat keys that win over it."""
    from fedsuv_plugin.config.job_file import load_job

    return load_job(path, overrides)


def run(
    job: Job,
    *,
    launcher: str = "loopback",
    executors: int = 1,
    on_round: Callable[[Mapping[str, Any], Mapping[str, Any] | None], None] | None = None,
) -> Run:
    """Run a job to its end in a new run directory, and read what came out.

    `on_round` gets each round's record, and the metrics where the model was evaluated. Ctrl-C
    ends the job after its round, resumable, with KeyboardInterrupt."""
    from fedsuv_plugin.engine.launchers import run_job
    from fedsuv_plugin.run_directory import RunDirectory

    directory = RunDirectory.create(job)
    if not run_job(directory, launcher, executors, on_round or (lambda record, metrics: None)):
        raise KeyboardInterrupt
    return read_run(directory.path)


def read_run(path: str | Path) -> Run:
    """What is in a run directory: its settings, rounds and metrics; `frames()` as data frames."""
    from fedsuv_plugin.records import read_run

    return read_run(path)


def read_runs(pattern: str | Path) -> Frames:
    """Data frames of the settings, rounds and metrics of all runs that match `runs/quickstart/*`
    or the like."""
    from fedsuv_plugin.experiments.frames import read_runs

    return read_runs(pattern)


def compare(
    job: str | Path,
    vary: Mapping[str, Sequence[object]],
    seeds: Sequence[int] = range(5),
    *,
    folder: str | Path | None = None,
    workers: int | None = None,
    **settings: Any,
) -> Study:
    """Compare variants of a job file over seeds: `vary` has the values of each key to be varied.

    Runs what is missing in `folder` (runs/studies/<job_name>), writes the report there and returns
    the study. `settings` are fields of `Study`, such as target=0.9. A job that fails stops no
    other: see `study.failures`."""
    from fedsuv_plugin.experiments.report import write_report
    from fedsuv_plugin.experiments.study_folder import make_study

    folder = folder or f"runs/studies/{load_job(job).config.job_name}"
    study = make_study(job, folder, vary, seeds, **settings)
    for _ in study.run(workers):
        pass
    write_report(study.results(), study.folder)
    return study
