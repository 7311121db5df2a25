"""Runs as pandas data frames, for one's own analysis."""

from __future__ import annotations

import glob as globbing
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fedsuv_plugin.errors import UserError
from fedsuv_plugin.records import Records, Run, read_run

if TYPE_CHECKING:
    import pandas as pd

    from fedsuv_plugin.experiments.results import Results


@dataclass(frozen=True, eq=False)
class Frames:
    """Runs as tables. The columns run, sample_mode and seed say of which run a row is."""

    settings: pd.DataFrame  # a row a run, a column a key of the job
    rounds: pd.DataFrame  # a row a round; `probing.joules` is a field of a field
    metrics: pd.DataFrame  # a row an evaluation


def frames_of(runs: Sequence[Run]) -> Frames:
    import pandas as pd

    keys = [_whose(run) | run.settings for run in runs]
    return Frames(
        pd.DataFrame(keys).set_index("run"),
        pd.json_normalize([line for run in runs for line in _lines(run, run.rounds)]),
        pd.json_normalize([line for run in runs for line in _lines(run, run.metrics)]),
    )


def read_runs(pattern: str | Path) -> Frames:
    """All run directories that a pattern such as `runs/quickstart/*` matches."""
    paths = sorted(Path(path) for path in globbing.glob(str(pattern), recursive=True))
    found = [path for path in paths if (path / "config.yml").is_file()]
    if not found:
        raise UserError(f"{pattern}: expected a pattern that matches run directories")
    return frames_of([read_run(path) for path in found])


def table_of(results: Results) -> pd.DataFrame:
    """A row a variant, its cells as the report shows them: mean ± half of the 95 % interval."""
    import pandas as pd

    from fedsuv_plugin.experiments.report.cells import cell, heading, known

    shown = known(results)
    rows = {v.label: [cell(measure, v) for measure in shown] for v in results.variants}
    head = [heading(measure) for measure in shown]
    return pd.DataFrame.from_dict(rows, orient="index", columns=head)


def _whose(run: Run) -> dict[str, object]:
    return {
        "run": str(run.path),
        "sample_mode": run.settings["sample_mode"],
        "seed": run.settings["seed"],
    }


def _lines(run: Run, records: Records) -> Records:
    whose = _whose(run)
    return [whose | record for record in records]
